//! Sound files: WAV, FLAC through claxon, other formats through symphonia, other sample rates through rubato.

mod aiff;
mod audio_chunks;
mod caf;
mod channels;
mod decoder;
mod file_range;
mod flac;
mod flac_check;
mod iff;
mod linear;
mod mp4;
mod opus;
mod packets;
mod panic_guard;
mod pcm;
mod resample;
mod sound_format;
mod tags;
mod vorbis;
mod wav;

use std::ops::RangeInclusive;
use std::path::Path;

pub use audio_chunks::AudioChunks;
pub use channels::{AudioChange, Channel, Conversion};
pub use pcm::{PcmDecoder, PcmReader};
pub use resample::{ResampleStream, resample};

pub(crate) use decoder::DurationLimit;
use decoder::{Decoder, SoundFile, whole};
pub(crate) use file_range::FileRange;
pub(crate) use sound_format::EXTENSIONS;

use crate::{Error, Result};

/// A mono signal.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// Samples in `[-1, 1)`; a 16-bit sample `i` is exactly `i / 32768`.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
}

impl Audio {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// CRC-32 (IEEE) of the samples as little-endian 16-bit integers: the `crc32` of a manifest.
    ///
    /// Of [`Audio::i16_samples`].
    pub fn crc32(&self) -> u32 {
        crc32fast::hash(&self.i16_samples().flat_map(i16::to_le_bytes).collect::<Vec<u8>>())
    }

    /// The samples as 16-bit integers, rounded and cut; exact for audio that came from 16 bits or fewer.
    pub fn i16_samples(&self) -> impl Iterator<Item = i16> {
        self.samples.iter().map(|&x| (x * 32768.0).round().clamp(-32768.0, 32767.0) as i16)
    }
}

/// Reads a whole sound file of one channel; the first bytes decide its format, not the name.
///
/// | container | codecs |
/// |---|---|
/// | WAV (RIFF, RIFX, RF64, BW64) | integers of 8, 16, 24, 32 bits, floats of 32 and 64 bits, mu-law, A-law, IMA and Microsoft ADPCM |
/// | FLAC, with or without ID3 and APE tags | FLAC |
/// | MP3 | MPEG layers 2 and 3 |
/// | ADTS | AAC-LC |
/// | MP4 (M4A) | AAC-LC, ALAC, FLAC, Opus |
/// | Ogg | Vorbis, Opus, FLAC |
/// | AIFF, AIFF-C, CAF | integers, floats, mu-law, A-law, IMA ADPCM; ALAC and AAC in CAF |
///
/// A WAV, AIFF or CAF file whose header gives no length, as one that was written to a pipe, is read to its end. What encoders add to the beginning
/// and the end is left out where the file says how much that is. Opus is decoded at 48 kHz.
///
/// # Errors
/// Missing or unreadable file, another format, more than one channel, no sample, fewer samples than the header
/// promises, samples of another MD5 than FLAC's header says, a sample that is NaN or beyond ±2^31, more samples than
/// [memory](crate::memory) is available for. Each names the path.
///
/// Cost: O(samples).
///
/// ```no_run
/// let audio = speech::read_audio("hello.flac".as_ref())?;
/// println!("{:.2} s at {} Hz", audio.seconds(), audio.sample_rate);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn read_audio(path: &Path) -> Result<Audio> {
    Ok(read_channel(path, Channel::Only, DurationLimit::None)?.0)
}

/// Reads a file as a recogniser wants it: one channel at its sample rate; and says what had to be done to it.
///
/// # Errors
/// Those of [`read_audio`]; a channel that the file has not; another sample rate, if it may not be resampled, or one that is not from
/// 1000 to 768,000 Hz.
///
/// Cost: O(samples), and [`resample`] where that is done.
pub fn read_audio_as(
    path: &Path,
    sample_rate: u32,
    conversion: &Conversion,
) -> Result<(Audio, Vec<AudioChange>)> {
    let decoder = Decoder::new(path, whole(path)?, conversion.channel, DurationLimit::None, usize::MAX)?;
    let found = decoder.sample_rate;
    // Before anything is decoded.
    if found != sample_rate {
        if !conversion.resample {
            return Err(Error::FileRate { path: path.into(), expected: sample_rate, found });
        }
        check_rate(path, found)?;
    }
    let (audio, change) = decoder.read_all(path)?;
    let mut changes: Vec<AudioChange> = change.into_iter().collect();
    if found == sample_rate {
        return Ok((audio, changes));
    }
    changes.push(AudioChange::Resampled { from: found, to: sample_rate });
    Ok((resample(&audio, sample_rate)?, changes))
}

/// Sample rates that a front end can be planned for and that can be resampled.
pub(crate) const RATES: RangeInclusive<u32> = 1000..=768_000;

