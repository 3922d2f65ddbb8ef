//! CAF files: linear samples are read here, packets of other codecs by symphonia.
//!
//! ```text
//! "caff" version (2) flags (2), then chunks: name (4) length (8) ...
//! a data chunk of length -1 reaches to the end of the file
//! desc: rate (8, float) format (4) flags (4) packet bytes (4) packet samples (4) channels (4)
//!       bits (4)
//! pakt: packets (8) samples of each channel (8) priming (4) remainder (4) ...
//! ```

use std::io::{self, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::Path;

use super::file_range::FileRange;
use super::format_error;
use super::iff::{ByteOrder, content, skip, take, text};
use super::linear::{Coding, DeclaredLengths, Reader, SampleFormat};
use crate::Result;

const EXPECTED: &str = "a well-formed CAF file";
const DESCRIPTION_BYTES: u64 = 32;
/// Bytes of the edit count before the samples.
const EDIT_COUNT_BYTES: u64 = 4;

/// The sample data of a parsed CAF file.
pub(super) enum CafData {
    /// Uncompressed samples or IMA ADPCM.
    Linear(Box<Reader>),
    /// Packets of another codec, up to the last complete chunk.
    Packets(FileRange),
}

/// Parses the chunks.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<CafData> {
    let bytes = file.get_ref().len();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file within a header"),
        _ => crate::Error::Io { path: path.into(), source: error },
    };
    skip(&mut file, 8).map_err(failed)?;
    let (mut description, mut data, mut samples, mut end) = (None, None, 0, bytes);
    // Other bytes may follow the last chunk.
    while bytes - file.stream_position().map_err(failed)? >= 12 {
        let start = file.stream_position().map_err(failed)?;
        let header: [u8; 12] = take(&mut file).map_err(failed)?;
        let content_start = start + header.len() as u64;
        let is_open = ByteOrder::Big.number::<8>(&header[4..]) as i64 == -1;
        let length = if is_open { bytes - content_start } else { ByteOrder::Big.number::<8>(&header[4..]) };
        let next = content_start.checked_add(length).filter(|&next| next <= bytes);
        match &header[..4] {
            b"desc" if length == DESCRIPTION_BYTES => {
                description = Some(content(&mut file, length).map_err(failed)?);
            }
            b"data" => {
                let sample_start = content_start + EDIT_COUNT_BYTES;
                let present = bytes.saturating_sub(sample_start);
                let length = match is_open {
                    true => (present, present),
                    false => DeclaredLengths::without_file_length().data(
                        length.saturating_sub(EDIT_COUNT_BYTES),
                        sample_start,
                        bytes,
                    ),
                };
                data = Some((sample_start, length));
            }
            b"pakt" if length >= 16 => {
                let table = content(&mut file, 16).map_err(failed)?;
                samples = ByteOrder::Big.number::<8>(&table[8..]);
            }
            _ => {}
        }
        end = next.unwrap_or(bytes);
        file.seek(SeekFrom::Start(end)).map_err(failed)?;
        if next.is_none() {
            break;
        }
    }
    let description = description.ok_or_else(|| format_error(path, EXPECTED, "no audio description"))?;
    let (sample_start, length) = data.ok_or_else(|| format_error(path, EXPECTED, "no audio data"))?;
    match parse(path, &description)? {
        Some(format) => {
            file.seek(SeekFrom::Start(sample_start)).map_err(failed)?;
            let reader = Reader::new(path, file, format, length, samples)?;
            Ok(CafData::Linear(Box::new(reader)))
        }
        None if length.1 < length.0 => {
            let read = format!("{} of {} bytes of audio data: truncated", length.1, length.0);
            Err(format_error(path, EXPECTED, read))
        }
        None => file.into_inner().within(0, end).map(CafData::Packets).map_err(failed),
    }
}

/// Returns the format of linear samples; `None` for packets of another codec.
fn parse(path: &Path, description: &[u8]) -> Result<Option<SampleFormat>> {
    let field = |at: usize| ByteOrder::Big.number::<4>(&description[at..]) as u32;
    let rate = f64::from_bits(ByteOrder::Big.number::<8>(description));
    let (kind, flags) = (&description[8..12], field(12));
    let (packet_bytes, channels, bits) = (field(16), field(24), field(28));
    let container = packet_bytes.checked_div(channels).unwrap_or(0);
    let order = if flags & 2 != 0 { ByteOrder::Little } else { ByteOrder::Big };
    let coding = match (kind, flags & 1, container, bits) {
        (b"lpcm", 0, 1, 8) => Coding::Signed8,
        (b"lpcm", 0, 2..=4, _) if bits == 8 * container => {
            Coding::Integer { bytes: container as usize, bits, order }
        }
        (b"lpcm", 1, 4, 32) => Coding::Float32(order),
        (b"lpcm", 1, 8, 64) => Coding::Float64(order),
        (b"ulaw", ..) => Coding::MuLaw,
        (b"alaw", ..) => Coding::ALaw,
        (b"ima4", ..) => Coding::QuickTimeAdpcm,
        (b"lpcm", ..) => {
            let coding = format!("{} of {bits} bits in {container} bytes", text(kind));
            return Err(format_error(path, "integers of 8, 16, 24 or 32 bits or floats", coding));
        }
        _ => return Ok(None),
    };
    let rate = if (1.0..4_294_967_295.0).contains(&rate) { rate.round() as u32 } else { 0 };
    let channels = u16::try_from(channels).unwrap_or(u16::MAX);
    Ok(Some(SampleFormat::new("CAF", channels, rate, coding)))
}
