//! `complete_recipe`: the recipe of a run that starts from a checkpoint (`panda train --from`).
use std::path::Path;

use model::checkpoint;
use model::config::old_names;
use model::config::table::syntax_error;
use toml::{Table, Value};

use crate::{Error, Result};

/// Sections that a recipe takes from the checkpoint if missing.
const MODEL_SECTIONS: [&str; 6] = ["features", "encoder", "predictor", "joint", "loss", "adapter"];
/// Keys of `[training]` that describe the model's loss.
const TRAINING_KEYS: [&str; 3] = ["topology", "ctc_weight", "ctc_weight_end"];

/// Adds the sections of a checkpoint's model that a recipe lacks.
///
/// With `training.cache_encoder`, the encoder is taken without its dropout. Weights are those of
/// the checkpoint. Without `[tokens]`, the run keeps the checkpoint's tokenizer; with other tokens,
/// rows of labels are read by their tokens.
///
/// # Errors
/// [`model::Error::RecipeSyntax`] for invalid TOML, [`model::Error::RecipeValue`] for another
/// `init.weights`, and errors of reading the checkpoint.
pub(super) fn complete_recipe(text: &str, path: &Path, model: &Path) -> Result<String> {
    old_names::reject(text)?;
    let parse = |text: &str, path: &Path| {
        text.parse::<Table>().map_err(|error| Error::from(syntax_error(path, text, &error)))
    };
    let mut recipe = parse(text, path)?;
    let (model_text, _) = checkpoint::read_recipe_and_tokenizer(model)?;
    let mut base = parse(&model_text, model)?;
    let takes_encoder = !recipe.contains_key("encoder");
    for section in MODEL_SECTIONS {
        if let Some(table) = base.remove(section).filter(|_| !recipe.contains_key(section)) {
            recipe.insert(section.to_owned(), table);
        }
    }
    // The rows of a cached encoder have no dropout.
    let caches_encoder = recipe.get("training").and_then(|training| training.get("cache_encoder")).is_some();
    if takes_encoder
        && caches_encoder
        && let Some(dropout) = recipe.get_mut("encoder").and_then(|encoder| encoder.get_mut("dropout"))
    {
        *dropout = Value::Float(0.0);
    }
    let base_training = base.remove("training");
    for key in TRAINING_KEYS {
        let value = base_training.as_ref().and_then(|training| training.get(key)).cloned();
        let (Some(value), Some(Value::Table(training))) = (value, recipe.get_mut("training")) else {
            continue;
        };
        training.entry(key).or_insert(value);
    }
    let keeps_tokens = !recipe.contains_key("tokens");
    if let Some(tokens) = base.remove("tokens").filter(|_| keeps_tokens) {
        recipe.insert("tokens".to_owned(), tokens);
    }
    // The path must not depend on the recipe's folder.
    let weights = std::path::absolute(model).map_err(model::Error::io(model, "read the checkpoint"))?;
    let Some(weights) = weights.to_str() else {
        return Err(value_error("--from", "a path in UTF-8", format!("{}", model.display())));
    };
    let init = recipe.entry("init").or_insert_with(|| Value::Table(Table::new()));
    let Value::Table(init) = init else {
        return Err(value_error("init", "a table", init.to_string()));
    };
    if let Some(other) = init.get("weights") {
        return Err(value_error("init.weights", "none with --from", other.to_string()));
    }
    init.insert("weights".into(), weights.into());
    let key = if keeps_tokens { "keep_tokens" } else { "match_tokens" };
    init.entry(key).or_insert(Value::Boolean(true));
    toml::to_string(&recipe)
        .map_err(|error| value_error("recipe", "a recipe that can be written", error.to_string()))
}

fn value_error(key: &str, expected: &str, found: String) -> Error {
    model::Error::RecipeValue { key: key.into(), expected: expected.into(), found }.into()
}
