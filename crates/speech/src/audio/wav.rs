//! WAV: RIFF's chunks are walked here, their samples decoded by hound.

use std::io::{BufRead, BufReader, Chain, Cursor, ErrorKind, Read, Seek};
use std::path::Path;

use super::channels::Mono;
use super::part::Part;
use super::{BLOCK, format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "a WAV file of 8, 16, 24 or 32-bit integers or 32-bit floats";
/// What writers put where they cannot know the length: everything to the end of the file is meant. The last one is sox's, rounded
/// down to whole frames.
const OPEN_ENDED: u32 = u32::MAX;
const OPEN_ENDED_SOX: u32 = 0x7fff_f000;

/// A header that hound reads, and the bytes of the data chunk behind it.
pub(super) type Reader = hound::WavReader<BufReader<Chain<Cursor<Vec<u8>>, BufReader<Part>>>>;

/// Walks the chunks up to the samples.
///
/// hound takes neither pad bytes nor lengths that were never filled in, so that it gets a header of `fmt ` and `data` alone.
pub(super) fn open(path: &Path, mut file: BufReader<Part>, bytes: u64) -> Result<Reader> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file before any sample"),
        _ => Error::Io { path: path.into(), source: error },
    };
    let start: [u8; 12] = take(&mut file).map_err(failed)?;
    let spanned = u64::from(number(&start[4..])) + 8;
    if &start[8..] != b"WAVE" {
        let found = format!("RIFF of {:?}", String::from_utf8_lossy(&start[8..]));
        return Err(format_error(path, EXPECTED, found));
    }
    let mut format = None;
    loop {
        let [a, b, c, d, length @ ..]: [u8; 8] = take(&mut file).map_err(failed)?;
        let length = number(&length);
        match &[a, b, c, d] {
            b"fmt " if length <= 1 << 16 => {
                let mut chunk = vec![0; length as usize];
                file.read_exact(&mut chunk).map_err(failed)?;
                format = Some(chunk);
            }
            b"data" => {
                let format =
                    format.ok_or_else(|| format_error(path, EXPECTED, "no `fmt ` before the data"))?;
                let here = file.stream_position().map_err(failed)?;
                let frame = format.get(12..14).map_or(1, |n| u32::from(n[0]) | (u32::from(n[1]) << 8)).max(1);
                let length = match length {
                    OPEN_ENDED => None,
                    length if length == OPEN_ENDED_SOX / frame * frame => None,
                    // A finished file without samples says the same as one that was never finished, but RIFF's length spans it, a last pad byte
                    // perhaps apart.
                    0 if spanned == 8 || spanned + 1 < bytes || spanned == u64::from(OPEN_ENDED) + 8 => None,
                    length => Some(length),
                };
                let length = match length {
                    Some(length) => length,
                    None => {
                        let left = u32::try_from(bytes.saturating_sub(here)).map_err(|_| {
                            format_error(path, "a WAV file below 4 GiB", format!("{bytes} bytes"))
                        })?;
                        left / frame * frame
                    }
                };
                let source = BufReader::new(Cursor::new(header(format, length)).chain(file));
                return hound::WavReader::new(source).map_err(|e| format_error(path, EXPECTED, e));
            }
            _ => file.seek_relative(i64::from(length)).map_err(failed)?,
        }
        // A chunk of odd length is followed by a zero byte, which some writers forget; no name of a chunk begins with one.
        if length % 2 == 1 && file.fill_buf().map_err(failed)?.first() == Some(&0) {
            file.seek_relative(1).map_err(failed)?;
        }
    }
}

/// RIFF with a format and the beginning of the data.
fn header(mut format: Vec<u8>, length: u32) -> Vec<u8> {
    const EXTENSIBLE: &[u8] = &[0xfe, 0xff];
    // What lies behind the fields that count differs from writer to writer, and hound is strict about it.
    if format.starts_with(EXTENSIBLE) && format.len() >= 40 {
        format.truncate(40);
        format[16..18].copy_from_slice(&22u16.to_le_bytes());
        // Samples of fewer bits than their container are its upper ones: read whole, they have their scale.
        format.copy_within(14..16, 18);
    } else {
        format.truncate(16);
    }
    let mut bytes = b"RIFF\0\0\0\0WAVEfmt ".to_vec();
    bytes.extend((format.len() as u32).to_le_bytes());
    bytes.extend(format);
    bytes.extend(b"data");
    bytes.extend(length.to_le_bytes());
    bytes
}

/// Decodes the next [`BLOCK`] samples of all channels together; false after the last.
pub(super) fn read(path: &Path, reader: &mut Reader, to: &mut Mono) -> Result<bool> {
    let (spec, promised) = (reader.spec(), u64::from(reader.duration()));
    let ended = match spec.sample_format {
        hound::SampleFormat::Int => {
            let scale = full_scale(u32::from(spec.bits_per_sample));
            gather(to, reader.samples::<i32>().map(|s| s.map(|i| f64::from(i) * scale)))
        }
        hound::SampleFormat::Float => gather(to, reader.samples::<f32>().map(|s| s.map(f64::from))),
    };
    match ended {
        // hound reports the end of the file as an error of kind `Other`.
        Err(hound::Error::IoError(e)) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::Other) => {
            Err(Error::Truncated { path: path.into(), expected: promised, found: to.length() })
        }
        Err(hound::Error::IoError(source)) => Err(Error::Io { path: path.into(), source }),
        Err(e) => Err(format_error(path, EXPECTED, e)),
        Ok(more) => Ok(more),
    }
}

/// Takes a block of samples, up to the first error; true if there was a whole one.
fn gather<E>(to: &mut Mono, mut from: impl Iterator<Item = Result<f64, E>>) -> Result<bool, E> {
    for _ in 0..BLOCK {
        match from.next() {
            Some(sample) => to.push(sample?),
            None => return Ok(false),
        }
    }
    Ok(true)
}

fn take<const N: usize>(from: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The little-endian number in the first four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |n, &b| (n << 8) | u32::from(b))
}
