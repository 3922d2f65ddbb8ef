//! Mean and variance normalization of features: per utterance or running.

use serde::{Deserialize, Serialize};

use super::feature_matrix::{DEFAULT_DIVISOR, Divisor, Features, normalize_columns};
use crate::feature_float::FeatureFloat;

/// How features are normalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalization {
    /// By mean and deviation of the whole utterance: [`Features::normalize`].
    #[default]
    Utterance,
    /// The same without a lower bound on the deviation, as in MLPerf.
    Standard,
    /// By mean and sample deviation of the whole utterance.
    ///
    /// As `per_feature` in NeMo: `(x - mean) / (s + 1e-5)` with `s² = Σ (x - mean)² / (T - 1)`, and
    /// s = 0 for one frame.
    Sample,
    /// By exponentially decaying mean and variance of the past, for streaming too.
    ///
    /// The statistics of each bin decay with a time constant of 4 s and are combined with a
    /// constant prior equivalent to 2 s: a long pause moves the mean by at most two
    /// thirds, and the variance never vanishes. With frames every `hop`, `n = 2 s / hop`, `λ =
    /// exp(-hop / 4 s)`, and a prior of mean `μ = -14` and deviation `σ = 3.5` (natural log of
    /// power, relative to a sine of amplitude 1):
    /// ```text
    /// y = x[t] - μ     S[t] = λ S[t-1] + y     Q[t] = λ Q[t-1] + y²     w[t] = λ w[t-1] + 1
    /// m = S[t] / (n + w[t])     v = (n σ² + Q[t]) / (n + w[t]) - m²     z[t] = (y - m) / √v
    /// ```
    /// x: a bin of frame t; S, Q, w: decayed sum, sum of squares and count of frames, 0 before the
    /// first frame; m, v: mean and variance, with the prior; z: the normalized bin.
    Running,
    /// No normalization.
    None,
}

impl Normalization {
    /// Returns the name in a recipe.
    pub(super) fn name(self) -> &'static str {
        match self {
            Normalization::Utterance => "utterance",
            Normalization::Standard => "standard",
            Normalization::Sample => "sample",
            Normalization::Running => "running",
            Normalization::None => "none",
        }
    }

    /// Returns the scaling of whole utterances, if they are normalized.
    fn divisor(self) -> Option<Divisor> {
        match self {
            Normalization::Utterance => Some(DEFAULT_DIVISOR),
            Normalization::Standard => Some(Divisor::ExactDeviation),
            Normalization::Sample => Some(Divisor::SampleDeviationPlus(1e-5)),
            Normalization::Running | Normalization::None => None,
        }
    }

    /// Returns whether each value depends on the whole utterance.
    pub(super) fn needs_whole_utterance(self) -> bool {
        self.divisor().is_some()
    }

    /// Normalizes a whole utterance, unless normalization is running or none.
    pub(super) fn apply<F: FeatureFloat>(self, data: &mut [F], dim: usize) {
        if let Some(divisor) = self.divisor() {
            normalize_columns(data, dim, divisor);
        }
    }

    /// Normalizes features again after they were modified.
    ///
    /// Running normalization is not repeated.
    pub(crate) fn reapply(self, features: &mut Features) {
        self.apply(&mut features.data, features.dim);
    }
}
