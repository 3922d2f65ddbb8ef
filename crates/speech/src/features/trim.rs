//! Silence before and after.

use std::ops::Range;

/// Most samples whose mean power is looked at.
const SPAN: usize = 2048;

/// The samples that stay where silence at both ends is cut off.
///
/// ```text
/// P[j] = (x[j-w+1]² + ... + x[j]²) / w      w = min(2048, n), zeros before the signal
/// ```
/// With j and k the first and the last place where `P ≥ 10^(-db/10) max P`, samples `max(0, j - w + 1)..=k` stay: never less than all
/// that are so loud, and up to 2047 quiet ones on either side. A signal of zeros stays whole.
///
/// Sums are of non-negative numbers and never of more than w, so that loud sound leaves no residue behind it.
///
/// Cost: O(n) time, O(w) memory.
///
/// ```
/// use speech::features::trim;
///
/// let mut samples = vec![0.0; 10_000];
/// samples[4000..5000].fill(0.1);
/// // What P still hears of 1000 loud samples ends with the last quiet one that shares a span with the last loud one.
/// assert_eq!(trim(&samples, 60.0), 4000 - 2047..4999 + 2048);
/// ```
pub fn trim(samples: &[f32], db: f64) -> Range<usize> {
    let span = SPAN.min(samples.len());
    let mut loudest = 0f64;
    powers(samples, span, |_, power| loudest = loudest.max(power));
    let least = 10f64.powf(-db / 10.0) * loudest;
    let (mut first, mut last) = (None, 0);
    powers(samples, span, |j, power| {
        if power >= least {
            first.get_or_insert(j);
            last = j + 1;
        }
    });
    first.unwrap_or(0).saturating_sub(span.saturating_sub(1))..last
}

/// `w P[j]` of every sample: what is left of the block before, summed from its end, and what has come of this one.
fn powers(samples: &[f32], span: usize, mut each: impl FnMut(usize, f64)) {
    let square = |x: f32| f64::from(x).powi(2);
    // tails[i]: sum of the block before from its place i on.
    let mut tails = vec![0f64; span + 1];
    for (block, piece) in samples.chunks(span.max(1)).enumerate() {
        let mut sum = 0.0;
        for (i, &x) in piece.iter().enumerate() {
            sum += square(x);
            each(block * span + i, tails[i + 1] + sum);
        }
        for i in (0..piece.len()).rev() {
            tails[i] = tails[i + 1] + square(piece[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_definition() {
        let samples: Vec<f32> = (0..23).map(|i| ((i * 7) % 5) as f32).collect();
        for span in [1, 2, 5, 22, 23] {
            powers(&samples, span, |j, power| {
                let from = (j + 1).saturating_sub(span);
                let exact: f32 = samples[from..=j].iter().map(|x| x * x).sum();
                assert_eq!(power, f64::from(exact), "{span} {j}");
            });
        }
    }

    #[test]
    fn loud_sound_leaves_no_residue() {
        let mut samples = vec![0f32; 20_000];
        samples[3000..9000].iter_mut().enumerate().for_each(|(i, x)| *x = 1e4 + (i as f32).sin());
        samples[12_000] = 1e-30;
        assert_eq!(trim(&samples, 60.0), 3000 - 2047..8999 + 2048);
        assert_eq!(trim(&[], 60.0), 0..0);
        assert_eq!(trim(&[0.0; 5], 60.0), 0..5);
        assert_eq!(trim(&[-0.5], 60.0), 0..1);
    }
}
