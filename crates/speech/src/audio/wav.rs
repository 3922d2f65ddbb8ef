//! WAV files; decoding libraries reject lengths that were never filled in.
//!
//! RIFF, big-endian RIFX, and RF64 and BW64 with lengths of 64 bits (EBU Tech 3306, ITU-R BS.2088).

mod format;

use std::io::{self, BufRead, BufReader, ErrorKind, Seek};
use std::path::Path;

use super::file_range::FileRange;
use super::format_error;
use super::iff::{ByteOrder, MAX_CHUNK_BYTES, content, skip, take, text};
use super::linear::{DeclaredLengths, Reader};
use crate::{Error, Result};

const EXPECTED: &str = "a WAV file";

/// Returns whether a file starts with a WAV header.
pub(super) fn is_wav(start: &[u8]) -> bool {
    [&b"RIFF"[..], b"RIFX", b"RF64", b"BW64"].iter().any(|magic| start.starts_with(magic))
}

/// Parses the chunks up to the samples.
pub(super) fn open(path: &Path, mut file: BufReader<FileRange>) -> Result<Reader> {
    let bytes = file.get_ref().len();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file before any sample"),
        _ => Error::Io { path: path.into(), source: error },
    };
    let start: [u8; 12] = take(&mut file).map_err(failed)?;
    let order = if &start[..4] == b"RIFX" { ByteOrder::Big } else { ByteOrder::Little };
    if &start[8..] != b"WAVE" {
        let magic = format!("{} of {:?}", text(&start[..4]), text(&start[8..]));
        return Err(format_error(path, EXPECTED, magic));
    }
    let mut lengths = DeclaredLengths::new(order.number::<4>(&start[4..]), &start[..4]);
    let (mut format, mut fact) = (None, 0);
    loop {
        let header: [u8; 8] = take(&mut file).map_err(failed)?;
        let length = order.number::<4>(&header[4..]);
        match &header[..4] {
            b"fmt " if length <= MAX_CHUNK_BYTES => {
                format = Some(content(&mut file, length).map_err(failed)?);
            }
            b"ds64" if (16..=MAX_CHUNK_BYTES).contains(&length) => {
                let chunk = content(&mut file, length).map_err(failed)?;
                lengths.set_ds64(order.number::<8>(&chunk), order.number::<8>(&chunk[8..]));
            }
            b"fact" if (4..=MAX_CHUNK_BYTES).contains(&length) => {
                fact = order.number::<4>(&content(&mut file, length).map_err(failed)?);
            }
            b"data" => {
                let format =
                    format.ok_or_else(|| format_error(path, EXPECTED, "no `fmt ` before the data"))?;
                let format = format::parse(path, &format, order)?;
                let start_of_data = file.stream_position().map_err(failed)?;
                // ADPCM blocks are padded; the `fact` chunk gives the encoded samples.
                let max_frames = if format.coding.bytes() == 0 { fact } else { 0 };
                return Reader::new(
                    path,
                    file,
                    format,
                    lengths.data(length, start_of_data, bytes),
                    max_frames,
                );
            }
            _ => skip(&mut file, length).map_err(failed)?,
        }
        // A chunk of odd length is followed by a zero byte, which some writers omit; no chunk name
        // begins with one.
        if length % 2 == 1 && file.fill_buf().map_err(failed)?.first() == Some(&0) {
            file.seek_relative(1).map_err(failed)?;
        }
    }
}
