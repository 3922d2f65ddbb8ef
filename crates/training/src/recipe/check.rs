//! Which values a recipe may hold.
use std::fmt::Display;

use kernels::Brief;
use rnnt_loss::Topology;
use speech::FrontEnd;

use super::{LossConfig, LossOptions, Recipe};
use crate::{Error, Result};

/// Largest width of a layer: wide enough for anything that a CPU can train, and small enough that shapes cannot overflow.
pub(crate) const WIDEST: usize = 8192;
/// Largest number of things that are counted in handfuls: layers, stacked frames, labels of context.
pub(crate) const MANY: usize = 100;
/// Larger numbers are infinite, or nearly so, for `f32`.
const LARGEST: f64 = 1e38;
/// Most encoder frames that a token or a blank moves on: minutes, at any frame rate.
const LONGEST: usize = 1000;

impl Recipe {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        expect("data.train", "at least one manifest", !self.data.train.is_empty(), "none")?;
        FrontEnd::new(&self.features).map_err(|error| setting("features", error))?;
        let join = self.augment.join;
        expect("augment.join", &format!("0 to {MANY}"), join <= MANY, join)?;
        self.augment.wave().check().map_err(|error| setting("augment", error))?;
        self.augment.perturb.check().map_err(|error| setting("augment.perturb", error))?;
        self.augment.mask.check().map_err(|error| setting("augment.mask", error))?;
        self.check_model()?;
        self.check_loss()?;
        self.check_steps()
    }

    fn check_loss(&self) -> Result<()> {
        let topology = &self.training.topology;
        let names = || Topology::names().collect::<Vec<_>>().join(", ");
        expect("training.topology", &format!("one of {}", names()), topology.columns() == 2, topology)?;
        self.check_loss_options()?;
        match &self.loss.kind {
            LossConfig::Rnnt { .. } => return Ok(()),
            LossConfig::Gnat(config) => return config.check(self),
            &LossConfig::Pruned { s_range, simple_scale, lm_only_scale, am_only_scale, .. } => {
                expect("loss.s_range", "at least 2", s_range >= 2, s_range)?;
                at_least_zero("loss.simple_scale", simple_scale)?;
                share("loss.lm_only_scale", lm_only_scale)?;
                share("loss.am_only_scale", am_only_scale)?;
                return share("loss.lm_only_scale + am_only_scale", lm_only_scale + am_only_scale);
            }
            LossConfig::Tdt { durations, sigma, omega } => {
                share("loss.omega", *omega)?;
                at_least_zero("loss.sigma", *sigma)?;
                let fine = durations.iter().any(|&frames| frames > 0);
                expect("loss.durations", "one of at least 1", fine, format!("{durations:?}"))?;
            }
            LossConfig::MultiBlank { durations, sigma } => {
                at_least_zero("loss.sigma", *sigma)?;
                let fine = !durations.is_empty() && durations.iter().all(|&frames| frames >= 2);
                expect("loss.durations", "one or more of at least 2", fine, format!("{durations:?}"))?;
            }
        }
        let durations = [self.loss.kind.durations(), self.loss.kind.big_blanks()].concat();
        for (at, &frames) in durations.iter().enumerate() {
            expect("loss.durations", &format!("at most {LONGEST}"), frames <= LONGEST, frames)?;
            expect("loss.durations", "each once", !durations[..at].contains(&frames), frames)?;
        }
        let topology = &self.training.topology;
        let (expected, fine) = match self.loss.kind {
            LossConfig::Tdt { .. } => ("regular, as durations say the rest", *topology == Topology::rnnt()),
            _ => ("regular or modified, with big blanks", topology.is_plain()),
        };
        expect("training.topology", expected, fine, topology)
    }

    fn check_loss_options(&self) -> Result<()> {
        let LossOptions { skip, clamp, .. } = self.loss.options;
        let Recipe { training, .. } = self;
        expect("loss.skip", "a share of at least 0, below 1", (0.0..1.0).contains(&skip), skip)?;
        let alone = skip == 0.0 || training.z_loss == 0.0;
        expect("loss.skip", "0 with a z_loss, which reaches every site", alone, skip)?;
        let Some(clamp) = clamp else { return Ok(()) };
        at_least_zero("loss.clamp", clamp)?;
        expect("loss.clamp", "none where labels are smoothed", training.label_smoothing == 0.0, clamp)
    }

    fn check_model(&self) -> Result<()> {
        let Recipe { encoder, joint, .. } = self;
        whole("encoder.stack", encoder.rows.stack, MANY)?;
        whole("encoder.stride", encoder.rows.stride, MANY)?;
        let channels = encoder.rows.channels;
        expect("encoder.channels", &format!("0 to {WIDEST}"), channels <= WIDEST, channels)?;
        encoder.kind.check()?;
        match &self.predictor {
            Some(predictor) => predictor.check()?,
            None if self.loss.kind.gnat().is_some() => {}
            None => expect("predictor", "a table, with a kind", false, "none")?,
        }
        whole("joint.width", joint.width, WIDEST)?;
        dropout("joint.dropout", joint.dropout)
    }

    fn check_steps(&self) -> Result<()> {
        let Recipe { optimiser, batch, training, .. } = self;
        let (rate, floor, eps) = (optimiser.learning_rate, optimiser.floor, optimiser.eps);
        positive("optimiser.learning_rate", rate)?;
        expect("optimiser.floor", "a share above 0, at most 1", floor > 0.0 && floor <= 1.0, floor)?;
        positive("optimiser.eps", eps)?;
        at_least_zero("optimiser.weight_decay", optimiser.weight_decay)?;
        at_least_zero("optimiser.clip_norm", optimiser.clip_norm)?;
        for beta in optimiser.betas {
            expect("optimiser.betas", "shares of at least 0, below 1", (0.0..1.0).contains(&beta), beta)?;
        }
        let ema = optimiser.ema;
        expect("optimiser.ema", "a share of at least 0, below 1", (0.0..1.0).contains(&ema), ema)?;
        whole("batch.max_frames", batch.max_frames, usize::MAX)?;
        whole("batch.max_utterances", batch.max_utterances, usize::MAX)?;
        whole("training.epochs", training.epochs as usize, usize::MAX)?;
        whole("training.evaluate_every", training.evaluate_every as usize, usize::MAX)?;
        at_least_zero("training.ctc_weight", training.ctc_weight)?;
        at_least_zero("training.ctc_weight_end", training.ctc_weight_end.unwrap_or(0.0))?;
        at_least_zero("training.fastemit", training.fastemit)?;
        at_least_zero("training.delay_penalty", training.delay_penalty)?;
        at_least_zero("training.z_loss", training.z_loss)?;
        let smoothing = training.label_smoothing;
        share("training.label_smoothing", smoothing)?;
        let factored = matches!(self.loss.kind, LossConfig::Rnnt { factored_blank: true });
        let expected = "0 where the blank is factored";
        expect("training.label_smoothing", expected, smoothing == 0.0 || !factored, smoothing)
    }
}

