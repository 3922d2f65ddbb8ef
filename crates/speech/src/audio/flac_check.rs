//! Checks that a FLAC file is complete without decoding it.
//!
//! The header of the last frame has the number of its samples (RFC 9639, sections 9.1 and 9.3).
//!
//! ```text
//! frame: sync (14 bits 1...10), 0, strategy | block size, rate (4 bits each)
//!        | channels, depth, 0 | number (1-7 bytes) | block size (0-2 bytes) | rate (0-2 bytes)
//!        | CRC-8 of all before | subframes | CRC-16 of all before
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use claxon::metadata::StreamInfo;

/// Bytes searched where the header does not give the largest frame size.
///
/// A frame of 4096 16-bit samples has at most half of them.
const DEFAULT_FRAME_BYTES: u64 = 1 << 14;
/// Largest frame size that is searched, in bytes.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Returns whether the file ends with its last declared frame.
///
/// False does not prove damage: other bytes may follow the last frame.
pub(super) fn is_complete(file: &mut (impl Read + Seek), info: &StreamInfo) -> io::Result<bool> {
    let Some(samples) = info.samples else { return Ok(false) };
    let tail_bytes = info.max_frame_size.map_or(DEFAULT_FRAME_BYTES, u64::from).clamp(16, MAX_FRAME_BYTES);
    let bytes = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(bytes.saturating_sub(tail_bytes)))?;
    let mut tail = Vec::new();
    file.take(tail_bytes).read_to_end(&mut tail)?;
    let starts = (0..tail.len()).rev().filter(|&offset| tail[offset] == 0xff);
    Ok(starts
        .map(|offset| &tail[offset..])
        .any(|frame| end_sample(frame, info) == Some(samples) && crc16(frame) == 0))
}

/// Returns the index of the sample after a frame; `None` without a frame header.
fn end_sample(frame: &[u8], info: &StreamInfo) -> Option<u64> {
    let &[0xff, second, codes, third, first, ..] = frame else { return None };
    if second & 0xfe != 0xf8 || third & 1 != 0 {
        return None;
    }
    let extra = match first.leading_ones() {
        0 => 0,
        ones @ 2..=7 => ones as usize - 1,
        _ => return None,
    };
    let mut number = u64::from(first) & (0x7f >> first.leading_ones().min(7));
    for byte in frame.get(5..5 + extra)? {
        number = (number << 6) | u64::from(byte & 0x3f);
    }
    let mut offset = 5 + extra;
    let mut take = |count: usize| {
        let bytes = frame.get(offset..offset + count)?;
        offset += count;
        Some(bytes.iter().fold(0u64, |n, &byte| (n << 8) | u64::from(byte)))
    };
    let block = match codes >> 4 {
        0 => return None,
        1 => 192,
        n @ 2..=5 => 576 << (n - 2),
        6 => take(1)? + 1,
        7 => take(2)? + 1,
        n => 256 << (n - 8),
    };
    take(match codes & 15 {
        12 => 1,
        13 | 14 => 2,
        15 => return None,
        _ => 0,
    })?;
    if crc8(frame.get(..offset + 1)?) != 0 {
        return None;
    }
    let variable = second & 1 == 1;
    let start = if variable { number } else { number.checked_mul(u64::from(info.max_block_size))? };
    start.checked_add(block)
}

/// CRC with x^8 + x^2 + x + 1; zero for bytes followed by their CRC.
fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, &byte| {
        (0..8).fold(sum ^ byte, |sum, _| (sum << 1) ^ (if sum & 0x80 != 0 { 0x07 } else { 0 }))
    })
}

/// CRC with x^16 + x^15 + x^2 + 1; zero for bytes followed by their CRC.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, &byte| {
        (0..8).fold(sum ^ (u16::from(byte) << 8), |sum, _| {
            (sum << 1) ^ (if sum & 0x8000 != 0 { 0x8005 } else { 0 })
        })
    })
}
