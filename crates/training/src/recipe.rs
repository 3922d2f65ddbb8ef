//! A training recipe: one TOML file says everything that decides a run.
pub(crate) mod check;
mod gnat;
mod loss;
mod loss_options;
mod table;

use std::path::{Path, PathBuf};

pub use gnat::{AlignmentKind, GnatConfig, Normalise};
pub use loss::LossConfig;
pub use loss_options::{ActivationKind, Loss, LossOptions};

use rnnt_loss::{Precision, Topology};
use serde::{Deserialize, Deserializer, Serialize};
use speech::wave::{NoiseConfig, ReverbConfig, SpeedConfig};
use speech::{FeatureConfig, Perturb, SpecAugment, TokenizerKind, WaveConfig};

use crate::encoder::EncoderKind;
use crate::predictor::PredictorKind;
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
    pub tokens: Tokens,
    /// The acoustic side.
    pub encoder: EncoderConfig,
    /// The label side; none where the loss brings its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predictor: Option<PredictorKind>,
    /// Where both meet.
    pub joint: JointConfig,
    /// Steps and step sizes.
    pub optimiser: OptimiserConfig,
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

    /// Manifests of sounds.
    fn manifests(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let reverb = self.reverb.as_mut().map(|reverb| &mut reverb.manifest);
        reverb.into_iter().chain(self.noise.as_mut().map(|noise| &mut noise.manifest))
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// `[tokens]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Kind of the labels.
    pub kind: TokenizerKind,
}

/// `[encoder]`: how rows are made, and what encodes them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncoderConfig {
    /// Neighbouring frames that become one input row, and frames from one input row to the next.
    #[serde(flatten)]
    pub rows: RowsConfig,
    /// The encoder.
    #[serde(flatten)]
    pub kind: EncoderKind,
}

/// The keys of `[encoder]` that all kinds share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsConfig {
    /// Neighbouring frames that become one input row.
    pub stack: usize,
    /// Frames from one input row to the next.
    pub stride: usize,
    /// Fewest values of an input row, zeros behind those of its frames: 256 makes MLPerf's rows of 240 a multiple of 32. 0 = none.
    #[serde(skip_serializing_if = "is_zero")]
    pub channels: usize,
}

impl RowsConfig {
    /// Values of a row, made of frames of so many mel bins.
    pub fn width(&self, mels: usize) -> usize {
        (mels * self.stack).max(self.channels)
    }
}

impl Default for RowsConfig {
    fn default() -> Self {
        RowsConfig { stack: 3, stride: 3, channels: 0 }
    }
}

impl<'de> Deserialize<'de> for EncoderConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (rows, kind) = table::split(deserializer, &["stack", "stride", "channels"], Some("lstm"))?;
        Ok(EncoderConfig { rows, kind })
    }
}

/// `[joint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointConfig {
    /// Width H.
    pub width: usize,
    /// Share of values dropped after the activation.
    #[serde(default)]
    pub dropout: f32,
}

/// `[optimiser]`: AdamW and its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserConfig {
    /// Largest step size.
    pub learning_rate: f64,
    /// Steps of linear growth at the start.
    #[serde(default)]
    pub warmup_steps: u64,
    /// How the step size falls over the run.
    #[serde(default)]
    pub decay: Decay,
    /// Last step size as a share of the largest.
    #[serde(default = "one_percent")]
    pub floor: f64,
    /// Decoupled weight decay.
    #[serde(default)]
    pub weight_decay: f64,
    /// Decay of both moments.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    #[serde(default = "epsilon")]
    pub eps: f64,
    /// Largest norm of the gradient; 0 = no limit.
    #[serde(default = "five")]
    pub clip_norm: f64,
    /// Decay of the moving average of the weights that evaluation uses; 0 = off.
    #[serde(default)]
    pub ema: f64,
}

/// Shape of the step size over the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Half a cosine down to the floor.
    #[default]
    Cosine,
    /// The same factor each step, down to the floor.
    Exponential,
    /// None.
    Hold,
}

/// `[batch]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Most rows of a batch, padding included.
    pub max_frames: usize,
    /// Most utterances of a batch.
    pub max_utterances: usize,
}

/// `[training]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingConfig {
    /// Passes over the training set.
    pub epochs: u64,
    /// The name of a [`Topology`] of blank and label, which says whether a frame may emit several labels or one at most; durations
    /// need the regular one, big blanks do not know the constrained one.
    #[serde(default, with = "loss::name")]
    pub topology: Topology,
    /// What the factors of the head's products are rounded to: `bf16` is several times as fast where the processor has
    /// instructions for it and the vocabulary is large.
    #[serde(default)]
    pub precision: PrecisionKind,
    /// Weight of the auxiliary CTC loss at the start; without a weight at start and end there is no CTC head.
    #[serde(default)]
    pub ctc_weight: f64,
    /// Its weight at the end, reached linearly; the same as at the start if missing.
    #[serde(default)]
    pub ctc_weight_end: Option<f64>,
    /// FastEmit's λ.
    #[serde(default)]
    pub fastemit: f64,
    /// What a frame of delay costs a label, in log-probability.
    #[serde(default)]
    pub delay_penalty: f64,
    /// Share of the mean over all classes in each token's log-probability; not with a factored blank.
    #[serde(default)]
    pub label_smoothing: f64,
    /// Factor of the mean square of logZ over an utterance's sites.
    #[serde(default)]
    pub z_loss: f64,
    /// Epochs between two evaluations on the dev set.
    #[serde(default = "one")]
    pub evaluate_every: u64,
    /// Steps between two checkpoints; 0 = at the end of an epoch only.
    #[serde(default)]
    pub checkpoint_every: u64,
    /// Which weights the final report is about.
    #[serde(default)]
    pub select: Select,
}

