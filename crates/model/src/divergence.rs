//! `Error::divergence`: errors of the loss that mean diverged training.
//!
//! Divergence is a score, loss, gradient or weight that is not finite.
use crate::Error;

/// A quantity of training that is no longer finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// The quantity.
    pub what: &'static str,
    /// Its value, if known.
    pub found: Option<f64>,
}

impl Error {
    /// Returns the divergence that has caused an error; none for any other error.
    ///
    /// Recipes do not mask classes: a site (a lattice node) where all classes are at -inf has
    /// diverged as well.
    pub fn divergence(&self) -> Option<Divergence> {
        let error = match self {
            Error::Loss(error) => error,
            Error::Lattice(lattice::Error::Parameter { value, .. }) => {
                return Some(Divergence { what: "parameter of the lattice", found: Some(*value) });
            }
            Error::Lattice(lattice::Error::Frame { value, .. }) => {
                return Some(Divergence { what: "encoder frame", found: Some(*value) });
            }
            Error::Lattice(lattice::Error::Overflow { value, .. }) => {
                return Some(Divergence { what: "loss", found: Some(*value) });
            }
            _ => return None,
        };
        let (what, found) = match error {
            rnnt_loss::Error::Scores { .. } | rnnt_loss::Error::Frame { .. } => (SCORE, None),
            rnnt_loss::Error::Loss { found, .. } => ("loss", Some(*found)),
            rnnt_loss::Error::Normalizer(error) => match error {
                panda_core::Error::NotFinite { .. } | panda_core::Error::AllMasked { .. } => (SCORE, None),
                panda_core::Error::InfiniteWeight { value, .. } => ("weight of the head", Some(*value)),
                panda_core::Error::Adjoint { value, .. } => ("gradient of the scores", Some(*value)),
                _ => return None,
            },
            rnnt_loss::Error::FirstPass(error) => match error {
                pruned::Error::Score { value, .. } => (SCORE, Some(*value)),
                pruned::Error::Padding { .. } | pruned::Error::AllMasked { .. } => (SCORE, None),
                pruned::Error::Weight { value, .. } => ("weight of the simple joiner", Some(*value)),
                _ => return None,
            },
            rnnt_loss::Error::Lattice(error) => match error {
                rnnt_dp::Error::Emission { value, .. } => ("log-probability", Some(*value)),
                rnnt_dp::Error::Overflow { loss, .. } => ("loss", Some(*loss)),
                _ => return None,
            },
            _ => return None,
        };
        Some(Divergence { what, found })
    }
}

/// The quantity of errors about scores.
const SCORE: &str = "score of every class";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_are_not_finite_are_divergence() {
        type LossError = rnnt_loss::Error;
        let scores = LossError::Scores { utterance: 1, frame: 2, label: 3, found: "NaN or +inf" };
        let frame = LossError::Frame { utterance: 1, frame: 2, found: "NaN or +inf" };
        let weight = panda_core::Error::InfiniteWeight { class: 3, value: f64::INFINITY };
        let adjoint = panda_core::Error::Adjoint { argument: "adjoints", site: 3, value: f64::INFINITY };
        let first = pruned::Error::AllMasked { utterance: 0, frame: 1, position: 2 };
        let overflow = rnnt_dp::Error::Overflow { utterance: 0, loss: f64::NEG_INFINITY };
        let infinite = |what, value| Some((what, Some(value)));
        for (error, expected) in [
            (scores, Some((SCORE, None))),
            (frame, Some((SCORE, None))),
            (LossError::Normalizer(weight), infinite("weight of the head", f64::INFINITY)),
            (LossError::Normalizer(adjoint), infinite("gradient of the scores", f64::INFINITY)),
            (LossError::FirstPass(first), Some((SCORE, None))),
            (LossError::Lattice(overflow), infinite("loss", f64::NEG_INFINITY)),
            (LossError::Loss { utterance: 0, found: f64::NEG_INFINITY }, infinite("loss", f64::NEG_INFINITY)),
        ] {
            let divergence = Error::from(error).divergence().map(|d| (d.what, d.found));
            assert_eq!(divergence, expected);
        }
    }

    #[test]
    fn other_errors_keep_their_messages() {
        type LossError = rnnt_loss::Error;
        for (error, part) in [
            (LossError::Normalizer(panda_core::Error::Zero { argument: "classes" }), "`classes`"),
            (LossError::Normalizer(panda_core::Error::Clamp { limit: -1.0 }), "clamp"),
            (LossError::FirstPass(pruned::Error::Zero { argument: "s_range" }), "`s_range`"),
            (LossError::FirstPass(pruned::Error::BlankOutOfRange { blank: 9, classes: 3 }), "blank"),
            (LossError::Lattice(rnnt_dp::Error::NoArcs), "topology"),
            (LossError::Batch { expected: 2, found: 1 }, "labels"),
            (LossError::Skip { found: 2.0 }, "skip"),
        ] {
            let error = Error::from(error);
            assert_eq!(error.divergence(), None, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(Error::shape("x", "finite", "NaN").divergence(), None);
    }
}
