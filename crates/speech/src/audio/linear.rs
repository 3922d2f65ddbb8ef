//! Reads uncompressed samples and ADPCM blocks of WAV, AIFF and CAF files.

mod adpcm;
mod coding;
mod declared_lengths;
mod ima4;

use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use super::SAMPLES_PER_BLOCK;
use super::channels::MonoSignal;
use super::file_range::FileRange;
use super::iff::ByteOrder;
use crate::{Error, Result};
use adpcm::AdpcmBlockDecoder;
pub(super) use coding::{Coding, SampleFormat};
pub(super) use declared_lengths::{DataBytes, DeclaredLengths};

/// A file whose header has been parsed, positioned at its first sample.
pub(super) struct LinearReader {
    file: BufReader<FileRange>,
    format: SampleFormat,
    adpcm: Option<AdpcmBlockDecoder>,
    /// Samples per channel that the header declares, or those in the file.
    declared: u64,
    /// Unread samples per channel within the file.
    remaining: u64,
    /// Undecoded bytes of the current block.
    block: Vec<u8>,
}

impl LinearReader {
    /// Starts reading at the current position of the file.
    ///
    /// Where blocks are padded, `max_frames` is the number of samples per channel that they
    /// contain, or 0 if the header does not declare it.
    pub fn new(
        path: &Path,
        file: BufReader<FileRange>,
        format: SampleFormat,
        data_bytes: DataBytes,
        max_frames: u64,
    ) -> Result<Self> {
        if format.channels == 0 {
            return Err(Error::Channels { path: path.into(), found: 0 });
        }
        let adpcm = AdpcmBlockDecoder::new(path, &format)?;
        let frames_in = |bytes: u64| match &adpcm {
            Some(adpcm) => adpcm.frames(bytes),
            None => bytes / format.frame_bytes(),
        };
        let (mut declared, mut remaining) = (frames_in(data_bytes.declared), frames_in(data_bytes.present));
        if (1..declared).contains(&max_frames) {
            (declared, remaining) = (max_frames, remaining.min(max_frames));
        }
        Ok(LinearReader { file, format, adpcm, declared, remaining, block: Vec::new() })
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

    /// Returns the unread samples per channel within the file.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Checks that the declared samples are within the file, before reading any.
    pub fn check_length(&self, path: &Path) -> Result<()> {
        if self.remaining < self.declared { Err(self.truncated_error(path, self.remaining)) } else { Ok(()) }
    }

    fn truncated_error(&self, path: &Path, found: u64) -> Error {
        let (format, expected) = (self.format.container, self.declared);
        Error::Truncated { path: path.into(), format, expected, found }
    }

    /// Decodes the next [`SAMPLES_PER_BLOCK`] samples of all channels; false after the last.
    pub fn read(&mut self, path: &Path, output: &mut MonoSignal) -> Result<bool> {
        if self.remaining == 0 {
            // The header is finished, but the file ends earlier.
            if output.length() < self.declared {
                return Err(self.truncated_error(path, output.length()));
            }
            return Ok(false);
        }
        let io_error = |source| Error::Io { path: path.into(), source };
        let frames = match &self.adpcm {
            Some(adpcm) => {
                self.block.resize(adpcm.block_bytes(), 0);
                let read = read_up_to(&mut self.file, &mut self.block).map_err(io_error)?;
                adpcm.frames(read as u64).min(self.remaining)
            }
            None => {
                let frame_bytes = self.format.frame_bytes();
                let frames = (SAMPLES_PER_BLOCK as u64 / u64::from(self.format.channels.max(1)))
                    .max(1)
                    .min(self.remaining);
                self.block.resize((frames * frame_bytes) as usize, 0);
                read_up_to(&mut self.file, &mut self.block).map_err(io_error)? as u64 / frame_bytes
            }
        };
        if frames == 0 {
            // The file has become shorter since it was opened.
            return Err(self.truncated_error(path, output.length()));
        }
        match &mut self.adpcm {
            Some(adpcm) => adpcm.decode(path, &self.block, frames as usize, output)?,
            None => self
                .format
                .coding
                .decode(&self.block[..(frames * self.format.frame_bytes()) as usize], output),
        }
        self.remaining -= frames;
        Ok(true)
    }
}

/// Fills a buffer, or truncates it at the end of the file.
fn read_up_to(file: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(filled)
}
