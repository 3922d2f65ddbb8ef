//! What the values of a plane are compared with.

use serde::{Deserialize, Serialize};

use super::feature_matrix::{Deviation, Features, LEAST, normalise_columns};
use crate::fft_float::FftFloat;

/// How a plane is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalization {
    /// By mean and deviation of the whole utterance, which must be over first: [`Features::normalize`].
    #[default]
    Utterance,
    /// The same, however small the deviation is, as in MLPerf: [`Features::standardize`].
    Standard,
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
    /// Not at all.
    None,
}

impl Normalization {
    /// The name in a recipe.
    pub(super) fn name(self) -> &'static str {
        match self {
            Normalization::Utterance => "utterance",
            Normalization::Standard => "standard",
            Normalization::Running => "running",
            Normalization::None => "none",
        }
    }

    /// The deviation of whole utterances, if it is they who count.
    fn deviation(self) -> Option<Deviation> {
        match self {
            Normalization::Utterance => Some(LEAST),
            Normalization::Standard => Some(Deviation::Exact),
            Normalization::Running | Normalization::None => None,
        }
    }

    /// Whether each value needs all of its utterance.
    pub(super) fn is_whole(self) -> bool {
        self.deviation().is_some()
    }

    /// Normalises what is normalised as a whole.
    pub(super) fn whole<F: FftFloat>(self, data: &mut [F], dim: usize) {
        if let Some(deviation) = self.deviation() {
            normalise_columns(data, dim, deviation);
        }
    }

    /// The same for a plane that was changed after its front end had made it; running means stay as they are.
    pub(crate) fn again(self, plane: &mut Features) {
        self.whole(&mut plane.data, plane.dim);
    }
}
