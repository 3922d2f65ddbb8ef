//! Encodes and reads the records of TensorBoard event files, for `events.rs`.
//!
//! Records are protocol buffer messages in TFRecord frames, little-endian:
//!
//! ```text
//! frame   length: u64 | masked CRC-32C of length: u32 | message | masked CRC-32C of message: u32
//! Event   1: wall time (f64), 2: step (i64), 3: file version (text) or 5: Summary
//! Summary 1: Value (repeated);     Value   1: tag (text), 2: value (f32)
//! ```
//! See TensorFlow's `tfrecord` guide, `event.proto` and `summary.proto`.
use std::io::{self, Read};

/// Bytes of a frame in addition to its message.
pub(crate) const FRAME_BYTES: u64 = 16;
/// Bytes of the length at the start of a frame.
const LENGTH_BYTES: u64 = 8;
/// Bytes of a checksum.
const CRC_BYTES: u64 = 4;
/// Bytes of the wall time at the start of each message.
const WALL_TIME_BYTES: usize = 9;

// Fields of `Event`.
const WALL_TIME_FIELD: u64 = 1;
const STEP_FIELD: u64 = 2;
const VERSION_FIELD: u64 = 3;
const SUMMARY_FIELD: u64 = 5;
/// Field of `Summary`: a `Value`, repeated.
const VALUE_FIELD: u64 = 1;
// Fields of `Value`.
const TAG_FIELD: u64 = 1;
const NUMBER_FIELD: u64 = 2;

// Wire types of protocol buffers, the low bits of a field's key.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// Encodes the first record of a file.
pub(crate) fn encode_version(wall_time: f64) -> Vec<u8> {
    let mut event = encode_f64(WALL_TIME_FIELD, wall_time);
    event.extend(encode_bytes(VERSION_FIELD, b"brain.Event:2"));
    encode_frame(&event)
}

/// Encodes a record of named numbers at a step.
pub(crate) fn encode_scalars(
    wall_time: f64,
    step: u64,
    values: impl Iterator<Item = (String, f64)>,
) -> Vec<u8> {
    let encode_value = |(tag, number): (String, f64)| {
        let fields = [encode_bytes(TAG_FIELD, tag.as_bytes()), encode_f32(NUMBER_FIELD, number as f32)];
        encode_bytes(VALUE_FIELD, &fields.concat())
    };
    let summary: Vec<u8> = values.flat_map(encode_value).collect();
    let fields = [
        encode_f64(WALL_TIME_FIELD, wall_time),
        encode_integer(STEP_FIELD, step),
        encode_bytes(SUMMARY_FIELD, &summary),
    ];
    encode_frame(&fields.concat())
}

/// Encodes a message with its length and checksums.
fn encode_frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), message, &masked_crc(message)].concat()
}

/// The constant of TFRecord's mask.
const CRC_MASK: u32 = 0xa282_ead8;

/// Computes a masked CRC.
///
/// TFRecord masks checksums, as a CRC of data that contains its own CRC is weak.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(CRC_MASK).to_le_bytes()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn encode_varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Encodes the key of a field: its number and the type of its value.
fn encode_key(field: u64, wire_type: u64) -> Vec<u8> {
    encode_varint(field << 3 | wire_type)
}

/// Encodes a field with an integer.
fn encode_integer(field: u64, value: u64) -> Vec<u8> {
    [encode_key(field, VARINT), encode_varint(value)].concat()
}

/// Encodes a field with a number of 64 bits.
fn encode_f64(field: u64, value: f64) -> Vec<u8> {
    [&encode_key(field, FIXED64)[..], &value.to_le_bytes()].concat()
}

/// Encodes a field with bytes: a text or a message.
fn encode_bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [&encode_key(field, LENGTH_DELIMITED)[..], &encode_varint(value.len() as u64), value].concat()
}

/// Encodes a field with a number of 32 bits.
fn encode_f32(field: u64, value: f32) -> Vec<u8> {
    [&encode_key(field, FIXED32)[..], &value.to_le_bytes()].concat()
}

