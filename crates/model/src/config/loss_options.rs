//! Model configuration: `[loss]` keys of all kinds: budget, skip, clamp, activation.
use std::{fmt, str::FromStr};

use rnnt_loss::{Activation, Options, PassScales, Pruning, TokenNormalization, Topology};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::loss::LossKind;
use super::{LossTerms, ModelConfig, table};
use crate::{Error as ModelError, Result as ModelResult, bytes};

/// `[loss]`: the loss.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LossConfig {
    /// The keys that all kinds share.
    #[serde(flatten)]
    pub options: LossOptions,
    /// The kind of loss.
    #[serde(flatten)]
    pub kind: LossKind,
}

impl<'de> Deserialize<'de> for LossConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (options, kind) = table::split(deserializer, &["budget", "skip", "clamp", "activation"], None)?;
        Ok(LossConfig { options, kind })
    }
}

/// The keys of `[loss]` that all kinds share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// Memory budget of the loss: bytes such as `"64MiB"`, `"recompute"` or `"unlimited"`.
    #[serde(deserialize_with = "deserialize_budget", serialize_with = "serialize_budget")]
    pub budget: LossBudget,
    /// Fraction of each utterance's occupancy whose sites are skipped in the gradient; 0 is exact.
    pub skip: f64,
    /// Largest absolute value of the gradient of one utterance's scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f64>,
    /// The nonlinearity of the joint network, in training and in decoding.
    pub activation: ActivationKind,
}

impl LossOptions {
    /// Returns options of the loss, with all other values from `base`.
    pub(crate) fn apply_to(self, base: Options) -> Options {
        let LossOptions { budget, skip, clamp, activation } = self;
        Options {
            budget: budget.bytes,
            keep_scores: budget.keep_scores,
            skip,
            clamp,
            activation: activation.activation(),
            ..base
        }
    }
}

/// The memory budget of a loss: `budget` of `[loss]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossBudget {
    /// Limit in bytes: [`Options::budget`](rnnt_loss::Options::budget).
    pub bytes: usize,
    /// Store scores for backward: [`Options::keep_scores`](rnnt_loss::Options::keep_scores).
    pub keep_scores: bool,
}

impl LossBudget {
    const RECOMPUTE: Self = Self { bytes: usize::MAX, keep_scores: false };
    const UNLIMITED: Self = Self { bytes: usize::MAX, keep_scores: true };
}

impl Default for LossBudget {
    fn default() -> Self {
        Self { bytes: rnnt_loss::DEFAULT_BUDGET, keep_scores: true }
    }
}

impl FromStr for LossBudget {
    type Err = String;

    /// Parses `recompute`, `unlimited`, or a byte count as [`bytes::parse`] does.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "recompute" => Ok(Self::RECOMPUTE),
            "unlimited" => Ok(Self::UNLIMITED),
            text => bytes::parse(text)
                .map(|bytes| Self { bytes, keep_scores: true })
                .map_err(|error| error + ", or recompute, or unlimited"),
        }
    }
}

impl fmt::Display for LossBudget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::RECOMPUTE => f.write_str("recompute"),
            Self::UNLIMITED => f.write_str("unlimited"),
            Self { bytes, .. } => bytes.fmt(f),
        }
    }
}

/// The nonlinearity of the joint network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationKind {
    /// tanh
    #[default]
    Tanh,
    /// ReLU
    Relu,
}

impl ActivationKind {
    /// Returns the option of the loss and the search.
    pub(crate) fn activation(self) -> Activation {
        match self {
            Self::Tanh => Activation::Tanh,
            Self::Relu => Activation::Relu,
        }
    }
}

/// Reads a budget from its text.
fn deserialize_budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LossBudget, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| D::Error::custom(format!("budget: {error}, found {text:?}")))
}

/// Writes a budget as text.
fn serialize_budget<S: Serializer>(budget: &LossBudget, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(budget)
}

