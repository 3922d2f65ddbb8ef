//! The header of a checkpoint: places of tensors, and metadata.
use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::Metadata;

use crate::checkpoint::{FIELDS_KEY, FORMAT, OLDEST_VERSION, StoredMetadata, VERSION};
use crate::checksums::check_checksum;
use crate::import::metadata::SOURCE_VERSION;
use crate::{Error, Result};

/// Largest header of a safetensors file.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the number before the header, its length.
const LENGTH_BYTES: u64 = 8;

/// Reads the header of a safetensors file; returns the position of the first tensor too.
pub(super) fn read_header(file: &mut File, path: &Path) -> Result<(Metadata, u64)> {
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
pub(super) fn parse_metadata(json: &str, path: &Path) -> Result<StoredMetadata> {
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
