//! A file that is being decoded.

use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::channels::{Mono, grow, reserve};
use super::file_range::FileRange;
use super::packets::{self, Container};
use super::sound_format::{self, SoundFormat};
use super::{
    Audio, AudioChange, BLOCK, Channel, aiff, caf, check_samples, flac, format_error, linear, tags, wav,
};
use crate::{Error, Result};

/// How long a file may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DurationLimit {
    /// As long as it is, while there is memory.
    None,
    /// So many samples of each channel.
    Samples(u64),
    /// So many seconds.
    Seconds(f64),
}

/// A file may be half as long again as its line says, or longer by this, before decoding stops: lengths are often rounded or
/// estimated. How much of that is accepted is decided by those who use the sound.
const MORE_SECONDS: f64 = 5.0;

impl DurationLimit {
    /// So many seconds, and a tolerance.
    pub fn near(seconds: f64) -> Self {
        DurationLimit::Seconds(seconds + (0.5 * seconds).max(MORE_SECONDS))
    }

    fn samples(self, sample_rate: u32) -> u64 {
        match self {
            DurationLimit::None => u64::MAX,
            DurationLimit::Samples(samples) => samples,
            DurationLimit::Seconds(seconds) => (seconds * f64::from(sample_rate)) as u64,
        }
    }
}

/// A file whose header has been read.
pub(super) enum SoundFile {
    Linear(linear::Reader),
    Flac(flac::Reader),
    Packets(packets::Reader),
}

impl SoundFile {
    /// Opens a file, or a part of one.
    pub fn new(path: &Path, part: FileRange) -> Result<Self> {
        let io = |source| Error::Io { path: path.into(), source };
        let whole_bytes = part.len();
        let mut part = tags::without_front(part).map_err(io)?;
        let mut start = Vec::new();
        (&mut part).take(sound_format::BYTES as u64).read_to_end(&mut start).map_err(io)?;
        part.rewind().map_err(io)?;
        let opened = match sound_format::kind(&start) {
            SoundFormat::Wav => SoundFile::Linear(wav::open(path, BufReader::new(part))?),
            SoundFormat::Flac => {
                let part = tags::without_end(part).map_err(io)?;
                SoundFile::Flac(flac::open(path, BufReader::new(part))?)
            }
            SoundFormat::Aiff => SoundFile::Linear(aiff::open(path, BufReader::new(part))?),
            SoundFormat::Caf => match caf::open(path, BufReader::new(part))? {
                caf::CafData::Linear(reader) => SoundFile::Linear(*reader),
                caf::CafData::Packets(part) => SoundFile::Packets(packets::open(path, part, Container::Caf)?),
            },
            SoundFormat::Packets(container) => SoundFile::Packets(packets::open(path, part, container)?),
            SoundFormat::Named(name) => {
                let found = format!("a {name} file: convert it, as with `ffmpeg -i FILE FILE.flac`");
                return Err(format_error(path, EXPECTED, found));
            }
            SoundFormat::Unknown => {
                let found = if whole_bytes < 4 {
                    format!("a file of {whole_bytes} bytes")
                } else {
                    let magic = &start[..start.len().min(4)];
                    format!("a file that starts with {:?}", String::from_utf8_lossy(magic))
                };
                return Err(format_error(path, EXPECTED, found));
            }
        };
        match opened.sample_rate() {
            0 => Err(format_error(path, "a sample rate above 0", "0 Hz")),
            _ => Ok(opened),
        }
    }

    pub fn sample_rate(&self) -> u32 {
        match self {
            SoundFile::Linear(reader) => reader.sample_rate(),
            SoundFile::Flac(reader) => reader.info().sample_rate,
            SoundFile::Packets(reader) => reader.sample_rate(),
        }
    }

    pub fn channels(&self) -> u32 {
        match self {
            SoundFile::Linear(reader) => reader.channels(),
            SoundFile::Flac(reader) => reader.info().channels,
            SoundFile::Packets(reader) => reader.channels(),
        }
    }

    /// Samples of each channel that the header declares; 0 where it declares none.
    pub fn declared(&self) -> u64 {
        match self {
            SoundFile::Linear(reader) => reader.declared(),
            SoundFile::Flac(reader) => reader.info().samples.unwrap_or(0),
            SoundFile::Packets(reader) => reader.declared(),
        }
    }

    /// Samples of the next block, at most; a guess where the header does not bound them.
    fn next_block(&self) -> usize {
        match self {
            SoundFile::Linear(reader) => reader.left().min(BLOCK as u64) as usize,
            SoundFile::Flac(_) | SoundFile::Packets(_) => BLOCK,
        }
    }
}

