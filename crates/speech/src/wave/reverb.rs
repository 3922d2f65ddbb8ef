//! Waveform augmentation: reverberation by random impulse responses.

use std::path::PathBuf;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::convolve::convolve;
use super::sound_set::{SoundSet, sound_error};
use super::{check_probability, default_probability};
use crate::{Error, Result, Utterance};

/// Settings of reverberation with random impulse responses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReverbConfig {
    /// Impulse responses: a manifest ([`read_manifest`](crate::read_manifest)) with files.
    pub manifest: PathBuf,
    /// Probability of reverberating an utterance.
    #[serde(default = "default_probability")]
    pub probability: f64,
}

/// Longest impulse response in seconds.
pub(super) const MAX_SECONDS: f64 = 10.0;

impl ReverbConfig {
    pub(super) fn check(&self) -> Result<()> {
        check_probability("reverb.probability", self.probability)
    }

    pub(super) fn apply(
        &self,
        samples: Vec<f32>,
        responses: &SoundSet,
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Vec<f32>> {
        if rng.random::<f64>() >= self.probability {
            return Ok(samples);
        }
        let (response, sound) = responses.draw(rng)?;
        reverberate(&samples, &response.samples).ok_or_else(|| all_zeros_error(sound))
    }

    /// Checks that no impulse response is all zeros.
    pub(super) fn check_responses(responses: &SoundSet) -> Result<()> {
        responses.check_each(|response, sound| match response.samples.iter().any(|&tap| tap != 0.0) {
            true => Ok(()),
            false => Err(all_zeros_error(sound)),
        })
    }
}

fn all_zeros_error(sound: &Utterance) -> Error {
    sound_error(sound, "an impulse response that is not all zeros", format!("zeros (`{}`)", sound.id))
}

/// Convolves an utterance with an impulse response.
///
/// The result has the length and the energy of the utterance; `None` if the response is all zeros.
///
/// ```text
/// z[n] = Σ h[k] x[n + d - k]     y = z sqrt(Σ x² / Σ z²)     d the index of the largest |h|
/// ```
/// x: utterance; h: impulse response; z: reverberant signal; y: result.
///
/// The largest tap is taken as the direct path; its delay is removed, so that nothing moves in
/// time.
pub fn reverberate(samples: &[f32], response: &[f32]) -> Option<Vec<f32>> {
    let (mut direct_path, mut largest) = (0, 0f32);
    for (k, tap) in response.iter().enumerate() {
        if tap.abs() > largest {
            (direct_path, largest) = (k, tap.abs());
        }
    }
    if largest == 0.0 {
        return None;
    }
    let reverberant = convolve(samples, response, direct_path);
    let dry_energy: f64 = samples.iter().map(|&x| f64::from(x).powi(2)).sum();
    let reverberant_energy: f64 = reverberant.iter().map(|x| x * x).sum();
    let gain = if reverberant_energy > 0.0 { (dry_energy / reverberant_energy).sqrt() } else { 0.0 };
    Some(reverberant.into_iter().map(|x| (gain * x) as f32).collect())
}
