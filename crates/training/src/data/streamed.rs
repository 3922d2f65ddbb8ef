//! A training set that stays on disk: utterances are read, changed and made into features when a batch wants them.
use std::path::PathBuf;

use rayon::prelude::*;
use speech::{Audio, Conversion, Corpus, Features, FrontEnd, Tokenizer, Utterance, WaveAugment};

use super::bad_samples;
use super::joined::{groups, join};
use super::plane_cache::PlaneCache;
use crate::recipe::Recipe;
use model::random::{Purpose, stream};
use recognizer::bad_items;
use recognizer::bad_items::{BadItems, ExcludedUtterance, LengthMismatch};
use recognizer::{Error, Result};

/// Utterances of a [`Corpus`], each alone and, where a recipe joins them, once more in strings.
#[derive(Debug)]
pub struct Streamed {
    corpus: Corpus,
    /// Those that are not too long.
    kept: Vec<u32>,
    /// Numbers in `kept` of the parts of each string.
    strings: Vec<Vec<usize>>,
    tokenizer: Tokenizer,
    wave: WaveAugment,
    conversion: Conversion,
    cache: Option<PlaneCache>,
    seed: u64,
    /// Those whose recording is missing or whose text cannot be encoded. They stay in the plan of an epoch, so that a run that is
    /// resumed has the same batches when a file is there again.
    bad: BadItems,
}

/// An utterance as an epoch hears it, before masks.
pub(super) struct StreamedUtterance {
    pub id: String,
    pub seconds: f64,
    pub labels: Vec<u32>,
    pub features: Features,
}

impl Streamed {
    /// The training set of a recipe, without what is longer than its batches allow.
    ///
    /// # Errors
    /// [`Error::Empty`] if nothing is left; those of [`WaveAugment::new`].
    pub fn new(corpus: Corpus, tokenizer: Tokenizer, recipe: &Recipe) -> Result<Self> {
        let most = recipe.batch.max_seconds.unwrap_or(f64::INFINITY);
        let kept = (0..corpus.len()).filter(|&index| corpus.seconds(index) <= most);
        let mut kept: Vec<u32> = kept.map(|index| index as u32).collect();
        kept.shrink_to_fit();
        if kept.is_empty() {
            return Err(all_too_long());
        }
        let features = &recipe.features;
        let wave = WaveAugment::new(&recipe.augment.wave(), features.sample_rate, features.resample)?;
        let cache = recipe.data.cache.as_ref().filter(|_| wave.is_identity() && features.dither == 0.0);
        let mut streamed = Streamed {
            strings: groups(kept.len(), recipe.augment.join, recipe.seed),
            cache: cache.map(|folder| PlaneCache::new(folder, features)).transpose()?,
            conversion: Conversion { resample: features.resample, ..Conversion::default() },
            seed: recipe.seed,
            corpus,
            kept,
            tokenizer,
            wave,
            bad: BadItems::default(),
        };
        streamed.bad = bad_samples(&streamed.corpus);
        let found = streamed.find_bad()?;
        streamed.bad.extend(found);
        Ok(streamed)
    }

    /// The utterances that are known not to be usable without reading sound.
    fn find_bad(&self) -> Result<BadItems> {
        let check = |at: usize| -> Result<(String, Result<()>)> {
            let one = match self.utterance(at) {
                Err(error) if bad_items::is_item_error(&error) => return Ok((self.name(at), Err(error))),
                one => one?,
            };
            let missing = one.files().find_map(|path| Some((path, std::fs::metadata(path).err()?)));
            let found = match missing {
                Some((path, source)) => Err(speech::Error::Io { path: path.to_owned(), source }.into()),
                None => self.labels(&one).map(drop),
            };
            Ok((one.id, found))
        };
        let checked: Vec<_> = (0..self.kept.len()).into_par_iter().map(check).collect();
        let mut bad = BadItems::default();
        for one in checked {
            let (id, found) = one?;
            bad_items::record_bad(&id, found, &mut bad)?;
        }
        Ok(bad)
    }

    /// The bad items that are known before sound is read.
    pub(crate) fn bad(&self) -> &BadItems {
        &self.bad
    }

    /// Utterances without the strings of them, samples of shards that cannot be used included.
    pub(crate) fn utterances(&self) -> usize {
        self.kept.len() + self.corpus.bad_samples().len()
    }

    /// What happened to the cache since the last call.
    pub(super) fn warning(&self) -> Option<String> {
        self.cache.as_ref()?.warning()
    }

    /// A name for an utterance whose line cannot be read.
    fn name(&self, index: usize) -> String {
        format!("utterance {}", self.kept.get(index).map_or(index, |&at| at as usize) + 1)
    }

    /// Utterances, and strings of them.
    pub fn count(&self) -> usize {
        self.kept.len() + self.strings.len()
    }

    /// What is to be said of the utterances, `all` of them, that are too long.
    pub(crate) fn left_out(&self, all: usize) -> Option<String> {
        let without = all - self.kept.len();
        let note = || format!("data.train: {without} of {all} utterances are longer than batch.max_seconds");
        (without > 0).then(note)
    }

    /// Length of one, as is known without reading it.
    pub fn seconds(&self, index: usize) -> f64 {
        let of = |at: usize| self.corpus.seconds(self.kept[at] as usize);
        match index.checked_sub(self.kept.len()) {
            None => of(index),
            Some(string) => self.strings[string].iter().map(|&at| of(at)).sum(),
        }
    }

