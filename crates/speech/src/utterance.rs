//! An utterance: a transcript and the pieces of sound that it is made of.

use std::path::{Path, PathBuf};

use crate::{Audio, Error, Result, audio, packed};

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
    /// Part of the data set that is reported apart, such as `seen` and `unseen`.
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
    pub pieces: Vec<Piece>,
}

/// A stretch of an utterance's audio.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
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
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Sound { path, .. } => Some(path.as_path()),
            Piece::Silence { .. } => None,
        })
    }

    /// Reads the audio, joining its pieces without fades or level changes, and checks it against the manifest.
    ///
    /// # Errors
    /// A file that cannot be read; a rate other than `sample_rate` (nothing is resampled); another number of samples or another
    /// CRC-32 than the manifest gives. Each names the utterance, what was expected and what was found.
    ///
    /// Cost: O(samples). Files with several recordings are decoded once per process (see [`crate::read_segment`]).
    pub fn audio(&self, sample_rate: u32) -> Result<Audio> {
        let rate_error = |path: &Path, expected, found| Error::SampleRate {
            utterance: self.id.clone(),
            path: path.into(),
            expected,
            found,
        };
        if let Some(said) = self.sample_rate.filter(|&said| said != sample_rate) {
            return Err(rate_error(self.first_path(), sample_rate, said));
        }
        let mut samples = Vec::with_capacity(self.num_samples.map_or(0, |n| n.min(1 << 26)));
        for piece in &self.pieces {
            match piece {
                Piece::Silence { ms } => {
                    let count = u64::from(sample_rate) * u64::from(*ms) / 1000;
                    samples.resize(samples.len() + count as usize, 0.0);
                }
                Piece::Sound { path, span } => {
                    let named = |e| Error::Utterance { utterance: self.id.clone(), source: Box::new(e) };
                    let found = append(&mut samples, path, *span).map_err(named)?;
                    if found != sample_rate {
                        return Err(rate_error(path, sample_rate, found));
                    }
                }
            }
        }
        let audio = Audio { samples, sample_rate };
        self.check(&audio)?;
        Ok(audio)
    }

    fn check(&self, audio: &Audio) -> Result<()> {
        let utterance = || self.id.clone();
        let found = audio.samples.len();
        if let Some(expected) = self.num_samples.filter(|&n| n != found) {
            return Err(Error::Length { utterance: utterance(), expected, found });
        }
        if let Some(expected) = self.crc32 {
            let found = audio.crc32();
            if found != expected {
                return Err(Error::Checksum { utterance: utterance(), expected, found });
            }
        }
        Ok(())
    }

    fn first_path(&self) -> &Path {
        let path = |p: &'_ Piece| matches!(p, Piece::Sound { .. });
        match self.pieces.iter().find(|p| path(p)) {
            Some(Piece::Sound { path, .. }) => path,
            _ => Path::new(""),
        }
    }
}

/// Appends a span of a file and returns the file's sample rate.
fn append(samples: &mut Vec<f32>, path: &Path, span: Span) -> Result<u32> {
    // Whole files are used once; only files that hold several utterances are worth keeping.
    if span == Span::Whole {
        let whole = audio::read_audio(path)?;
        if samples.is_empty() {
            *samples = whole.samples;
        } else {
            samples.extend_from_slice(&whole.samples);
        }
        return Ok(whole.sample_rate);
    }
    let whole = packed::read(path)?;
    let (start, count) = match span {
        Span::Whole => (0, whole.samples.len() as u64),
        Span::Samples { start, count } => (start, count),
        Span::Seconds { start, length } => {
            let rate = f64::from(whole.sample_rate);
            let first = (start * rate).round() as u64;
            let end = ((start + length) * rate).round() as u64;
            let last = whole.samples.len() as u64;
            let slack = (SLACK_SECONDS * rate) as u64;
            let end = if end > last && end <= last + slack { last } else { end };
            (first, end.saturating_sub(first))
        }
    };
    samples.extend_from_slice(audio::segment(path, &whole, start, count)?);
    Ok(whole.sample_rate)
}
