//! `MonoDecoder`: decodes any supported audio file to one channel, block by block.
//!
//! [`AudioFile`] selects the reader of the file's format; [`MonoDecoder`] adds the selection of a
//! channel and the checks of samples, duration and memory. All functions that read audio use it.

use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::channels::MonoSignal;
use super::file_format::{self, AudioFormat};
use super::file_range::FileRange;
use super::packets::{self, Container};
use super::sample_memory::{MemoryShortage, grow, reserve};
use super::{
    Audio, AudioChange, Channel, SAMPLES_PER_BLOCK, aiff, caf, check_samples, flac, format_error,
    sample_data, tags, wav,
};
use crate::{Error, Result};

/// The longest duration of a file that is decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DurationLimit {
    /// No limit, apart from the available memory.
    None,
    /// Samples per channel.
    Samples(u64),
    /// Seconds.
    Seconds(f64),
}

/// Tolerated excess over the length in the manifest, in seconds.
///
/// Manifest lengths are often rounded or estimated, so decoding stops only at 1.5 times the length
/// or this much above it, whichever is longer. Callers apply their own, tighter limits.
const TOLERANCE_SECONDS: f64 = 5.0;

impl DurationLimit {
    /// A limit of `seconds` plus a tolerance.
    pub(crate) fn approximately(seconds: f64) -> Self {
        DurationLimit::Seconds(seconds + (0.5 * seconds).max(TOLERANCE_SECONDS))
    }

    fn samples(self, sample_rate: u32) -> u64 {
        match self {
            DurationLimit::None => u64::MAX,
            DurationLimit::Samples(samples) => samples,
            DurationLimit::Seconds(seconds) => (seconds * f64::from(sample_rate)) as u64,
        }
    }
}

/// An audio file, in the reader of its format.
pub(super) enum AudioFile {
    SampleData(sample_data::SampleDataReader),
    Flac(flac::FlacReader),
    Packets(packets::PacketReader),
}

impl AudioFile {
    /// Opens a byte range of a file.
    pub(super) fn new(path: &Path, range: FileRange) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.into(), source };
        let file_bytes = range.len();
        let mut range = tags::without_leading_tags(range).map_err(io_error)?;
        let mut magic_bytes = Vec::new();
        (&mut range).take(file_format::MAGIC_BYTES as u64).read_to_end(&mut magic_bytes).map_err(io_error)?;
        range.rewind().map_err(io_error)?;
        let file = match file_format::detect(&magic_bytes) {
            AudioFormat::Wav => AudioFile::SampleData(wav::open(path, BufReader::new(range))?),
            AudioFormat::Flac => {
                let range = tags::without_trailing_tags(range).map_err(io_error)?;
                AudioFile::Flac(flac::open(path, BufReader::new(range))?)
            }
            AudioFormat::Aiff => AudioFile::SampleData(aiff::open(path, BufReader::new(range))?),
            AudioFormat::Caf => match caf::open(path, BufReader::new(range))? {
                caf::CafData::SampleData(reader) => AudioFile::SampleData(*reader),
                caf::CafData::Packets(range) => {
                    AudioFile::Packets(packets::open(path, range, Container::Caf)?)
                }
            },
            AudioFormat::Packets(container) => AudioFile::Packets(packets::open(path, range, container)?),
            AudioFormat::Unsupported(name) => {
                let format = format!("a {name} file: convert it, as with `ffmpeg -i FILE FILE.flac`");
                return Err(format_error(path, EXPECTED, format));
            }
            AudioFormat::Unknown => {
                let description = if file_bytes < 4 {
                    format!("a file of {file_bytes} bytes")
                } else {
                    let magic = &magic_bytes[..magic_bytes.len().min(4)];
                    format!("a file that starts with {:?}", String::from_utf8_lossy(magic))
                };
                return Err(format_error(path, EXPECTED, description));
            }
        };
        match file.sample_rate() {
            0 => Err(format_error(path, "a sample rate above 0", "0 Hz")),
            _ => Ok(file),
        }
    }

    pub(super) fn sample_rate(&self) -> u32 {
        match self {
            AudioFile::SampleData(reader) => reader.sample_rate(),
            AudioFile::Flac(reader) => reader.info().sample_rate,
            AudioFile::Packets(reader) => reader.sample_rate(),
        }
    }

    pub(super) fn channels(&self) -> u32 {
        match self {
            AudioFile::SampleData(reader) => reader.channels(),
            AudioFile::Flac(reader) => reader.info().channels,
            AudioFile::Packets(reader) => reader.channels(),
        }
    }

    /// Returns the samples per channel that the header declares, or 0.
    pub(super) fn declared_frames(&self) -> u64 {
        match self {
            AudioFile::SampleData(reader) => reader.declared_frames(),
            AudioFile::Flac(reader) => reader.info().samples.unwrap_or(0),
            AudioFile::Packets(reader) => reader.declared_frames(),
        }
    }

    /// Returns an upper bound on the samples of the next block.
    ///
    /// An estimate where the header does not bound them.
    fn max_block_samples(&self) -> usize {
        match self {
            AudioFile::SampleData(reader) => reader.remaining_frames().min(SAMPLES_PER_BLOCK as u64) as usize,
            AudioFile::Flac(_) | AudioFile::Packets(_) => SAMPLES_PER_BLOCK,
        }
    }
}

