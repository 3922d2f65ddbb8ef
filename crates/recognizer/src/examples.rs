//! `Example`: an utterance with its features and labels in memory.
//!
//! Training, evaluation and alignment load examples here, in parallel, and group them into padded
//! batches of similar length.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use model::RowsConfig;
use rayon::prelude::*;
use serde::Deserialize;
use speech::{AudioChange, Conversion, Features, FrontEnd, Tokenizer, Utterance};

use crate::bad_items::{self, BadItems, LengthMismatch};
use crate::{Error, Result};

/// Upper bound of the bytes of an example's short strings and lists.
///
/// Subset, speaker, the list of conversions, and the overhead of allocations.
const ALLOCATION_BYTES: usize = 256;
/// Bytes of a feature value (`f32`) or a label (`u32`).
const BYTES_PER_VALUE: usize = 4;

/// An utterance, ready for training or evaluation.
#[derive(Debug, Clone)]
pub struct Example {
    /// Id from the manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Part of the manifest with a separate score.
    pub subset: Option<String>,
    /// Speaker.
    pub speaker: Option<String>,
    /// Length of the audio in the manifest, in seconds.
    pub seconds: f64,
    /// Length of the audio, in seconds.
    pub audio_seconds: f64,
    /// Seconds of silence trimmed before the first frame.
    pub lead: f64,
    /// Log-mel features.
    pub features: Features,
    /// Labels of the transcript; empty if only the text is needed.
    pub labels: Vec<u32>,
    /// Conversions of the audio.
    pub changes: Vec<AudioChange>,
}

impl Example {
    /// Returns an upper bound of the example's memory in bytes.
    pub fn bytes(&self) -> usize {
        let Example { id, text, features, labels, .. } = self;
        size_of::<Self>()
            + ALLOCATION_BYTES
            + id.len()
            + text.len()
            + BYTES_PER_VALUE * (features.data.len() + labels.len())
    }
}

/// Reads audio and computes features of all utterances in parallel.
///
/// Labels are computed if a tokenizer is given. Audio is resampled if the front end's settings
/// allow it, and must have one channel.
///
/// # Errors
/// The error of the first utterance, in the order of the list, that cannot be read or encoded; the
/// error names it. [`Error::Stopped`] if the flag becomes true.
pub fn load(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    stop: &AtomicBool,
) -> Result<Vec<Example>> {
    let conversion = Conversion { resample: front_end.config().resample, ..Conversion::default() };
    load_with(utterances, front_end, tokenizer, &conversion, stop)
}

/// Does the work of [`load`] with a custom conversion of recordings.
pub(crate) fn load_with(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Result<Vec<Example>> {
    load_each(utterances, front_end, tokenizer, conversion, stop).into_iter().collect()
}

/// Loads examples as [`load`] does, but excludes and returns bad utterances.
///
/// # Errors
/// Those that do not concern one utterance.
pub fn load_usable(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Result<(Vec<Example>, BadItems)> {
    let mut bad = BadItems::default();
    let mut examples = Vec::with_capacity(utterances.len());
    let loaded = load_each(utterances, front_end, tokenizer, conversion, stop);
    for (utterance, example) in utterances.iter().zip(loaded) {
        let Some(example) = bad_items::record_bad(&utterance.id, example, &mut bad)? else { continue };
        bad.other_length.extend(LengthMismatch::new(&example.id, example.seconds, example.audio_seconds));
        examples.push(example);
    }
    Ok((examples, bad))
}

/// Returns a result for each utterance, in order.
fn load_each(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Vec<Result<Example>> {
    let load_one = |utterance: &Utterance| -> Result<Example> {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let in_utterance =
            |error| speech::Error::Utterance { utterance: utterance.id.clone(), source: Box::new(error) };
        let (audio, changes) = utterance.audio_as(front_end.config().sample_rate, conversion)?;
        Ok(Example {
            id: utterance.id.clone(),
            text: utterance.text.clone(),
            subset: utterance.subset.clone(),
            speaker: utterance.speaker.clone(),
            seconds: utterance.seconds,
            audio_seconds: audio.samples.len() as f64 / f64::from(audio.sample_rate),
            lead: front_end.trimmed_range(&audio.samples).start as f64 / f64::from(audio.sample_rate),
            features: front_end.log_mel(&audio).map_err(in_utterance)?,
            labels: tokenizer
                .map_or(Ok(Vec::new()), |tokenizer| tokenizer.encode(&utterance.text))
                .map_err(in_utterance)?,
            changes,
        })
    };
    // Results are collected so that the reported error does not depend on thread timing.
    utterances.par_iter().map(load_one).collect()
}

/// Counts the recordings with each conversion.
pub(crate) fn count_changes(counts: &mut BTreeMap<AudioChange, usize>, examples: &[Example]) {
    for change in examples.iter().flat_map(|example| &example.changes) {
        *counts.entry(*change).or_default() += 1;
    }
}

/// Limits of a padded batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct BatchSize {
    /// Largest number of rows, including padding.
    pub max_frames: usize,
    /// Largest number of utterances.
    pub max_utterances: usize,
}

impl BatchSize {
    /// Returns whether `count` utterances of at most `longest` rows fit.
    pub fn fits(self, count: usize, longest: usize) -> bool {
        count <= self.max_utterances && longest.saturating_mul(count) <= self.max_frames
    }
}

/// Returns the number of input rows of each example.
pub fn row_counts<'a>(
    examples: impl IntoIterator<Item = &'a Example>,
    config: &RowsConfig,
) -> impl Iterator<Item = usize> {
    examples.into_iter().map(|example| example.features.frames.div_ceil(config.stride))
}

/// Splits examples into batches of similar length.
///
/// `fits(utterances, rows)` returns false for a padded batch that is too large. Returns indices of
/// examples.
pub fn plan_batches(
    examples: &[Example],
    config: &RowsConfig,
    size: BatchSize,
    fits: &dyn Fn(usize, usize) -> bool,
) -> Vec<Vec<usize>> {
    let fits = |count: usize, longest: usize| size.fits(count, longest) && fits(count, longest);
    speech::batching::plan_batches_with(&row_counts(examples, config).collect::<Vec<_>>(), &fits, None)
}
