//! `Utterance`: a transcript and the audio segments of a manifest line; reads the audio.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::audio::{AudioChange, Channel, Conversion, DurationLimit, FileRange};
use crate::files::open_regular;
use crate::{Audio, Error, Result, audio, decode_cache};

/// A line of a manifest with resolved paths.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Utterance {
    /// Id, unique in its manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Speaker label.
    pub speaker: Option<String>,
    /// Part with a separate score, such as `seen` and `unseen`.
    pub subset: Option<String>,
    /// `train`, `dev`, `test` or another split.
    pub split: Option<String>,
    /// Length in seconds, from the manifest.
    pub seconds: f64,
    /// Samples per second, if in the manifest.
    pub sample_rate: Option<u32>,
    /// Length in samples, if in the manifest.
    pub num_samples: Option<usize>,
    /// CRC-32 of the samples as little-endian 16-bit integers, if in the manifest.
    pub crc32: Option<u32>,
    /// The segments that form the audio, in order.
    pub segments: Vec<AudioSegment>,
}

/// A segment of an utterance's audio.
#[derive(Clone, Debug, PartialEq)]
pub enum AudioSegment {
    /// Zeros, `sample_rate * ms / 1000` of them.
    Silence {
        /// Length in milliseconds.
        ms: u32,
    },
    /// Samples of a file.
    Sound {
        /// The file.
        path: PathBuf,
        /// The part of the file.
        span: Span,
    },
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// The whole file.
    Whole,
    /// Samples `[start, start + count)`.
    Samples {
        /// First sample.
        start: u64,
        /// Number of samples.
        count: u64,
    },
    /// Bytes `[start, start + length)`, an audio file in a tar shard.
    Member {
        /// First byte.
        start: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Seconds `[start, start + length)`, each end rounded to a sample.
    Seconds {
        /// Start in seconds.
        start: f64,
        /// Length in seconds.
        length: f64,
    },
}

/// Tolerated excess of a segment in seconds beyond its file; durations are often rounded.
const END_TOLERANCE_SECONDS: f64 = 0.05;

impl Utterance {
    /// Iterates over the files of the audio.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.segments.iter().filter_map(|segment| match segment {
            AudioSegment::Sound { path, .. } => Some(path.as_path()),
            AudioSegment::Silence { .. } => None,
        })
    }

    /// Reads the audio and checks it against the manifest.
    ///
    /// Segments are joined without fades or level changes.
    ///
    /// # Errors
    /// A file that cannot be read or has several channels; a rate other than `sample_rate`; a
    /// number of samples or a CRC-32 that differs from the manifest. Each error names the
    /// utterance, the file, and the expected and actual values.
    ///
    /// Cost: O(samples). Files with several recordings are decoded once per process (see
    /// [`crate::read_segment`]).
    pub fn audio(&self, sample_rate: u32) -> Result<Audio> {
        Ok(self.audio_as(sample_rate, &Conversion::default())?.0)
    }

    /// [`Utterance::audio`] with conversions; returns the applied ones, without duplicates.
    ///
    /// Segments are joined and checked against the manifest before resampling; segments of another
    /// rate than the first are resampled to it before. No file is decoded far beyond its length in
    /// the manifest.
    ///
    /// # Errors
    /// Those of [`Utterance::audio`] that `conversion` does not prevent; [`Error::TooLong`] for a
    /// file much longer than in the manifest; segments of different sample rates, if the manifest
    /// has the rate, the number or the checksum of the samples.
    pub fn audio_as(&self, sample_rate: u32, conversion: &Conversion) -> Result<(Audio, Vec<AudioChange>)> {
        self.audio_within(sample_rate, conversion, self.duration_limit())
    }

    /// Returns the length to decode: that of the manifest with a tolerance.
    fn duration_limit(&self) -> DurationLimit {
        match (self.num_samples, self.sample_rate) {
            (Some(samples), Some(rate)) => DurationLimit::Samples(samples as u64 + u64::from(rate)),
            _ => DurationLimit::approximately(self.seconds),
        }
    }

    /// [`Utterance::audio_as`] with another limit for each file.
    pub(crate) fn audio_within(
        &self,
        sample_rate: u32,
        conversion: &Conversion,
        limit: DurationLimit,
    ) -> Result<(Audio, Vec<AudioChange>)> {
        // The rate at which the segments are joined.
        let native_rate =
            if conversion.resample { self.native_rate()?.unwrap_or(sample_rate) } else { sample_rate };
        if native_rate != sample_rate {
            audio::check_rate(self.first_path(), native_rate).map_err(|error| self.in_utterance(error))?;
        }
        let rate_error = |path: &Path, expected, found| Error::SampleRate {
            utterance: self.id.clone(),
            path: path.into(),
            expected,
            found,
        };
        if let Some(declared) = self.sample_rate.filter(|&declared| declared != native_rate) {
            return Err(rate_error(self.first_path(), native_rate, declared));
        }
        // Joins the segments.
        let mut samples = Vec::new();
        let mut changes = BTreeSet::new();
        for segment in &self.segments {
            match segment {
                AudioSegment::Silence { ms } => {
                    let count = u64::from(native_rate) * u64::from(*ms) / 1000;
                    samples.resize(samples.len() + count as usize, 0.0);
                }
                AudioSegment::Sound { path, span } => {
                    let start = samples.len();
                    let (rate, change) = append_span(&mut samples, path, *span, conversion.channel, limit)
                        .map_err(|error| self.in_utterance(error))?;
                    changes.extend(change);
                    if rate == native_rate {
                        continue;
                    }
                    // A rate, a number or a checksum of samples refers to samples of one rate.
                    let needs_one_rate =
                        self.sample_rate.is_some() || self.num_samples.is_some() || self.crc32.is_some();
                    if needs_one_rate || !conversion.resample {
                        return Err(rate_error(path, native_rate, rate));
                    }
                    // Resamples the segment to the rate of the first one.
                    let audio = Audio { samples: samples.split_off(start), sample_rate: rate };
                    let file_error = |error| Error::File { path: path.clone(), source: Box::new(error) };
                    let audio = audio::resample(&audio, native_rate)
                        .map_err(|error| self.in_utterance(file_error(error)))?;
                    samples.extend(audio.samples);
                    changes.insert(AudioChange::Resampled { from: rate, to: native_rate });
                }
            }
        }
        // Checks the joined audio, then resamples it.
        let mut audio = Audio { samples, sample_rate: native_rate };
        self.check_audio(&audio)?;
        if native_rate != sample_rate {
            audio = audio::resample(&audio, sample_rate).map_err(|error| {
                let source = Box::new(error);
                self.in_utterance(Error::File { path: self.first_path().into(), source })
            })?;
            changes.insert(AudioChange::Resampled { from: native_rate, to: sample_rate });
        }
        Ok((audio, changes.into_iter().collect()))
    }

    /// Returns the sample rate of the manifest or the first file.
    fn native_rate(&self) -> Result<Option<u32>> {
        match (self.sample_rate, self.first_path()) {
            (None, path) if path != Path::new("") => {
                audio::sample_rate(path).map(Some).map_err(|error| self.in_utterance(error))
            }
            (rate, _) => Ok(rate),
        }
    }

    /// Adds the id of the utterance to an error.
    fn in_utterance(&self, error: Error) -> Error {
        Error::Utterance { utterance: self.id.clone(), source: Box::new(error) }
    }

    /// Checks length and checksum against the manifest.
    fn check_audio(&self, audio: &Audio) -> Result<()> {
        let (utterance, path) = (|| self.id.clone(), || self.first_path().into());
        let length = audio.samples.len();
        if let Some(expected) = self.num_samples.filter(|&n| n != length) {
            return Err(Error::Length { utterance: utterance(), path: path(), expected, found: length });
        }
        if let Some(expected) = self.crc32 {
            let crc32 = audio.crc32();
            if crc32 != expected {
                return Err(Error::Checksum { utterance: utterance(), path: path(), expected, found: crc32 });
            }
        }
        Ok(())
    }

    /// Returns the first file; an empty path if there is none.
    fn first_path(&self) -> &Path {
        let is_sound = |segment: &'_ AudioSegment| matches!(segment, AudioSegment::Sound { .. });
        match self.segments.iter().find(|segment| is_sound(segment)) {
            Some(AudioSegment::Sound { path, .. }) => path,
            _ => Path::new(""),
        }
    }
}

