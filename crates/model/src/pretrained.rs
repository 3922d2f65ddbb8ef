//! First weights from the file of another model: `[init] weights`.
//!
//! | parameter of the model | what it starts from |
//! |---|---|
//! | in the file, of the same shape | the file: the moving average if a checkpoint has one, else its weights |
//! | in the file, of another shape | an error, unless `init.skip` covers its name |
//! | covered by `init.skip`, or not in the file | its drawn values |
//!
//! Every name of the model and of the file is in exactly one line of the printed list.
use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device};
use speech::Tokenizer;
use speech::files::read_input;

use crate::checkpoint;
use crate::checkpoint::{Checkpoint, UNSUMMED, Values};
use crate::config::table::first_difference;
use crate::config::{ModelConfig, PretrainedConfig, covers};
use crate::model::Model;
use crate::parameters::Shapes;
use crate::tensors::to_vec;
use crate::{Error, Parameters, Result};

/// Tokens of another list that a warning names.
const NAMED_TOKENS: usize = 3;

/// A line about pretrained weights for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// For information.
    Note(String),
    /// A likely mistake.
    Warning(String),
}

/// Values for some parameters of a model.
#[derive(Debug)]
pub struct Pretrained {
    values: Values,
}

/// The weights of a file.
struct WeightFile {
    values: Values,
    shapes: Shapes,
    /// What they are called in the printed list.
    kind: &'static str,
}

impl Pretrained {
    /// Reads the weights that a configuration names, if it names any, and reports what matches.
    ///
    /// # Errors
    /// [`Error::Pretrained`] for a shape that does not fit, a name in `init.skip` that no parameter has, values that are not finite, or
    /// if nothing matches; whatever [`Checkpoint::read`] returns.
    pub fn read(
        config: &PretrainedConfig,
        model: &ModelConfig,
        tokenizer: &Tokenizer,
        report: &mut dyn FnMut(Message),
    ) -> Result<Option<Self>> {
        let Some(path) = &config.weights else { return Ok(None) };
        let weights = match checkpoint::is_checkpoint(path)? {
            true => from_checkpoint(path, model, tokenizer, report)?,
            false => from_tensors(path)?,
        };
        let wanted = Model::shapes(model, tokenizer.size())?;
        let names = NameMatches::compare(path, config, &wanted, &weights.shapes)?;
        let (taken, all) = (names.matched.len(), wanted.len());
        let kind = weights.kind;
        report(Message::Note(format!(
            "init.weights: {}: {taken} of {all} parameters start from its {kind}",
            path.display()
        )));
        names.lines().into_iter().for_each(|line| report(Message::Note(line)));
        let mut values = weights.values;
        values.retain(|name, _| names.matched.contains(name));
        Ok(Some(Pretrained { values }))
    }

    /// Sets the parameters that have a value.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn apply(self, parameters: &Parameters) -> Result<()> {
        let mut values = parameters.values()?;
        values.extend(self.values);
        parameters.set(&values)
    }
}

/// Parameters by what becomes of them.
#[derive(Debug, Default, PartialEq)]
struct NameMatches {
    matched: Vec<String>,
    missing: Vec<String>,
    skipped: Vec<String>,
    unused: Vec<String>,
}

impl NameMatches {
    fn compare(path: &Path, config: &PretrainedConfig, wanted: &Shapes, found: &Shapes) -> Result<Self> {
        let wrong =
            |expected: String, found: String| Error::Pretrained { path: path.to_owned(), expected, found };
        if let Some(name) = config.skip.iter().find(|name| !wanted.keys().any(|wanted| covers(name, wanted)))
        {
            return Err(wrong(
                "names of this model's parameters or modules in init.skip (`panda info RECIPE` lists them)"
                    .into(),
                format!("{name:?}"),
            ));
        }
        let (mut names, mut mismatched) = (NameMatches::default(), Vec::new());
        for (name, shape) in wanted {
            let place = match found.get(name) {
                _ if config.is_skipped(name) => &mut names.skipped,
                None => &mut names.missing,
                Some(other) if other == shape => &mut names.matched,
                Some(other) => {
                    mismatched.push((name, shape, other));
                    continue;
                }
            };
            place.push(name.clone());
        }
        names.unused = found.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        if let Some((name, shape, other)) = mismatched.first() {
            let others: Vec<&str> = mismatched[1..].iter().map(|(name, ..)| name.as_str()).collect();
            let also =
                if others.is_empty() { String::new() } else { format!(" (also {})", others.join(", ")) };
            return Err(wrong(
                format!("{name} of shape {shape:?}"),
                format!(
                    "{other:?}{also}; init.skip = [\"{name}\"] keeps its first values, and takes modules such as \"joint.head\" too"
                ),
            ));
        }
        if names.matched.is_empty() {
            let example = names.missing.first().or(names.skipped.first()).map_or("", String::as_str);
            let other =
                names.unused.first().map_or("none".to_owned(), |name| format!("names such as {name:?}"));
            return Err(wrong(format!("at least one parameter of this model, such as {example:?}"), other));
        }
        Ok(names)
    }

