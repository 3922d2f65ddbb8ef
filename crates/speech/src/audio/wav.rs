//! Parses the headers of WAV audio files.
//!
//! Lengths that the writer never filled in are accepted; decoding libraries reject them.
//! Containers: RIFF, big-endian RIFX, and RF64 and BW64 with lengths of 64 bits (EBU Tech 3306,
//! ITU-R BS.2088).

mod format;

use std::io::{self, BufRead, BufReader, ErrorKind, Seek};
use std::path::Path;

use super::file_range::FileRange;
use super::format_error;
use super::iff::{ByteOrder, MAX_CHUNK_BYTES, lossy_text, read_array, read_bytes, skip_bytes};
use super::sample_data::{DeclaredLengths, SampleDataReader};
use crate::{Error, Result};

const EXPECTED: &str = "a WAV file";

/// Returns whether a file starts with a WAV header.
pub(super) fn is_wav(start: &[u8]) -> bool {
    [&b"RIFF"[..], b"RIFX", b"RF64", b"BW64"].iter().any(|magic| start.starts_with(magic))
}

/// Parses the chunks up to the samples.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<SampleDataReader> {
    let file_bytes = file.get_ref().len();
    let read_error = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file before any sample"),
        _ => Error::Io { path: path.into(), source: error },
    };
    let riff_header: [u8; 12] = read_array(&mut file).map_err(read_error)?;
    let order = if &riff_header[..4] == b"RIFX" { ByteOrder::Big } else { ByteOrder::Little };
    if &riff_header[8..] != b"WAVE" {
        let magic = format!("{} of {:?}", lossy_text(&riff_header[..4]), lossy_text(&riff_header[8..]));
        return Err(format_error(path, EXPECTED, magic));
    }
    let mut lengths = DeclaredLengths::new(order.decode::<4>(&riff_header[4..]), &riff_header[..4]);
    let (mut format_chunk, mut fact_samples) = (None, 0);
    loop {
        let header: [u8; 8] = read_array(&mut file).map_err(read_error)?;
        let length = order.decode::<4>(&header[4..]);
        match &header[..4] {
            b"fmt " if length <= MAX_CHUNK_BYTES => {
                format_chunk = Some(read_bytes(&mut file, length).map_err(read_error)?);
            }
            // Lengths of the file and of the data (8 bytes each).
            b"ds64" if (16..=MAX_CHUNK_BYTES).contains(&length) => {
                let chunk = read_bytes(&mut file, length).map_err(read_error)?;
                lengths.set_ds64(order.decode::<8>(&chunk), order.decode::<8>(&chunk[8..]));
            }
            b"fact" if (4..=MAX_CHUNK_BYTES).contains(&length) => {
                fact_samples = order.decode::<4>(&read_bytes(&mut file, length).map_err(read_error)?);
            }
            b"data" => {
                let format_chunk =
                    format_chunk.ok_or_else(|| format_error(path, EXPECTED, "no `fmt ` before the data"))?;
                let format = format::parse(path, &format_chunk, order)?;
                let data_start = file.stream_position().map_err(read_error)?;
                // ADPCM blocks are padded; the `fact` chunk gives the encoded samples.
                let max_frames = if format.coding.is_adpcm() { fact_samples } else { 0 };
                return SampleDataReader::new(
                    path,
                    file,
                    format,
                    lengths.data_bytes(length, data_start, file_bytes),
                    max_frames,
                );
            }
            _ => skip_bytes(&mut file, length).map_err(read_error)?,
        }
        // A chunk of odd length is followed by a zero byte, which some writers omit; no chunk name
        // begins with one.
        if length % 2 == 1 && file.fill_buf().map_err(read_error)?.first() == Some(&0) {
            file.seek_relative(1).map_err(read_error)?;
        }
    }
}
