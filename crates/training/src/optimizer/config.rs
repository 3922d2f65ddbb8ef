//! `[optimizer]` of a recipe: optimizer, learning rate schedule, clipping, EMA.
use std::collections::BTreeMap;

use model::Result;
use model::config::values::{check_non_negative, check_positive, ensure};
use serde::{Deserialize, Serialize};

use super::clip::Clip;
use super::{OptimizerKind, rates};

/// `[optimizer]`: the optimizer and its learning rate schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The optimizer.
    #[serde(default)]
    pub kind: OptimizerKind,
    /// Largest learning rate; with `decay = "noam"` its scale.
    pub learning_rate: f64,
    /// Steps of linear growth at the start.
    #[serde(default)]
    pub warmup_steps: u64,
    /// How the learning rate decays over the run.
    #[serde(default)]
    pub decay: Decay,
    /// Last learning rate as a fraction of the largest.
    #[serde(default = "default_floor")]
    pub floor: f64,
    /// With `decay = "mlperf"`: epochs of linear growth at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<u64>,
    /// With `decay = "mlperf"`: epochs at the largest learning rate after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_epochs: Option<u64>,
    /// With `decay = "mlperf"`: factor of the learning rate in each later epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// With `decay = "mlperf"`: the smallest learning rate; 1e-5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<f64>,
    /// With `decay = "noam"`: the model's width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_width: Option<u64>,
    /// Decoupled weight decay.
    #[serde(default)]
    pub weight_decay: f64,
    /// Decay rates of both moments.
    #[serde(default = "default_betas")]
    pub betas: [f64; 2],
    /// Term that is added to the root of the second moment.
    #[serde(default = "default_eps")]
    pub eps: f64,
    /// Largest norm of the gradient; 0 sets no limit.
    #[serde(default = "default_clip_norm")]
    pub clip_norm: f64,
    /// How the norm is limited; AdamW supports [`ClipKind::Single`] only.
    #[serde(default)]
    pub clip: ClipKind,
    /// True if moments are corrected for their start at 0.
    ///
    /// AdamW always corrects them.
    #[serde(default = "default_true")]
    pub bias_correction: bool,
    /// Decay of the moving average of the weights, used for evaluation; 0 disables it.
    #[serde(default)]
    pub ema: f64,
    /// True if the decay of the average grows from 1/10.
    ///
    /// The average then forgets the initial weights.
    #[serde(default = "default_true")]
    pub ema_warmup: bool,
    /// Factors on the learning rate of parameters or modules; the most specific name applies.
    ///
    /// As in `init.frozen`, `encoder.layers.0..4` are four layers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<String, f64>,
}

impl OptimizerConfig {
    /// Returns AdamW with a learning rate, and defaults for all other values.
    pub fn new(learning_rate: f64) -> Self {
        OptimizerConfig {
            kind: OptimizerKind::default(),
            learning_rate,
            warmup_steps: 0,
            decay: Decay::default(),
            floor: default_floor(),
            warmup_epochs: None,
            hold_epochs: None,
            gamma: None,
            min_rate: None,
            model_width: None,
            weight_decay: 0.0,
            betas: default_betas(),
            eps: default_eps(),
            clip_norm: default_clip_norm(),
            clip: ClipKind::default(),
            bias_correction: true,
            ema: 0.0,
            ema_warmup: true,
            rates: BTreeMap::new(),
        }
    }
}

/// How `clip_norm` limits the norm of the gradient; see [`Clip`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClipKind {
    /// Exactly the limit: [`Clip::Single`].
    #[default]
    Single,
    /// Just below the limit: [`Clip::Distributed`].
    Distributed,
}

/// Decay of the learning rate over the run; [`crate::schedule`] has the formulas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Half a cosine, down to the floor.
    #[default]
    Cosine,
    /// A constant factor in each step, down to the floor.
    Exponential,
    /// No decay.
    Hold,
    /// The inverse root of the step, as in the first transformers.
    ///
    /// Requires `warmup_steps` and `model_width`.
    Noam,
    /// A constant factor in each epoch, after growth and hold.
    ///
    /// Requires `warmup_epochs`, `hold_epochs` and `gamma`.
    MlPerf,
}

impl Decay {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Decay::Cosine => "cosine",
            Decay::Exponential => "exponential",
            Decay::Hold => "hold",
            Decay::Noam => "noam",
            Decay::MlPerf => "mlperf",
        }
    }
}