    /// Bytes of what is known about all of them.
    pub fn bytes(&self) -> usize {
        let strings: usize = self.strings.iter().map(|parts| parts.capacity() * size_of::<usize>()).sum();
        self.corpus.bytes() + self.kept.capacity() * size_of::<u32>() + strings
    }

    fn utterance(&self, index: usize) -> Result<Utterance> {
        let of = |at: usize| Ok(self.corpus.utterance(self.kept[at] as usize)?);
        match index.checked_sub(self.kept.len()) {
            None => of(index),
            Some(string) => {
                let parts: Vec<Utterance> =
                    self.strings[string].iter().map(|&at| of(at)).collect::<Result<_>>()?;
                Ok(join(&parts.iter().collect::<Vec<_>>()))
            }
        }
    }

    /// Reads an utterance, changes its sound as that epoch wants it, and takes its features; none if it cannot be used, for the
    /// reason that is then in `bad`.
    pub(super) fn read(
        &self,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
        bad: &mut BadItems,
    ) -> Result<Option<StreamedUtterance>> {
        match self.read_usable(epoch, index, front_end) {
            Ok((heard, other_length)) => {
                bad.other_length.extend(other_length);
                Ok(Some(heard))
            }
            Err(error) if bad_items::is_item_error(&error) => {
                self.blame(index, &error, front_end, bad)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn read_usable(
        &self,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
    ) -> Result<(StreamedUtterance, Option<LengthMismatch>)> {
        let one = self.utterance(index)?;
        let labels = self.labels(&one)?;
        let mut found = None;
        let mut make = || {
            let (features, seconds) = self.features(&one, epoch, index, front_end)?;
            found = Some(seconds);
            Ok(features)
        };
        let features = match &self.cache {
            None => make()?,
            Some(cache) => cache.read_or(&one, make)?,
        };
        let found = match found {
            // Of features that were kept, the length is that of their frames; nothing is known of what was trimmed.
            None if front_end.config().trim_db == 0.0 => {
                let config = front_end.config();
                front_end.samples(features.frames) as f64 / f64::from(config.sample_rate)
            }
            found => found.unwrap_or(one.seconds),
        };
        // The parts of a string are reported one by one.
        let alone = index < self.kept.len();
        let other_length = LengthMismatch::new(&one.id, one.seconds, found).filter(|_| alone);
        Ok((StreamedUtterance { id: one.id, seconds: one.seconds, labels, features }, other_length))
    }

    /// Names the utterances that keep another, which may be a string of several, from being used.
    fn blame(&self, index: usize, error: &Error, front_end: &FrontEnd, bad: &mut BadItems) -> Result<()> {
        let before = bad.left_out.len();
        let parts = index.checked_sub(self.kept.len()).map(|string| self.strings[string].as_slice());
        for &part in parts.unwrap_or_default() {
            let found = self.utterance(part).and_then(|one| {
                self.labels(&one)?;
                self.sound(&one, front_end)
            });
            let id = self.utterance(part).map_or_else(|_| self.name(part), |one| one.id);
            bad_items::record_bad(&id, found.map(drop), bad)?;
        }
        if bad.left_out.len() == before {
            let id = self.utterance(index).map_or_else(|_| self.name(index), |one| one.id);
            bad.left_out.push(ExcludedUtterance::new(&id, error));
        }
        Ok(())
    }

    /// Name and labels of an utterance, whose sound is not read; none if it cannot be used.
    pub(super) fn said(&self, index: usize) -> Result<Option<(String, Vec<u32>)>> {
        let one = self.utterance(index);
        match one.and_then(|one| Ok((self.labels(&one)?, one.id))) {
            Ok((labels, id)) => Ok(Some((id, labels))),
            Err(error) if bad_items::is_item_error(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn labels(&self, one: &Utterance) -> Result<Vec<u32>> {
        let named = |error| speech::Error::Utterance { utterance: one.id.clone(), source: Box::new(error) };
        Ok(self.tokenizer.encode(&one.text).map_err(named)?)
    }

    fn sound(&self, one: &Utterance, front_end: &FrontEnd) -> Result<Audio> {
        Ok(one.audio_as(front_end.config().sample_rate, &self.conversion)?.0)
    }

    /// Features, and the length of the sound before it was changed.
    fn features(
        &self,
        one: &Utterance,
        epoch: u64,
        index: usize,
        front_end: &FrontEnd,
    ) -> Result<(Features, f64)> {
        let rng = |purpose| stream(self.seed, purpose, epoch, index as u64);
        let mut audio = self.sound(one, front_end)?;
        let found = audio.seconds();
        let named = |error| speech::Error::Utterance { utterance: one.id.clone(), source: Box::new(error) };
        if !self.wave.is_identity() {
            let Audio { samples, sample_rate } = audio;
            let samples = self.wave.apply(samples, &mut rng(Purpose::Wave)).map_err(named)?;
            audio = Audio { samples, sample_rate };
        }
        Ok((front_end.log_mel_with(&audio, &mut rng(Purpose::Dither)).map_err(named)?, found))
    }
}

/// Nothing is left to learn from.
pub(crate) fn all_too_long() -> Error {
    Error::Empty { what: "data.train without what is longer than batch.max_seconds".into() }
}

/// Where the index of a recipe's training set is kept, if anywhere.
pub(crate) fn index_folder(recipe: &Recipe) -> Option<PathBuf> {
    recipe.data.cache.as_ref().map(|folder| folder.join("index"))
}
