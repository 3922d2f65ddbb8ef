//! Checks of the values of a recipe.
use model::Result;
use model::config::values::{MANY, at_least_zero, expect, positive, setting, whole};
use speech::WaveConfig;

use super::Recipe;

impl Recipe {
    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
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
        let Recipe { optimizer, batch, training, .. } = self;
        let (rate, floor, eps) = (optimizer.learning_rate, optimizer.floor, optimizer.eps);
        positive("optimiser.learning_rate", rate)?;
        expect("optimiser.floor", "a share above 0, at most 1", floor > 0.0 && floor <= 1.0, floor)?;
        positive("optimiser.eps", eps)?;
        at_least_zero("optimiser.weight_decay", optimizer.weight_decay)?;
        at_least_zero("optimiser.clip_norm", optimizer.clip_norm)?;
        for beta in optimizer.betas {
            expect("optimiser.betas", "shares of at least 0, below 1", (0.0..1.0).contains(&beta), beta)?;
        }
        optimizer.check_choices()?;
        let ema = optimizer.ema;
        expect("optimiser.ema", "a share of at least 0, below 1", (0.0..1.0).contains(&ema), ema)?;
        whole("batch.max_frames", batch.max_frames, usize::MAX)?;
        whole("batch.max_utterances", batch.max_utterances, usize::MAX)?;
        whole("batch.accumulate", batch.accumulate, usize::MAX)?;
        positive("batch.max_seconds", batch.max_seconds.unwrap_or(1.0))?;
        whole("training.epochs", training.run.epochs as usize, usize::MAX)?;
        whole("training.evaluate_every", training.run.evaluate_every as usize, usize::MAX)
    }
}
