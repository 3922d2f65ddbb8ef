//! `Adapter`: the trained parameters of an adapted model, in a file without its base.
//!
//! ```text
//! extract   checkpoint → adapter       apply    base and adapter → checkpoint
//! remove    checkpoint → base          merge    checkpoint → checkpoint without adapter
//! ```
//! The base is the model from which the run started. Its frozen parameters are part of the
//! checkpoint; the adapter has their checksums.
mod file;
mod merge;

use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use merge::read_merged;
pub use merge::{merge_adapter, remove_adapter};
use speech::Tokenizer;

use crate::checkpoint::{AdapterBase, Checkpoint, RECIPE_LOCATION, Values};
use crate::checksums::{hex_checksum, values_checksum};
use crate::frozen::FrozenParameters;
use crate::parameters::Shapes;
use crate::{Error, Model, ModelConfig, Progress, Result};

/// The trained parameters of an adapted model, with checksums of its base.
///
/// These are the low-rank updates, and all other parameters that the run trained, such as head and
/// predictor.
///
/// ```no_run
/// use std::path::Path;
/// use model::{Adapter, Checkpoint};
///
/// let (trained, base) = (Path::new("best.safetensors"), Path::new("base.safetensors"));
/// let adapter = Adapter::extract(trained, &Checkpoint::read(trained)?)?;
/// let applied = adapter.apply(Path::new("adapter"), base, &Checkpoint::read(base)?)?;
/// applied.write(Path::new("again.safetensors"))?;
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// The text of the recipe of the adapted model.
    pub recipe: String,
    /// The JSON of its tokenizer.
    pub tokenizer: String,
    /// Shapes of the values.
    pub shapes: Shapes,
    /// The trained parameters by name.
    pub values: Values,
    /// The CRC-32 of each frozen parameter by name, in hexadecimal.
    pub base_checksums: BTreeMap<String, String>,
}

impl Adapter {
    /// Extracts the adapter of a checkpoint; `path` is used in messages only.
    ///
    /// Averaged values are taken if the checkpoint has them.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a checkpoint without an adapter, or with other parameters than its
    /// recipe.
    pub fn extract(path: &Path, checkpoint: &Checkpoint) -> Result<Self> {
        let (config, shapes) = read_adapted(path, checkpoint)?;
        let frozen = FrozenParameters::from_config(&config);
        let (frozen_names, trained_names): (Vec<&String>, Vec<&String>) =
            shapes.keys().partition(|name| frozen.contains(name));
        let values = inference_values(checkpoint, |name| frozen.contains(name));
        let entry = |name: &String| Some((name.clone(), (*values.get(name.as_str())?).clone()));
        let checksum_entry =
            |name: &String| Some((name.clone(), hex_checksum(values_checksum(values.get(name.as_str())?))));
        Ok(Adapter {
            recipe: checkpoint.recipe.clone(),
            tokenizer: checkpoint.tokenizer.clone(),
            values: trained_names.iter().filter_map(|name| entry(name)).collect(),
            base_checksums: frozen_names.iter().filter_map(|name| checksum_entry(name)).collect(),
            shapes: trained_names.into_iter().map(|name| (name.clone(), shapes[name].clone())).collect(),
        })
    }

