//! Training recipes: all settings of a run in one TOML file.
mod data;
mod encoder_cache;
mod from_model;
mod run;

use std::path::{Path, PathBuf};

use model::checkpoint::RECIPE_LOCATION;
use model::config::table::{first_difference, syntax_error};
use model::config::values::{ensure, setting_error};
use model::config::{
    AdapterConfig, EncoderConfig, InitConfig, JointConfig, LossConfig, ModelConfig, old_names,
};
use model::predictors::PredictorKind;
use model::{Checkpoint, InputConfig};
use serde::{Deserialize, Serialize};
use speech::FeatureConfig;

use crate::optimizer::OptimizerConfig;
use crate::{Error, Result};
pub use data::{AugmentConfig, DataConfig, TokenConfig};
pub use encoder_cache::RowFormat;
pub(crate) use encoder_cache::check_frozen_encoder;
pub use run::{BatchConfig, CheckpointSelection, RunConfig, TrainingConfig};

/// A recipe as read from its file.
///
/// Unknown keys are errors in all sections, so that a misspelled key cannot fall back to a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Seed of initial weights, order, augmentation and dropout.
    #[serde(default)]
    pub seed: u64,
    /// The manifests.
    pub data: DataConfig,
    /// Computation of log-mel features from audio.
    #[serde(default)]
    pub features: FeatureConfig,
    /// Augmentation.
    #[serde(default)]
    pub augment: AugmentConfig,
    /// The tokenizer.
    pub tokens: TokenConfig,
    /// The encoder.
    pub encoder: EncoderConfig,
    /// The predictor; none for losses that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predictor: Option<PredictorKind>,
    /// The joint network; none for a CTC model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint: Option<JointConfig>,
    /// Initialization of the weights.
    #[serde(default, skip_serializing_if = "InitConfig::is_default")]
    pub init: InitConfig,
    /// Low-rank adapters of the encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterConfig>,
    /// Optimizer and learning rate.
    pub optimizer: OptimizerConfig,
    /// Sizes of batches.
    pub batch: BatchConfig,
    /// The loss.
    #[serde(default)]
    pub loss: LossConfig,
    /// Length of the run, and terms of its objective.
    pub training: TrainingConfig,
}

/// Command line values that replace those of the recipe.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecipeOverrides {
    /// A checkpoint to start from: its weights, and sections that the recipe does not have.
    ///
    /// These are `features`, `encoder`, `predictor`, `joint`, `loss`, `adapter` and the tokenizer.
    pub from: Option<PathBuf>,
    /// Number of epochs.
    pub epochs: Option<u64>,
    /// Memory budget of the run in bytes.
    pub memory: Option<usize>,
    /// Fraction of a set that may be excluded (`data.max_bad`).
    pub max_bad: Option<f64>,
}

impl From<Option<u64>> for RecipeOverrides {
    fn from(epochs: Option<u64>) -> Self {
        RecipeOverrides { epochs, ..RecipeOverrides::default() }
    }
}

impl Recipe {
    /// Parses the recipe of a checkpoint.
    ///
    /// # Errors
    /// [`model::Error::Inside`] the file if it is not a valid recipe.
    pub fn from_checkpoint(checkpoint: &Checkpoint, path: &Path) -> Result<Recipe> {
        Self::parse_text(&checkpoint.recipe, Path::new(RECIPE_LOCATION))
            .map_err(|source| model::Error::Inside { path: path.to_owned(), source: Box::new(source) }.into())
    }

    /// Reads and checks a recipe.
    ///
    /// Its paths become relative to the current folder.
    ///
    /// Returns the text as well, for run folders and checkpoints: that of the file or, with
    /// overrides, the resulting recipe without comments.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io) if the file cannot be read;
    /// [`Error::RecipeSyntax`](model::Error::RecipeSyntax) for invalid TOML, an unknown or a
    /// missing key; [`Error::RecipeValue`](model::Error::RecipeValue) for a value outside its
    /// range, or a name of an earlier version.
    pub fn read(path: &Path, overrides: impl Into<RecipeOverrides>) -> Result<(Recipe, String)> {
        let text = speech::files::read_input_text(path).map_err(Error::io(path, "read the recipe"))?;
        Self::with_overrides(text.strip_prefix('\u{feff}').unwrap_or(&text), path, overrides.into())
    }

