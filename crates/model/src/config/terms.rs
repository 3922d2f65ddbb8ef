//! Model configuration: the keys of `[training]` that are terms of the objective.
//!
//! They are topology, regularizers, CTC weight and precision. The kind of loss and its options are
//! keys of `[loss]` (`loss.rs`, `loss_options.rs`).
use rnnt_loss::{Precision, Topology};
use serde::{Deserialize, Serialize};

use super::loss;

/// The keys of `[training]` for the objective.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossTerms {
    /// The [`Topology`] of blank and label: how many labels a frame may emit.
    ///
    /// Durations require the regular topology; big blanks do not support the constrained one.
    #[serde(with = "loss::topology_name")]
    pub topology: Topology,
    /// The number format of the factors of the head's products.
    ///
    /// `bf16` is several times as fast if the processor has instructions for it and the vocabulary
    /// is large.
    pub precision: PrecisionKind,
    /// Weight of the auxiliary CTC loss at the start.
    ///
    /// If it is 0 at the start and the end, the model has no CTC head.
    pub ctc_weight: f64,
    /// The weight at the end, reached linearly; by default that at the start.
    pub ctc_weight_end: Option<f64>,
    /// Weight λ of FastEmit, which favors labels over blanks.
    pub fastemit: f64,
    /// Penalty of each frame of delay of a label, in log-probability.
    pub delay_penalty: f64,
    /// Weight of the mean over all classes in each token's log-probability.
    ///
    /// Not defined for a factored blank.
    pub label_smoothing: f64,
    /// Factor of the mean square of logZ over an utterance's sites.
    pub z_loss: f64,
}

impl LossTerms {
    /// The names of the keys.
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

    /// Returns true if the CTC loss has a weight at any time.
    pub fn has_ctc(&self) -> bool {
        self.ctc_weight > 0.0 || self.ctc_weight_end.is_some_and(|end| end > 0.0)
    }

    /// Returns the weight of the CTC loss at a `progress` from 0 to 1.
    pub fn ctc_weight(&self, progress: f64) -> f64 {
        let end = self.ctc_weight_end.unwrap_or(self.ctc_weight);
        self.ctc_weight + (end - self.ctc_weight) * progress
    }
}

/// The number format of the head's products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionKind {
    /// `f32`
    #[default]
    Full,
    /// bf16, with sums in `f32`.
    Bf16,
    /// Two bf16 numbers for each `f32`, on processors with AMX; `f32` elsewhere.
    Bf16x3,
}

impl PrecisionKind {
    /// Returns the option of the loss.
    pub(crate) fn precision(self) -> Precision {
        match self {
            Self::Full => Precision::Full,
            Self::Bf16 => Precision::Bf16,
            Self::Bf16x3 => Precision::Bf16x3,
        }
    }
}
