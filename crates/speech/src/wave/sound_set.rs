//! `SoundSet`: noise recordings or impulse responses for waveform augmentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::{Rng, RngExt};

use crate::audio::{self, Conversion, DurationLimit};
use crate::manifest::read_sounds;
use crate::utterance::{AudioSegment, Span};
use crate::{Audio, Error, Result, Utterance};

/// Recordings that are decoded when they are drawn.
#[derive(Debug)]
pub(super) struct SoundSet {
    sounds: Vec<Utterance>,
    sample_rate: u32,
    conversion: Conversion,
    max_seconds: f64,
}

impl SoundSet {
    /// Reads a manifest and checks the header and length of each file.
    pub(super) fn read(manifest: &Path, sample_rate: u32, resample: bool, max_seconds: f64) -> Result<Self> {
        let sounds = read_sounds(manifest)?;
        let files: BTreeSet<&Path> = sounds.iter().flat_map(Utterance::files).collect();
        let mut lengths = BTreeMap::new();
        for path in files {
            let (rate, channels, samples) = audio::read_header(path)?;
            if rate != sample_rate {
                if !resample {
                    return Err(Error::FileRate { path: path.into(), expected: sample_rate, found: rate });
                }
                audio::check_rate(path, rate)?;
            }
            if channels != 1 {
                return Err(Error::Channels { path: path.into(), found: channels });
            }
            lengths.insert(path, samples as f64 / f64::from(rate));
        }
        for sound in &sounds {
            let whole_file_seconds = |segment: &AudioSegment| match segment {
                AudioSegment::Sound { path, span: Span::Whole } => lengths[path.as_path()],
                _ => 0.0,
            };
            check_seconds(sound, sound.segments.iter().map(whole_file_seconds).sum(), max_seconds)?;
        }
        let conversion = Conversion { resample, ..Conversion::default() };
        let sounds = Self { sounds, sample_rate, conversion, max_seconds };
        sounds.check_lengths()?;
        Ok(sounds)
    }

    /// Checks that files are neither empty nor truncated and contain their spans.
    ///
    /// A file whose header has no length is decoded, in constant memory.
    fn check_lengths(&self) -> Result<()> {
        let mut lengths = BTreeMap::new();
        for sound in &self.sounds {
            let in_utterance =
                |error| Error::Utterance { utterance: sound.id.clone(), source: Box::new(error) };
            for segment in &sound.segments {
                let AudioSegment::Sound { path, span } = segment else { continue };
                let (samples, rate) = match lengths.get(path) {
                    Some(&length) => length,
                    None => {
                        let limit = match span {
                            Span::Whole => DurationLimit::Seconds(self.max_seconds),
                            _ => DurationLimit::None,
                        };
                        let length = audio::measure_length(path, limit).map_err(in_utterance)?;
                        lengths.insert(path, length);
                        length
                    }
                };
                span.check(path, samples, rate).map_err(in_utterance)?;
            }
        }
        Ok(())
    }

    /// Decodes each recording once and applies a check.
    pub(super) fn check_each(&self, check: impl Fn(&Audio, &Utterance) -> Result<()>) -> Result<()> {
        let mut checked_segments: Vec<&[AudioSegment]> = Vec::new();
        for sound in &self.sounds {
            if checked_segments.last().is_none_or(|segments| *segments != sound.segments) {
                check(&self.decode(sound)?, sound)?;
                checked_segments.push(&sound.segments);
            }
        }
        Ok(())
    }

    fn decode(&self, sound: &Utterance) -> Result<Audio> {
        let limit = DurationLimit::Seconds(self.max_seconds);
        Ok(sound.audio_within(self.sample_rate, &self.conversion, limit)?.0)
    }

    /// Draws and decodes a recording.
    pub(super) fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Result<(Audio, &Utterance)> {
        let sound = &self.sounds[rng.random_range(0..self.sounds.len())];
        let audio = self.decode(sound)?;
        check_seconds(sound, audio.seconds(), self.max_seconds)?;
        Ok((audio, sound))
    }
}

fn check_seconds(sound: &Utterance, seconds: f64, max_seconds: f64) -> Result<()> {
    if seconds <= max_seconds {
        return Ok(());
    }
    Err(sound_error(sound, format!("a recording of at most {max_seconds} s"), format!("{seconds:.1} s")))
}

/// Returns the error of a recording that cannot be used.
pub(super) fn sound_error(sound: &Utterance, expected: impl Into<String>, found: impl Into<String>) -> Error {
    let path = sound.files().next().unwrap_or(Path::new("")).into();
    Error::Sound { path, expected: expected.into(), found: found.into() }
}
