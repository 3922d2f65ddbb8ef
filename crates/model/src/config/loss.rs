//! Which loss a model is trained with, and what it means for the lattice, the classes and the
//! search.
use serde::{Deserialize, Serialize};

use super::gnat::GnatConfig;

/// `[loss]`: the kind of transducer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum LossKind {
    /// The transducer loss over the whole lattice.
    Rnnt {
        /// Whether the blank is a sigmoid of its own score and the labels share what it leaves
        /// (HAT).
        #[serde(default)]
        factored_blank: bool,
    },
    /// Token-and-duration transducer: a second head says how many encoder frames a token moves on.
    Tdt {
        /// What that head chooses from; one of at least 1, none twice.
        durations: Vec<usize>,
        /// Logit under-normalisation σ, subtracted from the log-probability of each token.
        #[serde(default)]
        sigma: f64,
        /// Share of the plain transducer loss, from 0 to 1.
        #[serde(default)]
        omega: f64,
    },
    /// Multi-blank transducer: blanks that move on several encoder frames, the last classes of the
    /// model in this order.
    MultiBlank {
        /// Frames of each, at least 2, none twice.
        durations: Vec<usize>,
        /// Logit under-normalisation σ, subtracted from the log-probability of each token.
        #[serde(default)]
        sigma: f64,
    },
    /// A trivial joiner over the whole lattice, and the joint network at the sites that it finds
    /// worth it.
    Pruned {
        /// Label positions that a frame keeps, at least 2.
        #[serde(default = "five")]
        s_range: usize,
        /// Factor of the trivial joiner's loss.
        #[serde(default = "half")]
        simple_scale: f64,
        /// Share of the label scores alone in the trivial joiner's log-probabilities.
        #[serde(default)]
        lm_only_scale: f64,
        /// Share of the frame scores alone.
        #[serde(default)]
        am_only_scale: f64,
        /// Steps over which the scales of both losses go from 1 and 0.1 to `simple_scale` and 1.
        #[serde(default)]
        warm_steps: u64,
    },
    /// A recognition lattice over the last labels, normalised over whole paths (GNAT).
    Gnat(GnatConfig),
}

fn five() -> usize {
    5
}
fn half() -> f64 {
    0.5
}

impl Default for LossKind {
    fn default() -> Self {
        LossKind::Rnnt { factored_blank: false }
    }
}

impl LossKind {
    /// Frames of the big blanks.
    pub fn big_blanks(&self) -> &[usize] {
        match self {
            Self::MultiBlank { durations, .. } => durations,
            _ => &[],
        }
    }

    /// The recognition lattice, if it is one.
    pub fn gnat(&self) -> Option<&GnatConfig> {
        match self {
            Self::Gnat(config) => Some(config),
            _ => None,
        }
    }

    /// Frames that the duration head chooses from.
    pub fn durations(&self) -> &[usize] {
        match self {
            Self::Tdt { durations, .. } => durations,
            _ => &[],
        }
    }
}

/// Topologies by their names.
pub(super) mod name {
    use rnnt_loss::Topology;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(topology: &Topology, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(topology)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
