//! Checkpoints: weights, optimizer state and recipe of a run in one file.
//!
//! The file is a safetensors file:
//!
//! | tensors | contents |
//! |---|---|
//! | `weight/NAME` | the weights after the last step |
//! | `average/NAME` | their moving average, if the recipe has one |
//! | `base/NAME` | parameters of the base that an applied adapter replaces |
//! | `first/NAME`, `second/NAME` | the optimizer's moments; a custom optimizer has other kinds |
//!
//! All are F32, except weights of [`quantize`](crate::quantize()): `weight/NAME` is BF16, or I8
//! with the F16 scales `weight/NAME.scales` of blocks of 32 values of a row.
//!
//! Its metadata has one key, `panda`: JSON with format, version, recipe, tokenizer,
//! [`Progress`], [`DataFingerprint`] of the data, [`ImportedSource`] of an imported model, recipe
//! and tokenizer of the base of an applied adapter, and the CRC-32 of each tensor and of the rest
//! of the metadata.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use speech::Tokenizer;
use speech::files::open_regular;

use crate::checksums::hex_checksum;
use crate::config::old_names;
use crate::frozen::FrozenParameters;
use crate::import::metadata::ImportedSource;
use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// The `format` field of the metadata.
pub(crate) const FORMAT: &str = "panda checkpoint";
/// Version of the file format; raised whenever an old reader would misread a new file.
pub(crate) const VERSION: u32 = 3;
/// The first version that can still be read.
pub(crate) const OLDEST_VERSION: u32 = 2;
/// The key in [`StoredMetadata::checksums`] of the fields of the metadata.
pub(crate) const FIELDS_KEY: &str = "";
/// Kinds of tensors that have the names and shapes of the parameters.
///
/// They are the weights, their average, and the moments of the built-in optimizers.
pub(crate) const PARAMETER_KINDS: [&str; 4] = ["weight", "average", "first", "second"];

/// The kind of tensors of [`AdapterBase`].
pub(crate) const BASE_KIND: &str = "base";

/// The end of the names of tensors with f16 scales.
pub(crate) const SCALES_SUFFIX: &str = ".scales";

/// Kinds of tensors that constant parameters do not have.
const MOMENT_KINDS: [&str; 2] = ["first", "second"];

/// The location of a recipe in errors about a checkpoint.
pub const RECIPE_LOCATION: &str = "in the checkpoint";

/// The warning about a file without checksums.
pub const NO_CHECKSUMS: &str =
    "it has no checksums, so that damage, or a change of the data, may not be detected";

/// Values of all parameters by name.
pub type Values = BTreeMap<String, Vec<f32>>;

/// The progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Finished batches of the epoch.
    pub batch: u64,
    /// Optimizer steps of the whole run.
    pub step: u64,
    /// Best dev error rate so far, as bits, without rounding.
    pub best: Option<u64>,
    /// Sums over the finished batches of the epoch, as bits.
    ///
    /// These are losses, CTC losses, gradient norms and utterances, in this order.
    pub sums: [u64; 4],
    /// The sum of the simple joiner's losses (pruned transducer), as bits.
    #[serde(default)]
    pub simple: u64,
    /// Utterances of the epoch without a path, which are omitted.
    pub skipped: u64,
    /// Steps of the epoch that were skipped as not finite.
    ///
    /// They do not count in `step`; their batches count in `batch`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonfinite: u64,
    /// The number of consecutive skipped steps before the next step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_a_row: u64,
}

/// A fingerprint of the data of a run.
///
/// Eight hexadecimal digits for each utterance of a set, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFingerprint {
    /// The training set.
    pub train: String,
    /// The dev set.
    pub dev: String,
    /// The test set.
    pub test: String,
}

/// The parts of its base that an applied adapter replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterBase {
    /// The recipe's text.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// Parameters of the base that the adapter replaces.
    ///
    /// The adapted model has other values of them, or none.
    pub values: Values,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The contents of a checkpoint file.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The recipe's text; names of earlier versions are translated.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// The progress of the run.
    pub progress: Progress,
    /// Shapes of the parameters.
    pub shapes: Shapes,
    /// Weights after the last step.
    pub weights: Values,
    /// Their moving average.
    pub average: Option<Values>,
    /// The optimizer's state of each parameter, such as `first` moments.
    pub optimizer_state: BTreeMap<String, Values>,
    /// The fingerprint of the data; none in older files.
    pub data: Option<DataFingerprint>,
    /// The source of an imported model, for export.
    pub imported: Option<ImportedSource>,
    /// The base of an applied adapter, which [`remove_adapter`](crate::remove_adapter) restores.
    pub adapter_base: Option<AdapterBase>,
    /// True if the file has checksums, which are then correct; older files have none.
    pub has_checksums: bool,
}