pub(crate) fn expect(key: &str, expected: &str, fine: bool, found: impl Display) -> Result<()> {
    if fine {
        return Ok(());
    }
    let found = found.to_string();
    let found = found.parse().map_or(found, |number: f64| Brief(number).to_string());
    Err(Error::RecipeValue { key: key.into(), expected: expected.into(), found })
}

pub(crate) fn whole(key: &str, value: usize, most: usize) -> Result<()> {
    let expected = if most == usize::MAX { "at least 1".into() } else { format!("1 to {most}") };
    expect(key, &expected, (1..=most).contains(&value), value)
}

pub(crate) fn dropout(key: &str, rate: f32) -> Result<()> {
    expect(key, "a share of 0 to 0.9", (0.0..=0.9).contains(&rate), rate)
}

fn share(key: &str, value: f64) -> Result<()> {
    expect(key, "a share of 0 to 1", (0.0..=1.0).contains(&value), value)
}

fn positive(key: &str, value: f64) -> Result<()> {
    let fine = value > 0.0 && (value as f32) > 0.0 && value <= LARGEST;
    expect(key, "a positive number of at most 1e38", fine, value)
}

fn at_least_zero(key: &str, value: f64) -> Result<()> {
    expect(key, "a number of at least 0, at most 1e38", (0.0..=LARGEST).contains(&value), value)
}

/// The same complaint under the key's full name.
fn setting(table: &str, error: speech::Error) -> Error {
    match error {
        speech::Error::Setting { field, expected, found } => {
            Error::RecipeValue { key: format!("{table}.{field}"), expected, found }
        }
        other => other.into(),
    }
}
