//! Which loss a model is trained with, and what it means for the lattice, the classes and the search.
use decoding::Greedy;
use rnnt_loss::{Loss, Options, Pruning, Scales, Tokens, Topology};
use serde::{Deserialize, Serialize};

use super::{Recipe, TrainingConfig};
use crate::Result;

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

    /// Frames that the duration head chooses from.
    pub fn durations(&self) -> &[usize] {
        match self {
            Self::Tdt { durations, .. } => durations,
            _ => &[],
        }
    }
}

/// Which arcs the lattice has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyKind {
    /// A label stays on its frame, blank moves on: any number of labels a frame.
    #[default]
    Regular,
    /// Labels and blank move on: at most one label a frame.
    Modified,
    /// As modified, and a label is followed by the blank of its own frame.
    Constrained,
}

impl TopologyKind {
    fn topology(self) -> Topology {
        match self {
            Self::Regular => Topology::rnnt(),
            Self::Modified => Topology::modified(),
            Self::Constrained => Topology::constrained(),
        }
    }
}

impl Recipe {
    /// Options of the loss.
    ///
    /// # Errors
    /// Durations that no topology has; [`Recipe::parse`] finds them first.
    pub fn loss_options(&self) -> Result<Options> {
        let TrainingConfig { fastemit, delay_penalty, label_smoothing, z_loss, .. } = self.training;
        let loss = self.kind()?;
        Ok(Options { loss, fastemit, delay_penalty, label_smoothing, z_loss, ..self.ctc_options() })
    }

    fn kind(&self) -> Result<Loss> {
        let topology = self.training.topology.topology();
        Ok(match self.loss {
            LossConfig::Rnnt { factored_blank } => {
                let tokens = if factored_blank { Tokens::FactoredBlank } else { Tokens::Softmax };
                Loss::Transducer { topology, tokens, sigma: 0.0 }
            }
            LossConfig::Tdt { ref durations, sigma, omega } => {
                let topology = Topology::tdt(durations).map_err(rnnt_loss::Error::from)?;
                Loss::Tdt { topology, sigma, omega }
            }
            LossConfig::MultiBlank { ref durations, sigma } => {
                let big = Topology::multi_blank(durations).map_err(rnnt_loss::Error::from)?;
                let big = &big.arcs()[topology.arcs().len()..];
                let arcs = topology.arcs().iter().chain(big).copied().collect();
                let topology = Topology::new(arcs).map_err(rnnt_loss::Error::from)?;
                Loss::Transducer { topology, tokens: Tokens::Softmax, sigma }
            }
            LossConfig::Pruned { s_range, lm_only_scale, am_only_scale, .. } => {
                let pruning = Pruning { s_range, lm_only_scale, am_only_scale, ..Pruning::default() };
                Loss::Pruned { topology, tokens: Tokens::Softmax, pruning }
            }
        })
    }

    /// Options of the auxiliary CTC loss, which is not regularised.
    pub(crate) fn ctc_options(&self) -> Options {
        Options { precision: self.training.precision.precision(), ..Options::of(Loss::Ctc) }
    }

    /// Factors of both losses of pruned training at a step of the run.
    pub(crate) fn scales(&self, step: u64) -> Scales {
        let LossConfig::Pruned { simple_scale, warm_steps, .. } = self.loss else {
            return Scales::default();
        };
        let scales = Scales { simple: simple_scale, ..Scales::default() };
        scales.warm_up(step as usize, warm_steps as usize)
    }

    /// The search that follows the arcs of the lattice.
    pub(crate) fn greedy(&self) -> Greedy {
        match self.training.topology {
            TopologyKind::Regular => Greedy::default(),
            TopologyKind::Modified | TopologyKind::Constrained => Greedy { max_symbols: 1 },
        }
    }
}
