//! Encodes and reads the records of TensorBoard event files.
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
/// Bytes of the wall time at the start of each message.
const WALL_TIME_BYTES: usize = 9;

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
/// TFRecord masks checksums, as a CRC of data that contains its own CRC is weak.
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

/// Reads the message of the next record.
///
/// Returns none at the end of the file, and at a record that is incomplete or damaged.
///
/// # Errors
/// Those of the system.
pub(crate) fn read_message(file: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let Some(header) = read_bytes(file, 12)? else { return Ok(None) };
    let (length, length_crc) = header.split_at(8);
    if length_crc != masked(length) {
        return Ok(None);
    }
    let length = length.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    let Some(mut message) = read_bytes(file, length.saturating_add(4))? else { return Ok(None) };
    let crc = message.split_off(message.len() - 4);
    Ok((crc == masked(&message)).then_some(message))
}

/// Reads a number of bytes, which need not exist; returns none if there are fewer.
fn read_bytes(file: &mut impl Read, count: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.by_ref().take(count).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 == count).then_some(bytes))
}

/// Returns step and first tag of a message of [`scalars`]; none for other messages.
pub(crate) fn step_and_tag(message: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = message.get(WALL_TIME_BYTES..)?;
    let step = read_field(&mut rest, &key(2, 0))?;
    let mut length = 0;
    for key in [key(5, 2), key(1, 2), key(1, 2)] {
        // Bytes of the summary, of its first value, and of the tag of this value.
        length = read_field(&mut rest, &key)?;
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

    #[test]
    fn records_are_read_up_to_the_first_damaged_one() {
        let first = scalars(1.0, 300, [("step/a".to_owned(), 0.5), ("b".to_owned(), 1.0)].into_iter());
        let messages = |bytes: &[u8]| {
            let mut rest = bytes;
            std::iter::from_fn(|| read_message(&mut rest).unwrap()).collect::<Vec<_>>()
        };
        let bytes = [&version(1.0)[..], &first].concat();
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
        for end in version(1.0).len()..bytes.len() {
            assert_eq!(messages(&bytes[..end]), all[..1]);
        }
        for at in version(1.0).len()..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(messages(&damaged), all[..1], "{at}");
        }
    }
}
