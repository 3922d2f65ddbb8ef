//! Checks that a FLAC audio file is complete, without decoding it.
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
    let file_bytes = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(file_bytes.saturating_sub(tail_bytes)))?;
    let mut tail = Vec::new();
    file.take(tail_bytes).read_to_end(&mut tail)?;
    let frame_starts = (0..tail.len()).rev().filter(|&offset| tail[offset] == 0xff);
    Ok(frame_starts
        .map(|offset| &tail[offset..])
        .any(|frame| end_sample(frame, info) == Some(samples) && crc16(frame) == 0))
}

/// Returns the index of the sample after a frame; `None` without a frame header.
fn end_sample(frame: &[u8], info: &StreamInfo) -> Option<u64> {
    let &[0xff, strategy_byte, codes, channel_byte, number_byte, ..] = frame else { return None };
    // The end of the sync code, and the two bits that are 0.
    if strategy_byte & 0xfe != 0xf8 || channel_byte & 1 != 0 {
        return None;
    }
    // The number of the frame or its first sample is coded like a character of UTF-8.
    let continuation_bytes = match number_byte.leading_ones() {
        0 => 0,
        ones @ 2..=7 => ones as usize - 1,
        _ => return None,
    };
    let mut number = u64::from(number_byte) & (0x7f >> number_byte.leading_ones().min(7));
    for byte in frame.get(5..5 + continuation_bytes)? {
        number = (number << 6) | u64::from(byte & 0x3f);
    }
    let mut offset = 5 + continuation_bytes;
    // Block size and sample rate may follow the number (sections 9.1.6 and 9.1.7).
    let mut read_number = |count: usize| {
        let bytes = frame.get(offset..offset + count)?;
        offset += count;
        Some(bytes.iter().fold(0u64, |value, &byte| (value << 8) | u64::from(byte)))
    };
    let (block_size_code, rate_code) = (codes >> 4, codes & 15);
    let block_samples = match block_size_code {
        0 => return None,
        1 => 192,
        code @ 2..=5 => 576 << (code - 2),
        6 => read_number(1)? + 1,
        7 => read_number(2)? + 1,
        code => 256 << (code - 8),
    };
    read_number(match rate_code {
        12 => 1,
        13 | 14 => 2,
        15 => return None,
        _ => 0,
    })?;
    if crc8(frame.get(..offset + 1)?) != 0 {
        return None;
    }
    let is_variable = strategy_byte & 1 == 1;
    let start = if is_variable { number } else { number.checked_mul(u64::from(info.max_block_size))? };
    start.checked_add(block_samples)
}

/// CRC with x^8 + x^2 + x + 1; zero for bytes followed by their CRC.
fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ byte, |crc, _| (crc << 1) ^ (if crc & 0x80 != 0 { 0x07 } else { 0 }))
    })
}

/// CRC with x^16 + x^15 + x^2 + 1; zero for bytes followed by their CRC.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ (if crc & 0x8000 != 0 { 0x8005 } else { 0 })
        })
    })
}
