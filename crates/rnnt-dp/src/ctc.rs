//! Connectionist temporal classification over compact emissions: the encoder's auxiliary objective.
//!
//! Graves et al. 2006. States alternate blank and label, `∅ y1 ∅ y2 ∅ .. yU ∅`; state `s` may be entered from
//! itself, from `s - 1`, and from `s - 2` when `s` is a label that differs from the one before.
mod path;

pub use path::{CtcPath, best_path, sample_paths};

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
    let trellis = Trellis::new(labels, emissions)?;
    let (frames, states, width) = (trellis.frames, trellis.states(), labels.len() + 1);
    let at = |t: usize, s: usize| trellis.at(t, s);

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
            if trellis.skips(s) {
                sum = log_add(sum, before[s - 2]);
            }
            now[s] = sum + at(t, s);
        }
    }
    let beta = trellis.log_beta();
    let end = (frames - 1) * states;
    let log_p = trellis.last().fold(none, |sum, s| log_add(sum, alpha[end + s]));
    let mut adjoints = vec![0.0; emissions.len()];
    if log_p.is_finite() {
        for t in 0..frames {
            for s in 0..states {
                let log = alpha[t * states + s] + beta[t * states + s] - log_p;
                adjoints[t * width + Trellis::column(s)] -= log.exp();
            }
        }
    }
    Ok(CtcPosterior { loss: -log_p, adjoints })
}

/// The states of an utterance at each of its frames.
struct Trellis<'a> {
    labels: &'a [u32],
    emissions: &'a [f64],
    frames: usize,
}

impl<'a> Trellis<'a> {
    fn new(labels: &'a [u32], emissions: &'a [f64]) -> Result<Self> {
        let width = labels.len() + 1;
        let frames = emissions.len() / width;
        if frames * width != emissions.len() {
            let (expected, found) = (frames * width, emissions.len());
            return Err(Error::Length { argument: "emissions", expected, found });
        }
        if frames == 0 {
            return Err(Error::NoFrames { utterance: 0 });
        }
        if let Some(at) = emissions.iter().position(|e| e.is_nan() || *e == f64::INFINITY) {
            let (frame, label) = (at / width, at % width);
            return Err(Error::Emission { utterance: 0, frame, label, arc: 0, value: emissions[at] });
        }
        Ok(Self { labels, emissions, frames })
    }

    fn states(&self) -> usize {
        2 * self.labels.len() + 1
    }

    /// The states in which an utterance may end.
    fn last(&self) -> std::ops::Range<usize> {
        self.states().saturating_sub(2)..self.states()
    }

    /// Column of a state: 0 for blank, `j` for the `j`-th label.
    fn column(state: usize) -> usize {
        if state.is_multiple_of(2) { 0 } else { state.div_ceil(2) }
    }

    /// Whether a state may be entered from the second before it.
    fn skips(&self, s: usize) -> bool {
        s % 2 == 1 && s >= 3 && self.labels[s / 2] != self.labels[s / 2 - 1]
    }

    /// The states that may follow.
    fn next(&self, s: usize) -> impl Iterator<Item = usize> {
        let end = self.states();
        [Some(s), Some(s + 1), (s + 2 < end && self.skips(s + 2)).then_some(s + 2)]
            .into_iter()
            .flatten()
            .filter(move |&next| next < end)
    }

    /// Emission of a state.
    fn at(&self, t: usize, s: usize) -> f64 {
        self.emissions[t * (self.labels.len() + 1) + Self::column(s)]
    }

    /// Log-sums over what follows a state, its own emission left out, *T x states*.
    fn log_beta(&self) -> Vec<f64> {
        let states = self.states();
        let mut beta = vec![f64::NEG_INFINITY; self.frames * states];
        let end = (self.frames - 1) * states;
        self.last().for_each(|s| beta[end + s] = 0.0);
        for t in (0..self.frames - 1).rev() {
            let (now, after) = beta.split_at_mut((t + 1) * states);
            for (s, now) in now[t * states..].iter_mut().enumerate() {
                *now = self
                    .next(s)
                    .fold(f64::NEG_INFINITY, |sum, next| log_add(sum, after[next] + self.at(t + 1, next)));
            }
        }
        beta
    }
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
