//! `Pretrained`: initial weights from another model's file (`[init] weights`).
//!
//! | parameter of the model | initial value |
//! |---|---|
//! | in the file, of the same shape | the file: the moving average if a checkpoint has one, else its weights |
//! | rows of labels, with `init.match_tokens` | the row of the same token in the file, or random |
//! | in the file, of another shape | an error, unless it is in `init.skip` |
//! | in `init.skip`, or not in the file | random |
//!
//! The names of all parameters are reported, in a line for each of: read, missing, skipped, unused.
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use candle_core::{DType, Device};
use speech::Tokenizer;
use speech::files::read_input;

use crate::checkpoint;
use crate::checkpoint::{Checkpoint, NO_CHECKSUMS, Values};
use crate::config::table::first_difference;
use crate::config::{ModelConfig, PretrainedConfig, covers};
use crate::label_rows::{LabelRows, take_label_rows};
use crate::model::Model;
use crate::parameters::Shapes;
use crate::{Error, Parameters, Result};
use layers::tensors::to_vec;

/// Number of differing tokens that a warning names.
const MAX_NAMED_TOKENS: usize = 3;
/// Largest number of parameters that a message lists by name.
const MAX_LISTED_NAMES: usize = 40;

/// A message about pretrained weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadMessage {
    /// Information.
    Note(String),
    /// A probable mistake.
    Warning(String),
}

/// Pretrained values of some parameters of a model.
#[derive(Debug)]
pub struct Pretrained {
    values: Values,
    /// Parameters whose rows are labels, with `init.match_tokens`.
    label_rows: BTreeMap<String, LabelRows>,
}

/// The weights of a file.
struct WeightFile {
    values: Values,
    shapes: Shapes,
    /// The name of the values in messages, such as "averaged weights".
    description: &'static str,
    /// The tokens of a checkpoint, if they can be read.
    tokens: Option<Vec<String>>,
}

impl Pretrained {
    /// Reads a configuration's weights, and reports which match.
    ///
    /// None if the configuration names no file.
    ///
    /// # Errors
    /// [`Error::Pretrained`] for a shape that does not match, an unknown name in `init.skip`,
    /// values that are not finite, or if nothing matches; those of [`Checkpoint::read`].
    pub fn read(
        config: &PretrainedConfig,
        model: &ModelConfig,
        tokenizer: &Tokenizer,
        report: &mut dyn FnMut(LoadMessage),
    ) -> Result<Option<Self>> {
        let Some(path) = &config.weights else { return Ok(None) };
        let mut weights = match checkpoint::is_checkpoint(path)? {
            true => read_checkpoint(path, config.match_tokens, model, tokenizer, report)?,
            false => read_tensors(path)?,
        };
        let expected = Model::shapes(model, tokenizer.size())?;
        let label_rows = match (config.match_tokens, weights.tokens.take()) {
            (false, _) => BTreeMap::new(),
            (true, Some(file_tokens)) => {
                let tokens = tokenizer.tokens();
                let known: HashSet<&String> = file_tokens.iter().collect();
                let count = tokens.iter().filter(|token| known.contains(token)).count();
                report(LoadMessage::Note(format!(
                    "init.match_tokens: {count} of {} tokens are in the file; the rows of the others are random",
                    tokens.len()
                )));
                let WeightFile { values, shapes, .. } = &mut weights;
                take_label_rows([tokens, &file_tokens], &expected, values, shapes)
            }
            (true, None) => {
                let (expected, found) = ("a checkpoint with tokens, for init.match_tokens", "none");
                return Err(Error::Pretrained {
                    path: path.clone(),
                    expected: expected.into(),
                    found: found.into(),
                });
            }
        };
        let names = NameMatches::compare(path, config, &expected, &weights.shapes)?;
        let (matched, total) = (names.matched.len(), expected.len());
        let description = weights.description;
        report(LoadMessage::Note(format!(
            "init.weights: {}: {matched} of {total} parameters are initialized with its {description}",
            path.display()
        )));
        names.lines().into_iter().for_each(|line| report(LoadMessage::Note(line)));
        let mut values = weights.values;
        values.retain(|name, _| names.matched.contains(name));
        let mut label_rows = label_rows;
        label_rows.retain(|name, _| names.matched.contains(name));
        Ok(Some(Pretrained { values, label_rows }))
    }

