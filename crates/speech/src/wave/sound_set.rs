//! SoundSet of a manifest, to be drawn from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::{Rng, RngExt};

use crate::audio::{self, Conversion, DurationLimit};
use crate::manifest::read_sounds;
use crate::utterance::{AudioSegment, Span};
use crate::{Audio, Error, Result, Utterance};

/// SoundSet that are read when they are drawn.
#[derive(Debug)]
pub(super) struct SoundSet {
    sounds: Vec<Utterance>,
    sample_rate: u32,
    conversion: Conversion,
    most_seconds: f64,
}

impl SoundSet {
    /// Reads a manifest, and looks at the header and the length of each file.
    pub fn read(manifest: &Path, sample_rate: u32, resample: bool, most_seconds: f64) -> Result<Self> {
        let sounds = read_sounds(manifest)?;
        let files: BTreeSet<&Path> = sounds.iter().flat_map(Utterance::files).collect();
        let mut lengths = BTreeMap::new();
        for path in files {
            let (rate, channels, samples) = audio::promises(path)?;
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
            let whole = |piece: &AudioSegment| match piece {
                AudioSegment::Sound { path, span: Span::Whole } => lengths[path.as_path()],
                _ => 0.0,
            };
            too_long(sound, sound.segments.iter().map(whole).sum(), most_seconds)?;
        }
        let conversion = Conversion { resample, ..Conversion::default() };
        let sounds = Self { sounds, sample_rate, conversion, most_seconds };
        sounds.check_lengths()?;
        Ok(sounds)
    }

    /// Finds empty and cut files and parts beyond the end of a file before anything is drawn.
    ///
    /// A file whose header does not give its length is decoded for it, in memory that does not grow with the length.
    fn check_lengths(&self) -> Result<()> {
        let mut lengths = BTreeMap::new();
        for sound in &self.sounds {
            let named = |error| Error::Utterance { utterance: sound.id.clone(), source: Box::new(error) };
            for piece in &sound.segments {
                let AudioSegment::Sound { path, span } = piece else { continue };
                let (samples, rate) = match lengths.get(path) {
                    Some(&length) => length,
                    None => {
                        let limit = match span {
                            Span::Whole => DurationLimit::Seconds(self.most_seconds),
                            _ => DurationLimit::None,
                        };
                        let length = audio::measure(path, limit).map_err(named)?;
                        lengths.insert(path, length);
                        length
                    }
                };
                span.check(path, samples, rate).map_err(named)?;
            }
        }
        Ok(())
    }

    /// Decodes each sound once, and applies a check to it.
    pub fn check_each(&self, check: impl Fn(&Audio, &Utterance) -> Result<()>) -> Result<()> {
        let mut checked: Vec<&[AudioSegment]> = Vec::new();
        for sound in &self.sounds {
            if checked.last().is_none_or(|pieces| *pieces != sound.segments) {
                check(&self.decode(sound)?, sound)?;
                checked.push(&sound.segments);
            }
        }
        Ok(())
    }

    fn decode(&self, sound: &Utterance) -> Result<Audio> {
        let limit = DurationLimit::Seconds(self.most_seconds);
        Ok(sound.audio_within(self.sample_rate, &self.conversion, limit)?.0)
    }

    /// One of them, and where it is from.
    pub fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Result<(Audio, &Utterance)> {
        let one = &self.sounds[rng.random_range(0..self.sounds.len())];
        let audio = self.decode(one)?;
        too_long(one, audio.seconds(), self.most_seconds)?;
        Ok((audio, one))
    }
}

fn too_long(sound: &Utterance, seconds: f64, most: f64) -> Result<()> {
    if seconds <= most {
        return Ok(());
    }
    Err(wrong(sound, format!("a sound of at most {most} s"), format!("{seconds:.1} s")))
}

/// A sound that cannot be used.
pub(super) fn wrong(sound: &Utterance, expected: impl Into<String>, found: impl Into<String>) -> Error {
    let path = sound.files().next().unwrap_or(Path::new("")).into();
    Error::Sound { path, expected: expected.into(), found: found.into() }
}
