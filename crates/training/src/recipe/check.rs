//! Which values a recipe may hold.
use std::fmt::Display;

use kernels::Brief;

use speech::WaveConfig;

use super::Recipe;
use crate::{Error, Result};

/// Largest width of a layer: wide enough for anything that a CPU can train, and small enough that shapes cannot overflow.
pub(crate) const WIDEST: usize = 8192;
/// Largest number of things that are counted in handfuls: layers, stacked frames, labels of context.
pub(crate) const MANY: usize = 100;
/// Larger numbers are infinite, or nearly so, for `f32`.
const LARGEST: f64 = 1e38;

impl Recipe {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::RecipeValue`] for the first one outside its range.
    pub(super) fn check(&self) -> Result<()> {
        expect("data.train", "at least one manifest", !self.data.train.is_empty(), "none")?;
        whole("data.workers", self.data.workers, MANY)?;
        let max_bad = self.data.max_bad;
        expect("data.max_bad", "a share of 0 to 1", (0.0..=1.0).contains(&max_bad), max_bad)?;
        let cached = self.data.cache.is_none() || self.data.stream;
        expect("data.cache", "none without data.stream", cached, "a folder")?;
        let join = self.augment.join;
        expect("augment.join", &format!("0 to {MANY}"), join <= MANY, join)?;
        self.augment.wave().check().map_err(|error| setting("augment", error))?;
        let sound = self.data.stream || self.augment.wave() == WaveConfig::default();
        expect("augment", "no speed, reverb or noise without data.stream", sound, "some")?;
        self.augment.perturb.check().map_err(|error| setting("augment.perturb", error))?;
        self.augment.mask.check().map_err(|error| setting("augment.mask", error))?;
        self.tokens.options().check().map_err(|error| setting("tokens", error))?;
        self.init.check()?;
        self.model().check()?;
        self.check_steps()
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
        optimiser.check_choices()?;
        let ema = optimiser.ema;
        expect("optimiser.ema", "a share of at least 0, below 1", (0.0..1.0).contains(&ema), ema)?;
        whole("batch.max_frames", batch.max_frames, usize::MAX)?;
        whole("batch.max_utterances", batch.max_utterances, usize::MAX)?;
        whole("batch.accumulate", batch.accumulate, usize::MAX)?;
        positive("batch.max_seconds", batch.max_seconds.unwrap_or(1.0))?;
        whole("training.epochs", training.run.epochs as usize, usize::MAX)?;
        whole("training.evaluate_every", training.run.evaluate_every as usize, usize::MAX)
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

pub(crate) fn share(key: &str, value: f64) -> Result<()> {
    expect(key, "a share of 0 to 1", (0.0..=1.0).contains(&value), value)
}

pub(crate) fn positive(key: &str, value: f64) -> Result<()> {
    let fine = value > 0.0 && (value as f32) > 0.0 && value <= LARGEST;
    expect(key, "a positive number of at most 1e38", fine, value)
}

pub(crate) fn at_least_zero(key: &str, value: f64) -> Result<()> {
    expect(key, "a number of at least 0, at most 1e38", (0.0..=LARGEST).contains(&value), value)
}

/// A factor of a term of the loss, which takes so much.
pub(crate) fn factor(key: &str, value: f64) -> Result<()> {
    expect(key, "a number of at least 0, at most 1e30", (0.0..=1e30).contains(&value), value)
}

/// The same complaint under the key's full name.
pub(crate) fn setting(table: &str, error: speech::Error) -> Error {
    match error {
        speech::Error::Setting { field, expected, found } => {
            Error::RecipeValue { key: format!("{table}.{field}"), expected, found }
        }
        other => other.into(),
    }
}
