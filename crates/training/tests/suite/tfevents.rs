//! Test helper: reads TensorBoard event files, independent of their writer.
//!
//! The tests of the crate `cli` use it as well.
use std::path::{Path, PathBuf};

/// Step, name and value.
pub type Scalar = (u64, String, f32);

/// The event files of a run, in order.
pub fn files(run_folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run_folder.join("tensorboard")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(files.iter().all(|path| path.file_name().unwrap().to_str().unwrap().contains("tfevents")));
    files.sort();
    files
}

/// All values of a run's event files, without wall times.
pub fn scalars(run_folder: &Path) -> Vec<Scalar> {
    let mut all = Vec::new();
    for file in files(run_folder) {
        let mut rest = &std::fs::read(file).unwrap()[..];
        let mut first = true;
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let message = &rest[12..12 + length];
            assert_eq!(rest[8..12], masked(&rest[..8]));
            assert_eq!(rest[12 + length..16 + length], masked(message));
            rest = &rest[16 + length..];
            let event = fields(message);
            assert_eq!(first, event.iter().any(|field| field.0 == 3));
            first = false;
            let step = event.iter().find(|field| field.0 == 2).map_or(0, |field| varint(&mut &field.1[..]));
            for (_, value) in event.iter().filter(|field| field.0 == 5).flat_map(|field| fields(field.1)) {
                let value = fields(value);
                let number = f32::from_le_bytes(value[1].1.try_into().unwrap());
                assert!(number.is_finite());
                all.push((step, String::from_utf8(value[0].1.to_vec()).unwrap(), number));
            }
        }
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let (number, rest) = bytes.split_at(end + 1);
    *bytes = rest;
    number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

/// The fields of a message: number and bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1,
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            kind => panic!("kind {kind}"),
        };
        fields.push((key >> 3, &message[..length]));
        message = &message[length..];
    }
    fields
}

/// CRC-32C, bit by bit, rotated and shifted as in TFRecord files.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let crc = !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), bit));
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
