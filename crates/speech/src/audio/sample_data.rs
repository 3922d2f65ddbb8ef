//! `SampleDataReader`: decodes the sample data of WAV, AIFF and CAF files.
//!
//! Sample data are uncompressed or G.711 samples of constant size, or ADPCM blocks. The parsers of
//! the three containers create the reader; compressed codecs are in [`packets`](super::packets).

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

/// An audio file after its header, positioned at its sample data.
pub(super) struct SampleDataReader {
    file: BufReader<FileRange>,
    format: SampleFormat,
    adpcm: Option<AdpcmBlockDecoder>,
    /// Samples per channel that the header declares, or those in the file.
    declared_frames: u64,
    /// Unread samples per channel within the file.
    remaining_frames: u64,
    /// Undecoded bytes of the current block.
    block: Vec<u8>,
}

impl SampleDataReader {
    /// Starts reading at the current position of the file.
    ///
    /// Where blocks are padded, `max_frames` is the number of samples per channel that they
    /// contain, or 0 if the header does not declare it.
    pub(super) fn new(
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
        let (mut declared_frames, mut remaining_frames) =
            (frames_in(data_bytes.declared), frames_in(data_bytes.present));
        if (1..declared_frames).contains(&max_frames) {
            (declared_frames, remaining_frames) = (max_frames, remaining_frames.min(max_frames));
        }
        Ok(SampleDataReader { file, format, adpcm, declared_frames, remaining_frames, block: Vec::new() })
    }

    pub(super) fn sample_rate(&self) -> u32 {
        self.format.sample_rate
    }

    pub(super) fn channels(&self) -> u32 {
        u32::from(self.format.channels)
    }

    pub(super) fn declared_frames(&self) -> u64 {
        self.declared_frames
    }

    /// Returns the unread samples per channel within the file.
    pub(super) fn remaining_frames(&self) -> u64 {
        self.remaining_frames
    }

    /// Checks that the declared samples are within the file, before reading any.
    pub(super) fn check_length(&self, path: &Path) -> Result<()> {
        if self.remaining_frames < self.declared_frames {
            Err(self.truncated_error(path, self.remaining_frames))
        } else {
            Ok(())
        }
    }

    fn truncated_error(&self, path: &Path, found: u64) -> Error {
        let (format, expected) = (self.format.container, self.declared_frames);
        Error::Truncated { path: path.into(), format, expected, found }
    }

    /// Decodes the next [`SAMPLES_PER_BLOCK`] samples of all channels; false after the last.
    pub(super) fn read(&mut self, path: &Path, output: &mut MonoSignal) -> Result<bool> {
        if self.remaining_frames == 0 {
            // The header is finished, but the file ends earlier.
            if output.length() < self.declared_frames {
                return Err(self.truncated_error(path, output.length()));
            }
            return Ok(false);
        }
        let io_error = |source| Error::Io { path: path.into(), source };
        let frames = match &self.adpcm {
            // One ADPCM block.
            Some(adpcm) => {
                self.block.resize(adpcm.block_bytes(), 0);
                let num_bytes = read_up_to(&mut self.file, &mut self.block).map_err(io_error)?;
                adpcm.frames(num_bytes as u64).min(self.remaining_frames)
            }
            // As many complete frames as a block has.
            None => {
                let frame_bytes = self.format.frame_bytes();
                let frames = (SAMPLES_PER_BLOCK as u64 / u64::from(self.format.channels.max(1)))
                    .max(1)
                    .min(self.remaining_frames);
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
        self.remaining_frames -= frames;
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
