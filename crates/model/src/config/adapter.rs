//! Model configuration: `[adapter]`, low-rank adapters of the encoder.
use serde::{Deserialize, Serialize};

use super::values::{MAX_WIDTH, check_count, check_positive, ensure};
use crate::Result;
use layers::low_rank::LowRankConfig;

/// `[adapter]`: low-rank updates of the encoder's linear layers (LoRA).
///
/// ```text
/// W' = W + (alpha / rank) B A        W [O, D], B [O, rank], A [rank, D]
/// ```
/// Hu et al., arXiv 2106.09685, equation 3. Training changes A and B; all other parameters of the
/// encoder are frozen. B starts at 0, so that a new adapter does not change the model.
///
/// ```
/// use model::config::{AdapterConfig, AdapterModule};
///
/// let adapter: AdapterConfig = toml::from_str("rank = 8\nalpha = 16")?;
/// assert_eq!(adapter.scale(), 2.0);
/// assert_eq!(adapter.modules, [AdapterModule::Attention, AdapterModule::FeedForward]);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterConfig {
    /// Rank of the updates.
    pub rank: usize,
    /// Factor of the updates, which are divided by the rank; the rank by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// The modules whose linear layers have an update.
    #[serde(default = "all_modules")]
    pub modules: Vec<AdapterModule>,
}

/// A module of an encoder's layers with low-rank updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterModule {
    /// The projections of self-attention to queries, keys, values and results.
    Attention,
    /// Both linear layers of both feed-forward modules.
    FeedForward,
}

fn all_modules() -> Vec<AdapterModule> {
    vec![AdapterModule::Attention, AdapterModule::FeedForward]
}

impl AdapterConfig {
    /// Returns the factor of the updates, alpha / rank.
    pub fn scale(&self) -> f64 {
        self.alpha.map_or(1.0, |alpha| alpha / self.rank as f64)
    }

    /// Returns the updates of a module; none if it has none.
    pub(crate) fn low_rank(&self, module: AdapterModule) -> Option<LowRankConfig> {
        let config = LowRankConfig { rank: self.rank, scale: self.scale() };
        self.modules.contains(&module).then_some(config)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`].
    pub(crate) fn check(&self) -> Result<()> {
        check_count("adapter.rank", self.rank, MAX_WIDTH)?;
        check_positive("adapter.alpha", self.alpha.unwrap_or(1.0))?;
        let is_valid = !self.modules.is_empty();
        ensure("adapter.modules", "attention, feed_forward or both", is_valid, "none")?;
        for (index, module) in self.modules.iter().enumerate() {
            let is_new = !self.modules[..index].contains(module);
            ensure("adapter.modules", "each module once", is_new, format!("{module:?} twice"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> AdapterConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn defaults_are_a_factor_of_1_and_all_modules() {
        let adapter = parse("rank = 4");
        assert_eq!((adapter.scale(), adapter.modules.len()), (1.0, 2));
        adapter.check().unwrap();
        let attention = parse("rank = 4\nmodules = [\"attention\"]");
        assert!(attention.low_rank(AdapterModule::Attention).is_some());
        assert!(attention.low_rank(AdapterModule::FeedForward).is_none());
    }

    #[test]
    fn invalid_values_are_errors() {
        for (text, expected) in [
            ("rank = 0", "adapter.rank: expected 1 to 8192, found 0"),
            ("rank = 9000", "adapter.rank: expected 1 to 8192"),
            ("rank = 1\nalpha = 0.0", "adapter.alpha: expected a positive number"),
            ("rank = 1\nalpha = inf", "adapter.alpha: expected a positive number"),
            ("rank = 1\nmodules = []", "adapter.modules: expected attention, feed_forward or both"),
            (
                "rank = 1\nmodules = [\"attention\", \"attention\"]",
                "adapter.modules: expected each module once, found Attention twice",
            ),
        ] {
            let error = parse(text).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(toml::from_str::<AdapterConfig>("rank = 1\ndropout = 0.1").is_err());
    }
}
