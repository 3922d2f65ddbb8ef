//! Checksums of values and files.

/// Bytes that are hashed at once.
const BLOCK_BYTES: usize = 1 << 18;

/// Returns a checksum as eight hexadecimal digits.
pub(crate) fn hex_checksum(checksum: u32) -> String {
    format!("{checksum:08x}")
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
