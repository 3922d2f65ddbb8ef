//! `CheckpointFile`: reads the tensors of a checkpoint one at a time.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};
use speech::Tokenizer;
use speech::files::open_regular;

use crate::checkpoint::{
    AdapterBase, BASE_KIND, Checkpoint, FIELDS_KEY, FORMAT, NamesByKind, OLDEST_VERSION, PARAMETER_KINDS,
    StoredMetadata, VERSION, Values, check_parameters, parse_tokenizer, recipe_config,
};
use crate::checksums::hex_checksum;
use crate::config::old_names;
use crate::import::metadata::{ImportedSource, SOURCE_VERSION};
use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// Largest header of a safetensors file.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the number before the header, its length.
const LENGTH_BYTES: u64 = 8;
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 18;

/// An open checkpoint: its metadata are in memory, its values are not.
///
/// ```no_run
/// let file = model::CheckpointFile::open("model.safetensors".as_ref())?;
/// for (name, shape) in file.shapes() {
///     println!("{name} {shape:?} {}", file.read_weight(name)?[0]);
/// }
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    file: File,
    metadata: StoredMetadata,
    /// Positions and shapes by full name, such as `weight/NAME`.
    tensors: BTreeMap<String, TensorPlace>,
    shapes: Shapes,
    kinds: NamesByKind,
}

/// A tensor of the file.
#[derive(Debug)]
struct TensorPlace {
    /// Position of the first byte in the file.
    start: u64,
    bytes: usize,
}

impl Checkpoint {
    /// Reads and checks a checkpoint: format, version, checksums, dtypes, finite values.
    ///
    /// [`CheckpointFile`] reads single tensors.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is corrupt, truncated
    /// or foreign.
    pub fn read(path: &Path) -> Result<Self> {
        CheckpointFile::open(path)?.read_all()
    }
}

impl CheckpointFile {
    /// Opens a checkpoint and checks everything except its values.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is truncated or
    /// foreign, or has damaged metadata.
    pub fn open(path: &Path) -> Result<Self> {
        let io_error = |error| Error::io(path, "read the checkpoint")(error);
        let mut file = open_regular(path).map_err(io_error)?;
        let (header, data_start) = read_header(&mut file, path)?;
        let invalid = |expected: &str, found: String| Error::checkpoint(path, expected, found);
        let metadata = header.metadata().as_ref().and_then(|map| map.get("panda"));
        let metadata = metadata.ok_or_else(|| {
            invalid("metadata with the key panda", "none: a file of another program".into())
        })?;
        let metadata = parse_metadata(metadata, path)?;

        // Tensors, by kind and name.
        let (mut shapes, mut kinds) = (BTreeMap::new(), NamesByKind::new());
        let mut tensors = BTreeMap::new();
        for (full_name, info) in header.tensors().into_iter().collect::<BTreeMap<_, _>>() {
            let Some((kind, name)) =
                full_name.split_once('/').filter(|(kind, name)| !(kind.is_empty() || name.is_empty()))
            else {
                return Err(invalid(
                    "tensors named weight/, average/, first/ or second/, or KIND/ of a custom optimizer",
                    format!("{full_name:?}"),
                ));
            };
            if info.dtype != Dtype::F32 {
                return Err(invalid(&format!("{full_name} of F32"), format!("{:?}", info.dtype)));
            }
            // The state of a custom optimizer need not belong to a parameter.
            if PARAMETER_KINDS.contains(&kind) {
                let shape = shapes.entry(name.to_owned()).or_insert_with(|| info.shape.clone());
                if *shape != info.shape {
                    let expected = format!("{full_name} of shape {shape:?}");
                    return Err(invalid(&expected, format!("{:?}", info.shape)));
                }
            }
            kinds.entry(kind.to_owned()).or_default().insert(name.to_owned());
            let (first, end) = info.data_offsets;
            let place = TensorPlace { start: data_start + first as u64, bytes: end - first };
            tensors.insert(full_name, place);
        }
        let file = CheckpointFile { path: path.to_owned(), file, metadata, tensors, shapes, kinds };
        if let Some(name) = file.unused_checksum() {
            return Err(invalid(&format!("{name}, which has a checksum"), "none".into()));
        }
        if !file.kinds.contains_key("weight") {
            return Err(invalid("tensors named weight/", "none".into()));
        }
        Ok(file)
    }

    /// Returns the recipe's text; names of earlier versions are translated.
    pub fn recipe(&self) -> String {
        old_names::translate(&self.metadata.recipe).into_owned()
    }

