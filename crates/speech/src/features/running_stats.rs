//! Statistics of what was heard so far, for [`Normalization::Running`](super::Normalization::Running).

use serde::{Deserialize, Serialize};

use crate::fft_float::FftFloat;

const PRIOR_SECONDS: f64 = 2.0;
const MEMORY_SECONDS: f64 = 4.0;
const MEAN: f32 = -14.0;
const DEVIATION: f32 = 3.5;

/// What follows from the distance of two frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// λ
    decay: f32,
    /// n
    prior: f32,
}

impl Rate {
    pub fn new(hop_seconds: f64) -> Self {
        let decay = (-hop_seconds / MEMORY_SECONDS).exp() as f32;
        Self { decay, prior: (PRIOR_SECONDS / hop_seconds) as f32 }
    }
}

/// The statistics so far: w, and S and Q of each bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Running {
    weight: f32,
    sums: Vec<f32>,
    squares: Vec<f32>,
}

impl Running {
    pub fn new(bins: usize) -> Self {
        Self { weight: 0.0, sums: vec![0.0; bins], squares: vec![0.0; bins] }
    }

    /// Whether they can be those of a signal with so many bins.
    pub fn fits(&self, bins: usize) -> bool {
        let Self { weight, sums, squares } = self;
        let fine = |x: &f32| x.is_finite() && *x >= 0.0;
        let counts = sums.len() == bins && squares.len() == bins;
        counts && fine(weight) && sums.iter().all(|x| x.is_finite()) && squares.iter().all(fine)
    }

    /// The next frame.
    pub fn normalise<F: FftFloat>(&mut self, Rate { decay, prior }: Rate, frame: &mut [F]) {
        self.weight = decay * self.weight + 1.0;
        let share = 1.0 / (prior + self.weight);
        for ((x, sum), square) in frame.iter_mut().zip(&mut self.sums).zip(&mut self.squares) {
            let y = x.wide() as f32 - MEAN;
            *sum = decay * *sum + y;
            *square = decay * *square + y * y;
            let mean = *sum * share;
            let variance = (prior * (DEVIATION * DEVIATION) + *square) * share - mean * mean;
            *x = F::of(f64::from((y - mean) / variance.sqrt()));
        }
    }
}
