//! `CheckpointWriter`: writes checkpoints of a training run as safetensors files.
//!
//! ```text
//! length of the header: u64    header in JSON: shapes, offsets, metadata    values of each tensor
//! ```
//! This is the layout of safetensors, little-endian. The weights are not copied:
//! their values are read twice, for the checksums and for writing.
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use candle_core::Var;
use serde_json::{Map, Value, json};
use speech::files::Destination;

use crate::checkpoint::{
    AdapterBase, BASE_KIND, Checkpoint, FIELDS_KEY, FORMAT, Progress, StoredBase, StoredMetadata, VERSION,
    Values,
};
use crate::checksums::hex_checksum;
use crate::import::ImportedSource;
use crate::parameters::Shapes;
use crate::{DataFingerprint, Error, Parameters, Result};
use layers::tensors::with_slice;

/// Values that are converted and written at once.
const VALUES_PER_BLOCK: usize = 1 << 14;
/// Bytes that the length of the header is a multiple of.
const ALIGNMENT: usize = 8;

/// The metadata of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct MetadataRef<'a> {
    /// Text of the recipe.
    pub recipe: &'a str,
    /// JSON of the tokenizer.
    pub tokenizer: &'a str,
    /// The progress of the run.
    pub progress: &'a Progress,
    /// The fingerprint of the data.
    pub data: Option<&'a DataFingerprint>,
}

/// A function that reads the values of a tensor.
type ReadValues<'a> = Box<dyn Fn() -> Result<Vec<f32>> + 'a>;

/// A function that reads the bytes of a tensor.
type ReadBytes<'a> = Box<dyn Fn() -> Result<Vec<u8>> + 'a>;

/// The values of a tensor.
enum TensorValues<'a> {
    Slice(&'a [f32]),
    Variable(&'a Var),
    /// Values that are in memory only while they are written.
    Reader(ReadValues<'a>),
    /// Little-endian bytes of another type.
    Bytes(&'static str, ReadBytes<'a>),
}

impl TensorValues<'_> {
    /// Calls `read` with the bytes of blocks of values.
    fn read(&self, mut read: impl FnMut(&[u8]) -> io::Result<()>) -> Result<io::Result<()>> {
        let mut block = Vec::new();
        let mut read_values = |values: &[f32]| {
            values.chunks(VALUES_PER_BLOCK).try_for_each(|chunk| {
                block.clear();
                chunk.iter().for_each(|value| block.extend(value.to_le_bytes()));
                read(&block)
            })
        };
        match self {
            Self::Slice(values) => Ok(read_values(values)),
            Self::Variable(variable) => Ok(with_slice(variable, |values| Ok(read_values(values)))?),
            Self::Reader(values) => Ok(read_values(&values()?)),
            Self::Bytes(_, bytes) => Ok(read(&bytes()?)),
        }
    }

    /// Returns the name of the type.
    fn dtype(&self) -> &'static str {
        match self {
            Self::Bytes(dtype, _) => dtype,
            _ => "F32",
        }
    }
}

/// Writes a checkpoint from borrowed values.
pub struct CheckpointWriter<'a> {
    metadata: MetadataRef<'a>,
    imported: Option<&'a ImportedSource>,
    adapter_base: Option<&'a AdapterBase>,
    /// Shape and values of each tensor, by its name in the file.
    tensors: BTreeMap<String, (Vec<usize>, TensorValues<'a>)>,
}

impl<'a> CheckpointWriter<'a> {
    /// Creates a checkpoint without tensors.
    pub fn new(metadata: MetadataRef<'a>) -> Self {
        CheckpointWriter { metadata, imported: None, adapter_base: None, tensors: BTreeMap::new() }
    }

    /// Adds the source of an imported model, which an export needs.
    #[must_use]
    pub fn with_imported(mut self, imported: Option<&'a ImportedSource>) -> Self {
        self.imported = imported;
        self
    }

    /// Adds the current weights.
    pub fn add_parameters(&mut self, parameters: &'a Parameters) {
        for (name, variable) in parameters.iter() {
            let values = TensorValues::Variable(variable);
            self.tensors.insert(format!("weight/{name}"), (variable.dims().to_vec(), values));
        }
    }

    /// Adds values of a kind, such as `average`, by name.
    ///
    /// Values without a parameter of the same name and size are stored with one axis.
    pub fn add_values(&mut self, kind: &str, values: &'a Values, shapes: &Shapes) {
        for (name, values) in values {
            let has_this_size = |shape: &&Vec<usize>| shape.iter().product::<usize>() == values.len();
            let shape = shapes.get(name).filter(has_this_size).cloned().unwrap_or_else(|| vec![values.len()]);
            self.tensors.insert(format!("{kind}/{name}"), (shape, TensorValues::Slice(values)));
        }
    }