    /// Returns the configuration of the model.
    ///
    /// # Errors
    /// [`Error::Inside`] the file if its recipe does not describe a model.
    pub fn model_config(&self) -> Result<ModelConfig> {
        recipe_config(&self.recipe(), &self.path)
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if its JSON is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        parse_tokenizer(&self.metadata.tokenizer, &self.path)
    }

    /// Returns shapes of the parameters by name.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Returns the source of an imported model.
    pub fn imported(&self) -> Option<&ImportedSource> {
        self.metadata.imported.as_ref()
    }

    /// Returns true if the file has checksums; older files have none.
    pub fn has_checksums(&self) -> bool {
        self.metadata.version > OLDEST_VERSION
    }

    /// Checks that names and shapes are those of a model's parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for the first parameter that is missing, unknown or of another shape.
    pub fn check(&self, expected: &Shapes) -> Result<()> {
        check_parameters(&self.path, &self.recipe(), &self.kinds, &self.shapes, expected)
    }

    /// Reads a parameter: its moving average if the file has averages, otherwise its weight.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for an unknown name, a wrong checksum, or a value that is not finite;
    /// [`Error::Io`].
    pub fn read_weight(&self, name: &str) -> Result<Vec<f32>> {
        self.read(self.weight_kind(), name)
    }

    /// Returns the kind of the values that [`Self::read_weight`] reads.
    fn weight_kind(&self) -> &'static str {
        if self.kinds.contains_key("average") { "average" } else { "weight" }
    }

    /// Checks the values that [`Self::read_weight`] does not read, tensor by tensor.
    ///
    /// # Errors
    /// As [`Self::read_weight`].
    pub(crate) fn check_other_values(&self) -> Result<()> {
        let other_kinds = self.kinds.iter().filter(|(kind, _)| *kind != self.weight_kind());
        let mut names = other_kinds.flat_map(|(kind, names)| names.iter().map(move |name| (kind, name)));
        names.try_for_each(|(kind, name)| self.read(kind, name).map(drop))
    }

    /// Reads all values.
    ///
    /// # Errors
    /// As [`Self::read_weight`].
    pub(crate) fn read_all(self) -> Result<Checkpoint> {
        let read_kind = |(kind, names): (&String, &BTreeSet<String>)| {
            let read = |name: &String| Ok((name.clone(), self.read(kind, name)?));
            Ok((kind.clone(), names.iter().map(read).collect::<Result<Values>>()?))
        };
        let mut values: BTreeMap<String, Values> = self.kinds.iter().map(read_kind).collect::<Result<_>>()?;
        let (recipe, has_checksums) = (self.recipe(), self.has_checksums());
        let StoredMetadata { tokenizer, progress, data, imported, base, .. } = self.metadata;
        let adapter_base = base.map(|base| AdapterBase {
            recipe: old_names::translate(&base.recipe).into_owned(),
            tokenizer: base.tokenizer,
            values: values.remove(BASE_KIND).unwrap_or_default(),
        });
        Ok(Checkpoint {
            recipe,
            tokenizer,
            progress,
            weights: values.remove("weight").unwrap_or_default(),
            average: values.remove("average"),
            optimizer_state: values,
            data,
            imported,
            adapter_base,
            has_checksums,
            shapes: self.shapes,
        })
    }

    /// Reads the values of a kind, such as `weight`.
    fn read(&self, kind: &str, name: &str) -> Result<Vec<f32>> {
        let invalid = |expected: String, found: String| Error::checkpoint(&self.path, expected, found);
        let full_name = format!("{kind}/{name}");
        let place = self.tensors.get(&full_name).ok_or_else(|| invalid(full_name.clone(), "none".into()))?;
        let (values, checksum) =
            self.read_values(place).map_err(Error::io(&self.path, "read the checkpoint"))?;
        // Tensors without a parameter have no checksum; the model reports them by name.
        let expected = self.metadata.checksums.get(&full_name).filter(|_| self.has_checksums());
        check_checksum(&self.path, &full_name, expected, hex_checksum(checksum))?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let value = format!("{} at {index}", values[index]);
            return Err(invalid(format!("finite values in {full_name}"), value));
        }
        Ok(values)
    }

    /// Reads the values of a tensor and their CRC-32.
    fn read_values(&self, place: &TensorPlace) -> std::io::Result<(Vec<f32>, u32)> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(place.start))?;
        let mut values = Vec::with_capacity(place.bytes / size_of::<f32>());
        let (mut hasher, mut block) = (crc32fast::Hasher::new(), vec![0; BLOCK_BYTES.min(place.bytes)]);
        let mut remaining = place.bytes;
        while remaining > 0 {
            let block = &mut block[..BLOCK_BYTES.min(remaining)];
            file.read_exact(block)?;
            hasher.update(block);
            let words = block.chunks_exact(size_of::<f32>());
            values.extend(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            remaining -= block.len();
        }
        Ok((values, hasher.finalize()))
    }

    /// Returns the first name with a checksum, but without a tensor.
    fn unused_checksum(&self) -> Option<&str> {
        let mut names = self.metadata.checksums.keys().filter(|_| self.has_checksums());
        names.find(|name| *name != FIELDS_KEY && !self.tensors.contains_key(*name)).map(String::as_str)
    }
}