const EXPECTED: &str = "a WAV or FLAC file, or MP3, AAC, MP4, Ogg, AIFF or CAF";

/// Opens a whole file as a range.
pub(super) fn open_range(path: &Path) -> Result<FileRange> {
    crate::files::open_regular(path)
        .and_then(FileRange::of_file)
        .map_err(|source| Error::Io { path: path.into(), source })
}

/// Decodes a file to one channel, block by block.
pub(super) struct MonoDecoder {
    file: AudioFile,
    signal: MonoSignal,
    /// How the channels were reduced to one, if there are several.
    pub change: Option<AudioChange>,
    pub sample_rate: u32,
    /// Samples per channel that the header declares, or 0.
    declared_samples: u64,
    /// Largest number of samples that the [`DurationLimit`] allows.
    max_samples: u64,
}

impl MonoDecoder {
    /// Opens a file or byte range and selects a channel.
    ///
    /// Reserves memory for the declared samples, at most `max_capacity` of them.
    ///
    /// # Errors
    /// [`Error::TooLong`] if the header declares more than the limit.
    pub(super) fn new(
        path: &Path,
        range: FileRange,
        channel: Channel,
        limit: DurationLimit,
        max_capacity: usize,
    ) -> Result<Self> {
        let file_bytes = range.len();
        let file = AudioFile::new(path, range)?;
        let (sample_rate, channels) = (file.sample_rate(), file.channels());
        let (declared_samples, max_samples) = (file.declared_frames(), limit.samples(sample_rate));
        if declared_samples > max_samples {
            return Err(too_long_error(path, sample_rate, max_samples, declared_samples, true));
        }
        // The file size bounds the declared length, or is a fair estimate where constant blocks are
        // compressed.
        let capacity = declared_samples.min(file_bytes.saturating_mul(2)).min(max_capacity as u64) as usize;
        let (mut signal, change) = match (MonoSignal::new(channels, channel), channel) {
            (Some(mono_and_change), _) => mono_and_change,
            (None, Channel::Number(channel)) => {
                return Err(Error::Channel { path: path.into(), channel, found: channels });
            }
            (None, _) => return Err(Error::Channels { path: path.into(), found: channels }),
        };
        reserve(&mut signal.samples, capacity).map_err(|shortage| memory_error(path, shortage))?;
        Ok(MonoDecoder { file, signal, change, sample_rate, declared_samples, max_samples })
    }

    /// Decodes and checks the next samples; false after the last.
    ///
    /// # Errors
    /// [`Error::NotFinite`], in an [`Error::File`], for an invalid sample; [`Error::TooLong`] for a
    /// block beyond the limit; [`Error::Memory`] if the samples do not fit into memory.
    pub(super) fn read(&mut self, path: &Path) -> Result<bool> {
        // A reservation for all declared samples is not doubled for the last block.
        if self.signal.length() >= self.declared_samples
            || self.signal.samples.capacity() < self.declared_samples as usize
        {
            grow(&mut self.signal.samples, self.file.max_block_samples())
                .map_err(|shortage| memory_error(path, shortage))?;
        }
        let old_length = self.signal.samples.len();
        let has_more = match &mut self.file {
            AudioFile::SampleData(reader) => reader.read(path, &mut self.signal)?,
            AudioFile::Flac(reader) => reader.read(path, &mut self.signal)?,
            AudioFile::Packets(reader) => reader.read(path, &mut self.signal)?,
        };
        let length = self.signal.length();
        let new_samples = &self.signal.samples[old_length..];
        check_samples(length - new_samples.len() as u64, new_samples)
            .map_err(|source| Error::File { path: path.into(), source: Box::new(source) })?;
        if length > self.max_samples {
            return Err(too_long_error(path, self.sample_rate, self.max_samples, length, false));
        }
        if !has_more && length == 0 {
            return Err(Error::EmptyAudio { path: path.into() });
        }
        Ok(has_more)
    }

    /// Decodes all samples.
    pub(super) fn read_all(mut self, path: &Path) -> Result<(Audio, Option<AudioChange>)> {
        while self.read(path)? {}
        Ok((Audio { samples: self.take(), sample_rate: self.sample_rate }, self.change))
    }

    /// Returns and removes the samples decoded since the last `take`.
    pub(super) fn take(&mut self) -> Vec<f32> {
        self.signal.take()
    }

    /// Returns the number of samples decoded so far.
    ///
    /// It includes those that [`MonoDecoder::take`] returned.
    pub(super) fn length(&self) -> u64 {
        self.signal.length()
    }
}

pub(super) fn memory_error(path: &Path, shortage: MemoryShortage) -> Error {
    let MemoryShortage { required, available } = shortage;
    Error::Memory { path: path.into(), bytes: required, available }
}

fn too_long_error(path: &Path, sample_rate: u32, max_samples: u64, found: u64, is_exact: bool) -> Error {
    let seconds = |samples: u64| samples as f64 / f64::from(sample_rate);
    Error::TooLong { path: path.into(), max_seconds: seconds(max_samples), found: seconds(found), is_exact }
}
