//! Utterances whose features are in memory.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use model::RowsConfig;
use rayon::prelude::*;
use serde::Deserialize;
use speech::{AudioChange, Conversion, Features, FrontEnd, Tokenizer, Utterance};

use crate::bad_items;
use crate::bad_items::{BadItems, LengthMismatch};
use crate::{Error, Result};

/// One utterance, ready for training or evaluation.
#[derive(Debug, Clone)]
pub struct Example {
    /// Id from the manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Part of the manifest that is reported apart.
    pub subset: Option<String>,
    /// Who speaks.
    pub speaker: Option<String>,
    /// Length of the audio, as its manifest says.
    pub seconds: f64,
    /// Length of the audio.
    pub audio_seconds: f64,
    /// Seconds of silence that were trimmed before the first frame.
    pub lead: f64,
    /// Log-mel plane.
    pub features: Features,
    /// Labels of the transcript; empty where only the text is needed.
    pub labels: Vec<u32>,
    /// What was done to its audio.
    pub changes: Vec<AudioChange>,
}

impl Example {
    /// Bytes that it takes, roughly above.
    pub fn bytes(&self) -> usize {
        let Example { id, text, features, labels, .. } = self;
        size_of::<Self>() + 256 + id.len() + text.len() + 4 * (features.data.len() + labels.len())
    }
}

/// Reads the audio and computes the features of all utterances in parallel; labels only if a tokenizer is given.
///
/// Audio is resampled if the front end's settings say so, and must have one channel.
///
/// # Errors
/// The first utterance that cannot be read or encoded, in the order of the list; the error names it. [`Error::Stopped`] if the flag
/// becomes true.
pub fn load(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    stop: &AtomicBool,
) -> Result<Vec<Example>> {
    let conversion = Conversion { resample: front_end.config().resample, ..Conversion::default() };
    load_with(utterances, front_end, tokenizer, &conversion, stop)
}

/// [`load`], of audio that may be converted.
pub fn load_with(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Result<Vec<Example>> {
    load_each(utterances, front_end, tokenizer, conversion, stop).into_iter().collect()
}

/// [`load_with`] without the utterances that cannot be used.
///
/// # Errors
/// Those that are not about one utterance.
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

/// A result for each utterance, in their order.
fn load_each(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Vec<Result<Example>> {
    let load = |utterance: &Utterance| -> Result<Example> {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let named =
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
            features: front_end.log_mel(&audio).map_err(named)?,
            labels: tokenizer
                .map_or(Ok(Vec::new()), |tokenizer| tokenizer.encode(&utterance.text))
                .map_err(named)?,
            changes,
        })
    };
    // Results, so that the reported error does not depend on which thread finishes first.
    utterances.par_iter().map(load).collect()
}

/// Adds up what was done to how many recordings.
pub fn count_changes(counts: &mut BTreeMap<AudioChange, usize>, examples: &[Example]) {
    for change in examples.iter().flat_map(|example| &example.changes) {
        *counts.entry(*change).or_default() += 1;
    }
}

/// Limits of a padded batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct BatchSize {
    /// Most rows of a batch, padding included.
    pub max_frames: usize,
    /// Most utterances of a batch.
    pub max_utterances: usize,
}

impl BatchSize {
    /// Whether `count` utterances of at most `longest` rows are a batch.
    pub fn fits(self, count: usize, longest: usize) -> bool {
        count <= self.max_utterances && longest.saturating_mul(count) <= self.max_frames
    }
}

/// Input rows of each example.
pub fn row_counts<'a>(
    examples: impl IntoIterator<Item = &'a Example>,
    config: &RowsConfig,
) -> impl Iterator<Item = usize> {
    examples.into_iter().map(|example| example.features.frames.div_ceil(config.stride))
}

/// Cuts examples into batches in the order of their lengths; `fits` may refuse so many utterances of so many rows.
pub fn plan_batches(
    examples: &[Example],
    config: &RowsConfig,
    size: BatchSize,
    fits: &dyn Fn(usize, usize) -> bool,
) -> Vec<Vec<usize>> {
    let fits = |count: usize, longest: usize| size.fits(count, longest) && fits(count, longest);
    speech::batching::plan_batches_with(&row_counts(examples, config).collect::<Vec<_>>(), &fits, None)
}
