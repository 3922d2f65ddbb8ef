//! Waveform augmentation: speed, reverberation and noise.
//!
//! All random numbers come from one generator, a function of seed, epoch and utterance: the
//! augmentation does not depend on the order or the process of reading.
//!
//! ```
//! use rand::SeedableRng;
//! use rand_chacha::ChaCha8Rng;
//! use speech::{WaveAugment, WaveConfig, wave::SpeedConfig};
//!
//! let config = WaveConfig { speed: Some(SpeedConfig::default()), ..WaveConfig::default() };
//! let augment = WaveAugment::new(&config, 16_000, false)?;
//! let samples: Vec<f32> = (0..16_000).map(|n| (n as f32 * 0.05).sin()).collect();
//! let changed = augment.apply(samples, &mut ChaCha8Rng::seed_from_u64(1))?;
//! assert!((13_600..=18_400).contains(&changed.len()));
//! # Ok::<(), speech::Error>(())
//! ```

mod convolve;
mod noise;
mod reverb;
mod sound_set;
mod speed;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::audio::check_samples;
use crate::features::setting_error;
use crate::{Error, Result};

pub use noise::{NoiseConfig, add_noise};
pub use reverb::{ReverbConfig, reverberate};
pub use speed::{SpeedConfig, change_speed};

use sound_set::SoundSet;

/// Settings of waveform augmentation; disabled by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WaveConfig {
    /// Speed perturbation, applied first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedConfig>,
    /// Reverberation, applied second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverb: Option<ReverbConfig>,
    /// Noise, applied third, without reverberation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseConfig>,
}

impl WaveConfig {
    /// Checks the settings, without opening files.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        self.speed.as_ref().map_or(Ok(()), SpeedConfig::check)?;
        self.reverb.as_ref().map_or(Ok(()), ReverbConfig::check)?;
        self.noise.as_ref().map_or(Ok(()), NoiseConfig::check)
    }
}

/// Waveform augmentation with indexed sounds, which threads can share.
#[derive(Debug)]
pub struct WaveAugment {
    speed: Option<SpeedConfig>,
    reverb: Option<(ReverbConfig, SoundSet)>,
    noise: Option<(NoiseConfig, SoundSet)>,
}

impl WaveAugment {
    /// Reads the manifests and opens their files.
    ///
    /// Files must have the `sample_rate` of the utterances, unless `resample` is true.
    ///
    /// # Errors
    /// A setting out of range; a manifest or file that cannot be read; a file of another sample
    /// rate, of several channels, or that is too long. Each error names the file.
    pub fn new(config: &WaveConfig, sample_rate: u32, resample: bool) -> Result<Self> {
        config.check()?;
        let sounds = |manifest, max_seconds| SoundSet::read(manifest, sample_rate, resample, max_seconds);
        let reverb = match &config.reverb {
            Some(reverb) => {
                let responses = sounds(&reverb.manifest, reverb::MAX_SECONDS)?;
                ReverbConfig::check_responses(&responses)?;
                Some((reverb.clone(), responses))
            }
            None => None,
        };
        let noise = match &config.noise {
            Some(noise) => Some((noise.clone(), sounds(&noise.manifest, noise::MAX_SECONDS)?)),
            None => None,
        };
        Ok(Self { speed: config.speed.clone(), reverb, noise })
    }

    /// Returns whether nothing is ever changed, so that features can be reused.
    pub fn is_identity(&self) -> bool {
        self.speed.is_none() && self.reverb.is_none() && self.noise.is_none()
    }

    /// Returns the augmented utterance; deterministic for a generator state.
    ///
    /// # Errors
    /// No sample, a sample that is NaN or beyond ±2^31; a sound that cannot be read, or an impulse
    /// response of zeros.
    ///
    /// Cost: O(n) for speed and noise, O(n log h) for an impulse response of h samples, and reading
    /// the drawn sounds.
    pub fn apply(&self, samples: Vec<f32>, rng: &mut (impl Rng + ?Sized)) -> Result<Vec<f32>> {
        if samples.is_empty() {
            return Err(Error::EmptySignal);
        }
        check_samples(0, &samples)?;
        let mut samples = samples;
        if let Some(rate) = self.speed.as_ref().and_then(|speed| speed.draw(rng)) {
            samples = change_speed(&samples, rate)?;
        }
        if let Some((config, sounds)) = &self.reverb {
            samples = config.apply(samples, sounds, rng)?;
        }
        if let Some((config, sounds)) = &self.noise {
            samples = config.apply(samples, sounds, rng)?;
        }
        Ok(samples)
    }
}

/// Checks the probability of augmenting an utterance.
fn check_probability(field: &'static str, probability: f64) -> Result<()> {
    if (0.0..=1.0).contains(&probability) { Ok(()) } else { Err(setting_error(field, "0 to 1", probability)) }
}

fn default_probability() -> f64 {
    1.0
}