    /// Adds a tensor of a kind, such as `weight`.
    ///
    /// Its values are read twice when it is written.
    pub(crate) fn add_reader(
        &mut self,
        kind: &str,
        name: &str,
        shape: Vec<usize>,
        read: impl Fn() -> Result<Vec<f32>> + 'a,
    ) {
        self.tensors.insert(format!("{kind}/{name}"), (shape, TensorValues::Reader(Box::new(read))));
    }

    /// Adds a tensor of another type than F32, as little-endian bytes.
    ///
    /// They are read twice when the tensor is written.
    pub(crate) fn add_bytes(
        &mut self,
        full_name: String,
        shape: Vec<usize>,
        dtype: &'static str,
        read: impl Fn() -> Result<Vec<u8>> + 'a,
    ) {
        self.tensors.insert(full_name, (shape, TensorValues::Bytes(dtype, Box::new(read))));
    }

    /// Writes the file, completely or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let header = self.header_bytes(path)?;
        Destination::open(path)
            .and_then(|file| file.write_with(&mut |file| self.write_to(&header, file)))
            .map_err(Error::io(path, "write"))
    }

    /// Returns the bytes of the file; errors name `path`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the metadata cannot be serialized; [`Error::Io`] if the values
    /// cannot be read.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        let (header, mut bytes) = (self.header_bytes(path)?, Vec::new());
        self.write_to(&header, &mut bytes).map_err(Error::io(path, "write"))?;
        Ok(bytes)
    }

    /// Writes the header and the values.
    fn write_to(&self, header: &[u8], file: &mut dyn Write) -> io::Result<()> {
        file.write_all(header)?;
        for (_, tensor) in self.tensors.values() {
            tensor.read(|bytes| file.write_all(bytes)).map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// Returns all bytes before the values.
    fn header_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        let metadata_error = |error: &dyn std::fmt::Display| {
            Error::checkpoint(path, "serializable metadata", error.to_string())
        };
        let MetadataRef { recipe, tokenizer, progress, data } = self.metadata;
        let mut metadata = StoredMetadata {
            format: FORMAT.into(),
            version: VERSION,
            recipe: recipe.to_owned(),
            tokenizer: tokenizer.to_owned(),
            progress: progress.clone(),
            data: data.cloned(),
            imported: self.imported.cloned(),
            base: self.adapter_base.map(StoredBase::new),
            checksums: BTreeMap::new(),
        };

        // Shape and position of each tensor.
        let (mut entries, mut end_offset) = (Map::new(), 0usize);
        for (name, (shape, tensor)) in &self.tensors {
            let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), 0);
            let read = tensor.read(|block| {
                hasher.update(block);
                bytes += block.len();
                Ok(())
            })?;
            read.map_err(Error::io(path, "write"))?;
            metadata.checksums.insert(name.clone(), hex_checksum(hasher.finalize()));
            let offsets = [end_offset, end_offset + bytes];
            end_offset += bytes;
            entries.insert(
                name.clone(),
                json!({ "dtype": tensor.dtype(), "shape": shape, "data_offsets": offsets }),
            );
        }

        // Metadata with all checksums.
        let fields_checksum = metadata.fields_checksum().map_err(|error| metadata_error(&error))?;
        metadata.checksums.insert(FIELDS_KEY.to_owned(), fields_checksum);
        let metadata_json = serde_json::to_string(&metadata).map_err(|error| metadata_error(&error))?;
        entries.insert("__metadata__".into(), json!({ "panda": metadata_json }));

        // Length and text, so that values begin at a multiple of eight.
        let mut text = serde_json::to_vec(&Value::Object(entries)).map_err(|error| metadata_error(&error))?;
        text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        Ok(bytes)
    }
}

impl Checkpoint {
    /// Writes the file, completely or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.writer().write(path)
    }

    /// Returns the bytes of the file; errors name `path`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the metadata cannot be serialized.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        self.writer().to_bytes(path)
    }

    fn writer(&self) -> CheckpointWriter<'_> {
        let Checkpoint { recipe, tokenizer, progress, data, imported, .. } = self;
        let metadata = MetadataRef { recipe, tokenizer, progress, data: data.as_ref() };
        let mut writer = CheckpointWriter::new(metadata).with_imported(imported.as_ref());
        for (kind, values) in self.kinds() {
            writer.add_values(kind, values, &self.shapes);
        }
        if let Some(base) = &self.adapter_base {
            writer.adapter_base = Some(base);
            writer.add_values(BASE_KIND, &base.values, &self.shapes);
        }
        writer
    }
}
