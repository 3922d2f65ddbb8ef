//! Which loss a model is trained with, and what it means for the lattice, the classes and the search.
use rnnt_loss::{Loss, Options, Pruning, Scales, Tokens, Topology};
use serde::{Deserialize, Serialize};

use super::{GnatConfig, Recipe, TrainingConfig};
use crate::{Error, Result};

/// `[loss]`: the kind of transducer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum LossConfig {
    /// The transducer loss over the whole lattice.
    Rnnt {
        /// Whether the blank is a sigmoid of its own score and the labels share what it leaves (HAT).
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
    /// Multi-blank transducer: blanks that move on several encoder frames, the last classes of the model in this order.
    MultiBlank {
        /// Frames of each, at least 2, none twice.
        durations: Vec<usize>,
        /// Logit under-normalisation σ, subtracted from the log-probability of each token.
        #[serde(default)]
        sigma: f64,
    },
    /// A trivial joiner over the whole lattice, and the joint network at the sites that it finds worth it.
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

fn not_a_transducer() -> Error {
    let (expected, found) = ("a transducer".into(), "gnat".into());
    Error::RecipeValue { key: "loss.kind".into(), expected, found }
}

fn five() -> usize {
    5
}
fn half() -> f64 {
    0.5
}

impl Default for LossConfig {
    fn default() -> Self {
        LossConfig::Rnnt { factored_blank: false }
    }
}

impl LossConfig {
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

impl Recipe {
    /// The moves of the lattice and of the search: those of blank and label, and what the loss adds to them.
    ///
    /// # Errors
    /// Durations that no topology has; [`Recipe::parse`] finds them first. [`Error::RecipeValue`] for a recognition lattice.
    pub fn topology(&self) -> Result<Topology> {
        let topology = match &self.loss.kind {
            LossConfig::Tdt { durations, .. } => Topology::tdt(durations),
            LossConfig::MultiBlank { durations, .. } => {
                self.training.topology.clone().with_big_blanks(durations)
            }
            LossConfig::Rnnt { .. } | LossConfig::Pruned { .. } => Ok(self.training.topology.clone()),
            LossConfig::Gnat(_) => return Err(not_a_transducer()),
        };
        Ok(topology.map_err(rnnt_loss::Error::from)?)
    }

    /// Options of the loss.
    ///
    /// # Errors
    /// As [`Recipe::topology`].
    pub fn loss_options(&self) -> Result<Options> {
        let TrainingConfig { fastemit, delay_penalty, label_smoothing, z_loss, .. } = self.training;
        let loss = self.kind()?;
        Ok(Options {
            loss,
            fastemit,
            delay_penalty,
            label_smoothing,
            z_loss,
            ..self.loss.options.options(self.ctc_options())
        })
    }

    fn kind(&self) -> Result<Loss> {
        let topology = self.topology()?;
        Ok(match self.loss.kind {
            LossConfig::Rnnt { factored_blank } => {
                let tokens = if factored_blank { Tokens::FactoredBlank } else { Tokens::Softmax };
                Loss::Transducer { topology, tokens, sigma: 0.0 }
            }
            LossConfig::Tdt { sigma, omega, .. } => Loss::Tdt { topology, sigma, omega },
            LossConfig::MultiBlank { sigma, .. } => {
                Loss::Transducer { topology, tokens: Tokens::Softmax, sigma }
            }
            LossConfig::Gnat(_) => return Err(not_a_transducer()),
            LossConfig::Pruned { s_range, lm_only_scale, am_only_scale, .. } => {
                let pruning = Pruning { s_range, lm_only_scale, am_only_scale, ..Pruning::default() };
                Loss::Pruned { topology, tokens: Tokens::Softmax, pruning }
            }
        })
    }

    /// Options of the auxiliary CTC loss, which is not regularised.
    pub(crate) fn ctc_options(&self) -> Options {
        let (precision, budget) = (self.training.precision.precision(), self.loss.options.budget);
        Options { precision, budget, ..Options::of(Loss::Ctc) }
    }

    /// Factors of both losses of pruned training at a step of the run.
    pub(crate) fn scales(&self, step: u64) -> Scales {
        let LossConfig::Pruned { simple_scale, warm_steps, .. } = self.loss.kind else {
            return Scales::default();
        };
        let scales = Scales { simple: simple_scale, ..Scales::default() };
        scales.warm_up(step as usize, warm_steps as usize)
    }
}
