//! Waveform augmentation: random speed, which changes tempo and pitch together.

use std::f64::consts::PI;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::{check_probability, default_probability};
use crate::Result;
use crate::features::setting_error;

/// Settings of random speeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeedConfig {
    /// Smallest and largest factor of the length; above 1: longer and slower.
    ///
    /// The factor is drawn uniformly. The default, 0.85 and 1.15, is MLPerf's.
    pub rates: [f64; 2],
    /// Probability of changing the speed of an utterance.
    pub probability: f64,
}

impl Default for SpeedConfig {
    fn default() -> Self {
        Self { rates: [0.85, 1.15], probability: default_probability() }
    }
}

impl SpeedConfig {
    pub(super) fn check(&self) -> Result<()> {
        let [low, high] = self.rates;
        for rate in [low, high] {
            if !RATE_RANGE.contains(&rate) || low > high {
                return Err(setting_error("speed.rates", "two factors from 0.5 to 2, in order", rate));
            }
        }
        check_probability("speed.probability", self.probability)
    }

    /// Draws the factor of an utterance.
    pub(super) fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Option<f64> {
        let [low, high] = self.rates;
        (rng.random::<f64>() < self.probability).then(|| rng.random_range(low..=high))
    }
}

/// Supported factors of the length.
const RATE_RANGE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Zero crossings of the kernel on either side.
const LOBES: usize = 16;
/// Samples under the kernel.
///
/// They are at offsets `1 - LOBES..=LOBES` from the sample at or before its center.
const TAPS: usize = 2 * LOBES;

/// Stretches a signal by a factor r, changing the pitch.
///
/// The signal x of n samples is resampled to r times its rate and played at its original rate:
///
/// ```text
/// y[i] = Σ x[k] sinc(k - i/r) (1 + cos(π (k - i/r) / 16)) / 2
/// over |k - i/r| ≤ 16, for i < ceil(r n)
/// ```
/// The cut-off of this Hann-windowed sinc is not lowered for r below 1, so frequencies above half
/// the new rate alias. MLPerf's systems train on this (the resampler of their data-loading library,
/// which reads the kernel from a table).
///
/// # Errors
/// A rate outside 0.5 to 2.
///
/// Cost: O(r n) of 32 products each, in f64.
pub fn change_speed(samples: &[f32], rate: f64) -> Result<Vec<f32>> {
    if !RATE_RANGE.contains(&rate) {
        return Err(setting_error("rate", "0.5 to 2", rate));
    }
    if rate == 1.0 {
        return Ok(samples.to_vec());
    }
    // Zeros under the kernel before and after the signal.
    let mut padded = vec![0f64; samples.len() + 2 * TAPS];
    padded[TAPS..].iter_mut().zip(samples).for_each(|(slot, &x)| *slot = f64::from(x));
    let kernel = Kernel::new();
    let length = (samples.len() as f64 * rate).ceil() as usize;
    let sample = |i: usize| {
        let position = i as f64 / rate;
        let integer_part = position as usize;
        let first_tap = TAPS + integer_part + 1 - LOBES;
        kernel.apply(&padded[first_tap..first_tap + TAPS], position - integer_part as f64) as f32
    };
    Ok((0..length).map(sample).collect())
}

/// The position-independent factors of the kernel.
struct Kernel {
    /// `(-1)^(j+1) cos(π j / 16)` of each tap j.
    cos: [f64; TAPS],
    /// `(-1)^(j+1) sin(π j / 16)`.
    sin: [f64; TAPS],
    /// `(-1)^(j+1)`.
    sign: [f64; TAPS],
    /// j: offset of the tap from the sample at or before the center.
    offset: [f64; TAPS],
}

impl Kernel {
    fn new() -> Self {
        let offset: [f64; TAPS] = std::array::from_fn(|index| index as f64 + 1.0 - LOBES as f64);
        let sign = offset.map(|j| if j.rem_euclid(2.0) == 0.0 { -1.0 } else { 1.0 });
        let angle = |index: usize| PI * offset[index] / LOBES as f64;
        let cos = std::array::from_fn(|index| sign[index] * angle(index).cos());
        let sin = std::array::from_fn(|index| sign[index] * angle(index).sin());
        Self { cos, sin, sign, offset }
    }

    /// Returns the weighted sum of samples around a center.
    ///
    /// The center is a fraction `f` of a sample after the one at offset 0.
    ///
    /// `sinc(j - f) = (-1)^(j+1) sin(π f) / (π (j - f))` for f in 0..1, and the cosine of a
    /// difference is a sum of products, so two sines and one cosine serve all taps.
    fn apply(&self, samples: &[f64], f: f64) -> f64 {
        if f == 0.0 {
            return samples[LOBES - 1];
        }
        let (sin, cos) = (PI * f / LOBES as f64).sin_cos();
        let mut products = [0f64; TAPS];
        let parts = self.sign.iter().zip(&self.cos).zip(&self.sin).zip(&self.offset).zip(samples);
        for (product, ((((sign, c), s), offset), x)) in products.iter_mut().zip(parts) {
            *product = x * (sign + c * cos + s * sin) / (offset - f);
        }
        // Four partial sums for speed; their order is fixed.
        let partial_sums =
            products.chunks_exact(4).fold([0f64; 4], |sums, four| std::array::from_fn(|i| sums[i] + four[i]));
        let sum = (partial_sums[0] + partial_sums[1]) + (partial_sums[2] + partial_sums[3]);
        sum * (PI * f).sin() / (2.0 * PI)
    }
}
