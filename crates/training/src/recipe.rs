//! A training recipe: one TOML file says everything that decides a run.
mod check;

use std::path::{Path, PathBuf};

use model::bytes;
use model::checkpoint::RECIPE_PLACE;

use model::config::table::{self, first_difference, syntax_error};
use model::config::{EncoderConfig, Initialization, JointConfig, Loss, ModelConfig, Terms};
use model::predictors::PredictorKind;
use model::{Checkpoint, InputConfig};
use recognizer::{BatchSize, MAX_BAD, Metric};
use serde::{Deserialize, Deserializer, Serialize};
use speech::wave::{NoiseConfig, ReverbConfig, SpeedConfig};
use speech::{FeatureConfig, Perturb, SpecAugment, TokenizerKind, TokenizerOptions, UnicodeForm, WaveConfig};

use crate::optimizer::OptimizerConfig;
use crate::{Error, Result};

/// A recipe as read from its file.
///
/// Unknown keys are errors everywhere, so that a misspelt one cannot silently fall back to a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Decides first weights, order, augmentation and dropout.
    #[serde(default)]
    pub seed: u64,
    /// Which utterances.
    pub data: Data,
    /// From samples to log-mel frames.
    #[serde(default)]
    pub features: FeatureConfig,
    /// What training does to the frames.
    #[serde(default)]
    pub augment: Augment,
    /// From text to labels.
    pub tokens: TokenConfig,
    /// The acoustic side.
    pub encoder: EncoderConfig,
    /// The label side; none where the loss brings its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predictor: Option<PredictorKind>,
    /// Where both meet.
    pub joint: JointConfig,
    /// First weights.
    #[serde(default, skip_serializing_if = "Initialization::is_default")]
    pub init: Initialization,
    /// Steps and step sizes.
    #[serde(rename = "optimiser")]
    pub optimizer: OptimizerConfig,
    /// Sizes of batches.
    pub batch: BatchConfig,
    /// Kind of the loss, and what all kinds can say.
    #[serde(default)]
    pub loss: Loss,
    /// Length and objective of the run.
    pub training: TrainingConfig,
}

/// `[data]`: manifests, relative to the recipe's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Utterances to learn from.
    pub train: Vec<PathBuf>,
    /// Utterances that choose the best checkpoint.
    #[serde(default)]
    pub dev: Vec<PathBuf>,
    /// Utterances of the final report.
    #[serde(default)]
    pub test: Vec<PathBuf>,
    /// Whether training utterances are read anew in each epoch, in place of having all their features in memory: for training sets
    /// that memory does not hold, and for changes to their sound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Threads that make batches ahead of their use.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub workers: usize,
    /// Share of the utterances of a set that may be left out since they cannot be used; rounded up to whole utterances.
    #[serde(default = "max_bad", skip_serializing_if = "is_max_bad")]
    pub max_bad: f64,
    /// A folder for what streaming would find out again and again: where utterances are, and, if their sound is not changed, their
    /// features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
}

/// `[augment]`: changes to training utterances, those to their frames new in each epoch; none by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augment {
    /// Beside each utterance alone, all of them are heard once an epoch in strings of so many, in an order that the seed decides:
    /// for models that listen on after the end of an utterance. None below 2.
    #[serde(skip_serializing_if = "is_zero")]
    pub join: usize,
    /// Other speeds, as waveforms; before everything that follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedConfig>,
    /// Impulse responses of rooms, from a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverb: Option<ReverbConfig>,
    /// Noise, from a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseConfig>,
    /// Speed, tempo and frequency-axis changes of the frames, first.
    pub perturb: Perturb,
    /// Masks over time and frequency, second.
    pub mask: SpecAugment,
}

impl Augment {
    /// What is done to waveforms.
    pub fn wave(&self) -> WaveConfig {
        WaveConfig { speed: self.speed.clone(), reverb: self.reverb.clone(), noise: self.noise.clone() }
    }

    /// How much longer than it is an utterance may become.
    pub fn stretch(&self) -> f64 {
        let waves = self.speed.as_ref().map_or(1.0, |speed| speed.rates[1].max(1.0));
        let Perturb { speed, tempo, .. } = self.perturb;
        waves / ((1.0 - f64::from(speed)) * (1.0 - f64::from(tempo)))
    }

    /// Manifests of sounds.
    fn manifests(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let reverb = self.reverb.as_mut().map(|reverb| &mut reverb.manifest);
        reverb.into_iter().chain(self.noise.as_mut().map(|noise| &mut noise.manifest))
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// `[tokens]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Kind of the labels.
    pub kind: TokenizerKind,
    /// Unicode form of all texts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub normalize: UnicodeForm,
    /// Words that are one label each; without the key, all words of the form `<...>` in the training texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special: Option<Vec<String>>,
    /// Whether error rates ignore special words, in references and hypotheses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_special: bool,
}

impl TokenConfig {
    /// Tokens of a kind, everything else by default.
    pub fn new(kind: TokenizerKind) -> Self {
        Self { kind, normalize: UnicodeForm::default(), special: None, ignore_special: false }
    }

