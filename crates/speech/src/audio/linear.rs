//! Samples stored one after another, or in blocks of ADPCM: what WAV, AIFF and CAF have in common.

mod adpcm;
mod coding;
mod declared_lengths;
mod ima4;

use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use super::BLOCK;
use super::channels::Mono;
use super::file_range::FileRange;
use super::iff::Order;
use crate::{Error, Result};
use adpcm::Adpcm;
pub(super) use coding::{Coding, SampleFormat};
pub(super) use declared_lengths::DeclaredLengths;

/// A file whose header has been read, at the first of its samples.
pub(super) struct Reader {
    file: BufReader<FileRange>,
    format: SampleFormat,
    adpcm: Option<Adpcm>,
    /// Samples of each channel that the header gives; those up to the end of the file where it gives none.
    declared: u64,
    /// Samples of each channel that are not read yet and lie within the file.
    left: u64,
    bytes: Vec<u8>,
}

impl Reader {
    /// Reads from here on: so many bytes were declared, and so many of them are in the file.
    ///
    /// Where blocks are filled up, `most` is the number of samples of each channel in them, 0 if the header does not give it.
    pub fn new(
        path: &Path,
        file: BufReader<FileRange>,
        format: SampleFormat,
        (declared, present): (u64, u64),
        most: u64,
    ) -> Result<Self> {
        if format.channels == 0 {
            return Err(Error::Channels { path: path.into(), found: 0 });
        }
        let adpcm = Adpcm::new(path, &format)?;
        let frames = |bytes: u64| match &adpcm {
            Some(adpcm) => adpcm.frames(bytes),
            None => bytes / format.frame_bytes(),
        };
        let (mut declared, mut left) = (frames(declared), frames(present));
        if (1..declared).contains(&most) {
            (declared, left) = (most, left.min(most));
        }
        Ok(Reader { file, format, adpcm, declared, left, bytes: Vec::new() })
    }

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

    /// Checks that the declared samples are within the file, before any is read.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn check_length(&self, path: &Path) -> Result<()> {
        if self.left < self.declared { Err(self.truncated(path, self.left)) } else { Ok(()) }
    }

    fn truncated(&self, path: &Path, found: u64) -> Error {
        let (format, expected) = (self.format.container, self.declared);
        Error::Truncated { path: path.into(), format, expected, found }
    }

    /// Decodes the next samples, [`BLOCK`] of all channels together; false after the last.
    pub fn read(&mut self, path: &Path, to: &mut Mono) -> Result<bool> {
        if self.left == 0 {
            // A finished header, and a file that ends before it.
            if to.length() < self.declared {
                return Err(self.truncated(path, to.length()));
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
            return Err(self.truncated(path, to.length()));
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
