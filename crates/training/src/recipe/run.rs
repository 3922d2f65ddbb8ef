//! The recipe's sections for the run: `[batch]` and `[training]`.
use model::config::LossTerms;
use model::config::table;
use model::config::values::{check_count, check_positive};
use model::{Result, bytes};
use recognizer::{BatchSize, Metric};
use serde::{Deserialize, Deserializer, Serialize};

use super::data::is_one;
use super::encoder_cache::RowFormat;
use crate::encoder_pass::EncoderPass;

/// `[batch]`: sizes of batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Largest number of rows of a batch, padding included.
    pub max_frames: usize,
    /// Largest number of utterances of a batch.
    pub max_utterances: usize,
    /// Memory budget of the whole run, such as `"6GiB"`: batches are also limited by their steps.
    #[serde(default, with = "bytes::optional", skip_serializing_if = "Option::is_none")]
    pub memory: Option<usize>,
    /// Batches of an optimizer step; gradients are divided by the utterances of all of them.
    #[serde(default = "default_accumulate", skip_serializing_if = "is_one")]
    pub accumulate: usize,
    /// Training utterances that are longer in their manifest, in seconds, are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<f64>,
    /// Number of buckets of similar lengths; 0 makes batches of up to `max_frames`.
    ///
    /// Batches of exactly `max_utterances` are drawn from the buckets; each epoch drops other
    /// remaining utterances; see [`speech::batching::bucket_batches`].
    #[serde(default)]
    pub buckets: usize,
}

impl BatchConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        check_count("batch.max_frames", self.max_frames, usize::MAX)?;
        check_count("batch.max_utterances", self.max_utterances, usize::MAX)?;
        check_count("batch.accumulate", self.accumulate, usize::MAX)?;
        check_positive("batch.max_seconds", self.max_seconds.unwrap_or(1.0))
    }

    /// Returns the limits of a batch.
    pub fn size(&self) -> BatchSize {
        let BatchConfig { max_frames, max_utterances, .. } = *self;
        BatchSize { max_frames, max_utterances }
    }
}

/// `[training]`: the objective, and the length of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingConfig {
    /// The objective.
    #[serde(flatten)]
    pub terms: LossTerms,
    /// Length, evaluations and checkpoints.
    #[serde(flatten)]
    pub run: RunConfig,
}

impl<'de> Deserialize<'de> for TrainingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (run, terms) = table::split(deserializer, &RunConfig::KEYS, None)?;
        Ok(TrainingConfig { terms, run })
    }
}

/// The keys of `[training]` about length, evaluations and checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Number of epochs.
    pub epochs: u64,
    /// Epochs between two evaluations on the dev set.
    #[serde(default = "every_epoch")]
    pub evaluate_every: u64,
    /// Steps between two checkpoints; 0 writes one at the end of each epoch only.
    #[serde(default)]
    pub checkpoint_every: u64,
    /// Number of last epochs with a separate checkpoint.
    #[serde(default)]
    pub keep: u64,
    /// Largest number of steps that are skipped in a row.
    ///
    /// Steps are skipped if their loss or gradient is not finite.
    #[serde(default)]
    pub skip_nonfinite: u64,
    /// The weights of the final evaluation.
    #[serde(default)]
    pub select: CheckpointSelection,
    /// The metric of the best checkpoint.
    #[serde(default, skip_serializing_if = "Metric::is_default")]
    pub metric: Metric,
    /// Number format of cached encoder rows; none computes them in each epoch.
    ///
    /// The rows of a frozen encoder are then computed once; training reads them from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_encoder: Option<RowFormat>,
    /// True if the backward pass computes the encoder's layers again.
    ///
    /// They then save their input only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recompute: bool,
}

impl RunConfig {
    /// Returns a run of `epochs` epochs, with defaults for all other values.
    pub fn new(epochs: u64) -> Self {
        RunConfig {
            epochs,
            evaluate_every: every_epoch(),
            checkpoint_every: 0,
            keep: 0,
            skip_nonfinite: 0,
            select: CheckpointSelection::default(),
            metric: Metric::default(),
            cache_encoder: None,
            recompute: false,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        check_count("training.epochs", self.epochs as usize, usize::MAX)?;
        check_count("training.evaluate_every", self.evaluate_every as usize, usize::MAX)
    }

    /// Returns the work of a step in the encoder.
    pub(crate) fn encoder_pass(&self) -> EncoderPass {
        match (self.cache_encoder, self.recompute) {
            (Some(_), _) => EncoderPass::Cached,
            (None, true) => EncoderPass::Recomputed,
            (None, false) => EncoderPass::Saved,
        }
    }

    /// The names of the keys.
    const KEYS: [&str; 9] = [
        "epochs",
        "evaluate_every",
        "checkpoint_every",
        "keep",
        "skip_nonfinite",
        "select",
        "metric",
        "cache_encoder",
        "recompute",
    ];
}

/// The checkpoint that the final evaluation uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointSelection {
    /// The checkpoint with the best [`RunConfig::metric`] on the dev set.
    #[default]
    Best,
    /// The last checkpoint.
    Last,
}

fn default_accumulate() -> usize {
    1
}

fn every_epoch() -> u64 {
    1
}
