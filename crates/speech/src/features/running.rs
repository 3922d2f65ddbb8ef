//! What the values of a plane are compared with: all of the utterance, or what was heard so far.

use serde::{Deserialize, Serialize};

/// How a plane is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalise {
    /// By mean and variance of the whole utterance, which must be over first.
    #[default]
    Utterance,
    /// By mean and variance of what was heard so far, which sound that is still arriving can be too.
    ///
    /// Statistics of each bin fade with 4 s, and meet a prior that weighs as much as 2 s of sound and never fades: a long pause
    /// moves the mean two thirds of its way at most, and the variance never vanishes. With frames every `hop`, `n = 2 s / hop`,
    /// `λ = exp(-hop / 4 s)`, and a prior of mean `μ = -14` and deviation `σ = 3.5` (in nepers of power, from a sine of amplitude 1):
    /// ```text
    /// y = x[t] - μ     S[t] = λ S[t-1] + y     Q[t] = λ Q[t-1] + y²     w[t] = λ w[t-1] + 1     all 0 before the first frame
    /// m = S[t] / (n + w[t])     v = (n σ² + Q[t]) / (n + w[t]) - m²     z[t] = (y - m) / √v
    /// ```
    Running,
}

impl Normalise {
    pub(super) fn is_utterance(&self) -> bool {
        *self == Normalise::Utterance
    }
}

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
    pub fn normalise(&mut self, Rate { decay, prior }: Rate, frame: &mut [f32]) {
        self.weight = decay * self.weight + 1.0;
        let share = 1.0 / (prior + self.weight);
        for ((x, sum), square) in frame.iter_mut().zip(&mut self.sums).zip(&mut self.squares) {
            let y = *x - MEAN;
            *sum = decay * *sum + y;
            *square = decay * *square + y * y;
            let mean = *sum * share;
            let variance = (prior * (DEVIATION * DEVIATION) + *square) * share - mean * mean;
            *x = (y - mean) / variance.sqrt();
        }
    }
}