/// Default of the last learning rate with `decay = "mlperf"`.
pub(crate) const MIN_RATE: f64 = 1e-5;

impl OptimizerConfig {
    /// Returns the limit of the gradient's norm.
    pub(crate) fn clip(&self) -> Clip {
        match (self.clip_norm, self.clip) {
            (0.0, _) => Clip::None,
            (limit, ClipKind::Single) => Clip::Single(limit),
            (limit, ClipKind::Distributed) => Clip::Distributed(limit),
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    pub(crate) fn check(&self) -> Result<()> {
        let OptimizerConfig { learning_rate, floor, eps, ema, .. } = *self;
        check_positive("optimizer.learning_rate", learning_rate)?;
        ensure("optimizer.floor", "a number above 0, at most 1", floor > 0.0 && floor <= 1.0, floor)?;
        check_positive("optimizer.eps", eps)?;
        check_non_negative("optimizer.weight_decay", self.weight_decay)?;
        check_non_negative("optimizer.clip_norm", self.clip_norm)?;
        for beta in self.betas {
            ensure("optimizer.betas", "numbers of at least 0, below 1", (0.0..1.0).contains(&beta), beta)?;
        }
        self.check_choices()?;
        rates::check(&self.rates)?;
        ensure("optimizer.ema", "a number of at least 0, below 1", (0.0..1.0).contains(&ema), ema)
    }

    /// Checks keys that depend on other keys.
    fn check_choices(&self) -> Result<()> {
        self.kind.check(self)?;
        let (is_mlperf, is_noam) = (self.decay == Decay::MlPerf, self.decay == Decay::Noam);
        check_presence("warmup_epochs", self.warmup_epochs, is_mlperf, self.decay)?;
        check_presence("hold_epochs", self.hold_epochs, is_mlperf, self.decay)?;
        check_presence("gamma", self.gamma, is_mlperf, self.decay)?;
        check_presence("model_width", self.model_width, is_noam, self.decay)?;
        if let Some(gamma) = self.gamma {
            ensure("optimizer.gamma", "a number above 0, at most 1", gamma > 0.0 && gamma <= 1.0, gamma)?;
        }
        if let Some(width) = self.model_width {
            ensure("optimizer.model_width", "at least 1", width >= 1, width)?;
        }
        if let Some(rate) = self.min_rate {
            let key = "optimizer.min_rate";
            ensure(key, &format!("none with decay = \"{}\"", self.decay.name()), is_mlperf, rate)?;
            check_non_negative(key, rate)?;
            let max = self.learning_rate;
            ensure(key, &format!("at most the learning rate, {max}"), rate <= max, rate)?;
        } else if is_mlperf {
            let expected = format!("at least {MIN_RATE}, the default of min_rate");
            ensure("optimizer.learning_rate", &expected, self.learning_rate >= MIN_RATE, self.learning_rate)?;
        }
        if is_mlperf || is_noam {
            let (floor, expected) = (self.floor, format!("none with decay = \"{}\"", self.decay.name()));
            ensure("optimizer.floor", &expected, floor == default_floor(), floor)?;
        }
        let steps = self.warmup_steps;
        if is_mlperf {
            let expected = "none with decay = \"mlperf\", which has warmup_epochs";
            ensure("optimizer.warmup_steps", expected, steps == 0, steps)?;
        }
        ensure("optimizer.warmup_steps", "at least 1 with decay = \"noam\"", !is_noam || steps > 0, steps)
    }
}

/// Checks that a key is present exactly if the decay requires it.
fn check_presence<T: ToString>(key: &str, value: Option<T>, is_required: bool, decay: Decay) -> Result<()> {
    let (key, found) =
        (format!("optimizer.{key}"), value.map_or("none".to_owned(), |value| value.to_string()));
    let decay = decay.name();
    match is_required {
        true => ensure(&key, &format!("a value with decay = \"{decay}\""), found != "none", found),
        false => ensure(&key, &format!("none with decay = \"{decay}\""), found == "none", &found),
    }
}

fn default_true() -> bool {
    true
}
fn default_clip_norm() -> f64 {
    5.0
}
fn default_floor() -> f64 {
    0.01
}
fn default_eps() -> f64 {
    1e-8
}
fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}