/// Whether a file's sample rate can be resampled; others would take any amount of memory.
pub(crate) fn check_rate(path: &Path, found: u32) -> Result<()> {
    if RATES.contains(&found) {
        return Ok(());
    }
    Err(format_error(path, "a sample rate from 1000 to 768000 Hz", format!("{found} Hz")))
}

/// What floats may hold: also 32-bit integers that nobody scaled.
const LOUDEST: f32 = 2_147_483_648.0;

/// Whether samples, which have so many before them, can be sound.
///
/// # Errors
/// [`Error::NotFinite`] for the first that is NaN or beyond ±2^31.
pub fn check_samples(first: u64, samples: &[f32]) -> Result<()> {
    match samples.iter().position(|x| x.is_nan() || x.abs() > LOUDEST) {
        Some(index) => Err(Error::NotFinite { index: first as usize + index, found: samples[index] }),
        None => Ok(()),
    }
}

/// The sample rate that a file's header gives.
pub(crate) fn sample_rate(path: &Path) -> Result<u32> {
    Ok(SoundFile::new(path, whole(path)?)?.sample_rate())
}

/// Rate, channels and samples of each that a file's header promises.
pub(crate) fn promises(path: &Path) -> Result<(u32, u32, u64)> {
    let opened = SoundFile::new(path, whole(path)?)?;
    Ok((opened.sample_rate(), opened.channels(), opened.declared()))
}

/// Samples of each channel that a header declares, and their rate; an error if the file ends before them.
pub(crate) fn header(path: &Path, part: FileRange) -> Result<(u64, u32)> {
    let opened = SoundFile::new(path, part)?;
    if let SoundFile::Linear(reader) = &opened {
        reader.check_length(path)?;
    }
    Ok((opened.declared(), opened.sample_rate()))
}

/// Samples and rate of a mono file that is whole: by the header and the last frame of a FLAC file, by decoding where they do not tell.
pub(crate) fn measure(path: &Path, limit: DurationLimit) -> Result<(u64, u32)> {
    let io = |source| Error::Io { path: path.into(), source };
    let opened = SoundFile::new(path, whole(path)?)?;
    if let SoundFile::Flac(reader) = &opened
        && let Some(samples) = reader.info().samples.filter(|&samples| samples > 0)
        && reader.info().channels == 1
    {
        let part = tags::without_front(whole(path)?).and_then(tags::without_end);
        let ending = part.and_then(|mut part| flac_check::is_complete(&mut part, &reader.info()));
        if ending.map_err(io)? {
            return Ok((samples, opened.sample_rate()));
        }
    }
    count(path, whole(path)?, Channel::Only, limit)
}

/// Samples and rate of a file that is decoded for that, in memory that does not grow with its length.
pub(crate) fn count(
    path: &Path,
    part: FileRange,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(u64, u32)> {
    let mut decoder = Decoder::new(path, part, channel, limit, BLOCK)?;
    while decoder.read(path)? {
        decoder.take();
    }
    Ok((decoder.length(), decoder.sample_rate))
}

/// Samples of a WAV file that are decoded at a time, all channels together.
const BLOCK: usize = 1 << 14;

/// Reads a whole file at its own sample rate.
pub(crate) fn read_channel(
    path: &Path,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(Audio, Option<AudioChange>)> {
    read_part(path, whole(path)?, channel, limit)
}

/// [`read_audio`] of a file that may not be longer than so many seconds.
pub(crate) fn read_within(path: &Path, seconds: f64) -> Result<Audio> {
    Ok(read_channel(path, Channel::Only, DurationLimit::Seconds(seconds))?.0)
}

/// Reads a part of a file that is a sound file of its own; `path` is for messages.
pub(crate) fn read_part(
    path: &Path,
    part: FileRange,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(Audio, Option<AudioChange>)> {
    Decoder::new(path, part, channel, limit, usize::MAX)?.read_all(path)
}

/// The samples `[start, start + count)`, checked.
pub(crate) fn segment<'a>(path: &Path, whole: &'a Audio, start: u64, count: u64) -> Result<&'a [f32]> {
    let found = whole.samples.len() as u64;
    match start.checked_add(count) {
        Some(end) if count > 0 && end <= found => Ok(&whole.samples[start as usize..end as usize]),
        _ => Err(Error::Segment { path: path.into(), start, count, found }),
    }
}

/// Value of one step of a `bits`-bit integer sample.
fn full_scale(bits: u32) -> f64 {
    0.5f64.powi(bits as i32 - 1)
}

fn format_error(path: &Path, expected: &'static str, found: impl ToString) -> Error {
    Error::Format { path: path.into(), expected, found: found.to_string() }
}
