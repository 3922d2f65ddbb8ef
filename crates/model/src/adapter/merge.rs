//! `merge_adapter`, `remove_adapter`: checkpoints without the adapter of a checkpoint.
use std::collections::BTreeMap;
use std::path::Path;

use super::{inference_values, read_adapted};
use crate::checkpoint::{Checkpoint, RECIPE_LOCATION, Values};
use crate::config::AdapterConfig;
use crate::config::table::syntax_error;
use crate::frozen::{FrozenParameters, is_adapter_parameter};
use crate::parameters::Shapes;
use crate::{Error, Model, Progress, Result};
use layers::low_rank::{LowRankConfig, add_low_rank};

/// Number of changed parameters that an error names.
const MAX_NAMED_PARAMETERS: usize = 4;

/// Merges the adapter of a checkpoint into its weights; `path` is used in messages only.
///
/// `W ← W + (alpha / rank) B A`, with the bits that the adapted model uses in training and
/// inference. Averaged weights are merged if the checkpoint has them; it has no optimizer state.
///
/// # Errors
/// [`Error::Checkpoint`] for a checkpoint without an adapter, or with other parameters than its
/// recipe.
pub fn merge_adapter(path: &Path, checkpoint: &Checkpoint) -> Result<Checkpoint> {
    let (config, mut shapes) = read_adapted(path, checkpoint)?;
    let frozen = FrozenParameters::from_config(&config);
    let values = inference_values(checkpoint, |name| frozen.contains(name));
    let mut weights = Values::new();
    for (&name, &values_of_name) in values.iter().filter(|(name, _)| !is_adapter_parameter(name)) {
        let mut merged = values_of_name.clone();
        if let (Some(adapter), Some([a, b])) = (&config.adapter, factor_names(name))
            && let (Some(a), Some(b)) = (values.get(a.as_str()), values.get(b.as_str()))
        {
            add_low_rank(&mut merged, a, b, low_rank_config(adapter));
        }
        weights.insert(name.to_owned(), merged);
    }
    shapes.retain(|name, _| !is_adapter_parameter(name));
    let recipe = recipe_without_adapter(&checkpoint.recipe)?;
    let Progress { epoch, step, .. } = checkpoint.progress;
    Ok(Checkpoint {
        recipe,
        tokenizer: checkpoint.tokenizer.clone(),
        progress: Progress { epoch, step, ..Progress::default() },
        shapes,
        weights,
        average: None,
        optimizer_state: BTreeMap::new(),
        data: checkpoint.data.clone(),
        imported: checkpoint.imported.clone(),
        adapter_base: None,
        has_checksums: true,
    })
}

/// Returns the base of a checkpoint with an adapter; `path` is used in messages only.
///
/// Its tensors have the bits of the base. A run whose adapter is the only trained part contains its
/// base. Otherwise, the checkpoint must be one of [`super::Adapter::apply`].
///
/// # Errors
/// [`Error::Checkpoint`] for a checkpoint without an adapter, or without the values of the base for
/// parameters that the run trained.
pub fn remove_adapter(path: &Path, checkpoint: &Checkpoint) -> Result<Checkpoint> {
    let (config, _) = read_adapted(path, checkpoint)?;
    let frozen = FrozenParameters::from_config(&config);
    let (recipe, tokenizer) = match &checkpoint.adapter_base {
        Some(base) => (base.recipe.clone(), base.tokenizer.clone()),
        None => (recipe_without_adapter(&checkpoint.recipe)?, checkpoint.tokenizer.clone()),
    };
    let mut base = Checkpoint {
        recipe,
        tokenizer,
        progress: Progress::default(),
        shapes: Shapes::new(),
        weights: Values::new(),
        average: None,
        optimizer_state: BTreeMap::new(),
        data: None,
        imported: checkpoint.imported.clone(),
        adapter_base: None,
        has_checksums: true,
    };
    let shapes = Model::shapes(&base.model_config(path)?, base.tokenizer(path)?.size())?;
    let mut changed = Vec::new();
    for (name, shape) in shapes {
        let replaced = checkpoint.adapter_base.as_ref().and_then(|base| base.values.get(&name));
        let kept = || checkpoint.weights.get(&name).filter(|_| frozen.contains(&name));
        let count = shape.iter().product::<usize>();
        match replaced.or_else(kept).filter(|values| values.len() == count) {
            Some(values) => {
                base.weights.insert(name.clone(), values.clone());
                base.shapes.insert(name, shape);
            }
            None => changed.push(name),
        }
    }
    if changed.is_empty() {
        return Ok(base);
    }
    let ellipsis = if changed.len() > MAX_NAMED_PARAMETERS { ", ..." } else { "" };
    changed.truncate(MAX_NAMED_PARAMETERS);
    let expected = "an adapter as the only trained part, or a checkpoint of `panda adapter apply`";
    let names = format!("other trained parameters: {}{ellipsis}", changed.join(", "));
    Err(Error::checkpoint(path, expected, names))
}

/// Reads a parameter with the update of the model's adapter; none if there is no such parameter.
///
/// `read` reads a parameter as it is stored.
pub(crate) fn read_merged(
    adapter: Option<&AdapterConfig>,
    name: &str,
    read: &mut dyn FnMut(&str) -> Result<Option<Vec<f32>>>,
) -> Result<Option<Vec<f32>>> {
    let Some(mut values) = read(name)? else { return Ok(None) };
    if let (Some(adapter), Some([a, b])) = (adapter, factor_names(name))
        && let (Some(a), Some(b)) = (read(&a)?, read(&b)?)
    {
        add_low_rank(&mut values, &a, &b, low_rank_config(adapter));
    }
    Ok(Some(values))
}

/// Returns the names of A and B of a weight.
fn factor_names(weight: &str) -> Option<[String; 2]> {
    let layer = weight.strip_suffix(".weight")?;
    Some(["lora_a", "lora_b"].map(|factor| format!("{layer}.{factor}")))
}

fn low_rank_config(adapter: &AdapterConfig) -> LowRankConfig {
    LowRankConfig { rank: adapter.rank, scale: adapter.scale() }
}

/// Returns the text of a recipe without its section `[adapter]`.
fn recipe_without_adapter(text: &str) -> Result<String> {
    let path = Path::new(RECIPE_LOCATION);
    let mut recipe: toml::Table = text.parse().map_err(|error| syntax_error(path, text, &error))?;
    recipe.remove("adapter");
    toml::to_string(&recipe).map_err(|error| Error::RecipeSyntax {
        path: path.to_owned(),
        position: String::new(),
        message: error.to_string(),
    })
}