    /// A line for each kind that has names.
    fn lines(&self) -> Vec<String> {
        let kinds = [
            ("taken", &self.matched),
            ("not in the file, first values drawn", &self.missing),
            ("skipped (init.skip), first values drawn", &self.skipped),
            ("in the file only, not used", &self.unused),
        ];
        let line = |(kind, names): &(&str, &Vec<String>)| format!("  {kind}: {}", names.join(", "));
        kinds.iter().filter(|(_, names)| !names.is_empty()).map(line).collect()
    }
}

/// The weights of a checkpoint, after a look at what it was trained with.
fn from_checkpoint(
    path: &Path,
    model: &ModelConfig,
    tokenizer: &Tokenizer,
    report: &mut dyn FnMut(Message),
) -> Result<WeightFile> {
    let Checkpoint { weights, average, shapes, tokenizer: tokens, recipe: text, summed, .. } =
        Checkpoint::read(path)?;
    let mut warn =
        |warning: String| report(Message::Warning(format!("init.weights {}: {warning}", path.display())));
    if !summed {
        warn(format!("an older file: {UNSUMMED}"));
    }
    // A tokenizer or recipe that cannot be read is as good as another one: the weights are what is asked for.
    match Tokenizer::from_json(&tokens) {
        Ok(theirs) => tokens_differ(tokenizer.tokens(), theirs.tokens()).into_iter().for_each(&mut warn),
        Err(error) => warn(format!("its tokens cannot be compared: {error}")),
    }
    match ModelConfig::from_recipe(&text, path) {
        Ok(theirs) => input_differs(model, &theirs).into_iter().for_each(&mut warn),
        Err(error) => warn(format!("its features cannot be compared: {error}")),
    }
    let kind = if average.is_some() { "averaged weights" } else { "weights" };
    let mut values = weights;
    values.extend(average.unwrap_or_default());
    Ok(WeightFile { values, shapes, kind })
}

/// What a user must know where labels stand for other tokens.
fn tokens_differ(ours: &[String], theirs: &[String]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let places = (0..ours.len().max(theirs.len())).filter(|&at| ours.get(at) != theirs.get(at));
    let name =
        |tokens: &[String], at: usize| tokens.get(at).map_or("none".to_owned(), |token| format!("{token:?}"));
    let some = places.clone().take(NAMED_TOKENS);
    let named: Vec<String> = some
        .map(|at| format!("label {at} is {} here and {} there", name(ours, at), name(theirs, at)))
        .collect();
    Some(format!(
        "another token list ({} tokens here, {} there; labels that differ: {}, first {}): rows of the head and of embeddings belong to other \
         labels; init.skip leaves them out",
        ours.len(),
        theirs.len(),
        places.count(),
        named.join(", ")
    ))
}

/// What a user must know where the model reads other rows.
fn input_differs(ours: &ModelConfig, theirs: &ModelConfig) -> Option<String> {
    let table = |config: &ModelConfig| toml::Table::try_from(&config.input).ok();
    let difference = first_difference("", &table(ours)?, &table(theirs)?)?;
    Some(format!("other input features: found {difference}"))
}

/// The tensors of a file that is no checkpoint of ours, by their own names.
fn from_tensors(path: &Path) -> Result<WeightFile> {
    let wrong =
        |expected: String, found: String| Error::Pretrained { path: path.to_owned(), expected, found };
    let bytes = read_input(path).map_err(Error::io(path, "read the weights"))?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|error| wrong("a safetensors file".into(), error.to_string()))?;
    let (mut values, mut shapes) = (Values::new(), BTreeMap::new());
    for (name, tensor) in tensors {
        let (shape, dtype) = (tensor.dims().to_vec(), tensor.dtype());
        if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
            // Integers are counters, never weights: they are listed as not used.
            shapes.insert(format!("{name} ({dtype:?})"), shape);
            continue;
        }
        shapes.insert(name.clone(), shape);
        let numbers: Vec<f32> = to_vec(&tensor.to_dtype(DType::F32)?)?;
        if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
            return Err(wrong(format!("finite values in {name}"), format!("{} at {at}", numbers[at])));
        }
        values.insert(name, numbers);
    }
    Ok(WeightFile { values, shapes, kind: "tensors" })
}
