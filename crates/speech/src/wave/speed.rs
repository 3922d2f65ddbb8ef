//! Other speeds: tempo and pitch together, as a tape that runs slower or faster.

use std::f64::consts::PI;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::{all, check_share};
use crate::Result;
use crate::features::setting;

/// Random speeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeedConfig {
    /// Smallest and largest factor of the length, uniform between them: 0.85 and 1.15, as in MLPerf.
    pub rates: [f64; 2],
    /// Share of the utterances that are changed.
    pub share: f64,
}

impl Default for SpeedConfig {
    fn default() -> Self {
        Self { rates: [0.85, 1.15], share: all() }
    }
}

impl SpeedConfig {
    pub(super) fn check(&self) -> Result<()> {
        let [low, high] = self.rates;
        for rate in [low, high] {
            if !RATES.contains(&rate) || low > high {
                return Err(setting("speed.rates", "two factors from 0.5 to 2, in order", rate));
            }
        }
        check_share("speed.share", self.share)
    }

    /// The factor of an utterance.
    pub(super) fn draw(&self, rng: &mut (impl Rng + ?Sized)) -> Option<f64> {
        let [low, high] = self.rates;
        (rng.random::<f64>() < self.share).then(|| rng.random_range(low..=high))
    }
}

const RATES: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Zero crossings of the kernel to either side.
const LOBES: usize = 16;
/// Samples under it, at places `1 - LOBES..=LOBES` from the one at or before its centre.
const TAPS: usize = 2 * LOBES;

/// A signal that takes r times as long: resampled to r times its rate, and taken for one of its own rate.
///
/// ```text
/// y[i] = Σ x[k] sinc(k - i/r) (1 + cos(π (k - i/r) / 16)) / 2     over |k - i/r| ≤ 16     i < ceil(r n)
/// ```
/// A sinc under a Hann window, whose cut-off is not lowered where r is below 1: what lies above half the new rate folds back. That is
/// what MLPerf's systems train on (the resampler of their data-loading library, which reads the kernel from a table).
///
/// # Errors
/// A rate that is not from 0.5 to 2.
///
/// Cost: O(r n) of 32 products each, in f64.
pub fn change_speed(samples: &[f32], rate: f64) -> Result<Vec<f32>> {
    if !RATES.contains(&rate) {
        return Err(setting("rate", "0.5 to 2", rate));
    }
    if rate == 1.0 {
        return Ok(samples.to_vec());
    }
    let mut padded = vec![0f64; samples.len() + 2 * TAPS];
    padded[TAPS..].iter_mut().zip(samples).for_each(|(to, &x)| *to = f64::from(x));
    let kernel = Kernel::new();
    let length = (samples.len() as f64 * rate).ceil() as usize;
    let sample = |i: usize| {
        let place = i as f64 / rate;
        let whole = place as usize;
        let first = TAPS + whole + 1 - LOBES;
        kernel.apply(&padded[first..first + TAPS], place - whole as f64) as f32
    };
    Ok((0..length).map(sample).collect())
}

/// What of the kernel does not depend on where it lies.
struct Kernel {
    /// `(-1)^(j+1) cos(π j / 16)`, `(-1)^(j+1) sin(π j / 16)`, `(-1)^(j+1)` and j of its places j.
    cos: [f64; TAPS],
    sin: [f64; TAPS],
    sign: [f64; TAPS],
    place: [f64; TAPS],
}

impl Kernel {
    fn new() -> Self {
        let place: [f64; TAPS] = std::array::from_fn(|at| at as f64 + 1.0 - LOBES as f64);
        let sign = place.map(|j| if j.rem_euclid(2.0) == 0.0 { -1.0 } else { 1.0 });
        let angle = |at: usize| PI * place[at] / LOBES as f64;
        let cos = std::array::from_fn(|at| sign[at] * angle(at).cos());
        let sin = std::array::from_fn(|at| sign[at] * angle(at).sin());
        Self { cos, sin, sign, place }
    }

    /// Σ of samples, their places j counted from the centre's whole part, with the centre at `f` in 0..1.
    ///
    /// `sinc(j - f) = (-1)^(j+1) sin(π f) / (π (j - f))`, and the cosine of a difference is one of products: two sines and one cosine
    /// are enough for all places.
    fn apply(&self, samples: &[f64], f: f64) -> f64 {
        if f == 0.0 {
            return samples[LOBES - 1];
        }
        let (sin, cos) = (PI * f / LOBES as f64).sin_cos();
        let mut products = [0f64; TAPS];
        let parts = self.sign.iter().zip(&self.cos).zip(&self.sin).zip(&self.place).zip(samples);
        for (product, ((((sign, c), s), place), x)) in products.iter_mut().zip(parts) {
            *product = x * (sign + c * cos + s * sin) / (place - f);
        }
        // Four sums at a time, for the sake of speed; their order is fixed.
        let quarters =
            products.chunks_exact(4).fold([0f64; 4], |sums, four| std::array::from_fn(|i| sums[i] + four[i]));
        let sum = (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
        sum * (PI * f).sin() / (2.0 * PI)
    }
}
