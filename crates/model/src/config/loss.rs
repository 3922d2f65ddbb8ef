//! Model configuration: kinds of `[loss]`, RNN-T, TDT, multi-blank, pruned, CTC, GNAT.
use serde::{Deserialize, Serialize};

use super::gnat::GnatConfig;

/// `[loss]`: the kind of loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum LossKind {
    /// The transducer loss over the whole lattice.
    Rnnt {
        /// True to factor the blank: a sigmoid of its score, and a softmax over the labels (HAT).
        #[serde(default)]
        factored_blank: bool,
    },
    /// Token-and-duration transducer: a second head selects the frames that a token advances.
    Tdt {
        /// The durations of that head; at least one above 0, none twice.
        durations: Vec<usize>,
        /// Logit under-normalization σ, subtracted from the log-probability of each token.
        #[serde(default)]
        sigma: f64,
        /// Weight of the transducer loss without durations, from 0 to 1.
        #[serde(default)]
        omega: f64,
    },
    /// Multi-blank transducer: blanks that advance several encoder frames.
    ///
    /// They are the last classes of the model, in this order.
    MultiBlank {
        /// Frames of each blank, at least 2, none twice.
        durations: Vec<usize>,
        /// Logit under-normalization σ, subtracted from the log-probability of each token.
        #[serde(default)]
        sigma: f64,
    },
    /// Pruned transducer: a simple joiner selects sites for the joint network.
    ///
    /// The simple joiner adds a frame score and a label score, over the whole lattice.
    Pruned {
        /// Label positions retained for each frame, at least 2.
        #[serde(default = "default_s_range")]
        s_range: usize,
        /// Factor of the simple joiner's loss.
        #[serde(default = "default_simple_scale")]
        simple_scale: f64,
        /// Weight of the label scores only in the simple joiner's log-probabilities.
        #[serde(default)]
        lm_only_scale: f64,
        /// Weight of the frame scores only in the simple joiner's log-probabilities.
        #[serde(default)]
        am_only_scale: f64,
        /// Number of steps until both losses have their final factors.
        ///
        /// The simple joiner's factor changes from 1 to `simple_scale`, that of the pruned loss
        /// from 0.1 to 1.
        #[serde(default)]
        warm_steps: u64,
    },
    /// Connectionist temporal classification: a head on the encoder, without joint network.
    Ctc {},
    /// A recognition lattice over the last labels, with globally normalized paths (GNAT).
    Gnat(GnatConfig),
}

fn default_s_range() -> usize {
    5
}
fn default_simple_scale() -> f64 {
    0.5
}

impl Default for LossKind {
    fn default() -> Self {
        LossKind::Rnnt { factored_blank: false }
    }
}

impl LossKind {
    /// Returns the frames of the big blanks.
    pub(crate) fn big_blanks(&self) -> &[usize] {
        match self {
            Self::MultiBlank { durations, .. } => durations,
            _ => &[],
        }
    }

    /// Returns true for CTC, which has no predictor and no joint network.
    pub fn is_ctc(&self) -> bool {
        matches!(self, Self::Ctc {})
    }

    /// Returns the keys of the recognition lattice, if it is one.
    pub fn gnat(&self) -> Option<&GnatConfig> {
        match self {
            Self::Gnat(config) => Some(config),
            _ => None,
        }
    }

    /// Returns the durations of the duration head of TDT; none for other kinds.
    pub fn durations(&self) -> &[usize] {
        match self {
            Self::Tdt { durations, .. } => durations,
            _ => &[],
        }
    }
}

/// Serialization of topologies by name.
pub(super) mod topology_name {
    use rnnt_loss::Topology;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(topology: &Topology, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(topology)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