const EXPECTED: &str = "a WAV or FLAC file, or MP3, AAC, MP4, Ogg, AIFF or CAF";

/// A whole file, as a part.
pub(super) fn whole(path: &Path) -> Result<FileRange> {
    crate::files::open_regular(path)
        .and_then(FileRange::whole)
        .map_err(|source| Error::Io { path: path.into(), source })
}

/// A file that is being decoded.
pub(super) struct Decoder {
    opened: SoundFile,
    mono: Mono,
    pub change: Option<AudioChange>,
    pub sample_rate: u32,
    /// Samples of each channel that the header declares, or 0.
    declared: u64,
    /// Samples that it may have.
    most: u64,
}

impl Decoder {
    /// Opens a file or a part of one and chooses from its channels, with room for its samples, or for `room` of them.
    ///
    /// # Errors
    /// [`Error::TooLong`] if its header declares more than the limit.
    pub fn new(
        path: &Path,
        part: FileRange,
        channel: Channel,
        limit: DurationLimit,
        room: usize,
    ) -> Result<Self> {
        let bytes = part.len();
        let opened = SoundFile::new(path, part)?;
        let (sample_rate, channels) = (opened.sample_rate(), opened.channels());
        let (declared, most) = (opened.declared(), limit.samples(sample_rate));
        if declared > most {
            return Err(too_long(path, sample_rate, most, declared, true));
        }
        // A header may declare anything; the file's size bounds what can come, or is a fair guess where constant blocks are packed.
        let room = declared.min(bytes.saturating_mul(2)).min(room as u64) as usize;
        let (mut mono, change) = match (Mono::new(channels, channel), channel) {
            (Some(mono), _) => mono,
            (None, Channel::Number(asked)) => {
                return Err(Error::Channel { path: path.into(), asked, found: channels });
            }
            (None, _) => return Err(Error::Channels { path: path.into(), found: channels }),
        };
        reserve(&mut mono.samples, room).map_err(|found| no_memory(path, found))?;
        Ok(Decoder { opened, mono, change, sample_rate, declared, most })
    }

    /// Decodes some more samples and checks them; false after the last.
    ///
    /// # Errors
    /// [`Error::NotFinite`], in an [`Error::File`], for a sample that cannot be sound;
    /// [`Error::TooLong`] a block beyond the limit, [`Error::Memory`] if the samples that were not taken do not fit.
    pub fn read(&mut self, path: &Path) -> Result<bool> {
        // What was reserved for all of the declared samples is not doubled for the last block.
        if self.mono.length() >= self.declared || self.mono.samples.capacity() < self.declared as usize {
            grow(&mut self.mono.samples, self.opened.next_block()).map_err(|found| no_memory(path, found))?;
        }
        let before = self.mono.samples.len();
        let more = match &mut self.opened {
            SoundFile::Linear(reader) => reader.read(path, &mut self.mono)?,
            SoundFile::Flac(reader) => reader.read(path, &mut self.mono)?,
            SoundFile::Packets(reader) => reader.read(path, &mut self.mono)?,
        };
        let length = self.mono.length();
        let new = &self.mono.samples[before..];
        check_samples(length - new.len() as u64, new)
            .map_err(|source| Error::File { path: path.into(), source: Box::new(source) })?;
        if length > self.most {
            return Err(too_long(path, self.sample_rate, self.most, length, false));
        }
        if !more && length == 0 {
            return Err(Error::EmptyAudio { path: path.into() });
        }
        Ok(more)
    }

    /// Decodes all samples.
    pub fn read_all(mut self, path: &Path) -> Result<(Audio, Option<AudioChange>)> {
        while self.read(path)? {}
        Ok((Audio { samples: self.take(), sample_rate: self.sample_rate }, self.change))
    }

    /// The samples that were not yet taken.
    pub fn take(&mut self) -> Vec<f32> {
        self.mono.take()
    }

    /// Samples so far.
    pub fn length(&self) -> u64 {
        self.mono.length()
    }
}

pub(super) fn no_memory(path: &Path, (bytes, available): (usize, usize)) -> Error {
    Error::Memory { path: path.into(), bytes, available }
}

fn too_long(path: &Path, sample_rate: u32, most: u64, found: u64, is_exact: bool) -> Error {
    let seconds = |samples: u64| samples as f64 / f64::from(sample_rate);
    Error::TooLong { path: path.into(), most: seconds(most), found: seconds(found), is_exact }
}