impl Span {
    /// Returns first sample and sample count, in a file of `num_samples`.
    fn start_and_count(self, num_samples: u64, rate: u32) -> (u64, u64) {
        match self {
            Span::Whole | Span::Member { .. } => (0, num_samples),
            Span::Samples { start, count } => (start, count),
            Span::Seconds { start, length } => {
                let rate = f64::from(rate);
                let first_sample = (start * rate).round() as u64;
                let end = ((start + length) * rate).round() as u64;
                let tolerance = (END_TOLERANCE_SECONDS * rate) as u64;
                let end = if end > num_samples && end <= num_samples + tolerance { num_samples } else { end };
                (first_sample, end.saturating_sub(first_sample))
            }
        }
    }

    /// Checks that a file of `num_samples` samples has this span.
    pub(crate) fn check(self, path: &Path, num_samples: u64, rate: u32) -> Result<()> {
        let (start, count) = self.start_and_count(num_samples, rate);
        match start.checked_add(count) {
            Some(end) if count > 0 && end <= num_samples => Ok(()),
            _ => Err(Error::Segment { path: path.into(), start, count, found: num_samples }),
        }
    }
}

/// Appends a span of a file; returns the sample rate and the conversion.
fn append_span(
    samples: &mut Vec<f32>,
    path: &Path,
    span: Span,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(u32, Option<AudioChange>)> {
    // Whole files are used once; only files with several utterances are cached.
    if let Span::Whole | Span::Member { .. } = span {
        let (audio, change) = match span {
            Span::Member { start, length } => {
                let range = open_regular(path).and_then(|file| FileRange::new(file, start, length));
                let range = range.map_err(|source| Error::Io { path: path.into(), source })?;
                audio::read_range(path, range, channel, limit)?
            }
            _ => audio::read_channel(path, channel, limit)?,
        };
        if samples.is_empty() {
            *samples = audio.samples;
        } else {
            samples.extend_from_slice(&audio.samples);
        }
        return Ok((audio.sample_rate, change));
    }
    let (audio, change) = decode_cache::read_file(path, channel)?;
    let (start, count) = span.start_and_count(audio.samples.len() as u64, audio.sample_rate);
    samples.extend_from_slice(audio::segment_samples(path, &audio, start, count)?);
    Ok((audio.sample_rate, change))
}
