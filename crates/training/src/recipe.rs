//! A training recipe: one TOML file says everything that decides a run.
mod data;
mod run;

use std::path::{Path, PathBuf};

use model::checkpoint::RECIPE_PLACE;
use model::config::table::{first_difference, syntax_error};
use model::config::values::setting;
use model::config::{EncoderConfig, Initialization, JointConfig, Loss, ModelConfig};
use model::predictors::PredictorKind;
use model::{Checkpoint, InputConfig};
use serde::{Deserialize, Serialize};
use speech::FeatureConfig;

use crate::optimizer::OptimizerConfig;
use crate::{Error, Result};
pub use data::{Augment, Data, TokenConfig};
pub use run::{BatchConfig, RunConfig, Select, TrainingConfig};

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
        let text = speech::files::read_input_text(path).map_err(Error::io(path, "read the recipe"))?;
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

    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> model::Result<()> {
        self.data.check()?;
        self.augment.check(self.data.stream)?;
        self.tokens.options().check().map_err(|error| setting("tokens", error))?;
        self.init.check()?;
        self.model().check()?;
        self.optimizer.check()?;
        self.batch.check()?;
        self.training.run.check()
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
