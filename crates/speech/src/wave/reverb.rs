//! The room in which an utterance is heard.

use std::path::PathBuf;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::convolve::convolve;
use super::sound_set::{SoundSet, wrong};
use super::{all, check_share};
use crate::{Error, Result, Utterance};

/// Random rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReverbConfig {
    /// Their impulse responses: lines as [`read_manifest`](crate::read_manifest) knows them, of which only the file is needed.
    pub manifest: PathBuf,
    /// Share of the utterances that are heard in a room.
    #[serde(default = "all")]
    pub share: f64,
}

/// Longest impulse response.
pub(super) const MOST_SECONDS: f64 = 10.0;

impl ReverbConfig {
    pub(super) fn check(&self) -> Result<()> {
        check_share("reverb.share", self.share)
    }

    pub(super) fn apply(
        &self,
        samples: Vec<f32>,
        sounds: &SoundSet,
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Vec<f32>> {
        if rng.random::<f64>() >= self.share {
            return Ok(samples);
        }
        let (response, sound) = sounds.draw(rng)?;
        reverberate(&samples, &response.samples).ok_or_else(|| zeros(sound))
    }

    /// Fails for an impulse response of zeros.
    pub(super) fn check_responses(sounds: &SoundSet) -> Result<()> {
        sounds.check_each(|response, sound| match response.samples.iter().any(|&tap| tap != 0.0) {
            true => Ok(()),
            false => Err(zeros(sound)),
        })
    }
}

fn zeros(sound: &Utterance) -> Error {
    wrong(sound, "an impulse response that is not all zeros", format!("zeros (`{}`)", sound.id))
}

/// An utterance as it sounds in a room, as long and as loud as before; `None` if the impulse response is all zeros.
///
/// ```text
/// z[n] = Σ h[k] x[n + d - k]     y = z sqrt(Σ x² / Σ z²)     d the place of the largest |h|
/// ```
/// The largest tap is taken for the direct path, whose delay is left out, so that nothing moves in time.
pub fn reverberate(samples: &[f32], response: &[f32]) -> Option<Vec<f32>> {
    let (mut direct, mut largest) = (0, 0f32);
    for (k, tap) in response.iter().enumerate() {
        if tap.abs() > largest {
            (direct, largest) = (k, tap.abs());
        }
    }
    if largest == 0.0 {
        return None;
    }
    let heard = convolve(samples, response, direct);
    let before: f64 = samples.iter().map(|&x| f64::from(x).powi(2)).sum();
    let after: f64 = heard.iter().map(|x| x * x).sum();
    let gain = if after > 0.0 { (before / after).sqrt() } else { 0.0 };
    Some(heard.into_iter().map(|x| (gain * x) as f32).collect())
}