/// Reads the message of the next record.
///
/// Returns none at the end of the file, and at a record that is incomplete or damaged.
///
/// # Errors
/// Those of the system.
pub(crate) fn read_message(file: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let Some(header) = read_bytes(file, LENGTH_BYTES + CRC_BYTES)? else { return Ok(None) };
    let (length, length_crc) = header.split_at(LENGTH_BYTES as usize);
    if length_crc != masked_crc(length) {
        return Ok(None);
    }
    let length = length.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    let Some(mut message) = read_bytes(file, length.saturating_add(CRC_BYTES))? else { return Ok(None) };
    let crc = message.split_off(message.len() - CRC_BYTES as usize);
    Ok((crc == masked_crc(&message)).then_some(message))
}

/// Reads a number of bytes, which need not exist; returns none if there are fewer.
fn read_bytes(file: &mut impl Read, count: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.by_ref().take(count).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 == count).then_some(bytes))
}

/// Returns step and first tag of a message of [`encode_scalars`]; none for other messages.
pub(crate) fn step_and_tag(message: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = message.get(WALL_TIME_BYTES..)?;
    let step = read_field(&mut rest, &encode_key(STEP_FIELD, VARINT))?;
    let mut length = 0;
    // Bytes of the summary, of its first value, and of the tag of this value.
    for field in [SUMMARY_FIELD, VALUE_FIELD, TAG_FIELD] {
        length = read_field(&mut rest, &encode_key(field, LENGTH_DELIMITED))?;
    }
    Some((step, rest.get(..usize::try_from(length).ok()?)?))
}

/// Reads a key and the number after it.
fn read_field(rest: &mut &[u8], key: &[u8]) -> Option<u64> {
    let bytes = rest.strip_prefix(key)?;
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let (number, after) = bytes.split_at(end + 1);
    *rest = after;
    number.iter().rev().try_fold(0u64, |value, byte| Some(value.checked_mul(0x80)? | u64::from(byte & 0x7f)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_values_computed_by_hand() {
        assert_eq!(encode_varint(0), [0]);
        assert_eq!(encode_varint(300), [0xac, 0x02]);
        let record = encode_scalars(1.0, 300, [("a".to_owned(), 0.5)].into_iter());
        let message = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x0a][..],
            &[0x0a, 0x08, 0x0a, 0x01, b'a', 0x15, 0, 0, 0, 0x3f],
        ]
        .concat();
        assert_eq!(record[..8], (message.len() as u64).to_le_bytes());
        assert_eq!(record[12..12 + message.len()], message);
        assert_eq!(record.len(), 16 + message.len());
        // The check value of CRC-32C, e3069283, masked.
        assert_eq!(masked_crc(b"123456789"), (0x2507_c60d_u32.wrapping_add(0xa282_ead8)).to_le_bytes());
    }

    #[test]
    fn records_are_read_up_to_the_first_damaged_one() {
        let first = encode_scalars(1.0, 300, [("step/a".to_owned(), 0.5), ("b".to_owned(), 1.0)].into_iter());
        let messages = |bytes: &[u8]| {
            let mut rest = bytes;
            std::iter::from_fn(|| read_message(&mut rest).unwrap()).collect::<Vec<_>>()
        };
        let bytes = [&encode_version(1.0)[..], &first].concat();
        let all = messages(&bytes);
        assert_eq!(
            all.iter().map(|message| message.len() as u64 + FRAME_BYTES).sum::<u64>(),
            bytes.len() as u64
        );
        assert_eq!(all.len(), 2);
        assert_eq!(step_and_tag(&all[0]), None);
        assert_eq!(step_and_tag(&all[1]), Some((300, &b"step/a"[..])));
        for length in 0..all[1].len() {
            let _ = step_and_tag(&all[1][..length]);
        }
        for end in encode_version(1.0).len()..bytes.len() {
            assert_eq!(messages(&bytes[..end]), all[..1]);
        }
        for position in encode_version(1.0).len()..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x10;
            assert_eq!(messages(&damaged), all[..1], "{position}");
        }
    }
}