    fn with_overrides(text: &str, path: &Path, overrides: RecipeOverrides) -> Result<(Recipe, String)> {
        let mut text = match &overrides.from {
            Some(model) => from_model::complete_recipe(text, path, model)?,
            None => text.to_owned(),
        };
        let mut recipe = Self::parse(&text, path)?;
        let RecipeOverrides { epochs, memory, max_bad, .. } = overrides;
        if epochs.is_some() || memory.is_some() || max_bad.is_some() {
            recipe.training.run.epochs = epochs.unwrap_or(recipe.training.run.epochs);
            recipe.batch.memory = memory.or(recipe.batch.memory);
            recipe.data.max_bad = max_bad.unwrap_or(recipe.data.max_bad);
            recipe.check()?;
            text = toml::to_string(&recipe)
                .map_err(|error| syntax_error(path, "", &serde::de::Error::custom(error)))?;
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let DataConfig { train, dev, test, cache, .. } = &mut recipe.data;
        let audio = recipe.augment.manifests();
        let weights = &mut recipe.init.pretrained.weights;
        for path in train.iter_mut().chain(dev).chain(test).chain(cache).chain(audio).chain(weights) {
            *path = base.join(&path);
        }
        Ok((recipe, text))
    }

    /// Returns the first key that differs, with both values.
    ///
    /// Paths of the data, of noise and impulse responses, and of pretrained weights are ignored;
    /// checkpoints have a fingerprint of the data.
    pub(crate) fn difference(&self, other: &Recipe) -> Option<String> {
        let mut recipes = [self, other].map(Recipe::clone);
        for recipe in &mut recipes {
            recipe.augment.manifests().for_each(PathBuf::clear);
            // A resumed run does not read the weights again, so that they may be moved.
            if let Some(weights) = &mut recipe.init.pretrained.weights {
                *weights = "FILE".into();
            }
            // Paths that are not valid text cannot be serialized.
            let data = &mut recipe.data;
            (data.train, data.dev, data.test, data.cache) = Default::default();
        }
        let table = |recipe: Recipe| toml::to_string(&recipe).ok()?.parse::<toml::Table>().ok();
        let [Some(mut left), Some(mut right)] = recipes.map(table) else {
            return Some("one that cannot be serialized".to_owned());
        };
        left.remove("data");
        right.remove("data");
        first_difference("", &left, &right)
    }

    /// Parses and checks the text of a recipe; `path` is used in messages only.
    ///
    /// # Errors
    /// As [`Recipe::read`], without the file.
    pub fn parse(text: &str, path: &Path) -> Result<Recipe> {
        Ok(Self::parse_text(text, path)?)
    }

    /// Parses the recipe of a run folder of any version.
    ///
    /// # Errors
    /// As [`Recipe::parse`], but old names of keys and values are accepted.
    pub fn parse_of_run(text: &str, path: &Path) -> Result<Recipe> {
        Ok(Self::parse_text(&old_names::translate(text), path)?)
    }

    fn parse_text(text: &str, path: &Path) -> model::Result<Recipe> {
        old_names::reject(text)?;
        let recipe: Recipe = toml::from_str(text).map_err(|error| syntax_error(path, text, &error))?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> model::Result<()> {
        self.data.check(self.training.run.cache_encoder.is_some())?;
        self.augment.check(self.data.stream)?;
        self.tokens.options().check().map_err(|error| setting_error("tokens", error))?;
        self.init.check()?;
        let has_weights = self.init.pretrained.weights.is_some();
        ensure("adapter", "none without init.weights", self.adapter.is_none() || has_weights, "a table")?;
        self.model_config().check()?;
        self.optimizer.check()?;
        self.batch.check()?;
        self.training.run.check()?;
        let (recompute, is_supported) = (self.training.run.recompute, self.encoder.kind.recomputes());
        let expected = "false, as this encoder.kind does not support it";
        ensure("training.recompute", expected, !recompute || is_supported, recompute)?;
        encoder_cache::check_constant_rows(self)
    }

    /// Returns the configuration of the model.
    pub fn model_config(&self) -> ModelConfig {
        ModelConfig {
            seed: self.seed,
            input: InputConfig { features: self.features.clone(), rows: self.encoder.rows.clone() },
            encoder: self.encoder.kind.clone(),
            predictor: self.predictor.clone(),
            joint: self.joint.clone(),
            loss: self.loss.clone(),
            terms: self.training.terms.clone(),
            init: self.init.kind,
            frozen: self.init.pretrained.frozen.clone(),
            adapter: self.adapter.clone(),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn paths_of_the_data_are_ignored_even_if_they_are_not_text() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/digits.toml");
        let recipe = Recipe::read(&path, None).unwrap().0;
        let mut changed = recipe.clone();
        let folder = Path::new(OsStr::from_bytes(b"/data/\xff"));
        changed.data.train = vec![folder.join("train.jsonl")];
        changed.data.cache = Some(folder.to_owned());
        assert_eq!(recipe.difference(&changed), None);
        changed.seed += 1;
        assert!(recipe.difference(&changed).unwrap().starts_with("one with seed = "));
    }
}
