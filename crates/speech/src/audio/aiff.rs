//! Reads AIFF and AIFF-C files.
//!
//! A COMM chunk has the sample coding, an SSND chunk the samples; either may come first.

use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::Path;

use super::file_range::FileRange;
use super::format_error;
use super::iff::{ByteOrder, MAX_CHUNK_BYTES, content, skip, take, text};
use super::linear::{Coding, DeclaredLengths, Reader, SampleFormat};
use crate::Result;

const EXPECTED: &str = "a well-formed AIFF file";
/// Bytes of a COMM chunk without a compression type.
const COMM_BYTES: usize = 18;

/// Returns whether a file starts with an AIFF or AIFF-C header.
pub(super) fn is_aiff(start: &[u8]) -> bool {
    start.starts_with(b"FORM") && matches!(start.get(8..12), Some(b"AIFF" | b"AIFC"))
}

/// Parses the chunks and seeks to the samples.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<Reader> {
    let bytes = file.get_ref().len();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file within a header"),
        _ => crate::Error::Io { path: path.into(), source: error },
    };
    let start: [u8; 12] = take(&mut file).map_err(failed)?;
    let lengths = DeclaredLengths::new(ByteOrder::Big.number::<4>(&start[4..]), &start[..4]);
    let (mut common, mut sound) = (None, None);
    // Chunks after the two required ones are ignored, complete or not.
    while (common.is_none() || sound.is_none()) && !file.fill_buf().map_err(failed)?.is_empty() {
        let header: [u8; 8] = take(&mut file).map_err(failed)?;
        let length = ByteOrder::Big.number::<4>(&header[4..]);
        let next = file.stream_position().map_err(failed)? + length;
        match &header[..4] {
            b"COMM" if length <= MAX_CHUNK_BYTES => {
                common = Some(content(&mut file, length).map_err(failed)?)
            }
            b"SSND" => {
                let fields: [u8; 8] = take(&mut file).map_err(failed)?;
                let offset = ByteOrder::Big.number::<4>(&fields);
                let sample_start = file.stream_position().map_err(failed)? + offset;
                sound = Some((
                    sample_start,
                    lengths.data(length.saturating_sub(8 + offset), sample_start, bytes),
                ));
                if next > bytes {
                    break;
                }
                file.seek(SeekFrom::Start(next)).map_err(failed)?;
            }
            _ => skip(&mut file, length).map_err(failed)?,
        }
        // A chunk of odd length is followed by a zero byte; no chunk name begins with one.
        if length % 2 == 1 && file.fill_buf().map_err(failed)?.first() == Some(&0) {
            file.seek_relative(1).map_err(failed)?;
        }
    }
    let common = common.ok_or_else(|| format_error(path, EXPECTED, "no COMM chunk"))?;
    let (sample_start, length) = sound.ok_or_else(|| format_error(path, EXPECTED, "no SSND chunk"))?;
    let (format, frames) = parse(path, &common)?;
    file.seek(SeekFrom::Start(sample_start)).map_err(failed)?;
    // With ADPCM the count is that of packets; an unfinished header has 0 or too large a count,
    // both harmless.
    let max_frames = if format.coding.bytes() > 0 { frames } else { 0 };
    Reader::new(path, file, format, length, max_frames)
}

/// Parses a COMM chunk.
///
/// ```text
/// channels (2) samples of each (4) bits (2)
/// rate (10: sign and exponent (2), mantissa (8)) [compression type (4) ...]
/// ```
fn parse(path: &Path, chunk: &[u8]) -> Result<(SampleFormat, u64)> {
    if chunk.len() < COMM_BYTES {
        return Err(format_error(path, EXPECTED, format!("a COMM chunk of {} bytes", chunk.len())));
    }
    let channels = ByteOrder::Big.number::<2>(chunk) as u16;
    let frames = ByteOrder::Big.number::<4>(&chunk[2..]);
    let bits = ByteOrder::Big.number::<2>(&chunk[6..]) as u32;
    let kind = chunk.get(COMM_BYTES..COMM_BYTES + 4).unwrap_or(b"NONE");
    // Samples of fewer bits are the upper bits of their bytes.
    let container = bits.div_ceil(8);
    let integer = |bytes: u32, order| Coding::Integer { bytes: bytes as usize, bits: 8 * bytes, order };
    let coding = match (kind, container) {
        (b"NONE" | b"twos" | b"sowt", 1) => Coding::Signed8,
        (b"raw ", 1) => Coding::Unsigned8,
        (b"NONE" | b"twos", 2..=4) => integer(container, ByteOrder::Big),
        (b"sowt", 2..=4) => integer(container, ByteOrder::Little),
        (b"in24", _) => integer(3, ByteOrder::Big),
        (b"in32", _) => integer(4, ByteOrder::Big),
        (b"fl32" | b"FL32", _) => Coding::Float32(ByteOrder::Big),
        (b"fl64" | b"FL64", _) => Coding::Float64(ByteOrder::Big),
        (b"ulaw" | b"ULAW", _) => Coding::MuLaw,
        (b"alaw" | b"ALAW", _) => Coding::ALaw,
        (b"ima4", _) => Coding::QuickTimeAdpcm,
        _ => {
            let coding = format!("samples of {bits} bits coded as {:?}", text(kind));
            return Err(format_error(path, "integer, float, mu-law, A-law or IMA ADPCM samples", coding));
        }
    };
    Ok((SampleFormat::new("AIFF", channels, rate(&chunk[8..]), coding), frames))
}

/// Decodes an 80-bit floating-point sample rate; 0 if it does not fit into 32 bits.
fn rate(bytes: &[u8]) -> u32 {
    let exponent = i32::from(ByteOrder::Big.number::<2>(bytes) as u16) - 16_383 - 63;
    let mantissa = ByteOrder::Big.number::<8>(&bytes[2..]) as f64;
    let rate = mantissa * 2f64.powi(exponent);
    if (1.0..4_294_967_295.0).contains(&rate) { rate.round() as u32 } else { 0 }
}