impl ModelConfig {
    /// Returns the topology of the loss's lattice and of the search.
    ///
    /// Its arcs are those of blank and label, and of the loss's durations or big blanks.
    ///
    /// # Errors
    /// Durations that the topology does not support, which [`ModelConfig::check`] reports first;
    /// [`crate::Error::RecipeValue`] for a CTC model or a recognition lattice.
    pub fn topology(&self) -> ModelResult<Topology> {
        let topology = match &self.loss.kind {
            LossKind::Tdt { durations, .. } => Topology::tdt(durations),
            LossKind::MultiBlank { durations, .. } => self.terms.topology.clone().with_big_blanks(durations),
            LossKind::Rnnt { .. } | LossKind::Pruned { .. } => Ok(self.terms.topology.clone()),
            LossKind::Ctc {} => return Err(not_a_transducer_error("ctc")),
            LossKind::Gnat(_) => return Err(not_a_transducer_error("gnat")),
        };
        Ok(topology.map_err(rnnt_loss::Error::from)?)
    }

    /// Returns the options of the loss.
    ///
    /// # Errors
    /// As [`ModelConfig::topology`], except that CTC models have a loss.
    pub fn loss_options(&self) -> ModelResult<Options> {
        let LossTerms { fastemit, delay_penalty, label_smoothing, z_loss, .. } = self.terms;
        let loss = self.loss_kind()?;
        Ok(Options {
            loss,
            fastemit,
            delay_penalty,
            label_smoothing,
            z_loss,
            ..self.loss.options.apply_to(self.ctc_options())
        })
    }

    /// Returns the kind of loss with its options.
    fn loss_kind(&self) -> ModelResult<rnnt_loss::Loss> {
        Ok(match self.loss.kind {
            LossKind::Rnnt { factored_blank } => {
                let tokens = if factored_blank {
                    TokenNormalization::FactoredBlank
                } else {
                    TokenNormalization::Softmax
                };
                rnnt_loss::Loss::Transducer { topology: self.topology()?, tokens, sigma: 0.0 }
            }
            LossKind::Tdt { sigma, omega, .. } => {
                rnnt_loss::Loss::Tdt { topology: self.topology()?, sigma, omega }
            }
            LossKind::MultiBlank { sigma, .. } => {
                let tokens = TokenNormalization::Softmax;
                rnnt_loss::Loss::Transducer { topology: self.topology()?, tokens, sigma }
            }
            LossKind::Ctc {} => rnnt_loss::Loss::Ctc,
            LossKind::Gnat(_) => return Err(not_a_transducer_error("gnat")),
            LossKind::Pruned { s_range, lm_only_scale, am_only_scale, .. } => {
                let pruning = Pruning { s_range, lm_only_scale, am_only_scale, ..Pruning::default() };
                let tokens = TokenNormalization::Softmax;
                rnnt_loss::Loss::Pruned { topology: self.topology()?, tokens, pruning }
            }
        })
    }

    /// Returns the options of the auxiliary CTC loss, which is not regularized.
    pub(crate) fn ctc_options(&self) -> Options {
        let (precision, budget) = (self.terms.precision.precision(), self.loss.options.budget);
        Options {
            precision,
            budget: budget.bytes,
            keep_scores: budget.keep_scores,
            ..Options::new(rnnt_loss::Loss::Ctc)
        }
    }

    /// Returns the scales of the losses of pruned training.
    pub(crate) fn pass_scales(&self, step: u64) -> PassScales {
        let LossKind::Pruned { simple_scale, warm_steps, .. } = self.loss.kind else {
            return PassScales::default();
        };
        let scales = PassScales { simple: simple_scale, ..PassScales::default() };
        scales.warm_up(step as usize, warm_steps as usize)
    }
}

/// Returns the error of another kind where a transducer is required.
fn not_a_transducer_error(kind: &str) -> ModelError {
    let (expected, found) = ("a transducer".into(), kind.into());
    ModelError::RecipeValue { key: "loss.kind".into(), expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        assert_eq!("56MiB".parse(), Ok(LossBudget::default()));
        for text in ["recompute", "unlimited", "58720256", "0"] {
            assert_eq!(text.parse::<LossBudget>().unwrap().to_string(), text);
        }
        assert!("much".parse::<LossBudget>().unwrap_err().contains("unlimited"));
    }
}
