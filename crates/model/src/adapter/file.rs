//! Reads and writes adapters as safetensors files.
//!
//! The tensors have the names of the parameters. The metadata has one key, `panda`: JSON with
//! format, version, recipe, tokenizer, and the CRC-32 of each parameter of the base, of each tensor
//! and of the rest of the metadata.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};
use speech::files::{Destination, read_input};

use super::Adapter;
use crate::checkpoint::{FIELDS_KEY, Values};
use crate::checksums::{hex_checksum, values_checksum};
use crate::parameters::Shapes;
use crate::{Error, Result};

/// The `format` field of the metadata.
const FORMAT: &str = "panda adapter";
/// Version of the file format; raised whenever an old reader would misread a new file.
const VERSION: u32 = 1;
/// The key of the metadata.
const METADATA_KEY: &str = "panda";

/// The metadata of an adapter file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMetadata {
    format: String,
    version: u32,
    recipe: String,
    tokenizer: String,
    /// The CRC-32 of each frozen parameter of the base, in hexadecimal.
    base: BTreeMap<String, String>,
    /// The CRC-32 of each tensor; [`FIELDS_KEY`] has that of the other fields.
    checksums: BTreeMap<String, String>,
}

impl StoredMetadata {
    /// Returns the checksum of all fields except the checksums.
    fn fields_checksum(&self) -> serde_json::Result<String> {
        let Self { format, version, recipe, tokenizer, base, .. } = self;
        let fields = serde_json::to_vec(&(format, version, recipe, tokenizer, base))?;
        Ok(hex_checksum(crc32fast::hash(&fields)))
    }
}

impl Adapter {
    /// Writes the file, completely or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes(path)?;
        Destination::open(path).and_then(|file| file.write(&bytes)).map_err(Error::io(path, "write"))
    }

    /// Returns the bytes of the file; errors name `path`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the metadata cannot be serialized, or a shape does not match its
    /// values.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        let error =
            |error: &dyn std::fmt::Display| Error::checkpoint(path, "a valid adapter", error.to_string());
        let checksums =
            self.values.iter().map(|(name, values)| (name.clone(), hex_checksum(values_checksum(values))));
        let mut metadata = StoredMetadata {
            format: FORMAT.into(),
            version: VERSION,
            recipe: self.recipe.clone(),
            tokenizer: self.tokenizer.clone(),
            base: self.base_checksums.clone(),
            checksums: checksums.collect(),
        };
        let fields_checksum = metadata.fields_checksum().map_err(|source| error(&source))?;
        metadata.checksums.insert(FIELDS_KEY.to_owned(), fields_checksum);
        let metadata = serde_json::to_string(&metadata).map_err(|source| error(&source))?;
        let to_bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let tensors: BTreeMap<&String, Vec<u8>> =
            self.values.iter().map(|(name, values)| (name, to_bytes(values))).collect();
        let mut views = Vec::new();
        for (name, bytes) in &tensors {
            let shape = self.shapes.get(*name).cloned().unwrap_or_default();
            let view = TensorView::new(Dtype::F32, shape, bytes).map_err(|source| error(&source))?;
            views.push((*name, view));
        }
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), metadata)]);
        serialize(views, Some(metadata)).map_err(|source| error(&source))
    }

    /// Reads and checks an adapter: format, version, checksums, dtypes, finite values.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is corrupt, truncated
    /// or no adapter.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_input(path).map_err(Error::io(path, "read the adapter"))?;
        let invalid = |expected: &str, found: String| Error::checkpoint(path, expected, found);
        let parse_error = |error: safetensors::SafeTensorError| {
            invalid("an adapter, a whole safetensors file", error.to_string())
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(parse_error)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(parse_error)?;
        let metadata = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA_KEY));
        let metadata = metadata.map_or("null", String::as_str);
        let json_error = |error: serde_json::Error| invalid("metadata of an adapter", error.to_string());
        let fields: serde_json::Value = serde_json::from_str(metadata).map_err(json_error)?;
        if fields["format"] != FORMAT || fields["version"] != VERSION {
            let other_format = format!("format {}, version {}", fields["format"], fields["version"]);
            return Err(invalid(&format!("format \"{FORMAT}\", version {VERSION}"), other_format));
        }
        let mut metadata: StoredMetadata = serde_json::from_value(fields).map_err(json_error)?;

        // Checksums, each of which must be used.
        let fields_checksum = metadata.fields_checksum().map_err(json_error)?;
        let mut check_checksum = |name: &str, found: String| match metadata.checksums.remove(name) {
            Some(expected) if expected == found => Ok(()),
            expected => {
                let part = if name == FIELDS_KEY { "the metadata" } else { name };
                let expected = expected.unwrap_or_else(|| "none".into());
                Err(invalid(&format!("{part} with the checksum {expected}"), format!("{found}: damaged")))
            }
        };
        check_checksum(FIELDS_KEY, fields_checksum)?;
        let (mut shapes, mut values) = (Shapes::new(), Values::new());
        for (name, view) in tensors.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(invalid(&format!("{name} of F32"), format!("{:?}", view.dtype())));
            }
            check_checksum(&name, hex_checksum(crc32fast::hash(view.data())))?;
            let numbers = view.data().chunks_exact(size_of::<f32>());
            let numbers: Vec<f32> = numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if let Some(number) = numbers.iter().find(|x| !x.is_finite()) {
                return Err(invalid(&format!("finite values in {name}"), number.to_string()));
            }
            shapes.insert(name.clone(), view.shape().to_vec());
            values.insert(name, numbers);
        }
        if let Some(name) = metadata.checksums.keys().next() {
            return Err(invalid(&format!("{name}, which has a checksum"), "none".into()));
        }
        let StoredMetadata { recipe, tokenizer, base, .. } = metadata;
        Ok(Adapter { recipe, tokenizer, shapes, values, base_checksums: base })
    }
}
