//! Utterances in memory: features once, augmentation anew in each epoch.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;
use rand::seq::SliceRandom;
use rayon::prelude::*;
use speech::{Change, Conversion, Features, FrontEnd, MelScale, Tokenizer, Utterance, read_manifest};

use crate::random::{Purpose, stream};
use crate::recipe::{Augment, Recipe, RowsConfig};
use crate::{Error, Result, tensors};

/// One utterance, ready for training or evaluation.
#[derive(Debug, Clone)]
pub struct Example {
    /// Id from the manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Part of the manifest that is reported apart.
    pub subset: Option<String>,
    /// Length of the audio, as its manifest says.
    pub seconds: f64,
    /// Length of the audio.
    pub heard: f64,
    /// Seconds of silence that were trimmed before the first frame.
    pub lead: f64,
    /// Log-mel plane.
    pub features: Features,
    /// Labels of the transcript; empty where only the text is needed.
    pub labels: Vec<u32>,
    /// What was done to its audio.
    pub changes: Vec<Change>,
}

/// A padded batch.
#[derive(Debug)]
pub struct Batch {
    /// Indices of the examples.
    pub examples: Vec<usize>,
    /// Input rows `[B, T, D]`.
    pub rows: Tensor,
    /// Rows of each utterance.
    pub lengths: Vec<usize>,
    /// Labels of each utterance.
    pub labels: Vec<Vec<u32>>,
}

/// All utterances of some manifests.
///
/// # Errors
/// Whatever [`speech::read_manifest`] finds, and [`Error::Empty`] if there is none at all.
pub fn read_manifests(what: &str, paths: &[PathBuf]) -> Result<Vec<Utterance>> {
    let mut utterances = Vec::new();
    for path in paths {
        utterances.extend(read_manifest(path)?);
    }
    if utterances.is_empty() {
        return Err(Error::Empty { what: what.to_owned() });
    }
    Ok(utterances)
}

/// Strings of `count` utterances each, in an order that the seed decides; what is left over is one of two at least, or none.
pub(crate) fn joined(utterances: &[Utterance], count: usize, seed: u64) -> Vec<Utterance> {
    let mut order: Vec<&Utterance> = utterances.iter().collect();
    order.shuffle(&mut stream(seed, Purpose::Join, 0, 0));
    let join = |some: &[&Utterance]| {
        let mut one = some[0].clone();
        let texts: Vec<&str> = some.iter().map(|u| u.text.as_str()).filter(|text| !text.is_empty()).collect();
        one.text = texts.join(" ");
        one.id = some.iter().map(|u| u.id.as_str()).collect::<Vec<_>>().join("+");
        one.pieces = some.iter().flat_map(|u| u.pieces.iter().cloned()).collect();
        one.seconds = some.iter().map(|u| u.seconds).sum();
        (one.num_samples, one.crc32, one.subset, one.speaker) = (None, None, None, None);
        one
    };
    order.chunks(count.max(1)).filter(|some| some.len() > 1).map(join).collect()
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
    load_as(utterances, front_end, tokenizer, &conversion, stop)
}

/// [`load`], of audio that may be converted.
pub(crate) fn load_as(
    utterances: &[Utterance],
    front_end: &FrontEnd,
    tokenizer: Option<&Tokenizer>,
    conversion: &Conversion,
    stop: &AtomicBool,
) -> Result<Vec<Example>> {
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
            seconds: utterance.seconds,
            heard: audio.samples.len() as f64 / f64::from(audio.sample_rate),
            lead: front_end.kept(&audio.samples).start as f64 / f64::from(audio.sample_rate),
            features: front_end.log_mel(&audio).map_err(named)?,
            labels: tokenizer
                .map_or(Ok(Vec::new()), |tokenizer| tokenizer.encode(&utterance.text))
                .map_err(named)?,
            changes,
        })
    };
    // Collected as results first, so that the reported error does not depend on who finished first.
    let loaded: Vec<Result<Example>> = utterances.par_iter().map(load).collect();
    loaded.into_iter().collect()
}

/// Adds up what was done to how many recordings.
pub(crate) fn count_changes(counts: &mut BTreeMap<Change, usize>, examples: &[Example]) {
    for change in examples.iter().flat_map(|example| &example.changes) {
        *counts.entry(*change).or_default() += 1;
    }
}

/// Makes batches of augmented utterances; every batch depends on `(seed, epoch, utterance)` alone.
#[derive(Debug)]
pub struct Batcher<'a> {
    /// The examples that indices refer to.
    pub examples: &'a [Example],
    recipe: &'a Recipe,
    scale: MelScale,
}

