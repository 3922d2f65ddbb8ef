//! The sections of a recipe about its data: `[data]`, `[augment]` and `[tokens]`.
use std::path::PathBuf;

use model::Result;
use model::config::values::{MANY, expect, setting, whole};
use recognizer::DEFAULT_MAX_BAD;
use serde::{Deserialize, Serialize};
use speech::wave::{NoiseConfig, ReverbConfig, SpeedConfig};
use speech::{Perturbation, SpecAugment, TokenizerKind, TokenizerOptions, UnicodeForm, WaveConfig};

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

impl Data {
    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        expect("data.train", "at least one manifest", !self.train.is_empty(), "none")?;
        whole("data.workers", self.workers, MANY)?;
        expect("data.max_bad", "a share of 0 to 1", (0.0..=1.0).contains(&self.max_bad), self.max_bad)?;
        expect("data.cache", "none without data.stream", self.cache.is_none() || self.stream, "a folder")
    }
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
    pub perturb: Perturbation,
    /// Masks over time and frequency, second.
    pub mask: SpecAugment,
}

impl Augment {
    /// Checks every value; `stream` is that of the data.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self, stream: bool) -> Result<()> {
        expect("augment.join", &format!("0 to {MANY}"), self.join <= MANY, self.join)?;
        let wave = self.wave();
        wave.check().map_err(|error| setting("augment", error))?;
        let sound = stream || wave == WaveConfig::default();
        expect("augment", "no speed, reverb or noise without data.stream", sound, "some")?;
        self.perturb.check().map_err(|error| setting("augment.perturb", error))?;
        self.mask.check().map_err(|error| setting("augment.mask", error))
    }

    /// What is done to waveforms.
    pub fn wave(&self) -> WaveConfig {
        WaveConfig { speed: self.speed.clone(), reverb: self.reverb.clone(), noise: self.noise.clone() }
    }

    /// How much longer than it is an utterance may become.
    pub fn stretch(&self) -> f64 {
        let waves = self.speed.as_ref().map_or(1.0, |speed| speed.rates[1].max(1.0));
        let Perturbation { speed, tempo, .. } = self.perturb;
        waves / ((1.0 - f64::from(speed)) * (1.0 - f64::from(tempo)))
    }

    /// Manifests of sounds.
    pub(super) fn manifests(&mut self) -> impl Iterator<Item = &mut PathBuf> {
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

fn max_bad() -> f64 {
    DEFAULT_MAX_BAD
}

fn is_max_bad(share: &f64) -> bool {
    *share == max_bad()
}

pub(super) fn once() -> usize {
    1
}

pub(super) fn is_once(count: &usize) -> bool {
    *count == 1
}
