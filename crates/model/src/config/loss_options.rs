//! What every kind of loss can be told.
use rnnt_loss::{Activation, Options};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::loss::LossConfig;
use super::table;
use crate::bytes::LossBudget;

/// `[loss]`
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Loss {
    /// The keys that all kinds share.
    #[serde(flatten)]
    pub options: LossOptions,
    /// The kind of transducer.
    #[serde(flatten)]
    pub kind: LossConfig,
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (options, kind) = table::split(deserializer, &["budget", "skip", "clamp", "activation"], None)?;
        Ok(Loss { options, kind })
    }
}

/// The keys of `[loss]` that all kinds share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// What the loss may hold beside its arguments and results: bytes such as `"64MiB"`, `"recompute"` or `"unlimited"`.
    #[serde(deserialize_with = "read", serialize_with = "write")]
    pub budget: LossBudget,
    /// Share of each utterance's occupancy whose sites are left out of the gradient; 0 = exact.
    pub skip: f64,
    /// Largest element of the gradient of one utterance's scores, either way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f64>,
    /// What the joint network does to its sum, in training and in decoding.
    pub activation: ActivationKind,
}

impl LossOptions {
    /// For the loss; what these keys do not say is as in `others`.
    pub(crate) fn options(self, others: Options) -> Options {
        let LossOptions { budget, skip, clamp, activation } = self;
        Options {
            budget: budget.bytes,
            keep_scores: budget.keep_scores,
            skip,
            clamp,
            activation: activation.activation(),
            ..others
        }
    }
}

/// Nonlinearity of the joint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationKind {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// Positive part.
    Relu,
}

impl ActivationKind {
    /// For the loss and the search.
    pub(crate) fn activation(self) -> Activation {
        match self {
            Self::Tanh => Activation::Tanh,
            Self::Relu => Activation::Relu,
        }
    }
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LossBudget, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| D::Error::custom(format!("budget: {error}, found {text:?}")))
}

fn write<S: Serializer>(budget: &LossBudget, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(budget)
}
