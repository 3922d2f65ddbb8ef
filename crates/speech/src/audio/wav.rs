//! WAV: chunks are walked here, because decoding libraries refuse lengths that were never filled in.
//!
//! RIFF, big-endian RIFX, and RF64 and BW64 with lengths of 64 bits (EBU Tech 3306, ITU-R BS.2088).

mod adpcm;
mod coding;
mod length;

use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::channels::Mono;
use super::part::Part;
use super::{BLOCK, format_error};
use crate::{Error, Result};
use adpcm::Adpcm;
use coding::Format;
use length::Lengths;

const EXPECTED: &str = "a WAV file";
/// Bytes of a `fmt ` chunk at most: the length is a field of the file.
const MAX_FORMAT_BYTES: u64 = 1 << 16;

/// A WAV file whose header has been read.
pub(super) struct Reader {
    file: BufReader<Part>,
    format: Format,
    adpcm: Option<Adpcm>,
    /// Samples of each channel that the header gives; those up to the end of the file where it gives none.
    declared: u64,
    /// Samples of each channel that are not read yet and lie within the file.
    left: u64,
    bytes: Vec<u8>,
}

/// The byte order of a file's numbers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// The number in the first `N` bytes, at most 8.
    fn number<const N: usize>(self, bytes: &[u8]) -> u64 {
        let digit = |n: u64, &byte: &u8| (n << 8) | u64::from(byte);
        let bytes = bytes.iter().take(N);
        if self == Order::Big { bytes.fold(0, digit) } else { bytes.rev().fold(0, digit) }
    }
}

/// Whether a file starts as a WAV file does.
pub(super) fn is_wav(start: &[u8]) -> bool {
    [&b"RIFF"[..], b"RIFX", b"RF64", b"BW64"].iter().any(|magic| start.starts_with(magic))
}

/// Walks the chunks up to the samples.
pub(super) fn open(path: &Path, mut file: BufReader<Part>) -> Result<Reader> {
    let bytes = file.get_ref().len();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => format_error(path, EXPECTED, "the end of the file before any sample"),
        _ => Error::Io { path: path.into(), source: error },
    };
    let start: [u8; 12] = take(&mut file).map_err(failed)?;
    let order = if &start[..4] == b"RIFX" { Order::Big } else { Order::Little };
    if &start[8..] != b"WAVE" {
        let found = format!("{} of {:?}", text(&start[..4]), text(&start[8..]));
        return Err(format_error(path, EXPECTED, found));
    }
    let mut lengths = Lengths::new(order.number::<4>(&start[4..]), &start[..4]);
    let mut format = None;
    loop {
        let header: [u8; 8] = take(&mut file).map_err(failed)?;
        let length = order.number::<4>(&header[4..]);
        let mut chunk = |most: u64| {
            let mut chunk = Vec::new();
            let read = (&mut file).take(length.min(most)).read_to_end(&mut chunk)? as u64;
            if read < length.min(most) { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(chunk) }
        };
        match &header[..4] {
            b"fmt " if length <= MAX_FORMAT_BYTES => {
                format = Some(chunk(length).map_err(failed)?);
            }
            b"ds64" if (16..=MAX_FORMAT_BYTES).contains(&length) => {
                let chunk = chunk(length).map_err(failed)?;
                lengths.set_ds64(order.number::<8>(&chunk), order.number::<8>(&chunk[8..]));
            }
            b"fact" if (4..=MAX_FORMAT_BYTES).contains(&length) => {
                lengths.fact = Some(order.number::<4>(&chunk(length).map_err(failed)?));
            }
            b"data" => {
                let format =
                    format.ok_or_else(|| format_error(path, EXPECTED, "no `fmt ` before the data"))?;
                let format = Format::parse(path, &format, order)?;
                let here = file.stream_position().map_err(failed)?;
                let (declared, present) = lengths.data(length, here, bytes);
                let adpcm = Adpcm::new(path, &format)?;
                let frames = |bytes: u64| match &adpcm {
                    Some(adpcm) => adpcm.frames(bytes),
                    None => bytes / format.frame_bytes(),
                };
                let (mut declared, mut left) = (frames(declared), frames(present));
                // Blocks of ADPCM are whole; the `fact` chunk gives the samples that were encoded.
                if let Some(fact) = lengths.fact.filter(|&n| adpcm.is_some() && n > 0 && n < declared) {
                    (declared, left) = (fact, left.min(fact));
                }
                return Ok(Reader { file, format, adpcm, declared, left, bytes: Vec::new() });
            }
            _ => skip(&mut file, length).map_err(failed)?,
        }
        // A chunk of odd length is followed by a zero byte, which some writers forget; no name of a chunk begins with one.
        if length % 2 == 1 && io::BufRead::fill_buf(&mut file).map_err(failed)?.first() == Some(&0) {
            file.seek_relative(1).map_err(failed)?;
        }
    }
}

impl Reader {
    pub fn sample_rate(&self) -> u32 {
        self.format.sample_rate
    }

    pub fn channels(&self) -> u32 {
        u32::from(self.format.channels)
    }

    pub fn declared(&self) -> u64 {
        self.declared
    }

    /// Samples of each channel that are within the file and were not read yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Decodes the next samples, [`BLOCK`] of all channels together; false after the last.
    pub fn read(&mut self, path: &Path, to: &mut Mono) -> Result<bool> {
        if self.left == 0 {
            // A finished header, and a file that ends before it.
            if to.length() < self.declared {
                return Err(Error::Truncated {
                    path: path.into(),
                    expected: self.declared,
                    found: to.length(),
                });
            }
            return Ok(false);
        }
        let io = |source| Error::Io { path: path.into(), source };
        let frames = match &self.adpcm {
            Some(adpcm) => {
                self.bytes.resize(adpcm.block_bytes(), 0);
                let read = read_up_to(&mut self.file, &mut self.bytes).map_err(io)?;
                adpcm.frames(read as u64).min(self.left)
            }
            None => {
                let frame = self.format.frame_bytes();
                let frames = (BLOCK as u64 / u64::from(self.format.channels.max(1))).max(1).min(self.left);
                self.bytes.resize((frames * frame) as usize, 0);
                read_up_to(&mut self.file, &mut self.bytes).map_err(io)? as u64 / frame
            }
        };
        if frames == 0 {
            // The file has become shorter since it was opened.
            return Err(Error::Truncated { path: path.into(), expected: self.declared, found: to.length() });
        }
        match &mut self.adpcm {
            Some(adpcm) => adpcm.decode(path, &self.bytes, frames as usize, to)?,
            None => {
                self.format.coding.decode(&self.bytes[..(frames * self.format.frame_bytes()) as usize], to)
            }
        }
        self.left -= frames;
        Ok(true)
    }
}

/// Fills a buffer as far as the file goes, and shortens it to that.
fn read_up_to(file: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(read);
    Ok(read)
}

fn skip(file: &mut BufReader<Part>, length: u64) -> io::Result<()> {
    match i64::try_from(length) {
        Ok(length) => file.seek_relative(length),
        Err(_) => file.seek(SeekFrom::End(0)).map(|_| ()),
    }
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
