//! Checksums of values and files.
use std::path::Path;

use kernels::packed::QuantizedMatrix;

use crate::{Error, Result};

/// Bytes that are hashed at once.
const BLOCK_BYTES: usize = 1 << 18;

/// Returns a checksum as eight hexadecimal digits.
pub(crate) fn hex_checksum(checksum: u32) -> String {
    format!("{checksum:08x}")
}

/// Compares the checksum of a part with the stored one, if any.
pub(crate) fn check_checksum(
    path: &Path,
    part: &str,
    expected: Option<&String>,
    found: String,
) -> Result<()> {
    match expected {
        Some(expected) if *expected != found => {
            let expected = format!("{part} with the checksum {expected}");
            Err(Error::checkpoint(path, expected, format!("{found}: damaged")))
        }
        _ => Ok(()),
    }
}

/// Returns the CRC-32 of values as little-endian `f32`.
pub(crate) fn values_checksum(values: &[f32]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    for chunk in values.chunks(BLOCK_BYTES / size_of::<f32>()) {
        block.clear();
        chunk.iter().for_each(|value| block.extend(value.to_le_bytes()));
        hasher.update(&block);
    }
    hasher.finalize()
}

/// Returns the CRC-32 of the integers and little-endian scales of blocks.
pub(crate) fn quantized_checksum(matrix: &QuantizedMatrix) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    for values in matrix.values().chunks(BLOCK_BYTES) {
        block.clear();
        block.extend(values.iter().map(|value| value.cast_unsigned()));
        hasher.update(&block);
    }
    for scales in matrix.scales().chunks(BLOCK_BYTES / size_of::<u16>()) {
        block.clear();
        scales.iter().for_each(|scale| block.extend(scale.to_le_bytes()));
        hasher.update(&block);
    }
    hasher.finalize()
}
