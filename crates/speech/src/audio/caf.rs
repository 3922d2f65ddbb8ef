//! Parses the headers of CAF audio files.
//!
//! Uncompressed samples and IMA ADPCM are decoded by this crate, packets of other codecs by
//! symphonia.
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
use super::iff::{ByteOrder, lossy_text, read_array, read_bytes, skip_bytes};
use super::sample_data::{Coding, DataBytes, DeclaredLengths, SampleDataReader, SampleFormat};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed CAF file";
/// Bytes of the magic number, version and flags.
const FILE_HEADER_BYTES: u64 = 8;
const CHUNK_HEADER_BYTES: u64 = 12;
/// Bytes of the content of a `desc` chunk.
const DESCRIPTION_BYTES: u64 = 32;
/// Bytes of the packet and sample counts in a `pakt` chunk.
const PACKET_COUNTS_BYTES: u64 = 16;
/// Flags of linear PCM in the description.
const FLOAT_FLAG: u32 = 1;
const LITTLE_ENDIAN_FLAG: u32 = 2;
/// Bytes of the edit count before the samples.
const EDIT_COUNT_BYTES: u64 = 4;

/// The sample data of a parsed CAF file.
pub(super) enum CafData {
    /// Uncompressed samples or IMA ADPCM.
    SampleData(Box<SampleDataReader>),
    /// Packets of another codec, up to the last complete chunk.
    Packets(FileRange),
}

/// Parses the chunks.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<CafData> {
    let file_bytes = file.get_ref().len();
    let read_error = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file within a header"),
        _ => Error::Io { path: path.into(), source: error },
    };
    // Visits all chunks, since the order of description, packet table and data is free.
    skip_bytes(&mut file, FILE_HEADER_BYTES).map_err(read_error)?;
    let (mut description, mut data, mut packet_table_samples, mut last_chunk_end) =
        (None, None, 0, file_bytes);
    // Other bytes may follow the last chunk.
    while file_bytes - file.stream_position().map_err(read_error)? >= CHUNK_HEADER_BYTES {
        let chunk_start = file.stream_position().map_err(read_error)?;
        let header: [u8; 12] = read_array(&mut file).map_err(read_error)?;
        let content_start = chunk_start + header.len() as u64;
        let declared_length = ByteOrder::Big.decode::<8>(&header[4..]);
        let has_no_length = declared_length as i64 == -1;
        let length = if has_no_length { file_bytes - content_start } else { declared_length };
        let chunk_end = content_start.checked_add(length).filter(|&chunk_end| chunk_end <= file_bytes);
        match &header[..4] {
            b"desc" if length == DESCRIPTION_BYTES => {
                description = Some(read_bytes(&mut file, length).map_err(read_error)?);
            }
            b"data" => {
                let sample_start = content_start + EDIT_COUNT_BYTES;
                let remaining = file_bytes.saturating_sub(sample_start);
                let data_bytes = match has_no_length {
                    true => DataBytes { declared: remaining, present: remaining },
                    false => DeclaredLengths::without_file_length().data_bytes(
                        length.saturating_sub(EDIT_COUNT_BYTES),
                        sample_start,
                        file_bytes,
                    ),
                };
                data = Some((sample_start, data_bytes));
            }
            b"pakt" if length >= PACKET_COUNTS_BYTES => {
                let packet_table = read_bytes(&mut file, PACKET_COUNTS_BYTES).map_err(read_error)?;
                packet_table_samples = ByteOrder::Big.decode::<8>(&packet_table[8..]);
            }
            _ => {}
        }
        last_chunk_end = chunk_end.unwrap_or(file_bytes);
        file.seek(SeekFrom::Start(last_chunk_end)).map_err(read_error)?;
        if chunk_end.is_none() {
            break;
        }
    }
    // Continues with the samples, or leaves packets to symphonia.
    let description = description.ok_or_else(|| format_error(path, EXPECTED, "no audio description"))?;
    let (sample_start, data_bytes) = data.ok_or_else(|| format_error(path, EXPECTED, "no audio data"))?;
    match parse_description(path, &description)? {
        Some(format) => {
            file.seek(SeekFrom::Start(sample_start)).map_err(read_error)?;
            let reader = SampleDataReader::new(path, file, format, data_bytes, packet_table_samples)?;
            Ok(CafData::SampleData(Box::new(reader)))
        }
        None if data_bytes.present < data_bytes.declared => {
            let DataBytes { declared, present } = data_bytes;
            let truncation = format!("{present} of {declared} bytes of audio data: truncated");
            Err(format_error(path, EXPECTED, truncation))
        }
        None => file.into_inner().within(0, last_chunk_end).map(CafData::Packets).map_err(read_error),
    }
}

/// Returns the format of samples; `None` for packets of another codec.
fn parse_description(path: &Path, description: &[u8]) -> Result<Option<SampleFormat>> {
    let field = |offset: usize| ByteOrder::Big.decode::<4>(&description[offset..]) as u32;
    let rate = f64::from_bits(ByteOrder::Big.decode::<8>(description));
    let (codec, flags) = (&description[8..12], field(12));
    let (packet_bytes, channels, bits) = (field(16), field(24), field(28));
    let sample_bytes = packet_bytes.checked_div(channels).unwrap_or(0);
    let is_float = flags & FLOAT_FLAG != 0;
    let order = if flags & LITTLE_ENDIAN_FLAG != 0 { ByteOrder::Little } else { ByteOrder::Big };
    let coding = match (codec, is_float, sample_bytes, bits) {
        (b"lpcm", false, 1, 8) => Coding::Signed8,
        (b"lpcm", false, 2..=4, _) if bits == 8 * sample_bytes => {
            Coding::Integer { bytes: sample_bytes as usize, bits, order }
        }
        (b"lpcm", true, 4, 32) => Coding::Float32(order),
        (b"lpcm", true, 8, 64) => Coding::Float64(order),
        (b"ulaw", ..) => Coding::MuLaw,
        (b"alaw", ..) => Coding::ALaw,
        (b"ima4", ..) => Coding::QuickTimeAdpcm,
        (b"lpcm", ..) => {
            let coding = format!("{} of {bits} bits in {sample_bytes} bytes", lossy_text(codec));
            return Err(format_error(path, "integers of 8, 16, 24 or 32 bits or floats", coding));
        }
        _ => return Ok(None),
    };
    // A rate that does not fit into 32 bits becomes 0, which is rejected later.
    let rate = if (1.0..4_294_967_295.0).contains(&rate) { rate.round() as u32 } else { 0 };
    let channels = u16::try_from(channels).unwrap_or(u16::MAX);
    Ok(Some(SampleFormat::new("CAF", channels, rate, coding)))
}