    /// Sets the parameters that have a value.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn apply(self, parameters: &Parameters) -> Result<()> {
        // Each value is freed when it is set.
        for (name, values) in self.values {
            parameters.set_parameter(&name, &values)?;
        }
        for (name, rows) in &self.label_rows {
            let Some(variable) = parameters.get(name) else { continue };
            let mut values = to_vec(variable)?;
            rows.copy_to(&mut values);
            parameters.set_parameter(name, &values)?;
        }
        Ok(())
    }
}

/// The names of parameters, by how they are initialized.
#[derive(Debug, Default, PartialEq)]
struct NameMatches {
    matched: Vec<String>,
    missing: Vec<String>,
    skipped: Vec<String>,
    unused: Vec<String>,
}

impl NameMatches {
    /// Compares the parameters of the model with those of the file.
    fn compare(
        path: &Path,
        config: &PretrainedConfig,
        expected_shapes: &Shapes,
        found_shapes: &Shapes,
    ) -> Result<Self> {
        let error =
            |expected: String, found: String| Error::Pretrained { path: path.to_owned(), expected, found };
        let is_unknown = |skipped: &&String| !expected_shapes.keys().any(|name| covers(skipped, name));
        if let Some(name) = config.skip.iter().find(is_unknown) {
            return Err(error(
                "names of this model's parameters or modules in init.skip (`panda info RECIPE` lists them)"
                    .into(),
                format!("{name:?}"),
            ));
        }
        let (mut names, mut mismatched) = (NameMatches::default(), Vec::new());
        for (name, shape) in expected_shapes {
            let list = match found_shapes.get(name) {
                _ if config.is_skipped(name) => &mut names.skipped,
                None => &mut names.missing,
                Some(file_shape) if file_shape == shape => &mut names.matched,
                Some(file_shape) => {
                    mismatched.push((name, shape, file_shape));
                    continue;
                }
            };
            list.push(name.clone());
        }
        names.unused =
            found_shapes.keys().filter(|name| !expected_shapes.contains_key(*name)).cloned().collect();
        if let Some((name, shape, file_shape)) = mismatched.first() {
            let rest: Vec<&str> = mismatched[1..].iter().map(|(name, ..)| name.as_str()).collect();
            let also = if rest.is_empty() { String::new() } else { format!(" (also {})", rest.join(", ")) };
            return Err(error(
                format!("{name} of shape {shape:?}"),
                format!(
                    "{file_shape:?}{also}; init.skip = [\"{name}\"] keeps its random values, and accepts modules such as \"joint.head\" as well"
                ),
            ));
        }
        if names.matched.is_empty() {
            let example = names.missing.first().or(names.skipped.first()).map_or("", String::as_str);
            let unused =
                names.unused.first().map_or("none".to_owned(), |name| format!("names such as {name:?}"));
            return Err(error(format!("at least one parameter of this model, such as {example:?}"), unused));
        }
        Ok(names)
    }

    /// Returns a line for each list that is not empty.
    fn lines(&self) -> Vec<String> {
        let kinds = [
            ("read from the file", &self.matched),
            ("not in the file, initialized at random", &self.missing),
            ("skipped (init.skip), initialized at random", &self.skipped),
            ("in the file only, not used", &self.unused),
        ];
        let line = |(kind, names): &(&str, &Vec<String>)| format!("  {kind}: {}", list_names(names));
        kinds.iter().filter(|(_, names)| !names.is_empty()).map(line).collect()
    }
}

/// Lists names; many names by their first parts, with the number of each.
fn list_names(names: &[String]) -> String {
    if names.len() <= MAX_LISTED_NAMES {
        return names.join(", ");
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name.split('.').next().unwrap_or(name)).or_default() += 1;
    }
    let parts: Vec<String> = counts.iter().map(|(part, count)| format!("{part}.* ({count})")).collect();
    parts.join(", ")
}

