//! The sections of a recipe about the run: `[batch]` and `[training]`.
use model::config::Terms;
use model::config::table;
use model::config::values::{positive, whole};
use model::{Result, bytes};
use recognizer::{BatchSize, Metric};
use serde::{Deserialize, Deserializer, Serialize};

use super::data::{is_once, once};

/// `[batch]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Most rows of a batch, padding included.
    pub max_frames: usize,
    /// Most utterances of a batch.
    pub max_utterances: usize,
    /// What the whole run may take, such as `"6GiB"`: batches are then also cut so that their steps fit.
    #[serde(default, with = "bytes::optional", skip_serializing_if = "Option::is_none")]
    pub memory: Option<usize>,
    /// Batches of an optimizer step; gradients are divided by the utterances of all of them.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub accumulate: usize,
    /// Training utterances that their manifest says are longer, in seconds, are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<f64>,
    /// Number of buckets of similar lengths from which batches of exactly `max_utterances` are drawn, whatever is left over being
    /// dropped anew in each epoch; see [`speech::batching::bucket_batches`]. 0 = batches of up to `max_frames` of all utterances.
    #[serde(default)]
    pub buckets: usize,
}

impl BatchConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        whole("batch.max_frames", self.max_frames, usize::MAX)?;
        whole("batch.max_utterances", self.max_utterances, usize::MAX)?;
        whole("batch.accumulate", self.accumulate, usize::MAX)?;
        positive("batch.max_seconds", self.max_seconds.unwrap_or(1.0))
    }

    /// The limits of a batch.
    pub fn size(&self) -> BatchSize {
        let BatchConfig { max_frames, max_utterances, .. } = *self;
        BatchSize { max_frames, max_utterances }
    }
}

/// `[training]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingConfig {
    /// What is minimised.
    #[serde(flatten)]
    pub terms: Terms,
    /// How long, and what is written when.
    #[serde(flatten)]
    pub run: RunConfig,
}

impl<'de> Deserialize<'de> for TrainingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (run, terms) = table::split(deserializer, &RunConfig::KEYS, None)?;
        Ok(TrainingConfig { terms, run })
    }
}

/// The keys of `[training]` that say how long it lasts, and what is written when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Passes over the training set.
    pub epochs: u64,
    /// Epochs between two evaluations on the dev set.
    #[serde(default = "one")]
    pub evaluate_every: u64,
    /// Steps between two checkpoints; 0 = at the end of an epoch only.
    #[serde(default)]
    pub checkpoint_every: u64,
    /// How many epochs, the last ones, keep a checkpoint of their own.
    #[serde(default)]
    pub keep: u64,
    /// How many steps in a row may be skipped whose loss or gradient is no number, before that ends the run.
    #[serde(default)]
    pub skip_nonfinite: u64,
    /// Which weights the final report is about.
    #[serde(default)]
    pub select: Select,
    /// What the best checkpoint is best at.
    #[serde(default, skip_serializing_if = "Metric::is_default")]
    pub metric: Metric,
}

impl RunConfig {
    /// So many passes, and all else by default.
    pub fn new(epochs: u64) -> Self {
        RunConfig {
            epochs,
            evaluate_every: one(),
            checkpoint_every: 0,
            keep: 0,
            skip_nonfinite: 0,
            select: Select::default(),
            metric: Metric::default(),
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        whole("training.epochs", self.epochs as usize, usize::MAX)?;
        whole("training.evaluate_every", self.evaluate_every as usize, usize::MAX)
    }

    /// Their names.
    const KEYS: [&str; 7] =
        ["epochs", "evaluate_every", "checkpoint_every", "keep", "skip_nonfinite", "select", "metric"];
}

/// Which checkpoint the run ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Select {
    /// The one with the lowest error rate on the dev set, by [`RunConfig::metric`].
    #[default]
    Best,
    /// The last one.
    Last,
}

fn one() -> u64 {
    1
}
