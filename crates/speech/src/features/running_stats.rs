//! Running mean and variance of features, for streaming normalization.
//!
//! The formulas and the names S, Q, w, n and λ are those of
//! [`Normalization::Running`](super::Normalization::Running).

use serde::{Deserialize, Serialize};

use crate::feature_float::FeatureFloat;

/// Weight of the prior: it counts as much as this many seconds of frames.
const PRIOR_SECONDS: f64 = 2.0;
/// Time constant of the decay of past frames.
const DECAY_SECONDS: f64 = 4.0;
/// Mean μ of the prior.
///
/// Natural log of power, relative to a sine of amplitude 1.
const PRIOR_MEAN: f32 = -14.0;
/// Standard deviation σ of the prior, in the same unit.
const PRIOR_DEVIATION: f32 = 3.5;

/// Constants of running normalization, which depend on the hop length.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningConstants {
    /// λ, factor on the statistics of past frames per hop.
    decay: f32,
    /// n, weight of the prior in frames.
    prior_weight: f32,
}

impl RunningConstants {
    pub(super) fn new(hop_seconds: f64) -> Self {
        let decay = (-hop_seconds / DECAY_SECONDS).exp() as f32;
        Self { decay, prior_weight: (PRIOR_SECONDS / hop_seconds) as f32 }
    }
}

/// The statistics so far: w, and S and Q of each bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningStats {
    /// w, sum of the decayed weights of all frames so far.
    weight: f32,
    /// S, decayed sum of `y` of each bin.
    sums: Vec<f32>,
    /// Q, decayed sum of `y²` of each bin.
    squares: Vec<f32>,
}

impl RunningStats {
    pub(super) fn new(bins: usize) -> Self {
        Self { weight: 0.0, sums: vec![0.0; bins], squares: vec![0.0; bins] }
    }

    /// Returns whether the statistics are valid for `bins` bins.
    pub(super) fn is_valid(&self, bins: usize) -> bool {
        let Self { weight, sums, squares } = self;
        let is_valid = |x: &f32| x.is_finite() && *x >= 0.0;
        let has_all_bins = sums.len() == bins && squares.len() == bins;
        has_all_bins && is_valid(weight) && sums.iter().all(|x| x.is_finite()) && squares.iter().all(is_valid)
    }

    /// Updates the statistics with a frame and normalizes it.
    pub(super) fn normalize<F: FeatureFloat>(&mut self, constants: RunningConstants, frame: &mut [F]) {
        let RunningConstants { decay, prior_weight } = constants;
        self.weight = decay * self.weight + 1.0;
        let inverse_weight = 1.0 / (prior_weight + self.weight);
        for ((x, sum), square) in frame.iter_mut().zip(&mut self.sums).zip(&mut self.squares) {
            let y = x.to_f64() as f32 - PRIOR_MEAN;
            *sum = decay * *sum + y;
            *square = decay * *square + y * y;
            let mean = *sum * inverse_weight;
            let variance =
                (prior_weight * (PRIOR_DEVIATION * PRIOR_DEVIATION) + *square) * inverse_weight - mean * mean;
            *x = F::cast(f64::from((y - mean) / variance.sqrt()));
        }
    }
}
