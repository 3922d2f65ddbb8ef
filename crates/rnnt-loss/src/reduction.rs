//! From losses of utterances to one number.
use crate::{Error, Result, Targets, error::expect_len};

/// Named reductions: each is a weighted sum `Σ_b w_b loss_b`, and `w_b` is also the factor of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// `w = 1`
    Sum,
    /// `w = 1 / B` (torchaudio's `mean`, NeMo's `mean_batch`)
    #[default]
    Mean,
    /// `w = 1 / (B U_b)`, with 1 for U = 0 (NeMo's `mean`)
    MeanPerTarget,
    /// `w = 1 / Σ U_b`, with 1 for a sum of 0 (NeMo's `mean_volume`)
    MeanVolume,
}

impl Reduction {
    /// `w_b` of every utterance.
    pub fn weights(&self, targets: &Targets) -> Vec<f64> {
        let batch = targets.batch() as f64;
        let labels = |b: usize| targets.labels(b).len();
        let volume = (0..targets.batch()).map(labels).sum::<usize>().max(1) as f64;
        let weight = |b: usize| match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / batch,
            Self::MeanPerTarget => 1.0 / (batch * labels(b).max(1) as f64),
            Self::MeanVolume => 1.0 / volume,
        };
        (0..targets.batch()).map(weight).collect()
    }

    /// `Σ_b w_b loss_b` over the utterances that a path explains; an infinite loss has no gradient and is left
    /// out of the sum, so that it does not hide the others.
    ///
    /// # Errors
    /// Not one loss for each utterance; a loss that is NaN or -inf.
    pub fn reduce(&self, losses: &[f64], targets: &Targets) -> Result<f64> {
        expect_len("losses", targets.batch(), losses.len())?;
        if let Some(utterance) = losses.iter().position(|loss| loss.is_nan() || *loss == f64::NEG_INFINITY) {
            return Err(Error::Loss { utterance, found: losses[utterance] });
        }
        let weighted = losses.iter().zip(self.weights(targets)).filter(|(loss, _)| loss.is_finite());
        Ok(weighted.map(|(loss, weight)| loss * weight).sum())
    }
}