/// The metadata of a checkpoint file: the JSON under the key `panda`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredMetadata {
    pub format: String,
    pub version: u32,
    pub recipe: String,
    pub tokenizer: String,
    pub progress: Progress,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataFingerprint>,
    /// Only in checkpoints of imported models; readers of earlier versions reject these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedSource>,
    /// Only in checkpoints with an applied adapter; readers of earlier versions reject these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<StoredBase>,
    /// The CRC-32 of each tensor by name, in hexadecimal.
    ///
    /// [`FIELDS_KEY`] has the CRC-32 of the other fields of the metadata.
    #[serde(default)]
    pub checksums: BTreeMap<String, String>,
}

/// Recipe and tokenizer of [`AdapterBase`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredBase {
    pub recipe: String,
    pub tokenizer: String,
}

impl StoredBase {
    pub(crate) fn new(base: &AdapterBase) -> Self {
        StoredBase { recipe: base.recipe.clone(), tokenizer: base.tokenizer.clone() }
    }
}

impl StoredMetadata {
    /// Returns the checksum of all fields except the checksums.
    pub(crate) fn fields_checksum(&self) -> serde_json::Result<String> {
        let Self { format, version, recipe, tokenizer, progress, data, imported, base, .. } = self;
        let mut fields = serde_json::to_vec(&(format, version, recipe, tokenizer, progress, data))?;
        // Without these fields, the checksum is that of earlier versions.
        if let Some(imported) = imported {
            fields.extend(serde_json::to_vec(imported)?);
        }
        if let Some(base) = base {
            fields.extend(serde_json::to_vec(base)?);
        }
        Ok(hex_checksum(crc32fast::hash(&fields)))
    }
}

/// Reads names and shapes of a checkpoint's weights, without their values.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it does not begin as a
/// safetensors file does.
pub fn shapes(path: &Path) -> Result<Shapes> {
    let header_error = |error: serde_json::Error| {
        Error::checkpoint(path, "the head of a safetensors file", error.to_string())
    };
    let weight_shapes = read_header_entries(path)?.into_iter().filter_map(|(name, entry)| {
        if entry["dtype"] == "F16" && name.ends_with(SCALES_SUFFIX) {
            return None;
        }
        let shape = entry.get("shape")?.clone();
        Some((name.strip_prefix("weight/")?.to_owned(), shape))
    });
    let parse = |(name, shape)| Ok((name, serde_json::from_value(shape).map_err(header_error)?));
    weight_shapes.map(parse).collect()
}

/// Returns true if a safetensors file is a checkpoint of a run.
///
/// # Errors
/// As [`shapes`].
pub(crate) fn is_checkpoint(path: &Path) -> Result<bool> {
    Ok(read_header_entries(path)?.get("__metadata__").is_some_and(|metadata| metadata.get("panda").is_some()))
}

/// Reads recipe and tokenizer of a checkpoint, without its tensors.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is not a checkpoint.
pub fn read_recipe_and_tokenizer(path: &Path) -> Result<(String, Tokenizer)> {
    let invalid = |found: String| Error::checkpoint(path, "metadata with recipe and tokenizer", found);
    let entries = read_header_entries(path)?;
    let metadata = entries.get("__metadata__").and_then(|metadata| metadata.get("panda")?.as_str());
    let metadata = metadata.ok_or_else(|| invalid("none: a file of another program".into()))?;
    let metadata: serde_json::Value =
        serde_json::from_str(metadata).map_err(|error| invalid(error.to_string()))?;
    let (Some(recipe), Some(tokenizer)) = (metadata["recipe"].as_str(), metadata["tokenizer"].as_str())
    else {
        return Err(invalid("none".into()));
    };
    let tokenizer = parse_tokenizer(tokenizer, path)?;
    Ok((old_names::translate(recipe).into_owned(), tokenizer))
}

