//! `StreamedSet`: a training set on disk, read and augmented batch by batch.
//!
//! [`TrainingSet`](super::TrainingSet) reads its utterances by index: those of the corpus that are
//! not too long come first, then the concatenations.
use std::path::PathBuf;

use rayon::prelude::*;
use speech::{Audio, Conversion, Corpus, Features, FrontEnd, Tokenizer, Utterance, WaveAugment};

use super::bad_samples;
use super::feature_cache::{FeatureCache, audio_hash};
use super::joined::{concatenate, random_groups};
use crate::recipe::Recipe;
use model::random::{Purpose, stream};
use recognizer::bad_items::{self, BadItems, ExcludedUtterance, LengthMismatch};
use recognizer::{Error, Result};

/// The utterances of a [`Corpus`], and concatenations of them (`augment.join`).
#[derive(Debug)]
pub struct StreamedSet {
    corpus: Corpus,
    /// Indices in the corpus of the utterances that are not too long.
    corpus_indices: Vec<u32>,
    /// Indices in `corpus_indices` of the parts of each concatenation.
    concatenations: Vec<Vec<usize>>,
    tokenizer: Tokenizer,
    wave_augment: WaveAugment,
    conversion: Conversion,
    cache: Option<FeatureCache>,
    /// Seed of the augmentation.
    seed: u64,
    /// Bad items: utterances whose recording is missing or whose text cannot be encoded.
    ///
    /// They stay in the plan of an epoch, so that a resumed run has the same batches when a file
    /// is restored.
    bad: BadItems,
}

/// An utterance as augmented for an epoch, before masks.
pub(super) struct StreamedUtterance {
    pub id: String,
    pub seconds: f64,
    pub labels: Vec<u32>,
    pub features: Features,
}

impl StreamedSet {
    /// Creates the training set of a recipe, without long utterances.
    ///
    /// # Errors
    /// [`Error::Empty`] if no utterance remains; those of [`WaveAugment::new`].
    pub fn new(corpus: Corpus, tokenizer: Tokenizer, recipe: &Recipe) -> Result<Self> {
        let max_seconds = recipe.batch.max_seconds.unwrap_or(f64::INFINITY);
        let short_enough = (0..corpus.len()).filter(|&index| corpus.seconds(index) <= max_seconds);
        let mut corpus_indices: Vec<u32> = short_enough.map(|index| index as u32).collect();
        corpus_indices.shrink_to_fit();
        if corpus_indices.is_empty() {
            return Err(all_too_long());
        }
        let features = &recipe.features;
        let wave_augment = WaveAugment::new(&recipe.augment.wave(), features.sample_rate, features.resample)?;
        let cache =
            recipe.data.cache.as_ref().filter(|_| wave_augment.is_identity() && features.dither == 0.0);
        let mut set = StreamedSet {
            concatenations: random_groups(corpus_indices.len(), recipe.augment.join, recipe.seed),
            cache: cache.map(|folder| FeatureCache::new(folder, features)).transpose()?,
            conversion: Conversion { resample: features.resample, ..Conversion::default() },
            seed: recipe.seed,
            corpus,
            corpus_indices,
            tokenizer,
            wave_augment,
            bad: BadItems::default(),
        };
        set.bad = bad_samples(&set.corpus);
        let bad_items = set.find_bad_items()?;
        set.bad.extend(bad_items);
        Ok(set)
    }

    /// Finds the utterances that cannot be used, without reading audio.
    fn find_bad_items(&self) -> Result<BadItems> {
        let check = |index: usize| -> Result<(String, Result<()>)> {
            let utterance = match self.read_entry(index) {
                Err(error) if bad_items::is_item_error(&error) => {
                    return Ok((self.fallback_name(index), Err(error)));
                }
                entry => entry?,
            };
            let missing = utterance.files().find_map(|path| Some((path, std::fs::metadata(path).err()?)));
            let result = match missing {
                Some((path, source)) => Err(speech::Error::Io { path: path.to_owned(), source }.into()),
                None => self.encode_labels(&utterance).map(drop),
            };
            Ok((utterance.id, result))
        };
        // Results are collected, so that bad items are in the order of the list.
        let results: Vec<_> = (0..self.corpus_indices.len()).into_par_iter().map(check).collect();
        let mut bad = BadItems::default();
        for result in results {
            let (id, result) = result?;
            bad_items::record_bad(&id, result, &mut bad)?;
        }
        Ok(bad)
    }

