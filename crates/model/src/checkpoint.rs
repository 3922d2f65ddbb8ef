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
//! Its metadata has one key, `panda`: JSON with format, version, recipe, tokenizer,
//! [`Progress`], [`DataFingerprint`] of the data, [`ImportedSource`] of an imported model, recipe
//! and tokenizer of the base of an applied adapter, and the CRC-32 of each tensor and of the rest
//! of the metadata.
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use speech::Tokenizer;
use speech::files::{open_regular, read_input};

use crate::config::old_names;
use crate::frozen::FrozenParameters;
use crate::import::{ImportedSource, SOURCE_VERSION};
use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// The `format` field of the metadata.
pub(crate) const FORMAT: &str = "panda checkpoint";
/// Version of the file format; raised whenever an old reader would misread a new file.
pub(crate) const VERSION: u32 = 3;
/// The first version that can still be read.
const OLDEST_VERSION: u32 = 2;
/// The key in [`StoredMetadata::checksums`] of the fields of the metadata.
pub(crate) const FIELDS_KEY: &str = "";
/// Kinds of tensors that have the names and shapes of the parameters.
///
/// They are the weights, their average, and the moments of the built-in optimizers.
const PARAMETER_KINDS: [&str; 4] = ["weight", "average", "first", "second"];

/// The kind of tensors of [`AdapterBase`].
pub(crate) const BASE_KIND: &str = "base";

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
#[derive(Serialize, Deserialize)]
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
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredBase {
    recipe: String,
    tokenizer: String,
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
        Ok(checksum_bytes(&fields))
    }
}

