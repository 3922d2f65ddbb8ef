//! A training set that stays on disk: utterances are read, changed and made into features when a batch wants them.
use std::path::PathBuf;

use speech::{Audio, Conversion, Corpus, Features, FrontEnd, Tokenizer, Utterance, WaveAugment};

use super::joined::{groups, join};
use super::plane_cache::PlaneCache;
use crate::random::{Purpose, stream};
use crate::recipe::Recipe;
use crate::{Error, Result};

/// Seconds by which a manifest may be wrong about the length of a recording, and the same as a share: batches are planned by it.
const SECONDS: f64 = 0.1;
const SHARE: f64 = 0.02;

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
}

/// An utterance as an epoch hears it, before masks.
pub(super) struct Heard {
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
        let cache = recipe.data.cache.as_ref().filter(|_| wave.is_none() && features.dither == 0.0);
        Ok(Streamed {
            strings: groups(kept.len(), recipe.augment.join, recipe.seed),
            cache: cache.map(|folder| PlaneCache::new(folder, features)).transpose()?,
            conversion: Conversion { resample: features.resample, ..Conversion::default() },
            seed: recipe.seed,
            corpus,
            kept,
            tokenizer,
            wave,
        })
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

    /// Reads an utterance, changes its sound as that epoch wants it, and takes its features.
    pub(super) fn read(&self, epoch: u64, index: usize, front_end: &FrontEnd) -> Result<Heard> {
        let one = self.utterance(index)?;
        let features = match &self.cache {
            None => self.features(&one, epoch, index, front_end)?,
            Some(cache) => cache.read_or(&one, || self.features(&one, epoch, index, front_end))?,
        };
        let labels = self.labels(&one)?;
        Ok(Heard { id: one.id, seconds: one.seconds, labels, features })
    }

    /// Name and labels of an utterance, whose sound is not read.
    pub(super) fn said(&self, index: usize) -> Result<(String, Vec<u32>)> {
        let one = self.utterance(index)?;
        let labels = self.labels(&one)?;
        Ok((one.id, labels))
    }

    fn labels(&self, one: &Utterance) -> Result<Vec<u32>> {
        let named = |error| speech::Error::Utterance { utterance: one.id.clone(), source: Box::new(error) };
        Ok(self.tokenizer.encode(&one.text).map_err(named)?)
    }

    fn features(&self, one: &Utterance, epoch: u64, index: usize, front_end: &FrontEnd) -> Result<Features> {
        let rng = |purpose| stream(self.seed, purpose, epoch, index as u64);
        let (mut audio, _) = one.audio_as(front_end.config().sample_rate, &self.conversion)?;
        let found = audio.seconds();
        if (found - one.seconds).abs() > SECONDS.max(SHARE * found) {
            let (utterance, expected) = (one.id.clone(), one.seconds);
            return Err(speech::Error::Duration { utterance, expected, found }.into());
        }
        let named = |error| speech::Error::Utterance { utterance: one.id.clone(), source: Box::new(error) };
        if !self.wave.is_none() {
            let Audio { samples, sample_rate } = audio;
            let samples = self.wave.apply(samples, &mut rng(Purpose::Wave)).map_err(named)?;
            audio = Audio { samples, sample_rate };
        }
        Ok(front_end.log_mel_with(&audio, &mut rng(Purpose::Dither)).map_err(named)?)
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