impl<'a> Batcher<'a> {
    /// Batches of these examples, as the recipe says.
    pub fn new(examples: &'a [Example], recipe: &'a Recipe, scale: MelScale) -> Self {
        Batcher { examples, recipe, scale }
    }

    /// Which examples meet in which batch of an epoch.
    pub fn plan(&self, epoch: u64) -> Vec<Vec<usize>> {
        let mut rng = stream(self.recipe.seed, Purpose::Order, epoch, 0);
        plan(self.examples, self.recipe, Some(&mut rng))
    }

    /// One augmented training batch.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn batch(&self, epoch: u64, examples: &[usize]) -> Result<Batch> {
        let Augment { perturb, mask, .. } = &self.recipe.augment;
        let planes: Vec<Features> = examples
            .iter()
            .map(|&index| {
                let mut rng = stream(self.recipe.seed, Purpose::Augment, epoch, index as u64);
                let mut plane = perturb.apply(
                    &self.examples[index].features,
                    &self.scale,
                    self.recipe.features.normalise,
                    &mut rng,
                );
                mask.apply(&mut plane, &mut rng);
                plane
            })
            .collect();
        let planes: Vec<&Features> = planes.iter().collect();
        let (rows, lengths) = collate(&planes, &self.recipe.encoder.rows)?;
        let labels = examples.iter().map(|&index| self.examples[index].labels.clone()).collect();
        Ok(Batch { examples: examples.to_vec(), rows, lengths, labels })
    }
}

/// Cuts examples into batches; in the order of their lengths without a generator, shuffled with one.
pub(crate) fn plan(
    examples: &[Example],
    recipe: &Recipe,
    rng: Option<&mut rand_chacha::ChaCha8Rng>,
) -> Vec<Vec<usize>> {
    let stride = recipe.encoder.rows.stride;
    let lengths: Vec<usize> =
        examples.iter().map(|example| example.features.frames.div_ceil(stride)).collect();
    speech::batches(&lengths, recipe.batch.max_frames, recipe.batch.max_utterances, rng)
}

/// Stacks frames and pads with zeros: rows `[B, T, stack · D]`, or of more channels, and their lengths.
pub(crate) fn collate(planes: &[&Features], config: &RowsConfig) -> Result<(Tensor, Vec<usize>)> {
    let stacked: Vec<Features> =
        planes.iter().map(|plane| plane.stack_into(config.stack, config.stride, config.channels)).collect();
    let lengths: Vec<usize> = stacked.iter().map(|plane| plane.frames).collect();
    let frames = lengths.iter().copied().max().unwrap_or(0);
    let width = stacked.first().map_or(0, |plane| plane.dim);
    let mut rows = vec![0f32; stacked.len() * frames * width];
    for (to, plane) in rows.chunks_mut((frames * width).max(1)).zip(&stacked) {
        to[..plane.data.len()].copy_from_slice(&plane.data);
    }
    Ok((tensors::from_vec(rows, (stacked.len(), frames, width))?, lengths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_hold_every_utterance_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        let line = |n: usize| {
            let text = if n == 3 { "" } else { "one two" };
            format!(
                r#"{{"id": "u{n}", "file": "{n}.wav", "seconds": 0.5, "text": "{text}", "num_samples": 9}}"#
            )
        };
        std::fs::write(&path, (0..7).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let list = read_manifest(&path).unwrap();
        for (count, strings) in [(0, 0), (1, 0), (2, 3), (3, 2), (5, 2), (9, 1)] {
            let joined = joined(&list, count, 1);
            assert_eq!(joined.len(), strings, "{count}");
            for one in &joined {
                assert!(one.pieces.len() <= count && one.pieces.len() > 1 && one.num_samples.is_none());
                assert_eq!(one.seconds, 0.5 * one.pieces.len() as f64);
                assert_eq!(one.id.split('+').count(), one.pieces.len());
                let words = 2 * one.pieces.len() - 2 * usize::from(one.id.contains("u3"));
                assert_eq!(one.text.split(' ').count(), words, "{:?}", one.text);
            }
            let mut files: Vec<_> = joined.iter().flat_map(|one| one.files()).collect();
            files.sort_unstable();
            files.dedup();
            assert_eq!(files.len(), joined.iter().map(|one| one.pieces.len()).sum::<usize>());
        }
        assert_ne!(joined(&list, 7, 1), joined(&list, 7, 2));
    }
}