/// Reads the weights of a checkpoint.
///
/// Its features, and without `matches_tokens` its tokens, are compared with the model's.
fn read_checkpoint(
    path: &Path,
    matches_tokens: bool,
    model: &ModelConfig,
    tokenizer: &Tokenizer,
    report: &mut dyn FnMut(LoadMessage),
) -> Result<WeightFile> {
    let Checkpoint { weights, average, shapes, tokenizer: tokens, recipe: text, has_checksums, .. } =
        Checkpoint::read(path)?;
    let mut warn =
        |warning: String| report(LoadMessage::Warning(format!("init.weights {}: {warning}", path.display())));
    if !has_checksums {
        warn(format!("an older file: {NO_CHECKSUMS}"));
    }
    // A tokenizer or recipe that cannot be read is a warning only, as the weights can be used.
    let file_tokenizer = Tokenizer::from_json(&tokens);
    match &file_tokenizer {
        Ok(_) if matches_tokens => {}
        Ok(other) => token_warning(tokenizer.tokens(), other.tokens()).into_iter().for_each(&mut warn),
        Err(error) => warn(format!("its tokens cannot be compared: {error}")),
    }
    match ModelConfig::from_recipe(&text, path) {
        Ok(other) => {
            check_adapter(path, model, &other)?;
            input_warning(model, &other).into_iter().for_each(&mut warn);
        }
        Err(error) => warn(format!("its features cannot be compared: {error}")),
    }
    let description = if average.is_some() { "averaged weights" } else { "weights" };
    let mut values = weights;
    values.extend(average.unwrap_or_default());
    let tokens = file_tokenizer.ok().map(|tokenizer| tokenizer.tokens().to_vec());
    Ok(WeightFile { values, shapes, description, tokens })
}

/// Returns a warning if labels are other tokens in the file.
fn token_warning(tokens: &[String], file_tokens: &[String]) -> Option<String> {
    if tokens == file_tokens {
        return None;
    }
    let count = tokens.len().max(file_tokens.len());
    let differing = (0..count).filter(|&label| tokens.get(label) != file_tokens.get(label));
    let name = |tokens: &[String], label: usize| {
        tokens.get(label).map_or("none".to_owned(), |token| format!("{token:?}"))
    };
    let named: Vec<String> = differing
        .clone()
        .take(MAX_NAMED_TOKENS)
        .map(|label| {
            format!("label {label} is {} here and {} there", name(tokens, label), name(file_tokens, label))
        })
        .collect();
    Some(format!(
        "another token list ({} tokens here, {} there; labels that differ: {}, first {}): rows of the head and of embeddings belong to other \
         labels; init.match_tokens = true reads them by token, init.skip omits them",
        tokens.len(),
        file_tokens.len(),
        differing.count(),
        named.join(", ")
    ))
}

/// Returns a warning if the input rows of the file's model differ.
fn input_warning(model: &ModelConfig, file_model: &ModelConfig) -> Option<String> {
    let table = |config: &ModelConfig| toml::Table::try_from(&config.input).ok();
    let difference = first_difference("", &table(model)?, &table(file_model)?)?;
    Some(format!("other input features: found {difference}"))
}

/// Checks that the file has no adapter, or the recipe's.
///
/// The update of another one would be lost, or multiplied with another factor.
fn check_adapter(path: &Path, model: &ModelConfig, file_model: &ModelConfig) -> Result<()> {
    match &file_model.adapter {
        Some(adapter) if model.adapter.as_ref() != Some(adapter) => Err(Error::Pretrained {
            path: path.to_owned(),
            expected: "no adapter, or that of the recipe (`panda adapter merge` merges it)".into(),
            found: format!("another of rank {}", adapter.rank),
        }),
        _ => Ok(()),
    }
}

/// Reads the tensors of another safetensors file, by name.
fn read_tensors(path: &Path) -> Result<WeightFile> {
    let invalid =
        |expected: String, found: String| Error::Pretrained { path: path.to_owned(), expected, found };
    let bytes = read_input(path).map_err(Error::io(path, "read the weights"))?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|error| invalid("a safetensors file".into(), error.to_string()))?;
    let (mut values, mut shapes) = (Values::new(), BTreeMap::new());
    for (name, tensor) in tensors {
        let (shape, dtype) = (tensor.dims().to_vec(), tensor.dtype());
        if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
            // Integers are counters, never weights, and are listed as unused.
            shapes.insert(format!("{name} ({dtype:?})"), shape);
            continue;
        }
        shapes.insert(name.clone(), shape);
        let numbers: Vec<f32> = to_vec(&tensor.to_dtype(DType::F32)?)?;
        if let Some(index) = numbers.iter().position(|x| !x.is_finite()) {
            return Err(invalid(
                format!("finite values in {name}"),
                format!("{} at {index}", numbers[index]),
            ));
        }
        values.insert(name, numbers);
    }
    Ok(WeightFile { values, shapes, description: "tensors", tokens: None })
}
