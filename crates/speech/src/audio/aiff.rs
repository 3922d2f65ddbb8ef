//! Parses the headers of AIFF and AIFF-C audio files.
//!
//! A COMM chunk has the sample coding, an SSND chunk the samples; either may come first.

use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::Path;

use super::file_range::FileRange;
use super::format_error;
use super::iff::{ByteOrder, MAX_CHUNK_BYTES, lossy_text, read_array, read_bytes, skip_bytes};
use super::sample_data::{Coding, DeclaredLengths, SampleDataReader, SampleFormat};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed AIFF file";
/// Bytes of a COMM chunk without a compression type.
const COMM_BYTES: usize = 18;

/// Returns whether a file starts with an AIFF or AIFF-C header.
pub(super) fn is_aiff(start: &[u8]) -> bool {
    start.starts_with(b"FORM") && matches!(start.get(8..12), Some(b"AIFF" | b"AIFC"))
}

/// Parses the chunks and seeks to the samples.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<SampleDataReader> {
    let file_bytes = file.get_ref().len();
    let read_error = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file within a header"),
        _ => Error::Io { path: path.into(), source: error },
    };
    let form_header: [u8; 12] = read_array(&mut file).map_err(read_error)?;
    let lengths = DeclaredLengths::new(ByteOrder::Big.decode::<4>(&form_header[4..]), &form_header[..4]);
    // Finds the two required chunks, in either order.
    let (mut comm_chunk, mut sample_data) = (None, None);
    // Chunks after the two required ones are ignored, complete or not.
    while (comm_chunk.is_none() || sample_data.is_none()) && !file.fill_buf().map_err(read_error)?.is_empty()
    {
        let header: [u8; 8] = read_array(&mut file).map_err(read_error)?;
        let length = ByteOrder::Big.decode::<4>(&header[4..]);
        let chunk_end = file.stream_position().map_err(read_error)? + length;
        match &header[..4] {
            b"COMM" if length <= MAX_CHUNK_BYTES => {
                comm_chunk = Some(read_bytes(&mut file, length).map_err(read_error)?)
            }
            b"SSND" => {
                // Offset of the first sample (4) and block size (4), before the samples.
                let fields: [u8; 8] = read_array(&mut file).map_err(read_error)?;
                let offset = ByteOrder::Big.decode::<4>(&fields);
                let sample_start = file.stream_position().map_err(read_error)? + offset;
                sample_data = Some((
                    sample_start,
                    lengths.data_bytes(
                        length.saturating_sub(fields.len() as u64 + offset),
                        sample_start,
                        file_bytes,
                    ),
                ));
                if chunk_end > file_bytes {
                    break;
                }
                file.seek(SeekFrom::Start(chunk_end)).map_err(read_error)?;
            }
            _ => skip_bytes(&mut file, length).map_err(read_error)?,
        }
        // A chunk of odd length is followed by a zero byte; no chunk name begins with one.
        if length % 2 == 1 && file.fill_buf().map_err(read_error)?.first() == Some(&0) {
            file.seek_relative(1).map_err(read_error)?;
        }
    }
    let comm_chunk = comm_chunk.ok_or_else(|| format_error(path, EXPECTED, "no COMM chunk"))?;
    let (sample_start, data_bytes) =
        sample_data.ok_or_else(|| format_error(path, EXPECTED, "no SSND chunk"))?;
    let (format, frames) = parse_comm(path, &comm_chunk)?;
    file.seek(SeekFrom::Start(sample_start)).map_err(read_error)?;
    // With ADPCM the count is that of packets; an unfinished header has 0 or too large a count,
    // both harmless.
    let max_frames = if format.coding.is_adpcm() { 0 } else { frames };
    SampleDataReader::new(path, file, format, data_bytes, max_frames)
}

/// Parses a COMM chunk.
///
/// ```text
/// channels (2) samples of each (4) bits (2)
/// rate (10: sign and exponent (2), mantissa (8)) [compression type (4) ...]
/// ```
fn parse_comm(path: &Path, chunk: &[u8]) -> Result<(SampleFormat, u64)> {
    if chunk.len() < COMM_BYTES {
        return Err(format_error(path, EXPECTED, format!("a COMM chunk of {} bytes", chunk.len())));
    }
    let channels = ByteOrder::Big.decode::<2>(chunk) as u16;
    let frames = ByteOrder::Big.decode::<4>(&chunk[2..]);
    let bits = ByteOrder::Big.decode::<2>(&chunk[6..]) as u32;
    let compression = chunk.get(COMM_BYTES..COMM_BYTES + 4).unwrap_or(b"NONE");
    // Samples of fewer bits are the upper bits of their bytes.
    let container_bytes = bits.div_ceil(8);
    let integer = |bytes: u32, order| Coding::Integer { bytes: bytes as usize, bits: 8 * bytes, order };
    let coding = match (compression, container_bytes) {
        (b"NONE" | b"twos" | b"sowt", 1) => Coding::Signed8,
        (b"raw ", 1) => Coding::Unsigned8,
        (b"NONE" | b"twos", 2..=4) => integer(container_bytes, ByteOrder::Big),
        (b"sowt", 2..=4) => integer(container_bytes, ByteOrder::Little),
        (b"in24", _) => integer(3, ByteOrder::Big),
        (b"in32", _) => integer(4, ByteOrder::Big),
        (b"fl32" | b"FL32", _) => Coding::Float32(ByteOrder::Big),
        (b"fl64" | b"FL64", _) => Coding::Float64(ByteOrder::Big),
        (b"ulaw" | b"ULAW", _) => Coding::MuLaw,
        (b"alaw" | b"ALAW", _) => Coding::ALaw,
        (b"ima4", _) => Coding::QuickTimeAdpcm,
        _ => {
            let coding = format!("samples of {bits} bits coded as {:?}", lossy_text(compression));
            return Err(format_error(path, "integer, float, mu-law, A-law or IMA ADPCM samples", coding));
        }
    };
    Ok((SampleFormat::new("AIFF", channels, decode_rate(&chunk[8..]), coding), frames))
}

/// Decodes an 80-bit floating-point sample rate; 0 if it does not fit into 32 bits.
fn decode_rate(float80: &[u8]) -> u32 {
    // The exponent has a bias of 16383; the mantissa has 63 fraction bits.
    let exponent = i32::from(ByteOrder::Big.decode::<2>(float80) as u16) - 16_383 - 63;
    let mantissa = ByteOrder::Big.decode::<8>(&float80[2..]) as f64;
    let rate = mantissa * 2f64.powi(exponent);
    if (1.0..4_294_967_295.0).contains(&rate) { rate.round() as u32 } else { 0 }
}
