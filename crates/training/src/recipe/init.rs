//! How first weights are drawn.
use serde::{Deserialize, Serialize};

use super::check::at_least_zero;
use crate::Result;

/// `[init]`: the law of the first weights, each from its own stream.
///
/// A matrix of D inputs starts uniform in ±1/√D, those of an LSTM of width H in ±1/√H, embeddings normal with deviation 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub enum InitConfig {
    /// Biases start at 0, those of forget gates at 1.
    Plain {},
    /// As MLPerf Training's RNN-T: biases start as their matrices do; then forget gates' input biases are set to 1 and their hidden
    /// biases multiplied by `hidden_bias_scale`; then all weights and biases of LSTMs by `scale`.
    Mlperf {
        /// Factor of everything in LSTMs.
        #[serde(default = "half")]
        scale: f64,
        /// Factor of the forget gates' hidden biases.
        #[serde(default)]
        hidden_bias_scale: f64,
    },
}

fn half() -> f64 {
    0.5
}

impl Default for InitConfig {
    fn default() -> Self {
        Self::Plain {}
    }
}

impl InitConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::Plain {}
    }

    /// Checks every value.
    pub(crate) fn check(&self) -> Result<()> {
        let &Self::Mlperf { scale, hidden_bias_scale } = self else { return Ok(()) };
        at_least_zero("init.scale", scale)?;
        at_least_zero("init.hidden_bias_scale", hidden_bias_scale)
    }
}
