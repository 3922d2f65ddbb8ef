//! Connectionist temporal classification over compact emissions: the encoder's auxiliary objective.
//!
//! Graves et al. 2006. States alternate blank and label, `∅ y1 ∅ y2 ∅ .. yU ∅`; state `s` may be entered from
//! itself, from `s - 1`, and from `s - 2` when `s` is a label that differs from the one before.
use crate::{Error, Result, log_add};

/// Loss and adjoints of one utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct CtcPosterior {
    /// `-log P`; +inf where the labels do not fit into the frames.
    pub loss: f64,
    /// `dloss/demission`, *T x (U+1)*; 0 for an impossible utterance.
    pub adjoints: Vec<f64>,
}

/// Sums over all CTC alignments of an utterance.
///
/// # Shapes
/// `emissions` *T x (U+1)*: column 0 is blank, column `j` the `j`-th label. `labels` *U*: which labels are equal.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf.
///
/// # Cost
/// O(T U) time and memory.
pub fn forward_backward(labels: &[u32], emissions: &[f64]) -> Result<CtcPosterior> {
    let width = labels.len() + 1;
    let frames = emissions.len() / width;
    if frames * width != emissions.len() {
        return Err(Error::Length {
            argument: "emissions",
            expected: frames * width,
            found: emissions.len(),
        });
    }
    if frames == 0 {
        return Err(Error::NoFrames { utterance: 0 });
    }
    if let Some(at) = emissions.iter().position(|e| e.is_nan() || *e == f64::INFINITY) {
        let (frame, label) = (at / width, at % width);
        return Err(Error::Emission { utterance: 0, frame, label, arc: 0, value: emissions[at] });
    }
    let states = 2 * labels.len() + 1;
    let column = |s: usize| if s.is_multiple_of(2) { 0 } else { s.div_ceil(2) };
    let skips = |s: usize| s % 2 == 1 && s >= 3 && labels[s / 2] != labels[s / 2 - 1];
    let at = |t: usize, s: usize| emissions[t * width + column(s)];

    let none = f64::NEG_INFINITY;
    // α includes the emission of its frame, β does not.
    let mut alpha = vec![none; frames * states];
    for (s, alpha) in alpha.iter_mut().enumerate().take(states.min(2)) {
        *alpha = at(0, s);
    }
    for t in 1..frames {
        let (before, now) = alpha.split_at_mut(t * states);
        let before = &before[(t - 1) * states..];
        for s in 0..states {
            let mut sum = before[s];
            if s >= 1 {
                sum = log_add(sum, before[s - 1]);
            }
            if skips(s) {
                sum = log_add(sum, before[s - 2]);
            }
            now[s] = sum + at(t, s);
        }
    }
    let mut beta = vec![none; frames * states];
    for s in states.saturating_sub(2)..states {
        beta[(frames - 1) * states + s] = 0.0;
    }
    for t in (0..frames - 1).rev() {
        let (now, after) = beta.split_at_mut((t + 1) * states);
        let now = &mut now[t * states..];
        for s in 0..states {
            let mut sum = after[s] + at(t + 1, s);
            if s + 1 < states {
                sum = log_add(sum, after[s + 1] + at(t + 1, s + 1));
            }
            if s + 2 < states && skips(s + 2) {
                sum = log_add(sum, after[s + 2] + at(t + 1, s + 2));
            }
            now[s] = sum;
        }
    }
    let end = (frames - 1) * states;
    let log_p = (states.saturating_sub(2)..states).fold(none, |sum, s| log_add(sum, alpha[end + s]));
    let mut adjoints = vec![0.0; emissions.len()];
    if log_p.is_finite() {
        for t in 0..frames {
            for s in 0..states {
                let log = alpha[t * states + s] + beta[t * states + s] - log_p;
                adjoints[t * width + column(s)] -= log.exp();
            }
        }
    }
    Ok(CtcPosterior { loss: -log_p, adjoints })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emissions in which columns of equal labels are equal, as classes would make them.
    fn emissions(labels: &[u32], frames: usize) -> Vec<f64> {
        let value = |t: usize, class: u32| -(((t * 5 + class as usize * 3) % 7) as f64) / 2.0 - 0.1;
        (0..frames)
            .flat_map(|t| std::iter::once(value(t, 99)).chain(labels.iter().map(move |&l| value(t, l))))
            .collect()
    }

    #[test]
    fn adjoints_are_central_differences() {
        let labels = [2, 2, 1];
        let e = emissions(&labels, 6);
        let out = forward_backward(&labels, &e).unwrap();
        for i in 0..e.len() {
            let shifted = |d: f64| {
                let mut e = e.clone();
                e[i] += d;
                forward_backward(&labels, &e).unwrap().loss
            };
            assert!(((shifted(1e-5) - shifted(-1e-5)) / 2e-5 - out.adjoints[i]).abs() < 1e-9);
        }
    }

    #[test]
    fn bad_input_is_named() {
        assert!(matches!(forward_backward(&[1], &[0.0; 3]), Err(Error::Length { .. })));
        assert!(matches!(forward_backward(&[1], &[]), Err(Error::NoFrames { .. })));
        assert!(matches!(forward_backward(&[1], &[0.0, f64::NAN]), Err(Error::Emission { label: 1, .. })));
    }
}