    /// Returns the bad items that are known before audio is read.
    pub(crate) fn bad(&self) -> &BadItems {
        &self.bad
    }

    /// Returns the number of utterances without concatenations, with bad samples of shards.
    pub(crate) fn listed_count(&self) -> usize {
        self.corpus_indices.len() + self.corpus.bad_samples().len()
    }

    /// Returns the warning of the cache since the last call.
    pub(super) fn take_warning(&self) -> Option<String> {
        self.cache.as_ref()?.take_warning()
    }

    /// Returns a name for an utterance whose entry cannot be read.
    fn fallback_name(&self, index: usize) -> String {
        format!(
            "utterance {}",
            self.corpus_indices.get(index).map_or(index, |&corpus_index| corpus_index as usize) + 1
        )
    }

    /// Returns the number of utterances and of concatenations.
    pub fn count(&self) -> usize {
        self.corpus_indices.len() + self.concatenations.len()
    }

    /// Returns a note about the utterances that are too long, of `num_listed`.
    pub(crate) fn length_note(&self, num_listed: usize) -> Option<String> {
        let num_omitted = num_listed - self.corpus_indices.len();
        let note = || {
            format!(
                "data.train: {num_omitted} of {num_listed} utterances are longer than batch.max_seconds and \
                 left out"
            )
        };
        (num_omitted > 0).then(note)
    }

    /// Returns the length of an utterance, known without reading it.
    pub fn seconds(&self, index: usize) -> f64 {
        let seconds_of = |index: usize| self.corpus.seconds(self.corpus_indices[index] as usize);
        match index.checked_sub(self.corpus_indices.len()) {
            None => seconds_of(index),
            Some(concatenation) => {
                self.concatenations[concatenation].iter().map(|&part| seconds_of(part)).sum()
            }
        }
    }

    /// Returns the bytes of memory of the list.
    pub fn bytes(&self) -> usize {
        let concatenation_bytes: usize =
            self.concatenations.iter().map(|parts| parts.capacity() * size_of::<usize>()).sum();
        self.corpus.bytes() + self.corpus_indices.capacity() * size_of::<u32>() + concatenation_bytes
    }

    /// Reads the entry of an utterance, or joins those of a concatenation.
    fn read_entry(&self, index: usize) -> Result<Utterance> {
        let read_single = |index: usize| Ok(self.corpus.utterance(self.corpus_indices[index] as usize)?);
        match index.checked_sub(self.corpus_indices.len()) {
            None => read_single(index),
            Some(concatenation) => {
                let parts: Vec<Utterance> = self.concatenations[concatenation]
                    .iter()
                    .map(|&part| read_single(part))
                    .collect::<Result<_>>()?;
                Ok(concatenate(&parts.iter().collect::<Vec<_>>()))
            }
        }
    }

