//! What training minimises, and how exactly.
use rnnt_loss::{Precision, Topology};
use serde::{Deserialize, Serialize};

use super::loss;

/// The keys of `[training]` that belong to the objective.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossTerms {
    /// The name of a [`Topology`] of blank and label, which says whether a frame may emit several
    /// labels or one at most; durations need the regular one, big blanks do not know the
    /// constrained one.
    #[serde(with = "loss::name")]
    pub topology: Topology,
    /// What the factors of the head's products are rounded to: `bf16` is several times as fast
    /// where the processor has instructions for it and the vocabulary is large.
    pub precision: PrecisionKind,
    /// Weight of the auxiliary CTC loss at the start; without a weight at start and end there is no
    /// CTC head.
    pub ctc_weight: f64,
    /// Its weight at the end, reached linearly; the same as at the start if missing.
    pub ctc_weight_end: Option<f64>,
    /// FastEmit's λ.
    pub fastemit: f64,
    /// What a frame of delay costs a label, in log-probability.
    pub delay_penalty: f64,
    /// Share of the mean over all classes in each token's log-probability; not with a factored
    /// blank.
    pub label_smoothing: f64,
    /// Factor of the mean square of logZ over an utterance's sites.
    pub z_loss: f64,
}

impl LossTerms {
    /// The keys.
    pub(super) const KEYS: [&str; 8] = [
        "topology",
        "precision",
        "ctc_weight",
        "ctc_weight_end",
        "fastemit",
        "delay_penalty",
        "label_smoothing",
        "z_loss",
    ];

    /// Whether the CTC loss has a weight at any time.
    pub fn has_ctc(&self) -> bool {
        self.ctc_weight > 0.0 || self.ctc_weight_end.is_some_and(|end| end > 0.0)
    }

    /// Weight of the CTC loss when the share `progress` of the run is over.
    pub fn ctc_weight(&self, progress: f64) -> f64 {
        let end = self.ctc_weight_end.unwrap_or(self.ctc_weight);
        self.ctc_weight + (end - self.ctc_weight) * progress
    }
}

/// Numbers of the head's products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionKind {
    /// `f32`
    #[default]
    Full,
    /// bf16, with sums in `f32`.
    Bf16,
}

impl PrecisionKind {
    /// For the loss.
    pub(crate) fn precision(self) -> Precision {
        match self {
            Self::Full => Precision::Full,
            Self::Bf16 => Precision::Bf16,
        }
    }
}