/// Reads the header of a safetensors file; returns the position of the first tensor too.
fn read_header(file: &mut File, path: &Path) -> Result<(Metadata, u64)> {
    let io_error = |error| Error::io(path, "read the checkpoint")(error);
    let invalid = |found: String| Error::checkpoint(path, "a whole safetensors file", found);
    let file_bytes = file.metadata().map_err(io_error)?.len();
    if file_bytes < LENGTH_BYTES {
        return Err(invalid(format!("{file_bytes} bytes")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(io_error)?;
    let header_bytes = u64::from_le_bytes(length);
    let max_bytes = MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES);
    if header_bytes > max_bytes {
        return Err(invalid(format!("a header of {header_bytes} bytes, more than {max_bytes}")));
    }
    let mut header = Vec::new();
    file.take(header_bytes).read_to_end(&mut header).map_err(io_error)?;
    let header: Metadata = serde_json::from_slice(&header).map_err(|error| invalid(error.to_string()))?;
    let data_start = LENGTH_BYTES + header_bytes;
    let expected_bytes = data_start.checked_add(header.data_len() as u64);
    if expected_bytes != Some(file_bytes) {
        let expected = expected_bytes.map_or_else(|| "more".into(), |bytes| bytes.to_string());
        return Err(invalid(format!("{file_bytes} bytes of {expected}")));
    }
    Ok((header, data_start))
}

/// Parses and checks the metadata: format, version, checksum of the fields.
fn parse_metadata(json: &str, path: &Path) -> Result<StoredMetadata> {
    let invalid = |expected: &str, found: String| Error::checkpoint(path, expected, found);
    let fields: serde_json::Value =
        serde_json::from_str(json).map_err(|error| invalid("metadata in JSON", error.to_string()))?;
    let version = fields["version"].as_u64().filter(|_| fields["format"] == FORMAT);
    if !version.is_some_and(|version| (u64::from(OLDEST_VERSION)..=u64::from(VERSION)).contains(&version)) {
        let formats = format!("format {}, version {}", fields["format"], fields["version"]);
        let is_older = version.is_some_and(|version| version < u64::from(OLDEST_VERSION));
        let hint = if is_older { ", whose parameters have other names; train the model again" } else { "" };
        return Err(invalid(&format!("format \"{FORMAT}\", version {VERSION}"), formats + hint));
    }
    let metadata: StoredMetadata = serde_json::from_value(fields)
        .map_err(|error| invalid("metadata with recipe, tokenizer and progress", error.to_string()))?;
    if let Some(version) = metadata.imported.as_ref().map(|imported| imported.version)
        && version != SOURCE_VERSION
    {
        let expected = format!("an imported source of version {SOURCE_VERSION}");
        return Err(invalid(&expected, version.to_string()));
    }
    let checksum =
        metadata.fields_checksum().map_err(|error| invalid("metadata in JSON", error.to_string()))?;
    let expected = metadata.checksums.get(FIELDS_KEY).filter(|_| metadata.version > OLDEST_VERSION);
    if metadata.version > OLDEST_VERSION && expected.is_none() {
        return Err(invalid("checksums", "none, in a version that has them".to_owned()));
    }
    check_checksum(path, "the metadata", expected, checksum)?;
    Ok(metadata)
}

/// Compares the checksum of a part with the stored one, if any.
fn check_checksum(path: &Path, part: &str, expected: Option<&String>, found: String) -> Result<()> {
    match expected {
        Some(expected) if *expected != found => {
            let expected = format!("{part} with the checksum {expected}");
            Err(Error::checkpoint(path, expected, format!("{found}: damaged")))
        }
        _ => Ok(()),
    }
}
