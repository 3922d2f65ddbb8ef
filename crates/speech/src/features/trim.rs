//! Trims silence at both ends of audio, before features are computed.

use std::ops::Range;

/// Samples of the power window of a longer signal.
const MAX_WINDOW: usize = 2048;

/// Returns the samples that remain when silence at both ends is removed.
///
/// ```text
/// P[j] = (x[j-w+1]² + ... + x[j]²) / w      w = min(2048, n), zeros before the signal
/// ```
/// With j and k the first and the last index where `P ≥ 10^(-db/10) max P`, samples `max(0, j - w +
/// 1)..=k` remain: all samples that are so loud, and up to 2047 quieter ones on either side. A
/// signal of zeros remains whole.
///
/// Sums have at most w non-negative terms, so that loud sections leave no rounding residue.
///
/// Cost: O(n) time, O(w) memory.
///
/// ```
/// use speech::features::trim;
///
/// let mut samples = vec![0.0; 10_000];
/// samples[4000..5000].fill(0.1);
/// // P covers 2047 samples beyond the 1000 loud ones.
/// assert_eq!(trim(&samples, 60.0), 4000 - 2047..4999 + 2048);
/// ```
pub fn trim(samples: &[f32], db: f64) -> Range<usize> {
    let window = MAX_WINDOW.min(samples.len());
    let mut loudest = 0f64;
    visit_powers(samples, window, |_, power| loudest = loudest.max(power));
    let threshold = 10f64.powf(-db / 10.0) * loudest;
    let (mut first, mut end) = (None, 0);
    visit_powers(samples, window, |j, power| {
        if power >= threshold {
            first.get_or_insert(j);
            end = j + 1;
        }
    });
    first.unwrap_or(0).saturating_sub(window.saturating_sub(1))..end
}

/// Calls `visit` with `w P[j]` of every sample.
///
/// It is the sum of the end of the previous block and of this block so far; a block has w samples.
fn visit_powers(samples: &[f32], window: usize, mut visit: impl FnMut(usize, f64)) {
    let square = |x: f32| f64::from(x).powi(2);
    // tails[i]: sum of the previous block from its index i.
    let mut tails = vec![0f64; window + 1];
    for (block, block_samples) in samples.chunks(window.max(1)).enumerate() {
        let mut sum = 0.0;
        for (i, &x) in block_samples.iter().enumerate() {
            sum += square(x);
            visit(block * window + i, tails[i + 1] + sum);
        }
        for i in (0..block_samples.len()).rev() {
            tails[i] = tails[i + 1] + square(block_samples[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_match_the_definition() {
        let samples: Vec<f32> = (0..23).map(|i| ((i * 7) % 5) as f32).collect();
        for window in [1, 2, 5, 22, 23] {
            visit_powers(&samples, window, |j, power| {
                let start = (j + 1).saturating_sub(window);
                let exact: f32 = samples[start..=j].iter().map(|x| x * x).sum();
                assert_eq!(power, f64::from(exact), "{window} {j}");
            });
        }
    }

    #[test]
    fn loud_sections_leave_no_residue() {
        let mut samples = vec![0f32; 20_000];
        samples[3000..9000].iter_mut().enumerate().for_each(|(i, x)| *x = 1e4 + (i as f32).sin());
        samples[12_000] = 1e-30;
        assert_eq!(trim(&samples, 60.0), 3000 - 2047..8999 + 2048);
        assert_eq!(trim(&[], 60.0), 0..0);
        assert_eq!(trim(&[0.0; 5], 60.0), 0..5);
        assert_eq!(trim(&[-0.5], 60.0), 0..1);
    }
}
