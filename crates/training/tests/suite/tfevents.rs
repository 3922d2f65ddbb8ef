//! Test helper: reads TensorBoard event files, independent of their writer.
//!
//! The tests of the crate `cli` use it as well.
use std::path::{Path, PathBuf};

// Numbers of the fields of `Event`.
const STEP_FIELD: u64 = 2;
const VERSION_FIELD: u64 = 3;
const SUMMARY_FIELD: u64 = 5;

/// Step, name and value.
pub(crate) type Scalar = (u64, String, f32);

/// The event files of a run, in order.
pub(crate) fn files(run_folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run_folder.join("tensorboard")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(files.iter().all(|path| path.file_name().unwrap().to_str().unwrap().contains("tfevents")));
    files.sort();
    files
}

/// All values of a run's event files, without wall times.
pub(crate) fn scalars(run_folder: &Path) -> Vec<Scalar> {
    let mut all = Vec::new();
    for file in files(run_folder) {
        let mut rest = &std::fs::read(file).unwrap()[..];
        let mut is_first = true;
        while !rest.is_empty() {
            // A frame: length (8 bytes), its checksum (4), message, checksum of the message (4).
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let message = &rest[12..12 + length];
            assert_eq!(rest[8..12], masked_crc(&rest[..8]));
            assert_eq!(rest[12 + length..16 + length], masked_crc(message));
            rest = &rest[16 + length..];
            let event = parse_fields(message);
            assert_eq!(is_first, event.iter().any(|field| field.0 == VERSION_FIELD));
            is_first = false;
            let step = event
                .iter()
                .find(|field| field.0 == STEP_FIELD)
                .map_or(0, |field| read_varint(&mut &field.1[..]));
            for (_, value) in
                event.iter().filter(|field| field.0 == SUMMARY_FIELD).flat_map(|field| parse_fields(field.1))
            {
                let value = parse_fields(value);
                let number = f32::from_le_bytes(value[1].1.try_into().unwrap());
                assert!(number.is_finite());
                all.push((step, String::from_utf8(value[0].1.to_vec()).unwrap(), number));
            }
        }
    }
    all
}

/// Reads a number in groups of seven bits, the lowest first.
fn read_varint(bytes: &mut &[u8]) -> u64 {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let (number, rest) = bytes.split_at(end + 1);
    *bytes = rest;
    number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

/// The fields of a message: number and bytes.
fn parse_fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = read_varint(&mut message);
        let length = match key & 7 {
            0 => message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1,
            1 => 8,
            2 => read_varint(&mut message) as usize,
            5 => 4,
            wire_type => panic!("kind {wire_type}"),
        };
        fields.push((key >> 3, &message[..length]));
        message = &message[length..];
    }
    fields
}

/// CRC-32C, bit by bit, rotated and shifted as in TFRecord files.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let shift = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let crc = !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), shift));
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
