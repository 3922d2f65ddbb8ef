//! Sounds of a manifest, to be drawn from.

use std::collections::BTreeSet;
use std::path::Path;

use rand::{Rng, RngExt};

use crate::audio::{self, Conversion};
use crate::manifest::read_sounds;
use crate::{Audio, Error, Result, Utterance};

/// Sounds that are read when they are drawn.
#[derive(Debug)]
pub(super) struct Sounds {
    sounds: Vec<Utterance>,
    sample_rate: u32,
    conversion: Conversion,
    most_seconds: f64,
}

impl Sounds {
    /// Reads a manifest, and looks at the header of each file.
    pub fn read(manifest: &Path, sample_rate: u32, resample: bool, most_seconds: f64) -> Result<Self> {
        let sounds = read_sounds(manifest)?;
        let files: BTreeSet<&Path> = sounds.iter().flat_map(Utterance::files).collect();
        for path in files {
            let found = audio::sample_rate(path)?;
            if found != sample_rate {
                if !resample {
                    return Err(Error::FileRate { path: path.into(), expected: sample_rate, found });
                }
                audio::check_rate(path, found)?;
            }
        }
        let conversion = Conversion { resample, ..Conversion::default() };
        Ok(Self { sounds, sample_rate, conversion, most_seconds })
    }

    /// One of them, and where it is from.
    pub fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Result<(Audio, &Utterance)> {
        let one = &self.sounds[rng.random_range(0..self.sounds.len())];
        let (audio, _) = one.audio_as(self.sample_rate, &self.conversion)?;
        if audio.seconds() > self.most_seconds {
            let expected = format!("a sound of at most {} s", self.most_seconds);
            return Err(wrong(one, expected, format!("{:.1} s", audio.seconds())));
        }
        Ok((audio, one))
    }
}

/// A sound that cannot be used.
pub(super) fn wrong(sound: &Utterance, expected: impl Into<String>, found: impl Into<String>) -> Error {
    let path = sound.files().next().unwrap_or(Path::new("")).into();
    Error::Sound { path, expected: expected.into(), found: found.into() }
}
