//! An utterance: a transcript and the pieces of sound that it is made of.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::audio::{AudioChange, Channel, Conversion, DurationLimit, FileRange};
use crate::files::open_regular;
use crate::{Audio, Error, Result, audio, decode_cache};

/// One line of a manifest, with its paths resolved.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Utterance {
    /// Unique within its manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Speaker label.
    pub speaker: Option<String>,
    /// FileRange of the data set that is reported apart, such as `seen` and `unseen`.
    pub subset: Option<String>,
    /// `train`, `dev`, `test` or what the manifest says.
    pub split: Option<String>,
    /// Length in seconds, as the manifest says.
    pub seconds: f64,
    /// Samples per second, if the manifest says.
    pub sample_rate: Option<u32>,
    /// Length in samples, if the manifest says.
    pub num_samples: Option<usize>,
    /// CRC-32 of the samples as little-endian 16-bit integers, if the manifest says.
    pub crc32: Option<u32>,
    /// What the audio is joined from, in order.
    pub segments: Vec<AudioSegment>,
}

/// A stretch of an utterance's audio.
#[derive(Clone, Debug, PartialEq)]
pub enum AudioSegment {
    /// Exact zeros, `sample_rate * ms / 1000` of them.
    Silence {
        /// Length in milliseconds.
        ms: u32,
    },
    /// Samples of a file.
    Sound {
        /// The file.
        path: PathBuf,
        /// Which of its samples.
        span: Span,
    },
}

/// Which part of a file a piece is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// All of it.
    Whole,
    /// Samples `[start, start + count)`.
    Samples {
        /// First sample.
        start: u64,
        /// Number of samples.
        count: u64,
    },
    /// Bytes `[start, start + length)`, which are a sound file of their own: a member of a tar shard.
    Member {
        /// First byte.
        start: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Seconds `[start, start + length)`, each end rounded to a sample.
    Seconds {
        /// Beginning in seconds.
        start: f64,
        /// Length in seconds.
        length: f64,
    },
}

/// A segment given in seconds may end this much after its file does: durations in seconds are often rounded.
const SLACK_SECONDS: f64 = 0.05;

impl Utterance {
    /// The files that its audio is read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.segments.iter().filter_map(|piece| match piece {
            AudioSegment::Sound { path, .. } => Some(path.as_path()),
            AudioSegment::Silence { .. } => None,
        })
    }

    /// Reads the audio, joining its pieces without fades or level changes, and checks it against the manifest.
    ///
    /// # Errors
    /// A file that cannot be read or has several channels; a rate other than `sample_rate`; another number of samples or another
    /// CRC-32 than the manifest gives. Each names the utterance, the file, what was expected and what was found.
    ///
    /// Cost: O(samples). Files with several recordings are decoded once per process (see [`crate::read_segment`]).
    pub fn audio(&self, sample_rate: u32) -> Result<Audio> {
        Ok(self.audio_as(sample_rate, &Conversion::default())?.0)
    }

    /// [`Utterance::audio`], from files that may have to be converted; says what was done to them, each thing once.
    ///
    /// Pieces are joined, and checked against the manifest, before they are resampled; those of another rate than the first are
    /// resampled to that before.
    ///
    /// No file is decoded much beyond the length that the manifest gives.
    ///
    /// # Errors
    /// Those of [`Utterance::audio`], but for what `conversion` allows; [`Error::TooLong`] for a file much longer than the manifest says; pieces of different sample rates, if the manifest gives the
    /// rate, the number or the checksum of their samples.
    pub fn audio_as(&self, sample_rate: u32, conversion: &Conversion) -> Result<(Audio, Vec<AudioChange>)> {
        self.audio_within(sample_rate, conversion, self.limit())
    }

    /// How much of a file is decoded: what the manifest gives, and a tolerance.
    fn limit(&self) -> DurationLimit {
        match (self.num_samples, self.sample_rate) {
            (Some(samples), Some(rate)) => DurationLimit::Samples(samples as u64 + u64::from(rate)),
            _ => DurationLimit::near(self.seconds),
        }
    }

    /// [`Utterance::audio_as`], with another limit for each file.
    pub(crate) fn audio_within(
        &self,
        sample_rate: u32,
        conversion: &Conversion,
        limit: DurationLimit,
    ) -> Result<(Audio, Vec<AudioChange>)> {
        let own = if conversion.resample { self.own_rate()?.unwrap_or(sample_rate) } else { sample_rate };
        if own != sample_rate {
            audio::check_rate(self.first_path(), own).map_err(|e| self.named(e))?;
        }
        let rate_error = |path: &Path, expected, found| Error::SampleRate {
            utterance: self.id.clone(),
            path: path.into(),
            expected,
            found,
        };
        if let Some(said) = self.sample_rate.filter(|&said| said != own) {
            return Err(rate_error(self.first_path(), own, said));
        }
        let mut samples = Vec::new();
        let mut changes = BTreeSet::new();
        for piece in &self.segments {
            match piece {
                AudioSegment::Silence { ms } => {
                    let count = u64::from(own) * u64::from(*ms) / 1000;
                    samples.resize(samples.len() + count as usize, 0.0);
                }
                AudioSegment::Sound { path, span } => {
                    let before = samples.len();
                    let (found, change) = append(&mut samples, path, *span, conversion.channel, limit)
                        .map_err(|e| self.named(e))?;
                    changes.extend(change);
                    if found == own {
                        continue;
                    }
                    // Whoever gives a rate, a number or a checksum of the samples means samples of one rate.
                    let one =
                        self.sample_rate.is_some() || self.num_samples.is_some() || self.crc32.is_some();
                    if one || !conversion.resample {
                        return Err(rate_error(path, own, found));
                    }
                    let piece = Audio { samples: samples.split_off(before), sample_rate: found };
                    let file = |e| Error::File { path: path.clone(), source: Box::new(e) };
                    let piece = audio::resample(&piece, own).map_err(|e| self.named(file(e)))?;
                    samples.extend(piece.samples);
                    changes.insert(AudioChange::Resampled { from: found, to: own });
                }
            }
        }
        let mut audio = Audio { samples, sample_rate: own };
        self.check(&audio)?;
        if own != sample_rate {
            audio = audio::resample(&audio, sample_rate).map_err(|e| {
                let source = Box::new(e);
                self.named(Error::File { path: self.first_path().into(), source })
            })?;
            changes.insert(AudioChange::Resampled { from: own, to: sample_rate });
        }
        Ok((audio, changes.into_iter().collect()))
    }

    /// The sample rate that the manifest gives, or else the first file.
    fn own_rate(&self) -> Result<Option<u32>> {
        match (self.sample_rate, self.first_path()) {
            (None, path) if path != Path::new("") => {
                audio::sample_rate(path).map(Some).map_err(|e| self.named(e))
            }
            (said, _) => Ok(said),
        }
    }

    fn named(&self, error: Error) -> Error {
        Error::Utterance { utterance: self.id.clone(), source: Box::new(error) }
    }

    fn check(&self, audio: &Audio) -> Result<()> {
        let (utterance, path) = (|| self.id.clone(), || self.first_path().into());
        let found = audio.samples.len();
        if let Some(expected) = self.num_samples.filter(|&n| n != found) {
            return Err(Error::Length { utterance: utterance(), path: path(), expected, found });
        }
        if let Some(expected) = self.crc32 {
            let found = audio.crc32();
            if found != expected {
                return Err(Error::Checksum { utterance: utterance(), path: path(), expected, found });
            }
        }
        Ok(())
    }

    fn first_path(&self) -> &Path {
        let path = |p: &'_ AudioSegment| matches!(p, AudioSegment::Sound { .. });
        match self.segments.iter().find(|p| path(p)) {
            Some(AudioSegment::Sound { path, .. }) => path,
            _ => Path::new(""),
        }
    }
}

