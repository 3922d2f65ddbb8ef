//! Model configuration: `[init]`, random initialization or weights from a file.
use std::ops::Range;
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
    /// Names of parameters or modules that training does not change; see [`covers`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// True to use the checkpoint's tokenizer instead of training one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_tokens: bool,
    /// True to read the rows of labels by their tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub match_tokens: bool,
}

impl PretrainedConfig {
    /// Returns true if `skip` covers a parameter.
    pub(crate) fn is_skipped(&self, parameter: &str) -> bool {
        self.skip.iter().any(|name| covers(name, parameter))
    }
}

/// Returns true if `name` is a parameter or a module around it.
///
/// The last part of a name may be a range of numbers: `encoder.layers.0..22` are the layers 0 to
/// 21.
///
/// ```
/// use model::config::covers;
///
/// assert!(covers("encoder.layers.0..22", "encoder.layers.21.norm.bias"));
/// assert!(!covers("encoder.layers.1", "encoder.layers.12.norm.bias"));
/// ```
pub fn covers(name: &str, parameter: &str) -> bool {
    match number_range(name) {
        Some((module, range)) => {
            let rest = parameter.strip_prefix(module).and_then(|rest| rest.strip_prefix('.'));
            let number = rest.and_then(|rest| rest.split('.').next()?.parse().ok());
            number.is_some_and(|number| range.contains(&number))
        }
        None => parameter.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
    }
}

/// Returns module and numbers of a range such as `encoder.layers.0..22`; none for other names.
pub fn number_range(name: &str) -> Option<(&str, Range<usize>)> {
    let (rest, end) = name.rsplit_once("..")?;
    let (module, start) = rest.rsplit_once('.')?;
    Some((module, start.parse().ok()?..end.parse().ok()?))
}

impl<'de> Deserialize<'de> for InitConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (pretrained, kind) = table::split(
            deserializer,
            &["weights", "skip", "frozen", "keep_tokens", "match_tokens"],
            Some("plain"),
        )?;
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
        let PretrainedConfig { weights, skip, frozen, keep_tokens, match_tokens } = &self.pretrained;
        let expected = "none without init.weights";
        ensure("init.skip", expected, skip.is_empty() || weights.is_some(), "some")?;
        ensure("init.frozen", expected, frozen.is_empty() || weights.is_some(), "some")?;
        for (key, value) in [("init.keep_tokens", keep_tokens), ("init.match_tokens", match_tokens)] {
            ensure(key, "false without init.weights", !value || weights.is_some(), value)?;
        }
        self.kind.check()
    }
}

/// The kind of random initialization.
///
/// Each parameter has a separate random stream. A matrix with D inputs is uniform within ±1/√D,
/// those of an LSTM of width H within ±1/√H, embeddings are normal with standard deviation 1.
/// Convolutions of the subsampling follow Kaiming's rule.
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

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn names_cover_parameters_modules_and_ranges_of_layers() {
        for (name, parameter, expected) in [
            ("encoder", "encoder.layers.0.norm.bias", true),
            ("encoder.layers.0.norm.bias", "encoder.layers.0.norm.bias", true),
            ("encoder.layers.0.norm.b", "encoder.layers.0.norm.bias", false),
            ("encoder.layers.1", "encoder.layers.10.norm.bias", false),
            ("encoder.layers.0..2", "encoder.layers.0.norm.bias", true),
            ("encoder.layers.0..2", "encoder.layers.1.norm.bias", true),
            ("encoder.layers.0..2", "encoder.layers.2.norm.bias", false),
            ("encoder.layers.2..12", "encoder.layers.11.norm.bias", true),
            ("encoder.layers.0..2", "encoder.layers", false),
            ("encoder.layers.0..", "encoder.layers.0.norm.bias", false),
            ("encoder.layers.a..2", "encoder.layers.0.norm.bias", false),
        ] {
            assert_eq!(covers(name, parameter), expected, "{name} {parameter}");
        }
    }
}