/// Returns the CRC-32 of bytes as eight hexadecimal digits.
pub(crate) fn checksum_bytes(bytes: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(bytes))
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
    let tokenizer = Tokenizer::from_json(tokenizer)
        .map_err(|error| Error::checkpoint(path, "a tokenizer", error.to_string()))?;
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
    /// Reads and checks a checkpoint: format, version, checksums, dtypes, finite values.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is corrupt, truncated
    /// or foreign.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_input(path).map_err(Error::io(path, "read the checkpoint"))?;
        let invalid = |expected: &str, found: String| Error::checkpoint(path, expected, found);

        // Metadata: format, version, recipe, tokenizer, progress.
        let whole_file = "a whole safetensors file";
        let (_, file_header) =
            SafeTensors::read_metadata(&bytes).map_err(|error| invalid(whole_file, error.to_string()))?;
        let tensors =
            SafeTensors::deserialize(&bytes).map_err(|error| invalid(whole_file, error.to_string()))?;
        let metadata_json = file_header.metadata().as_ref().and_then(|map| map.get("panda"));
        let metadata_json = metadata_json.ok_or_else(|| {
            invalid("metadata with the key panda", "none: a file of another program".into())
        })?;
        let fields: serde_json::Value = serde_json::from_str(metadata_json)
            .map_err(|error| invalid("metadata in JSON", error.to_string()))?;
        let version = fields["version"].as_u64().filter(|_| fields["format"] == FORMAT);
        if !version.is_some_and(|version| (u64::from(OLDEST_VERSION)..=u64::from(VERSION)).contains(&version))
        {
            let formats = format!("format {}, version {}", fields["format"], fields["version"]);
            let is_older = version.is_some_and(|version| version < u64::from(OLDEST_VERSION));
            let hint =
                if is_older { ", whose parameters have other names; train the model again" } else { "" };
            return Err(invalid(&format!("format \"{FORMAT}\", version {VERSION}"), formats + hint));
        }
        let metadata: StoredMetadata = serde_json::from_value(fields)
            .map_err(|error| invalid("metadata with recipe, tokenizer and progress", error.to_string()))?;

        if let Some(version) = metadata.imported.as_ref().map(|imported| imported.version)
            && version != SOURCE_VERSION
        {
            return Err(invalid(
                &format!("an imported source of version {SOURCE_VERSION}"),
                version.to_string(),
            ));
        }

        // Checksums, each of which must be used.
        let has_checksums = metadata.version > OLDEST_VERSION;
        let mut unused_checksums = metadata.checksums.clone();
        // Unknown tensors have no checksum; the model reports them by name.
        let mut check_checksum = |name: &str, found: String| match unused_checksums.remove(name) {
            Some(expected) if has_checksums && found != expected => {
                let part = if name == FIELDS_KEY { "the metadata" } else { name };
                Err(invalid(&format!("{part} with the checksum {expected}"), format!("{found}: damaged")))
            }
            None if has_checksums && name == FIELDS_KEY => {
                Err(invalid("checksums", "none, in a version that has them".to_owned()))
            }
            _ => Ok(()),
        };
        let fields_checksum = metadata.fields_checksum();
        check_checksum(
            FIELDS_KEY,
            fields_checksum.map_err(|error| invalid("metadata in JSON", error.to_string()))?,
        )?;

        // Tensors, by kind and name.
        let mut shapes = BTreeMap::new();
        let mut values: BTreeMap<String, Values> = BTreeMap::new();
        let mut names = tensors.names();
        names.sort_unstable();
        for full_name in names {
            let view = tensors.tensor(full_name).map_err(|error| invalid(full_name, error.to_string()))?;
            let Some((kind, name)) =
                full_name.split_once('/').filter(|(kind, name)| !(kind.is_empty() || name.is_empty()))
            else {
                return Err(invalid(
                    "tensors named weight/, average/, first/ or second/, or KIND/ of a custom optimizer",
                    format!("{full_name:?}"),
                ));
            };
            if view.dtype() != Dtype::F32 {
                return Err(invalid(&format!("{full_name} of F32"), format!("{:?}", view.dtype())));
            }
            // The state of a custom optimizer need not belong to a parameter.
            let shape = match PARAMETER_KINDS.contains(&kind) {
                true => shapes.entry(name.to_owned()).or_insert_with(|| view.shape().to_vec()),
                false => &mut view.shape().to_vec(),
            };
            if shape != view.shape() {
                return Err(invalid(
                    &format!("{full_name} of shape {shape:?}"),
                    format!("{:?}", view.shape()),
                ));
            }
            check_checksum(full_name, checksum_bytes(view.data()))?;
            let bytes = view.data().chunks_exact(size_of::<f32>());
            let numbers: Vec<f32> = bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if let Some(index) = numbers.iter().position(|x| !x.is_finite()) {
                return Err(invalid(
                    &format!("finite values in {full_name}"),
                    format!("{} at {index}", numbers[index]),
                ));
            }
            values.entry(kind.to_owned()).or_default().insert(name.to_owned(), numbers);
        }
        if let Some(name) = unused_checksums.keys().next().filter(|_| has_checksums) {
            return Err(invalid(&format!("{name}, which has a checksum"), "none".into()));
        }

        let adapter_base = metadata.base.map(|base| AdapterBase {
            recipe: old_names::translate(&base.recipe).into_owned(),
            tokenizer: base.tokenizer,
            values: values.remove(BASE_KIND).unwrap_or_default(),
        });
        let weights = values.remove("weight");
        Ok(Checkpoint {
            recipe: old_names::translate(&metadata.recipe).into_owned(),
            tokenizer: metadata.tokenizer.clone(),
            progress: metadata.progress.clone(),
            weights: weights.ok_or_else(|| invalid("tensors named weight/", "none".into()))?,
            average: values.remove("average"),
            optimizer_state: values,
            data: metadata.data.clone(),
            imported: metadata.imported,
            adapter_base,
            has_checksums,
            shapes,
        })
    }

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
        ModelConfig::from_recipe(&self.recipe, Path::new(RECIPE_LOCATION))
            .map_err(|source| Error::Inside { path: path.to_owned(), source: Box::new(source) })
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if its JSON is damaged.
    pub fn tokenizer(&self, path: &Path) -> Result<Tokenizer> {
        Tokenizer::from_json(&self.tokenizer)
            .map_err(|error| Error::checkpoint(path, "a tokenizer", error.to_string()))
    }

    /// Checks that names and shapes are those of a model's parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for the first parameter that is missing, unknown or of another shape.
    pub fn check(&self, path: &Path, expected: &Shapes) -> Result<()> {
        // A recipe that cannot be read is reported by `model_config`.
        let config = ModelConfig::from_recipe(&self.recipe, Path::new(RECIPE_LOCATION));
        let frozen = config.map(|config| FrozenParameters::from_config(&config)).unwrap_or_default();
        for (kind, values) in self.kinds().filter(|(kind, _)| PARAMETER_KINDS.contains(kind)) {
            // Constant parameters have weights, but no moments.
            let has_constants = !MOMENT_KINDS.contains(&kind);
            for (name, shape) in expected.iter().filter(|(name, _)| has_constants || !frozen.contains(name)) {
                if !values.contains_key(name) {
                    return Err(Error::checkpoint(path, format!("{kind}/{name} of shape {shape:?}"), "none"));
                }
            }
            if let Some(name) = values.keys().find(|name| !expected.contains_key(*name)) {
                return Err(Error::checkpoint(
                    path,
                    "the recipe's parameters only",
                    format!("{kind}/{name}"),
                ));
            }
        }
        for (name, shape) in expected {
            let actual = &self.shapes[name];
            if actual != shape {
                let expected = format!("{name} of shape {shape:?}");
                return Err(Error::checkpoint(path, expected, format!("{actual:?}")));
            }
        }
        Ok(())
    }
}
