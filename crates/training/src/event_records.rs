//! Records of event files.
//!
//! Records are protocol buffer messages in TFRecord frames, little-endian:
//!
//! ```text
//! frame   length: u64 | masked CRC-32C of length: u32 | message | masked CRC-32C of message: u32
//! Event   1: wall time (f64), 2: step (i64), 3: file version (text) or 5: Summary
//! Summary 1: Value (repeated);     Value   1: tag (text), 2: value (f32)
//! ```
//! See TensorFlow's `tfrecord` guide, `event.proto` and `summary.proto`.
/// Encodes the first record of a file.
pub(crate) fn version(wall_time: f64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(bytes(3, b"brain.Event:2"));
    frame(&event)
}

/// Encodes a record of named numbers at a step.
pub(crate) fn scalars(wall_time: f64, step: u64, values: impl Iterator<Item = (String, f64)>) -> Vec<u8> {
    let summary: Vec<u8> = values
        .flat_map(|(tag, value)| bytes(1, &[bytes(1, tag.as_bytes()), float(2, value as f32)].concat()))
        .collect();
    frame(&[double(1, wall_time), number(2, step), bytes(5, &summary)].concat())
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), message, &masked(message)].concat()
}

/// Computes a masked CRC.
///
/// A checksum of data with checksums would be weak.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Encodes the key of a field: its number and the type of its value.
fn key(field: u64, kind: u64) -> Vec<u8> {
    varint(field << 3 | kind)
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [key(field, 0), varint(value)].concat()
}

fn double(field: u64, value: f64) -> Vec<u8> {
    [&key(field, 1)[..], &value.to_le_bytes()].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [&key(field, 2)[..], &varint(value.len() as u64), value].concat()
}

fn float(field: u64, value: f32) -> Vec<u8> {
    [&key(field, 5)[..], &value.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_values_computed_by_hand() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xac, 0x02]);
        let record = scalars(1.0, 300, [("a".to_owned(), 0.5)].into_iter());
        let message = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x0a][..],
            &[0x0a, 0x08, 0x0a, 0x01, b'a', 0x15, 0, 0, 0, 0x3f],
        ]
        .concat();
        assert_eq!(record[..8], (message.len() as u64).to_le_bytes());
        assert_eq!(record[12..12 + message.len()], message);
        assert_eq!(record.len(), 16 + message.len());
        // The check value of CRC-32C, e3069283, masked.
        assert_eq!(masked(b"123456789"), (0x2507_c60d_u32.wrapping_add(0xa282_ead8)).to_le_bytes());
    }
}
