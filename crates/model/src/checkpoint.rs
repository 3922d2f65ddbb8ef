//! Checkpoints: everything a run needs to go on, in one safetensors file.
//!
//! | tensors | what |
//! |---|---|
//! | `weight/NAME` | the weights after the last step |
//! | `average/NAME` | their moving average, if the recipe has one |
//! | `first/NAME`, `second/NAME` | the optimiser's moments; one of a user's own has names of its own |
//!
//! The file's metadata has one key, `panda`: JSON with format, version, recipe, tokenizer, [`Progress`], [`Fingerprint`] of the data,
//! and the CRC-32 of each tensor and of what else is in the metadata.
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use speech::Tokenizer;
use speech::files::{open_regular, read_input};

use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// What the metadata's `format` field says.
pub(crate) const FORMAT: &str = "panda checkpoint";
/// Raised whenever an old reader would misread a new file.
pub(crate) const VERSION: u32 = 3;
/// The first version that can still be read.
const OLDEST: u32 = 2;
/// Weights, their average, and what our optimisers remember of each of them.
const KINDS: [&str; 4] = ["weight", "average", "first", "second"];

/// The place that errors of a checkpoint's recipe name.
pub const RECIPE_PLACE: &str = "in the checkpoint";

/// What cannot be told of a file without checksums.
pub const UNSUMMED: &str = "it has no checksums, and damage in it or other data may pass unnoticed";

/// Values of all parameters by name.
pub type Values = BTreeMap<String, Vec<f32>>;

/// How far a run has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Batches of it that are done.
    pub batch: u64,
    /// Optimiser steps of the whole run.
    pub step: u64,
    /// Best dev error rate so far, as bits so that nothing is rounded on the way.
    pub best: Option<u64>,
    /// Sums over the epoch's batches so far, as bits: losses, CTC losses, gradient norms, utterances.
    pub sums: [u64; 4],
    /// The same of the trivial joiner's losses.
    #[serde(default)]
    pub simple: u64,
    /// Utterances of the epoch that were left out since no path explains them.
    pub skipped: u64,
    /// Batches of the epoch that were skipped since their loss or gradient was no number; they are no optimiser steps.
    #[serde(default, skip_serializing_if = "none")]
    pub nonfinite: u64,
    /// How many of these came just before, one after the other.
    #[serde(default, skip_serializing_if = "none")]
    pub in_a_row: u64,
}

/// Which data a run is trained on: eight hexadecimal digits for each utterance of a set, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The training set.
    pub train: String,
    /// The utterances that choose the best checkpoint.
    pub dev: String,
    /// The utterances of the final report.
    pub test: String,
}

fn none(count: &u64) -> bool {
    *count == 0
}

/// The contents of a checkpoint file.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The recipe's text.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// Counters.
    pub progress: Progress,
    /// Shapes of the parameters.
    pub shapes: Shapes,
    /// Weights after the last step.
    pub weights: Values,
    /// Their moving average.
    pub average: Option<Values>,
    /// What the optimiser remembers of each parameter, such as its `first` and `second` moments.
    pub memory: BTreeMap<String, Values>,
    /// The data that it was trained on; older files do not say.
    pub data: Option<Fingerprint>,
    /// Whether the file had checksums, which were right; older files have none.
    pub summed: bool,
}

/// What the metadata says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub format: String,
    pub version: u32,
    pub recipe: String,
    pub tokenizer: String,
    pub progress: Progress,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Fingerprint>,
    /// Eight hexadecimal digits of each tensor under its name, and of all else here under none.
    #[serde(default)]
    pub checksums: BTreeMap<String, String>,
}

impl Header {
    /// The checksum of everything but the checksums.
    pub fn own_checksum(&self) -> serde_json::Result<String> {
        let Self { format, version, recipe, tokenizer, progress, data, .. } = self;
        let said = serde_json::to_vec(&(format, version, recipe, tokenizer, progress, data))?;
        Ok(checksum(&said))
    }
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(bytes))
}

