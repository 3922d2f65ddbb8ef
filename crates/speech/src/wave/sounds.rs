//! Sounds of a manifest, to be drawn from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::{Rng, RngExt};

use crate::audio::{self, Conversion};
use crate::manifest::read_sounds;
use crate::utterance::{Piece, Span};
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
            let whole = |piece: &Piece| match piece {
                Piece::Sound { path, span: Span::Whole } => lengths[path.as_path()],
                _ => 0.0,
            };
            too_long(sound, sound.pieces.iter().map(whole).sum(), most_seconds)?;
        }
        let conversion = Conversion { resample, ..Conversion::default() };
        Ok(Self { sounds, sample_rate, conversion, most_seconds })
    }

    /// One of them, and where it is from.
    pub fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Result<(Audio, &Utterance)> {
        let one = &self.sounds[rng.random_range(0..self.sounds.len())];
        let (audio, _) = one.audio_as(self.sample_rate, &self.conversion)?;
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
