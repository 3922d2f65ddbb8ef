//! `training.cache_encoder`: the number format of cached encoder rows, and excluded keys.
use model::config::values::ensure;
use model::{Model, Result};
use serde::{Deserialize, Serialize};
use speech::{Perturbation, SpecAugment};

use super::Recipe;

/// The number format of the rows in an encoder cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowFormat {
    /// 32-bit numbers: the bits of the encoder's rows.
    F32,
    /// bfloat16, rounded to nearest even: half the bytes, 8 significant bits.
    Bf16,
}

impl RowFormat {
    /// Returns the bytes of a number.
    ///
    /// ```
    /// use training::recipe::RowFormat;
    ///
    /// assert_eq!((RowFormat::F32.bytes(), RowFormat::Bf16.bytes()), (4, 2));
    /// ```
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Checks that encoder rows are the same in all epochs.
///
/// # Errors
/// [`model::Error::RecipeValue`] for the first key that changes them.
pub(super) fn check_constant_rows(recipe: &Recipe) -> Result<()> {
    if recipe.training.run.cache_encoder.is_none() {
        return Ok(());
    }
    let recompute = recipe.training.run.recompute;
    ensure("training.recompute", "false with training.cache_encoder", !recompute, recompute)?;
    let augment = &recipe.augment;
    for (key, is_absent) in [
        ("augment.speed", augment.speed.is_none()),
        ("augment.reverb", augment.reverb.is_none()),
        ("augment.noise", augment.noise.is_none()),
        ("augment.perturb", augment.perturb == Perturbation::default()),
        ("augment.mask", augment.mask == SpecAugment::default()),
    ] {
        ensure(key, "none with training.cache_encoder", is_absent, "some")?;
    }
    let expected = "0 with training.cache_encoder";
    ensure("features.dither", expected, recipe.features.dither == 0.0, recipe.features.dither)?;
    let dropout = recipe.encoder.kind.dropout();
    ensure("encoder.dropout", expected, dropout == 0.0, dropout)
}

/// Checks that training changes no parameter of the encoder.
///
/// # Errors
/// [`model::Error::RecipeValue`] with the first trained parameter.
pub(crate) fn check_frozen_encoder(model: &Model) -> Result<()> {
    let mut trained = model.parameters().iter_trained().map(|(name, _)| name);
    let expected = "[\"encoder\"] with training.cache_encoder";
    match trained.find(|name| name.starts_with("encoder.")) {
        Some(name) => ensure("init.frozen", expected, false, format!("{name} without init.frozen")),
        None => Ok(()),
    }
}
