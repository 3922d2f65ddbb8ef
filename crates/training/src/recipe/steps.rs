//! Which optimiser, and which keys of `[optimiser]` belong to which choice.
use serde::{Deserialize, Serialize};

use super::check::{at_least_zero, expect, positive};
use super::{OptimiserConfig, one_percent};
use crate::Result;
use crate::optimiser::{Clip, LambConfig};

/// The optimiser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimiserKind {
    /// [`crate::optimiser::AdamW`]
    #[default]
    AdamW,
    /// [`crate::optimiser::Lamb`]
    Lamb,
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

impl OptimiserConfig {
    /// LAMB's part of it.
    pub(crate) fn lamb(&self) -> LambConfig {
        let OptimiserConfig { betas, eps, weight_decay, bias_correction, .. } = *self;
        LambConfig { betas, eps, weight_decay, bias_correction }
    }

    /// The limit of the gradient's norm.
    pub(crate) fn clip(&self) -> Clip {
        match (self.clip_norm, self.clip) {
            (0.0, _) => Clip::None,
            (limit, ClipKind::Single) => Clip::Single(limit),
            (limit, ClipKind::Distributed) => Clip::Distributed(limit),
        }
    }

    /// Checks that keys are there where their choice needs them, and nowhere else.
    pub(super) fn check_choices(&self) -> Result<()> {
        if self.kind == OptimiserKind::AdamW {
            let single = self.clip == ClipKind::Single;
            expect("optimiser.clip", "\"single\" where the kind is not \"lamb\"", single, "distributed")?;
            let expected = "true where the kind is not \"lamb\"";
            expect("optimiser.bias_correction", expected, self.bias_correction, false)?;
        }
        let (mlperf, noam) = (self.decay == Decay::MlPerf, self.decay == Decay::Noam);
        belongs("warmup_epochs", self.warmup_epochs, mlperf, self.decay)?;
        belongs("hold_epochs", self.hold_epochs, mlperf, self.decay)?;
        belongs("gamma", self.gamma, mlperf, self.decay)?;
        belongs("model_width", self.model_width, noam, self.decay)?;
        if let Some(gamma) = self.gamma {
            expect("optimiser.gamma", "a share above 0, at most 1", gamma > 0.0 && gamma <= 1.0, gamma)?;
        }
        if let Some(width) = self.model_width {
            expect("optimiser.model_width", "at least 1", width >= 1, width)?;
        }
        if let Some(rate) = self.min_rate {
            let key = "optimiser.min_rate";
            expect(key, &format!("none with decay = \"{}\"", self.decay.name()), mlperf, rate)?;
            at_least_zero(key, rate)?;
            let most = self.learning_rate;
            expect(key, &format!("at most the learning rate, {most}"), rate <= most, rate)?;
        } else if mlperf {
            let expected = format!("at least {MIN_RATE}, which min_rate is if it is not given");
            expect("optimiser.learning_rate", &expected, self.learning_rate >= MIN_RATE, self.learning_rate)?;
        }
        if mlperf || noam {
            let (floor, expected) = (self.floor, format!("none with decay = \"{}\"", self.decay.name()));
            expect("optimiser.floor", &expected, floor == one_percent(), floor)?;
        }
        let steps = self.warmup_steps;
        if mlperf {
            let expected = "none with decay = \"mlperf\", which has warmup_epochs";
            expect("optimiser.warmup_steps", expected, steps == 0, steps)?;
        }
        expect("optimiser.warmup_steps", "at least 1 with decay = \"noam\"", !noam || steps > 0, steps)?;
        positive("optimiser.learning_rate", self.learning_rate)
    }
}

/// A key that one decay needs and no other knows.
fn belongs<T: ToString>(key: &str, value: Option<T>, wanted: bool, decay: Decay) -> Result<()> {
    let (key, found) =
        (format!("optimiser.{key}"), value.map_or("none".to_owned(), |value| value.to_string()));
    let decay = decay.name();
    match wanted {
        true => expect(&key, &format!("a value with decay = \"{decay}\""), found != "none", found),
        false => expect(&key, &format!("none with decay = \"{decay}\""), found == "none", &found),
    }
}