/// Reads the header of a safetensors file: its entries by name.
fn read_header_entries(path: &Path) -> Result<BTreeMap<String, serde_json::Value>> {
    let io_error = |error| Error::io(path, "read the checkpoint")(error);
    let header_error = |found: String| Error::checkpoint(path, "the head of a safetensors file", found);
    let mut file = open_regular(path).map_err(io_error)?;
    let mut length_bytes = [0; 8];
    file.read_exact(&mut length_bytes).map_err(io_error)?;
    let length = u64::from_le_bytes(length_bytes);
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(io_error)?;
    if header.len() as u64 != length {
        return Err(header_error(format!("{} bytes of one of {length}", header.len())));
    }
    serde_json::from_slice(&header).map_err(|error| header_error(error.to_string()))
}

impl Checkpoint {
    /// Iterates over the kinds of values with their names in the file.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&str, &Values)> {
        let average = self.average.as_ref().map(|average| ("average", average));
        let optimizer_state = self.optimizer_state.iter().map(|(kind, values)| (kind.as_str(), values));
        std::iter::once(("weight", &self.weights)).chain(average).chain(optimizer_state)
    }

    /// Returns the configuration of the model.
    ///
    /// # Errors
    /// [`Error::Inside`] the file if its recipe does not describe a model.
    pub fn model_config(&self, path: &Path) -> Result<ModelConfig> {
        recipe_config(&self.recipe, path)
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if its JSON is damaged.
    pub fn tokenizer(&self, path: &Path) -> Result<Tokenizer> {
        parse_tokenizer(&self.tokenizer, path)
    }

    /// Checks that names and shapes are those of a model's parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for the first parameter that is missing, unknown or of another shape.
    pub fn check(&self, path: &Path, expected: &Shapes) -> Result<()> {
        let names = |values: &'_ Values| values.keys().cloned().collect();
        let kinds = self.kinds().map(|(kind, values)| (kind.to_owned(), names(values))).collect();
        check_parameters(path, &self.recipe, &kinds, &self.shapes, expected)
    }
}

/// The names of the values of each kind.
pub(crate) type NamesByKind = BTreeMap<String, BTreeSet<String>>;

/// Checks that names and shapes are those of a model's parameters.
///
/// # Errors
/// [`Error::Checkpoint`] for the first parameter that is missing, unknown or of another shape.
pub(crate) fn check_parameters(
    path: &Path,
    recipe: &str,
    kinds: &NamesByKind,
    shapes: &Shapes,
    expected: &Shapes,
) -> Result<()> {
    // A recipe that cannot be read is reported by `model_config`.
    let config = ModelConfig::from_recipe(recipe, Path::new(RECIPE_LOCATION));
    let frozen = config.map(|config| FrozenParameters::from_config(&config)).unwrap_or_default();
    for (kind, names) in kinds.iter().filter(|(kind, _)| PARAMETER_KINDS.contains(&kind.as_str())) {
        // Constant parameters have weights, but no moments.
        let has_constants = !MOMENT_KINDS.contains(&kind.as_str());
        for (name, shape) in expected.iter().filter(|(name, _)| has_constants || !frozen.contains(name)) {
            if !names.contains(name) {
                return Err(Error::checkpoint(path, format!("{kind}/{name} of shape {shape:?}"), "none"));
            }
        }
        if let Some(name) = names.iter().find(|name| !expected.contains_key(*name)) {
            return Err(Error::checkpoint(path, "the recipe's parameters only", format!("{kind}/{name}")));
        }
    }
    for (name, shape) in expected {
        let actual = &shapes[name];
        if actual != shape {
            let expected = format!("{name} of shape {shape:?}");
            return Err(Error::checkpoint(path, expected, format!("{actual:?}")));
        }
    }
    Ok(())
}

/// Returns the configuration of a model from the recipe of a checkpoint.
pub(crate) fn recipe_config(recipe: &str, path: &Path) -> Result<ModelConfig> {
    ModelConfig::from_recipe(recipe, Path::new(RECIPE_LOCATION))
        .map_err(|source| Error::Inside { path: path.to_owned(), source: Box::new(source) })
}

/// Returns the tokenizer of a checkpoint from its JSON.
pub(crate) fn parse_tokenizer(json: &str, path: &Path) -> Result<Tokenizer> {
    Tokenizer::from_json(json).map_err(|error| Error::checkpoint(path, "a tokenizer", error.to_string()))
}
