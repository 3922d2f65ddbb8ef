//! Audio files and raw PCM: reading, channel selection and resampling.
//!
//! [`read_audio`] reads a file at its own rate, [`read_audio_as`] converts it, and [`AudioChunks`]
//! decodes it piece by piece. FLAC is decoded by claxon, Opus by opus-decoder, and other compressed
//! formats by symphonia; rubato resamples. In this module, a *frame* is one sample of each channel.

mod aiff;
mod audio_chunks;
mod caf;
mod channels;
mod decoder;
mod file_format;
mod file_range;
mod flac;
mod flac_check;
mod iff;
mod mp4;
mod opus;
mod packets;
mod pcm;
mod resample;
mod sample_data;
mod sample_memory;
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
use decoder::{AudioFile, MonoDecoder, open_range};
pub(crate) use file_format::EXTENSIONS;
pub(crate) use file_range::FileRange;

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
    /// Returns the length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// Returns the CRC-32 (IEEE) of [`Audio::i16_samples`] in little-endian order.
    ///
    /// This is the `crc32` of a manifest.
    pub fn crc32(&self) -> u32 {
        crc32fast::hash(&self.i16_samples().flat_map(i16::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Returns the samples as 16-bit integers, rounded and clamped.
    ///
    /// The result is exact for audio decoded from 16 bits or fewer.
    pub fn i16_samples(&self) -> impl Iterator<Item = i16> {
        self.samples.iter().map(|&x| (x * 32768.0).round().clamp(-32768.0, 32767.0) as i16)
    }
}

/// Reads a whole mono audio file.
///
/// The first bytes decide the format, not the file name.
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
/// A WAV, AIFF or CAF file whose header has no length, such as one written to a pipe, is read to
/// its end. Encoder delay and padding are removed where the file declares them. Opus is decoded at
/// 48 kHz.
///
/// # Errors
/// A missing or unreadable file, another format, more than one channel, no sample, fewer samples
/// than the header declares, an MD5 that differs from that of the FLAC header, a sample that is NaN
/// or beyond ±2^31, or more samples than fit into the available [memory](crate::memory). Each error
/// names the path.
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

/// Reads one channel of a file at a given sample rate.
///
/// Also returns the changes that `conversion` made to the recording.
///
/// # Errors
/// Those of [`read_audio`]; a channel that the file does not have; another sample rate if
/// `conversion` does not resample, or one outside 1000 to 768,000 Hz.
///
/// Cost: O(samples), in addition to [`resample`] where the rate differs.
pub fn read_audio_as(
    path: &Path,
    sample_rate: u32,
    conversion: &Conversion,
) -> Result<(Audio, Vec<AudioChange>)> {
    let decoder =
        MonoDecoder::new(path, open_range(path)?, conversion.channel, DurationLimit::None, usize::MAX)?;
    let rate = decoder.sample_rate;
    // The rate is checked before anything is decoded.
    if rate != sample_rate {
        if !conversion.resample {
            return Err(Error::FileRate { path: path.into(), expected: sample_rate, found: rate });
        }
        check_rate(path, rate)?;
    }
    let (audio, change) = decoder.read_all(path)?;
    let mut changes: Vec<AudioChange> = change.into_iter().collect();
    if rate == sample_rate {
        return Ok((audio, changes));
    }
    changes.push(AudioChange::Resampled { from: rate, to: sample_rate });
    Ok((resample(&audio, sample_rate)?, changes))
}

/// Supported sample rates, in Hz.
pub(crate) const SAMPLE_RATES: RangeInclusive<u32> = 1000..=768_000;

/// Checks that a file's sample rate can be resampled.
///
/// Rates outside [`SAMPLE_RATES`] would need an unbounded amount of memory.
pub(crate) fn check_rate(path: &Path, found: u32) -> Result<()> {
    if SAMPLE_RATES.contains(&found) {
        return Ok(());
    }
    Err(format_error(path, "a sample rate from 1000 to 768000 Hz", format!("{found} Hz")))
}

/// Largest magnitude of a sample: floats may hold unscaled 32-bit integers.
const MAX_MAGNITUDE: f32 = 2_147_483_648.0;

/// Checks that samples are finite and within ±2^31.
///
/// `start` is the index of the first sample in the whole signal; it is used in the error only.
///
/// # Errors
/// [`Error::NotFinite`] for the first sample that is NaN or out of range.
pub fn check_samples(start: u64, samples: &[f32]) -> Result<()> {
    match samples.iter().position(|x| x.is_nan() || x.abs() > MAX_MAGNITUDE) {
        Some(index) => Err(Error::NotFinite { index: start as usize + index, found: samples[index] }),
        None => Ok(()),
    }
}

/// Returns the sample rate of a file's header.
pub(crate) fn sample_rate(path: &Path) -> Result<u32> {
    Ok(AudioFile::new(path, open_range(path)?)?.sample_rate())
}

/// Returns sample rate, channels and samples per channel of a file's header.
pub(crate) fn read_header(path: &Path) -> Result<(u32, u32, u64)> {
    let file = AudioFile::new(path, open_range(path)?)?;
    Ok((file.sample_rate(), file.channels(), file.declared_frames()))
}

/// Returns the samples per channel that a header declares, and the rate.
///
/// # Errors
/// [`Error::Truncated`] if a file of uncompressed samples or ADPCM ends before them.
pub(crate) fn declared_length(path: &Path, range: FileRange) -> Result<(u64, u32)> {
    let file = AudioFile::new(path, range)?;
    if let AudioFile::SampleData(reader) = &file {
        reader.check_length(path)?;
    }
    Ok((file.declared_frames(), file.sample_rate()))
}

/// Returns samples and rate of a complete mono file.
///
/// A FLAC file is measured by its header and last frame, any other file by decoding.
pub(crate) fn measure_length(path: &Path, limit: DurationLimit) -> Result<(u64, u32)> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let file = AudioFile::new(path, open_range(path)?)?;
    if let AudioFile::Flac(reader) = &file
        && let Some(samples) = reader.info().samples.filter(|&samples| samples > 0)
        && reader.info().channels == 1
    {
        let range = tags::without_leading_tags(open_range(path)?).and_then(tags::without_trailing_tags);
        let is_complete = range.and_then(|mut range| flac_check::is_complete(&mut range, &reader.info()));
        if is_complete.map_err(io_error)? {
            return Ok((samples, file.sample_rate()));
        }
    }
    count_samples(path, open_range(path)?, Channel::Only, limit)
}

/// Decodes a file to count its samples, in constant memory.
///
/// Returns samples and rate.
pub(crate) fn count_samples(
    path: &Path,
    range: FileRange,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(u64, u32)> {
    let mut decoder = MonoDecoder::new(path, range, channel, limit, SAMPLES_PER_BLOCK)?;
    while decoder.read(path)? {
        decoder.take();
    }
    Ok((decoder.length(), decoder.sample_rate))
}

/// Uncompressed samples that are decoded at a time, all channels together.
const SAMPLES_PER_BLOCK: usize = 1 << 14;

/// Reads a whole file at its own sample rate.
pub(crate) fn read_channel(
    path: &Path,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(Audio, Option<AudioChange>)> {
    read_range(path, open_range(path)?, channel, limit)
}

/// [`read_audio`] of a file of at most `max_seconds`.
pub(crate) fn read_within(path: &Path, max_seconds: f64) -> Result<Audio> {
    Ok(read_channel(path, Channel::Only, DurationLimit::Seconds(max_seconds))?.0)
}

/// Reads an audio file that is a byte range of another file.
///
/// `path` is used in messages only.
pub(crate) fn read_range(
    path: &Path,
    range: FileRange,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(Audio, Option<AudioChange>)> {
    MonoDecoder::new(path, range, channel, limit, usize::MAX)?.read_all(path)
}

/// Returns the samples `[start, start + count)`, checked against the file's length.
pub(crate) fn segment_samples<'a>(
    path: &Path,
    audio: &'a Audio,
    start: u64,
    count: u64,
) -> Result<&'a [f32]> {
    let length = audio.samples.len() as u64;
    match start.checked_add(count) {
        Some(end) if count > 0 && end <= length => Ok(&audio.samples[start as usize..end as usize]),
        _ => Err(Error::Segment { path: path.into(), start, count, found: length }),
    }
}

/// Returns the value of one step of a `bits`-bit integer sample.
fn full_scale(bits: u32) -> f64 {
    0.5f64.powi(bits as i32 - 1)
}

fn format_error(path: &Path, expected: &'static str, found: impl ToString) -> Error {
    Error::Format { path: path.into(), expected, found: found.to_string() }
}
