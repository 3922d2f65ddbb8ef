//! Model configuration: `[init]`, random initialization or weights from a file.
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::table;
use super::values::{check_non_negative, ensure};
use crate::Result;

/// `[init]`: the initial weights of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct InitConfig {
    /// The kind of random initialization.
    #[serde(flatten)]
    pub kind: InitKind,
    /// A file whose weights replace the random ones.
    #[serde(flatten)]
    pub pretrained: PretrainedConfig,
}

/// The keys of `[init]` for the weights of another model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PretrainedConfig {
    /// A checkpoint, or another safetensors file whose tensors are named like parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Names of parameters or modules that are not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
}

impl PretrainedConfig {
    /// Returns true if `skip` covers a parameter.
    pub(crate) fn is_skipped(&self, parameter: &str) -> bool {
        self.skip.iter().any(|name| covers(name, parameter))
    }
}

/// Returns true if `name` is a parameter or a module around it.
pub(crate) fn covers(name: &str, parameter: &str) -> bool {
    parameter.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl<'de> Deserialize<'de> for InitConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (pretrained, kind) = table::split(deserializer, &["weights", "skip"], Some("plain"))?;
        Ok(InitConfig { kind, pretrained })
    }
}

impl InitConfig {
    /// Returns true if no key is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`].
    pub fn check(&self) -> Result<()> {
        let PretrainedConfig { weights, skip } = &self.pretrained;
        ensure("init.skip", "none without init.weights", skip.is_empty() || weights.is_some(), "some")?;
        self.kind.check()
    }
}

/// The kind of random initialization.
///
/// Each parameter has a separate random stream. A matrix with D inputs is uniform within ±1/√D,
/// those of an LSTM of width H within ±1/√H, embeddings are normal with standard deviation 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub enum InitKind {
    /// Biases are 0, those of forget gates 1.
    Plain {},
    /// The initialization of MLPerf Training's RNN-T.
    ///
    /// Biases are drawn like their matrices; then forget gates' input biases are set to 1 and their
    /// hidden biases multiplied by `hidden_bias_scale`; then all weights and biases of LSTMs by
    /// `scale`.
    Mlperf {
        /// Factor of all weights and biases of LSTMs.
        #[serde(default = "default_scale")]
        scale: f64,
        /// Factor of the forget gates' hidden biases.
        #[serde(default)]
        hidden_bias_scale: f64,
    },
}

fn default_scale() -> f64 {
    0.5
}

impl Default for InitKind {
    fn default() -> Self {
        Self::Plain {}
    }
}

impl InitKind {
    /// Checks every value.
    pub(crate) fn check(&self) -> Result<()> {
        let &Self::Mlperf { scale, hidden_bias_scale } = self else { return Ok(()) };
        check_non_negative("init.scale", scale)?;
        check_non_negative("init.hidden_bias_scale", hidden_bias_scale)
    }
}