    /// Options of the tokenizer.
    pub fn options(&self) -> TokenizerOptions {
        TokenizerOptions { kind: self.kind, normalize: self.normalize, special: self.special.clone() }
    }
}

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
    /// dropped anew in each epoch; see [`speech::batching::bucketed`]. 0 = batches of up to `max_frames` of all utterances.
    #[serde(default)]
    pub buckets: usize,
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

impl BatchConfig {
    /// The limits of a batch.
    pub fn size(&self) -> BatchSize {
        let BatchConfig { max_frames, max_utterances, .. } = *self;
        BatchSize { max_frames, max_utterances }
    }
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
fn max_bad() -> f64 {
    MAX_BAD
}

fn is_max_bad(share: &f64) -> bool {
    *share == max_bad()
}

fn once() -> usize {
    1
}
fn is_once(count: &usize) -> bool {
    *count == 1
}
/// Values of a command line that replace those of the recipe.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Changes {
    /// Passes over the training set.
    pub epochs: Option<u64>,
    /// What the run may take in memory, in bytes.
    pub memory: Option<usize>,
    /// Share of a set that may be left out (`data.max_bad`).
    pub max_bad: Option<f64>,
}

impl From<Option<u64>> for Changes {
    fn from(epochs: Option<u64>) -> Self {
        Changes { epochs, ..Changes::default() }
    }
}

impl Recipe {
    /// The recipe of a checkpoint.
    ///
    /// # Errors
    /// [`model::Error::Inside`] the file if it is no sound recipe.
    pub fn of_checkpoint(checkpoint: &Checkpoint, path: &Path) -> Result<Recipe> {
        Self::parse_text(&checkpoint.recipe, Path::new(RECIPE_PLACE))
            .map_err(|source| model::Error::Inside { path: path.to_owned(), source: Box::new(source) }.into())
    }

    /// Reads and checks a recipe; its manifests become relative to the current folder.
    ///
    /// `changes` replace the recipe's own values. The text that comes back is that of the file, or, with changes, the changed
    /// recipe written anew (without the comments): what a run folder and a checkpoint hold.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io) if the file cannot be read, [`Error::RecipeSyntax`](model::Error::RecipeSyntax) for bad TOML, an unknown or a missing key, and
    /// [`Error::RecipeValue`](model::Error::RecipeValue) for a value outside its range.
    pub fn read(path: &Path, changes: impl Into<Changes>) -> Result<(Recipe, String)> {
        let text = speech::files::read_given_text(path).map_err(Error::io(path, "read the recipe"))?;
        Self::changed(text.strip_prefix('\u{feff}').unwrap_or(&text), path, changes.into())
    }

    fn changed(text: &str, path: &Path, changes: Changes) -> Result<(Recipe, String)> {
        let mut text = text.to_owned();
        let mut recipe = Self::parse(&text, path)?;
        if changes != Changes::default() {
            let Changes { epochs, memory, max_bad } = changes;
            recipe.training.run.epochs = epochs.unwrap_or(recipe.training.run.epochs);
            recipe.batch.memory = memory.or(recipe.batch.memory);
            recipe.data.max_bad = max_bad.unwrap_or(recipe.data.max_bad);
            recipe.check()?;
            text = toml::to_string(&recipe)
                .map_err(|error| syntax_error(path, "", &serde::de::Error::custom(error)))?;
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let Data { train, dev, test, cache, .. } = &mut recipe.data;
        let sounds = recipe.augment.manifests();
        let weights = &mut recipe.init.pretrained.weights;
        for path in train.iter_mut().chain(dev).chain(test).chain(cache).chain(sounds).chain(weights) {
            *path = base.join(&path);
        }
        Ok((recipe, text))
    }

    /// The first key that another recipe has another value for, with both; but for the places of the data, of which checkpoints
    /// have a fingerprint, of noise and impulse responses, and of pretrained weights.
    pub(crate) fn difference(&self, other: &Recipe) -> Option<String> {
        let [mut here, mut there] = [self, other].map(Recipe::clone);
        [&mut here, &mut there]
            .into_iter()
            .flat_map(|recipe| recipe.augment.manifests())
            .for_each(PathBuf::clear);
        // A run that goes on does not read them again, so that they may lie elsewhere.
        for weights in
            [&mut here, &mut there].into_iter().filter_map(|one| one.init.pretrained.weights.as_mut())
        {
            *weights = "FILE".into();
        }
        // Not every path can be written down.
        for data in [&mut here.data, &mut there.data] {
            (data.train, data.dev, data.test, data.cache) = Default::default();
        }
        let table = |recipe: Recipe| toml::to_string(&recipe).ok()?.parse::<toml::Table>().ok();
        let (Some(here), Some(there)) = (table(here), table(there)) else {
            return Some("one that cannot be written down".to_owned());
        };
        let [here, there] = [here, there].map(|mut table| {
            table.remove("data");
            table
        });
        first_difference("", &here, &there)
    }

    /// Parses and checks a recipe's text; `path` is for messages only.
    ///
    /// # Errors
    /// As [`Recipe::read`], without the file.
    pub fn parse(text: &str, path: &Path) -> Result<Recipe> {
        Ok(Self::parse_text(text, path)?)
    }

    fn parse_text(text: &str, path: &Path) -> model::Result<Recipe> {
        let recipe: Recipe = toml::from_str(text).map_err(|error| syntax_error(path, text, &error))?;
        recipe.check()?;
        Ok(recipe)
    }

    /// The model, apart from everything else.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            seed: self.seed,
            input: InputConfig { features: self.features.clone(), rows: self.encoder.rows.clone() },
            encoder: self.encoder.kind.clone(),
            predictor: self.predictor.clone(),
            joint: self.joint.clone(),
            loss: self.loss.clone(),
            terms: self.training.terms.clone(),
            init: self.init.law,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn places_of_the_data_make_no_difference_even_where_they_are_no_text() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/digits.toml");
        let recipe = Recipe::read(&path, None).unwrap().0;
        let mut elsewhere = recipe.clone();
        let place = Path::new(OsStr::from_bytes(b"/data/\xff"));
        elsewhere.data.train = vec![place.join("train.jsonl")];
        elsewhere.data.cache = Some(place.to_owned());
        assert_eq!(recipe.difference(&elsewhere), None);
        elsewhere.seed += 1;
        assert!(recipe.difference(&elsewhere).unwrap().starts_with("one with seed = "));
    }
}