    /// Applies the adapter to its base; paths are used in messages only.
    ///
    /// The checkpoint also stores the parameters of the base that the adapter replaces, for
    /// [`remove_adapter`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for another base, which the checksums detect, for a base with an
    /// adapter, and for an adapter with other parameters than its recipe.
    pub fn apply(&self, path: &Path, base_path: &Path, base: &Checkpoint) -> Result<Checkpoint> {
        let base_config = base.model_config(base_path)?;
        if base_config.adapter.is_some() {
            let expected = "a base without an adapter (`panda adapter merge` merges it)";
            return Err(Error::checkpoint(base_path, expected, "one with an adapter"));
        }
        base.check(base_path, &Model::shapes(&base_config, base.tokenizer(base_path)?.size())?)?;
        // A run starts from all averages of its base.
        let mut base_values = inference_values(base, |_| false);
        let shapes = self.model_shapes(path)?;
        let mut weights = Values::new();
        for (name, shape) in &shapes {
            let value = match (self.values.get(name), self.base_checksums.get(name)) {
                (Some(values), _) => values.clone(),
                (None, Some(expected)) => {
                    let values = base_values.remove(name.as_str()).map_or(&[][..], Vec::as_slice);
                    let base_checksum = hex_checksum(values_checksum(values));
                    if base_checksum != *expected || values.len() != shape.iter().product::<usize>() {
                        let adapter = path.display();
                        let expected = format!("{name} with the checksum {expected}, the base of {adapter}");
                        return Err(Error::checkpoint(base_path, expected, base_checksum));
                    }
                    values.to_vec()
                }
                (None, None) => {
                    return Err(Error::checkpoint(path, format!("{name} of shape {shape:?}"), "none"));
                }
            };
            weights.insert(name.clone(), value);
        }
        let replaced = base_values.into_iter().map(|(name, values)| (name.to_owned(), values.clone()));
        let adapter_base = AdapterBase {
            recipe: base.recipe.clone(),
            tokenizer: base.tokenizer.clone(),
            values: replaced.collect(),
        };
        Ok(Checkpoint {
            recipe: self.recipe.clone(),
            tokenizer: self.tokenizer.clone(),
            progress: Progress::default(),
            shapes,
            weights,
            average: None,
            optimizer_state: BTreeMap::new(),
            data: None,
            imported: base.imported.clone(),
            adapter_base: Some(adapter_base),
            has_checksums: true,
        })
    }

    /// Returns the shapes of the adapted model.
    ///
    /// Those of the values must be equal.
    fn model_shapes(&self, path: &Path) -> Result<Shapes> {
        let config = ModelConfig::from_recipe(&self.recipe, Path::new(RECIPE_LOCATION))
            .map_err(|source| Error::Inside { path: path.to_owned(), source: Box::new(source) })?;
        let tokenizer = Tokenizer::from_json(&self.tokenizer)
            .map_err(|error| Error::checkpoint(path, "a tokenizer", error.to_string()))?;
        let shapes = Model::shapes(&config, tokenizer.size())?;
        for (name, shape) in &self.shapes {
            if shapes.get(name) != Some(shape) {
                let expected = shapes.get(name).map_or("none".into(), |shape| format!("{shape:?}"));
                let expected = format!("{name} as in its recipe: {expected}");
                return Err(Error::checkpoint(path, expected, format!("{shape:?}")));
            }
        }
        Ok(shapes)
    }
}

/// Returns configuration and shapes of a checkpoint with an adapter.
fn read_adapted(path: &Path, checkpoint: &Checkpoint) -> Result<(ModelConfig, Shapes)> {
    let config = checkpoint.model_config(path)?;
    if config.adapter.is_none() {
        return Err(Error::checkpoint(path, "a recipe with [adapter]", "none"));
    }
    let shapes = Model::shapes(&config, checkpoint.tokenizer(path)?.size())?;
    checkpoint.check(path, &shapes)?;
    Ok((config, shapes))
}

/// Returns the averages if a checkpoint has them, except of frozen parameters.
///
/// The average of a constant may change the sign of a zero.
fn inference_values(checkpoint: &Checkpoint, is_frozen: impl Fn(&str) -> bool) -> BTreeMap<&str, &Vec<f32>> {
    let average = |name: &str| checkpoint.average.as_ref()?.get(name);
    let values = checkpoint.weights.iter().map(|(name, values)| {
        let averaged = average(name).filter(|_| !is_frozen(name));
        (name.as_str(), averaged.unwrap_or(values))
    });
    values.collect()
}
