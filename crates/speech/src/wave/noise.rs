//! Waveform augmentation: adds noise recordings at random signal-to-noise ratios.

use std::path::PathBuf;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::sound_set::SoundSet;
use super::{check_probability, default_probability};
use crate::Result;
use crate::features::setting_error;

/// Settings of random noise at random levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseConfig {
    /// Noise recordings: a manifest ([`read_manifest`](crate::read_manifest)) with files.
    pub manifest: PathBuf,
    /// Smallest and largest signal-to-noise ratio in decibels, drawn uniformly.
    pub snr_db: [f64; 2],
    /// Probability of adding noise to an utterance.
    #[serde(default = "default_probability")]
    pub probability: f64,
}

/// Longest noise recording in seconds.
///
/// Use `offset_samples` and `num_samples` for a part of a longer one.
pub(super) const MAX_SECONDS: f64 = 3600.0;

impl NoiseConfig {
    pub(super) fn check(&self) -> Result<()> {
        let [low, high] = self.snr_db;
        for db in [low, high] {
            if !(-40.0..=100.0).contains(&db) || low > high {
                return Err(setting_error("noise.snr_db", "two ratios from -40 to 100, in order", db));
            }
        }
        check_probability("noise.probability", self.probability)
    }

    /// Adds a recording, from a random position and repeated as needed.
    pub(super) fn apply(
        &self,
        mut samples: Vec<f32>,
        sounds: &SoundSet,
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Vec<f32>> {
        if rng.random::<f64>() >= self.probability {
            return Ok(samples);
        }
        let [low, high] = self.snr_db;
        let snr_db = rng.random_range(low..=high);
        let (noise, _) = sounds.draw(rng)?;
        let start = rng.random_range(0..noise.samples.len());
        add_noise(&mut samples, &noise.samples, start, snr_db);
        Ok(samples)
    }
}

/// Adds noise from its sample `start`, repeated where it ends.
///
/// ```text
/// y[n] = x[n] + g v[(start + n) mod len]     g² = 10^(-snr_db/10) Σ x² / Σ v²
/// ```
/// x: utterance; v: noise of `len` samples; g: gain. Sums are over the utterance.
///
/// If either sum is 0, nothing is added.
pub fn add_noise(samples: &mut [f32], noise: &[f32], start: usize, snr_db: f64) {
    let energy = |x: f32| f64::from(x).powi(2);
    let repeated_noise = || noise.iter().cycle().skip(start % noise.len().max(1)).take(samples.len());
    let (signal_energy, noise_energy): (f64, f64) =
        (samples.iter().copied().map(energy).sum(), repeated_noise().copied().map(energy).sum());
    if signal_energy == 0.0 || noise_energy == 0.0 {
        return;
    }
    let gain = (signal_energy / noise_energy).sqrt() * 10f64.powf(-snr_db / 20.0);
    let scaled_noise: Vec<f64> = repeated_noise().map(|&v| gain * f64::from(v)).collect();
    samples.iter_mut().zip(scaled_noise).for_each(|(x, v)| *x = (f64::from(*x) + v) as f32);
}