    /// Reads an utterance, augments its audio, and computes its features.
    ///
    /// None if it is bad; the reason is then recorded in `bad`.
    pub(super) fn read_augmented(
        &self,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
        bad: &mut BadItems,
    ) -> Result<Option<StreamedUtterance>> {
        match self.read_usable(epoch, index, front_end) {
            Ok((utterance, other_length)) => {
                bad.other_length.extend(other_length);
                Ok(Some(utterance))
            }
            Err(error) if bad_items::is_item_error(&error) => {
                self.add_bad_parts(index, &error, front_end, bad)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Does the work of [`Self::read_augmented`]; all errors are returned.
    fn read_usable(
        &self,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
    ) -> Result<(StreamedUtterance, Option<LengthMismatch>)> {
        let utterance = self.read_entry(index)?;
        let labels = self.encode_labels(&utterance)?;
        let mut audio_seconds = None;
        let mut compute = || {
            let (features, seconds) = self.compute_features(&utterance, epoch, index, front_end)?;
            audio_seconds = Some(seconds);
            Ok(features)
        };
        let features = match &self.cache {
            None => compute()?,
            Some(cache) => cache.get_or_compute(&utterance, compute)?,
        };
        let actual_seconds = match audio_seconds {
            // The length of cached features is that of their frames, and unknown if they were
            // trimmed.
            None if front_end.config().trim_db == 0.0 => {
                let config = front_end.config();
                front_end.samples(features.frames) as f64 / f64::from(config.sample_rate)
            }
            seconds => seconds.unwrap_or(utterance.seconds),
        };
        let Utterance { id, seconds, .. } = utterance;
        // The parts of a concatenation are reported one by one.
        let is_single = index < self.corpus_indices.len();
        let other_length = LengthMismatch::new(&id, seconds, actual_seconds).filter(|_| is_single);
        Ok((StreamedUtterance { id, seconds, labels, features }, other_length))
    }

    /// Records in `bad` which utterances caused `error`.
    ///
    /// A concatenation may have several.
    fn add_bad_parts(
        &self,
        index: usize,
        error: &Error,
        front_end: &FrontEnd,
        bad: &mut BadItems,
    ) -> Result<()> {
        let count_before = bad.excluded.len();
        let concatenation = index.checked_sub(self.corpus_indices.len());
        let parts = concatenation.map(|concatenation| self.concatenations[concatenation].as_slice());
        for &part in parts.unwrap_or_default() {
            let result = self.read_entry(part).and_then(|utterance| {
                self.encode_labels(&utterance)?;
                self.read_audio(&utterance, front_end)
            });
            let id =
                self.read_entry(part).map_or_else(|_| self.fallback_name(part), |utterance| utterance.id);
            bad_items::record_bad(&id, result.map(drop), bad)?;
        }
        if bad.excluded.len() == count_before {
            let id =
                self.read_entry(index).map_or_else(|_| self.fallback_name(index), |utterance| utterance.id);
            bad.excluded.push(ExcludedUtterance::new(&id, error));
        }
        Ok(())
    }

    /// Returns name and labels of an utterance without reading its audio; none if it is bad.
    pub(super) fn id_and_labels(&self, index: usize) -> Result<Option<(String, Vec<u32>)>> {
        let utterance = self.read_entry(index);
        match utterance.and_then(|utterance| Ok((self.encode_labels(&utterance)?, utterance.id))) {
            Ok((labels, id)) => Ok(Some((id, labels))),
            Err(error) if bad_items::is_item_error(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a hash of an utterance's entry and audio files; zeros for a bad entry.
    pub(super) fn content_hash(&self, index: usize) -> Result<[u8; 16]> {
        match self.read_entry(index) {
            Ok(utterance) => Ok(audio_hash(&utterance).0),
            Err(error) if bad_items::is_item_error(&error) => Ok([0; 16]),
            Err(error) => Err(error),
        }
    }

    fn encode_labels(&self, utterance: &Utterance) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(&utterance.text).map_err(in_utterance(utterance))?)
    }

    fn read_audio(&self, utterance: &Utterance, front_end: &FrontEnd) -> Result<Audio> {
        Ok(utterance.audio_as(front_end.config().sample_rate, &self.conversion)?.0)
    }

    /// Returns augmented features, and the length of the audio before augmentation.
    fn compute_features(
        &self,
        utterance: &Utterance,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
    ) -> Result<(Features, f64)> {
        let rng = |purpose| stream(self.seed, purpose, epoch, index as u64);
        let mut audio = self.read_audio(utterance, front_end)?;
        let seconds = audio.seconds();
        if !self.wave_augment.is_identity() {
            let Audio { samples, sample_rate } = audio;
            let samples = self
                .wave_augment
                .apply(samples, &mut rng(Purpose::AudioAugmentation))
                .map_err(in_utterance(utterance))?;
            audio = Audio { samples, sample_rate };
        }
        let features = front_end.log_mel_with(&audio, &mut rng(Purpose::Dither));
        Ok((features.map_err(in_utterance(utterance))?, seconds))
    }
}

/// Adds the name of the utterance to an error.
fn in_utterance(utterance: &Utterance) -> impl FnOnce(speech::Error) -> speech::Error {
    move |error| speech::Error::Utterance { utterance: utterance.id.clone(), source: Box::new(error) }
}

/// Creates the error of a set with too long utterances only.
pub(crate) fn all_too_long() -> Error {
    Error::Empty { what: "data.train without utterances longer than batch.max_seconds".into() }
}

/// Returns the folder of the index of a recipe's training set.
pub(crate) fn index_folder(recipe: &Recipe) -> Option<PathBuf> {
    recipe.data.cache.as_ref().map(|folder| folder.join("index"))
}