/// Names and shapes of a checkpoint's weights, from the head of the file alone.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it does not begin as a safetensors file does.
pub fn shapes(path: &Path) -> Result<Shapes> {
    let wrong = |found: String| Error::checkpoint(path, "the head of a safetensors file", found);
    let weights = read_head(path)?.into_iter().filter_map(|(name, about)| {
        let shape = about.get("shape")?.clone();
        Some((name.strip_prefix("weight/")?.to_owned(), shape))
    });
    let shape = |(name, shape)| Ok((name, serde_json::from_value(shape).map_err(|e| wrong(e.to_string()))?));
    weights.map(shape).collect()
}

/// Whether a safetensors file is a checkpoint of a run, from its head alone.
///
/// # Errors
/// As [`shapes`].
pub(crate) fn is_checkpoint(path: &Path) -> Result<bool> {
    Ok(read_head(path)?.get("__metadata__").is_some_and(|metadata| metadata.get("panda").is_some()))
}

/// The head of a safetensors file: entries by name.
fn read_head(path: &Path) -> Result<BTreeMap<String, serde_json::Value>> {
    let io = |error| Error::io(path, "read the checkpoint")(error);
    let wrong = |found: String| Error::checkpoint(path, "the head of a safetensors file", found);
    let mut file = open_regular(path).map_err(io)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    let mut head = Vec::new();
    file.take(length).read_to_end(&mut head).map_err(io)?;
    if head.len() as u64 != length {
        return Err(wrong(format!("{} bytes of one of {length}", head.len())));
    }
    serde_json::from_slice(&head).map_err(|error| wrong(error.to_string()))
}

