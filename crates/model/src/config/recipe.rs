//! `ModelConfig::from_recipe`: reads a model's sections of a recipe.
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use speech::FeatureConfig;

use super::adapter::AdapterConfig;
use super::init::{InitConfig, InitKind};
use super::loss_options::LossConfig;
use super::terms::LossTerms;
use super::{JointConfig, ModelConfig, old_names, table};
use crate::Result;
use crate::encoders::EncoderKind;
use crate::input::{InputConfig, RowsConfig};
use crate::predictors::PredictorKind;

/// `[encoder]`: the encoder and its input rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncoderConfig {
    /// The input rows, from one or more frames each.
    #[serde(flatten)]
    pub rows: RowsConfig,
    /// The encoder.
    #[serde(flatten)]
    pub kind: EncoderKind,
}

impl<'de> Deserialize<'de> for EncoderConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (rows, kind) = table::split(deserializer, &["stack", "stride", "channels"], Some("lstm"))?;
        Ok(EncoderConfig { rows, kind })
    }
}

/// The keys of a recipe that a model is built from; all others are ignored.
#[derive(Deserialize)]
struct ModelRecipe {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    features: FeatureConfig,
    encoder: EncoderConfig,
    #[serde(default)]
    predictor: Option<PredictorKind>,
    #[serde(default)]
    joint: Option<JointConfig>,
    #[serde(default)]
    init: InitConfig,
    #[serde(default)]
    adapter: Option<AdapterConfig>,
    #[serde(default)]
    loss: LossConfig,
    training: ObjectiveTerms,
}

/// The keys of `[training]` for the objective.
struct ObjectiveTerms(LossTerms);

impl<'de> Deserialize<'de> for ObjectiveTerms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        table.retain(|key, _| LossTerms::KEYS.contains(&key));
        table.try_into().map(ObjectiveTerms).map_err(serde::de::Error::custom)
    }
}

impl ModelConfig {
    /// Reads the model of a recipe's text; `path` is used in messages only.
    ///
    /// Keys that do not describe a model are ignored.
    ///
    /// # Errors
    /// [`crate::Error::RecipeSyntax`] for invalid TOML or a missing key, and those of
    /// [`ModelConfig::check`] and [`old_names::reject`].
    pub fn from_recipe(text: &str, path: &Path) -> Result<Self> {
        old_names::reject(text)?;
        let recipe: ModelRecipe =
            toml::from_str(text).map_err(|error| table::syntax_error(path, text, &error))?;
        let ModelRecipe { seed, features, encoder, predictor, joint, init, adapter, loss, training } = recipe;
        let input = InputConfig { features, rows: encoder.rows };
        let InitConfig { kind, pretrained } = init;
        let (terms, init, frozen): (LossTerms, InitKind, _) = (training.0, kind, pretrained.frozen);
        let encoder = encoder.kind;
        let config =
            ModelConfig { seed, input, encoder, predictor, joint, loss, terms, init, frozen, adapter };
        config.check()?;
        Ok(config)
    }
}