impl TrainingConfig {
    /// Whether the CTC loss has a weight at any time.
    pub(crate) fn has_ctc(&self) -> bool {
        self.ctc_weight > 0.0 || self.ctc_weight_end.is_some_and(|end| end > 0.0)
    }

    /// Weight of the CTC loss when the share `progress` of the run is over.
    pub(crate) fn ctc_weight(&self, progress: f64) -> f64 {
        let end = self.ctc_weight_end.unwrap_or(self.ctc_weight);
        self.ctc_weight + (end - self.ctc_weight) * progress
    }
}

/// Numbers of the head's products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionKind {
    /// `f32`
    #[default]
    Full,
    /// bf16, with sums in `f32`.
    Bf16,
}

impl PrecisionKind {
    /// For the loss.
    pub(crate) fn precision(self) -> Precision {
        match self {
            Self::Full => Precision::Full,
            Self::Bf16 => Precision::Bf16,
        }
    }
}

/// Which checkpoint the run ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Select {
    /// The one with the lowest word error rate on the dev set.
    #[default]
    Best,
    /// The last one.
    Last,
}

fn one() -> u64 {
    1
}
fn five() -> f64 {
    5.0
}
fn one_percent() -> f64 {
    0.01
}
fn epsilon() -> f64 {
    1e-8
}
fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn first_difference(table: &str, here: &toml::Table, there: &toml::Table) -> Option<String> {
    let keys: std::collections::BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    keys.into_iter().find_map(|key| {
        let name = if table.is_empty() { key.clone() } else { format!("{table}.{key}") };
        match (here.get(key), there.get(key)) {
            (here, there) if here == there => None,
            (Some(toml::Value::Table(here)), Some(toml::Value::Table(there))) => {
                first_difference(&name, here, there)
            }
            (here, there) => {
                let text = |value: Option<&toml::Value>| value.map_or("none".to_owned(), ToString::to_string);
                Some(format!("one with {name} = {} where this has {}", text(there), text(here)))
            }
        }
    })
}

impl Recipe {
    /// Reads and checks a recipe; its manifests become relative to the current folder.
    ///
    /// `epochs` replaces the recipe's own number. The text that comes back is that of the file, or, with `epochs`, the changed
    /// recipe written anew (without the comments): what a run folder and a checkpoint hold.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::RecipeSyntax`] for bad TOML, an unknown or a missing key, and
    /// [`Error::RecipeValue`] for a value outside its range.
    pub fn read(path: &Path, epochs: Option<u64>) -> Result<(Recipe, String)> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path, "read the recipe"))?;
        let mut text = text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned();
        let mut recipe = Self::parse(&text, path)?;
        if let Some(epochs) = epochs {
            recipe.training.epochs = epochs;
            recipe.check()?;
            text = toml::to_string(&recipe)
                .map_err(|error| Error::syntax(path, serde::de::Error::custom(error)))?;
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let Data { train, dev, test } = &mut recipe.data;
        for manifest in train.iter_mut().chain(dev).chain(test).chain(recipe.augment.manifests()) {
            *manifest = base.join(&manifest);
        }
        Ok((recipe, text))
    }

    /// The first key that another recipe has another value for, with both; but for the places of the data, of which checkpoints
    /// have a fingerprint, and of noise and impulse responses.
    pub(crate) fn difference(&self, other: &Recipe) -> Option<String> {
        let [mut here, mut there] = [self, other].map(Recipe::clone);
        [&mut here, &mut there]
            .into_iter()
            .flat_map(|recipe| recipe.augment.manifests())
            .for_each(PathBuf::clear);
        let (Ok(here), Ok(there)) = (toml::Table::try_from(here), toml::Table::try_from(there)) else {
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
        let recipe: Recipe = toml::from_str(text).map_err(|error| Error::syntax(path, error))?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Number of classes with so many labels, blanks included.
    pub fn classes(&self, labels: usize) -> usize {
        labels + 1 + self.loss.kind.big_blanks().len()
    }

    /// Milliseconds from one encoder row to the next: hop · stride · time reduction.
    pub fn frame_ms(&self) -> f64 {
        let EncoderConfig { rows, kind } = &self.encoder;
        f64::from(self.features.hop_ms) * (rows.stride * kind.reduction()) as f64
    }
}