impl Checkpoint {
    /// Reads and checks a checkpoint: format, version, checksums, dtypes, finite values.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is corrupt, truncated or foreign.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_input(path).map_err(Error::io(path, "read the checkpoint"))?;
        let wrong = |expected: &str, found: String| Error::checkpoint(path, expected, found);
        let whole = "a whole safetensors file";
        let (_, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|error| wrong(whole, error.to_string()))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| wrong(whole, error.to_string()))?;
        let header = metadata.metadata().as_ref().and_then(|map| map.get("panda"));
        let header =
            header.ok_or_else(|| wrong("metadata with the key panda", "none: a foreign file".into()))?;
        let fields: serde_json::Value =
            serde_json::from_str(header).map_err(|error| wrong("metadata in JSON", error.to_string()))?;
        let version = fields["version"].as_u64().filter(|_| fields["format"] == FORMAT);
        if !version.is_some_and(|version| (u64::from(OLDEST)..=u64::from(VERSION)).contains(&version)) {
            let found = format!("format {}, version {}", fields["format"], fields["version"]);
            let older = version.is_some_and(|version| version < u64::from(OLDEST));
            let hint = if older { ", whose parameters have other names: train it again" } else { "" };
            return Err(wrong(&format!("format \"{FORMAT}\", version {VERSION}"), found + hint));
        }
        let header: Header = serde_json::from_value(fields)
            .map_err(|error| wrong("metadata with recipe, tokenizer and progress", error.to_string()))?;
        let summed = header.version > OLDEST;
        let mut sums = header.checksums.clone();
        // Tensors that nobody knows have none; they are named when the model looks for its own.
        let mut sum = |name: &str, found: String| match sums.remove(name) {
            Some(expected) if summed && found != expected => {
                let what = if name.is_empty() { "the metadata" } else { name };
                Err(wrong(&format!("{what} with the checksum {expected}"), format!("{found}: damaged")))
            }
            None if summed && name.is_empty() => {
                Err(wrong("checksums", "none, in a version that has them".to_owned()))
            }
            _ => Ok(()),
        };
        sum("", header.own_checksum().map_err(|error| wrong("metadata in JSON", error.to_string()))?)?;
        let mut shapes = BTreeMap::new();
        let mut values: BTreeMap<String, Values> = BTreeMap::new();
        let mut names = tensors.names();
        names.sort_unstable();
        for full in names {
            let view = tensors.tensor(full).map_err(|error| wrong(whole, error.to_string()))?;
            let Some((kind, name)) =
                full.split_once('/').filter(|(kind, name)| !(kind.is_empty() || name.is_empty()))
            else {
                return Err(wrong(
                    "tensors named weight/, average/, first/ or second/, or KIND/ of an optimiser of one's own",
                    format!("{full:?}"),
                ));
            };
            if view.dtype() != Dtype::F32 {
                return Err(wrong(&format!("{full} of F32"), format!("{:?}", view.dtype())));
            }
            // What an optimiser of one's own remembers need not be of a parameter.
            let shape = match KINDS.contains(&kind) {
                true => shapes.entry(name.to_owned()).or_insert_with(|| view.shape().to_vec()),
                false => &mut view.shape().to_vec(),
            };
            if shape != view.shape() {
                return Err(wrong(&format!("{full} of shape {shape:?}"), format!("{:?}", view.shape())));
            }
            sum(full, checksum(view.data()))?;
            let bytes = view.data().chunks_exact(4);
            let numbers: Vec<f32> = bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if let Some(index) = numbers.iter().position(|x| !x.is_finite()) {
                return Err(wrong(
                    &format!("finite values in {full}"),
                    format!("{} at {index}", numbers[index]),
                ));
            }
            values.entry(kind.to_owned()).or_default().insert(name.to_owned(), numbers);
        }
        if let Some(name) = sums.keys().next().filter(|_| summed) {
            return Err(wrong(&format!("{name}, of which there is a checksum"), "none".into()));
        }
        let weights = values.remove("weight");
        Ok(Checkpoint {
            recipe: header.recipe.clone(),
            tokenizer: header.tokenizer.clone(),
            progress: header.progress.clone(),
            weights: weights.ok_or_else(|| wrong("tensors named weight/", "none".into()))?,
            average: values.remove("average"),
            memory: values,
            data: header.data.clone(),
            summed,
            shapes,
        })
    }

    /// Each kind of values under its name in the file.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&str, &Values)> {
        let average = self.average.as_ref().map(|average| ("average", average));
        let memory = self.memory.iter().map(|(kind, values)| (kind.as_str(), values));
        std::iter::once(("weight", &self.weights)).chain(average).chain(memory)
    }

    /// The configuration of its model.
    ///
    /// # Errors
    /// [`Error::Inside`] the file if its recipe does not describe a model.
    pub fn model_config(&self, path: &Path) -> Result<ModelConfig> {
        ModelConfig::from_recipe(&self.recipe, Path::new(RECIPE_PLACE))
            .map_err(|source| Error::Inside { path: path.to_owned(), source: Box::new(source) })
    }

    /// The tokenizer that the labels are from.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if its JSON is damaged.
    pub fn tokenizer(&self, path: &Path) -> Result<Tokenizer> {
        Tokenizer::from_json(&self.tokenizer)
            .map_err(|error| Error::checkpoint(path, "a tokenizer", error.to_string()))
    }

    /// Checks that names and shapes are exactly those of a model's parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] naming the first parameter that is missing, left over or of another shape.
    pub fn check(&self, path: &Path, known: &Shapes) -> Result<()> {
        for (kind, values) in self.kinds().filter(|(kind, _)| KINDS.contains(kind)) {
            for (name, shape) in known {
                if !values.contains_key(name) {
                    return Err(Error::checkpoint(path, format!("{kind}/{name} of shape {shape:?}"), "none"));
                }
            }
            if let Some(name) = values.keys().find(|name| !known.contains_key(*name)) {
                return Err(Error::checkpoint(
                    path,
                    "the recipe's parameters only",
                    format!("{kind}/{name}"),
                ));
            }
        }
        for (name, shape) in known {
            if self.shapes[name] != *shape {
                let found = format!("{:?}", self.shapes[name]);
                return Err(Error::checkpoint(path, format!("{name} of shape {shape:?}"), found));
            }
        }
        Ok(())
    }
}