impl Span {
    /// First sample and number of samples, of a file of so many at that rate.
    fn samples(self, all: u64, rate: u32) -> (u64, u64) {
        match self {
            Span::Whole | Span::Member { .. } => (0, all),
            Span::Samples { start, count } => (start, count),
            Span::Seconds { start, length } => {
                let rate = f64::from(rate);
                let first = (start * rate).round() as u64;
                let end = ((start + length) * rate).round() as u64;
                let slack = (SLACK_SECONDS * rate) as u64;
                let end = if end > all && end <= all + slack { all } else { end };
                (first, end.saturating_sub(first))
            }
        }
    }

    /// Fails if a file of so many samples does not have these.
    pub(crate) fn check(self, path: &Path, all: u64, rate: u32) -> Result<()> {
        let (start, count) = self.samples(all, rate);
        match start.checked_add(count) {
            Some(end) if count > 0 && end <= all => Ok(()),
            _ => Err(Error::Segment { path: path.into(), start, count, found: all }),
        }
    }
}

/// Appends a span of a file; returns the file's sample rate and what was done to it.
fn append(
    samples: &mut Vec<f32>,
    path: &Path,
    span: Span,
    channel: Channel,
    limit: DurationLimit,
) -> Result<(u32, Option<AudioChange>)> {
    // Whole files are used once; only files that hold several utterances are worth keeping.
    if let Span::Whole | Span::Member { .. } = span {
        let (whole, change) = match span {
            Span::Member { start, length } => {
                let part = open_regular(path).and_then(|file| FileRange::new(file, start, length));
                let part = part.map_err(|source| Error::Io { path: path.into(), source })?;
                audio::read_part(path, part, channel, limit)?
            }
            _ => audio::read_channel(path, channel, limit)?,
        };
        if samples.is_empty() {
            *samples = whole.samples;
        } else {
            samples.extend_from_slice(&whole.samples);
        }
        return Ok((whole.sample_rate, change));
    }
    let (whole, change) = decode_cache::read(path, channel)?;
    let (start, count) = span.samples(whole.samples.len() as u64, whole.sample_rate);
    samples.extend_from_slice(audio::segment(path, &whole, start, count)?);
    Ok((whole.sample_rate, change))
}
