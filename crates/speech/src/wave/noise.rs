//! Noise under an utterance.

use std::path::PathBuf;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::sound_set::SoundSet;
use super::{all, check_share};
use crate::Result;
use crate::features::setting;

/// Random noise at random levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseConfig {
    /// Its sounds: lines as [`read_manifest`](crate::read_manifest) knows them, of which only the file is needed.
    pub manifest: PathBuf,
    /// Smallest and largest ratio of signal to noise in decibels, uniform between them.
    pub snr_db: [f64; 2],
    /// Share of the utterances that get noise.
    #[serde(default = "all")]
    pub share: f64,
}

/// Longest sound of noise; a part of a longer one is a line with `offset_samples` and `num_samples`.
pub(super) const MOST_SECONDS: f64 = 3600.0;

impl NoiseConfig {
    pub(super) fn check(&self) -> Result<()> {
        let [low, high] = self.snr_db;
        for db in [low, high] {
            if !(-40.0..=100.0).contains(&db) || low > high {
                return Err(setting("noise.snr_db", "two ratios from -40 to 100, in order", db));
            }
        }
        check_share("noise.share", self.share)
    }

    /// A sound from a random place on, over and over until the utterance ends.
    pub(super) fn apply(
        &self,
        mut samples: Vec<f32>,
        sounds: &SoundSet,
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Vec<f32>> {
        if rng.random::<f64>() >= self.share {
            return Ok(samples);
        }
        let [low, high] = self.snr_db;
        let snr_db = rng.random_range(low..=high);
        let (noise, _) = sounds.draw(rng)?;
        let from = rng.random_range(0..noise.samples.len());
        add_noise(&mut samples, &noise.samples, from, snr_db);
        Ok(samples)
    }
}

/// Adds a stretch of noise, which begins at `from` and starts over where the noise ends:
///
/// ```text
/// y[n] = x[n] + g v[(from + n) mod len]     g² = 10^(-snr_db/10) Σ x² / Σ v²     sums over the utterance
/// ```
/// Where either sum is 0, nothing is added.
pub fn add_noise(samples: &mut [f32], noise: &[f32], from: usize, snr_db: f64) {
    let energy = |x: f32| f64::from(x).powi(2);
    let stretch = || noise.iter().cycle().skip(from % noise.len().max(1)).take(samples.len());
    let (signal, other): (f64, f64) =
        (samples.iter().copied().map(energy).sum(), stretch().copied().map(energy).sum());
    if signal == 0.0 || other == 0.0 {
        return;
    }
    let gain = (signal / other).sqrt() * 10f64.powf(-snr_db / 20.0);
    let added: Vec<f64> = stretch().map(|&v| gain * f64::from(v)).collect();
    samples.iter_mut().zip(added).for_each(|(x, v)| *x = (f64::from(*x) + v) as f32);
}
