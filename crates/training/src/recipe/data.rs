//! The recipe's sections for data: `[data]`, `[augment]` and `[tokens]`.
use std::path::PathBuf;

use model::Result;
use model::config::values::{MAX_SMALL_COUNT, check_count, ensure, setting_error};
use recognizer::DEFAULT_MAX_BAD;
use serde::{Deserialize, Serialize};
use speech::wave::{NoiseConfig, ReverbConfig, SpeedConfig};
use speech::{Perturbation, SpecAugment, TokenizerKind, TokenizerOptions, UnicodeForm, WaveConfig};

/// `[data]`: manifests, relative to the recipe's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training set.
    pub train: Vec<PathBuf>,
    /// Dev set, which selects the best checkpoint.
    #[serde(default)]
    pub dev: Vec<PathBuf>,
    /// Test set, for the final evaluation.
    #[serde(default)]
    pub test: Vec<PathBuf>,
    /// True to read training utterances again in each epoch.
    ///
    /// Their features are then not kept in memory.
    ///
    /// For training sets that do not fit into memory, and for augmentation of the audio.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Threads that load batches ahead of their use.
    #[serde(default = "default_workers", skip_serializing_if = "is_one")]
    pub workers: usize,
    /// Largest fraction of bad utterances in a set.
    ///
    /// Rounded up to whole utterances.
    #[serde(default = "default_max_bad", skip_serializing_if = "is_default_max_bad")]
    pub max_bad: f64,
    /// Folder of a cache.
    ///
    /// For streaming, the index and, without audio augmentation, the features; with
    /// `training.cache_encoder`, the encoder rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
}

impl DataConfig {
    /// Checks every value; `caches_encoder` is true with `training.cache_encoder`.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self, caches_encoder: bool) -> Result<()> {
        ensure("data.train", "at least one manifest", !self.train.is_empty(), "none")?;
        check_count("data.workers", self.workers, MAX_SMALL_COUNT)?;
        ensure("data.max_bad", "a number from 0 to 1", (0.0..=1.0).contains(&self.max_bad), self.max_bad)?;
        let is_used = self.stream || caches_encoder;
        ensure("data.cache", "none without data.stream", self.cache.is_none() || is_used, "a folder")
    }
}

/// `[augment]`: augmentation of training utterances; none by default.
///
/// Features are augmented anew in each epoch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// Number of utterances in each concatenation; no concatenations below 2.
    ///
    /// In addition to each single utterance, every epoch contains all utterances once in
    /// concatenations, for models that continue after the end of an utterance.
    #[serde(skip_serializing_if = "is_zero")]
    pub join: usize,
    /// Speed perturbation of the waveform, before all other augmentation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedConfig>,
    /// Reverberation by impulse responses, from a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverb: Option<ReverbConfig>,
    /// Additive noise, from a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseConfig>,
    /// Changes of speed, tempo and frequency axis of the features.
    pub perturb: Perturbation,
    /// Masks over time and frequency, after `perturb`.
    pub mask: SpecAugment,
}

impl AugmentConfig {
    /// Checks every value; `stream` is `data.stream`.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self, stream: bool) -> Result<()> {
        ensure("augment.join", &format!("0 to {MAX_SMALL_COUNT}"), self.join <= MAX_SMALL_COUNT, self.join)?;
        let wave = self.wave();
        wave.check().map_err(|error| setting_error("augment", error))?;
        let is_supported = stream || wave == WaveConfig::default();
        ensure("augment", "no speed, reverb or noise without data.stream", is_supported, "some")?;
        self.perturb.check().map_err(|error| setting_error("augment.perturb", error))?;
        self.mask.check().map_err(|error| setting_error("augment.mask", error))
    }

    /// Returns the augmentation of waveforms.
    pub fn wave(&self) -> WaveConfig {
        WaveConfig { speed: self.speed.clone(), reverb: self.reverb.clone(), noise: self.noise.clone() }
    }

    /// Returns the largest factor of the length of an utterance.
    pub(crate) fn stretch(&self) -> f64 {
        // The second rate is the largest factor of the length of the audio.
        let audio_stretch = self.speed.as_ref().map_or(1.0, |speed| speed.rates[1].max(1.0));
        let Perturbation { speed, tempo, .. } = self.perturb;
        audio_stretch / ((1.0 - f64::from(speed)) * (1.0 - f64::from(tempo)))
    }

    /// Iterates over the manifests of noise and impulse responses.
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

/// `[tokens]`: the tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Kind of the tokens.
    pub kind: TokenizerKind,
    /// Unicode normalization of all texts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub normalize: UnicodeForm,
    /// Words that are one token each; by default all words `<...>` in the training texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special: Option<Vec<String>>,
    /// True if error rates ignore special words, in references and hypotheses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_special: bool,
}

impl TokenConfig {
    /// Returns tokens of a kind, with defaults for all other values.
    pub fn new(kind: TokenizerKind) -> Self {
        Self { kind, normalize: UnicodeForm::default(), special: None, ignore_special: false }
    }

    /// Returns the options of the tokenizer.
    pub fn options(&self) -> TokenizerOptions {
        TokenizerOptions { kind: self.kind, normalize: self.normalize, special: self.special.clone() }
    }
}

fn default_max_bad() -> f64 {
    DEFAULT_MAX_BAD
}

fn is_default_max_bad(fraction: &f64) -> bool {
    *fraction == default_max_bad()
}

pub(super) fn default_workers() -> usize {
    1
}

pub(super) fn is_one(count: &usize) -> bool {
    *count == 1
}
