//! Which optimizer, and which keys of `[optimiser]` belong to which choice.
use model::Result;
use model::config::values::{check_non_negative, check_positive, ensure};
use serde::{Deserialize, Serialize};

use super::OptimizerKind;
use super::clip::Clip;

/// `[optimiser]`: the optimizer and its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The optimizer.
    #[serde(default)]
    pub kind: OptimizerKind,
    /// Largest step size; with `decay = "noam"` its scale.
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
    /// With `decay = "mlperf"`: epochs of linear growth at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<u64>,
    /// With `decay = "mlperf"`: epochs at the largest step size after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_epochs: Option<u64>,
    /// With `decay = "mlperf"`: what each later epoch multiplies the step size by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// With `decay = "mlperf"`: the smallest step size; 1e-5 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<f64>,
    /// With `decay = "noam"`: the model's width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_width: Option<u64>,
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
    /// How the norm is limited; AdamW knows the first way only.
    #[serde(default)]
    pub clip: ClipKind,
    /// Whether moments are freed of their start at 0, as AdamW's always are.
    #[serde(default = "yes")]
    pub bias_correction: bool,
    /// Decay of the moving average of the weights that evaluation uses; 0 = off.
    #[serde(default)]
    pub ema: f64,
    /// Whether that decay grows from 1/10 in the first steps, so that the first weights are forgotten.
    #[serde(default = "yes")]
    pub ema_warmup: bool,
}

impl OptimizerConfig {
    /// AdamW with a largest step size, and all else by default.
    pub fn new(learning_rate: f64) -> Self {
        OptimizerConfig {
            kind: OptimizerKind::default(),
            learning_rate,
            warmup_steps: 0,
            decay: Decay::default(),
            floor: one_percent(),
            warmup_epochs: None,
            hold_epochs: None,
            gamma: None,
            min_rate: None,
            model_width: None,
            weight_decay: 0.0,
            betas: betas(),
            eps: epsilon(),
            clip_norm: five(),
            clip: ClipKind::default(),
            bias_correction: true,
            ema: 0.0,
            ema_warmup: true,
        }
    }
}

/// How `clip_norm` limits the norm of the gradient; see [`Clip`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClipKind {
    /// [`Clip::Single`]
    #[default]
    Single,
    /// [`Clip::Distributed`]
    Distributed,
}

/// Shape of the step size over the run; [`crate::schedule`] has the formulas.
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
    /// With the inverse root of the step, as for the first transformers; needs `warmup_steps` and `model_width`.
    Noam,
    /// The same factor each epoch after `warmup_epochs` of growth and `hold_epochs` of rest; needs these and `gamma`.
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

/// Last step size of `decay = "mlperf"` where the recipe does not say.
pub(crate) const MIN_RATE: f64 = 1e-5;

impl OptimizerConfig {
    /// The limit of the gradient's norm.
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
        let OptimizerConfig { learning_rate: rate, floor, eps, ema, .. } = *self;
        check_positive("optimiser.learning_rate", rate)?;
        ensure("optimiser.floor", "a share above 0, at most 1", floor > 0.0 && floor <= 1.0, floor)?;
        check_positive("optimiser.eps", eps)?;
        check_non_negative("optimiser.weight_decay", self.weight_decay)?;
        check_non_negative("optimiser.clip_norm", self.clip_norm)?;
        for beta in self.betas {
            ensure("optimiser.betas", "shares of at least 0, below 1", (0.0..1.0).contains(&beta), beta)?;
        }
        self.check_choices()?;
        ensure("optimiser.ema", "a share of at least 0, below 1", (0.0..1.0).contains(&ema), ema)
    }

    /// Checks that keys are there where their choice needs them, and nowhere else.
    fn check_choices(&self) -> Result<()> {
        self.kind.check(self)?;
        let (mlperf, noam) = (self.decay == Decay::MlPerf, self.decay == Decay::Noam);
        belongs("warmup_epochs", self.warmup_epochs, mlperf, self.decay)?;
        belongs("hold_epochs", self.hold_epochs, mlperf, self.decay)?;
        belongs("gamma", self.gamma, mlperf, self.decay)?;
        belongs("model_width", self.model_width, noam, self.decay)?;
        if let Some(gamma) = self.gamma {
            ensure("optimiser.gamma", "a share above 0, at most 1", gamma > 0.0 && gamma <= 1.0, gamma)?;
        }
        if let Some(width) = self.model_width {
            ensure("optimiser.model_width", "at least 1", width >= 1, width)?;
        }
        if let Some(rate) = self.min_rate {
            let key = "optimiser.min_rate";
            ensure(key, &format!("none with decay = \"{}\"", self.decay.name()), mlperf, rate)?;
            check_non_negative(key, rate)?;
            let most = self.learning_rate;
            ensure(key, &format!("at most the learning rate, {most}"), rate <= most, rate)?;
        } else if mlperf {
            let expected = format!("at least {MIN_RATE}, which min_rate is if it is not given");
            ensure("optimiser.learning_rate", &expected, self.learning_rate >= MIN_RATE, self.learning_rate)?;
        }
        if mlperf || noam {
            let (floor, expected) = (self.floor, format!("none with decay = \"{}\"", self.decay.name()));
            ensure("optimiser.floor", &expected, floor == one_percent(), floor)?;
        }
        let steps = self.warmup_steps;
        if mlperf {
            let expected = "none with decay = \"mlperf\", which has warmup_epochs";
            ensure("optimiser.warmup_steps", expected, steps == 0, steps)?;
        }
        ensure("optimiser.warmup_steps", "at least 1 with decay = \"noam\"", !noam || steps > 0, steps)
    }
}

/// A key that one decay needs and no other knows.
fn belongs<T: ToString>(key: &str, value: Option<T>, wanted: bool, decay: Decay) -> Result<()> {
    let (key, found) =
        (format!("optimiser.{key}"), value.map_or("none".to_owned(), |value| value.to_string()));
    let decay = decay.name();
    match wanted {
        true => ensure(&key, &format!("a value with decay = \"{decay}\""), found != "none", found),
        false => ensure(&key, &format!("none with decay = \"{decay}\""), found == "none", &found),
    }
}

fn yes() -> bool {
    true
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
