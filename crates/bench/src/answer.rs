//! A workload, and the answer of the process that measures it.
use serde::{Deserialize, Serialize};

use super::case::{Family, FirstPassScores};
use super::error::Result;
use super::gradients::NamedGradients;

/// An answer, as one line of JSON.
#[derive(Serialize, Deserialize)]
pub struct CaseAnswer {
    /// Sizes of the work.
    pub shape: CaseShape,
    /// Milliseconds of each timed step.
    pub milliseconds: Vec<f64>,
    /// Peak resident bytes of the first step above inputs and gradients; unknown on systems without `/proc`.
    pub peak_bytes: Option<u64>,
    /// Floating-point operations of the matrix products of a step; unknown for lattices alone.
    pub operations: Option<u64>,
    /// GFLOP/s of a large product, measured between the steps.
    pub sgemm: Option<f64>,
    /// What skipping cost, if there was any.
    pub skip: Option<SkipReport>,
    /// What was pruned, if anything was.
    pub pruning: Option<PruningReport>,
    /// What was decoded, if anything was.
    pub decoding: Option<DecodingReport>,
    /// What was trained, if anything was.
    pub training: Option<TrainingReport>,
}

/// Sizes of a case; those that it does not have are null.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(non_snake_case, reason = "one letter an axis, as everywhere")]
pub struct CaseShape {
    /// Utterances.
    pub B: Option<usize>,
    /// Frames of the longest.
    pub T: Option<usize>,
    /// Labels of the longest.
    pub U: Option<usize>,
    /// Joint width.
    pub H: Option<usize>,
    /// Classes.
    pub C: Option<usize>,
    /// Real sites.
    pub N: Option<usize>,
}

/// What was decoded.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DecodingReport {
    /// The kind of model.
    pub family: Family,
    /// Utterances.
    pub utterances: usize,
    /// Their frames.
    pub frames: usize,
    /// Labels that were found.
    pub labels: usize,
    /// Sites on their paths.
    pub sites: usize,
}

/// What was trained, and with what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TrainingReport {
    /// Utterances of a step.
    pub utterances: usize,
    /// Weights of the model.
    pub parameters: usize,
    /// Times of the parts of a step.
    pub parts: PartTimes,
    /// Largest resident memory of the whole process, from its start on.
    pub resident_bytes: Option<u64>,
    /// Bytes of recurrent weights that a step has to read if each is read at every frame, there and back.
    pub recurrent_bytes: u64,
    /// Bytes that a step of the optimiser reads and writes.
    pub optimiser_bytes: u64,
    /// GB/s from numbers as many as the largest recurrent weight has, read again and again.
    pub cached: f64,
    /// GB/s from memory.
    pub streamed: f64,
}

/// Milliseconds of the parts of a step.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PartTimes {
    /// The encoder's forward pass.
    pub encoder: f64,
    /// The predictor's.
    pub predictor: f64,
    /// That of everything behind them.
    pub loss: f64,
    /// All backward passes.
    pub backward: f64,
    /// Optimiser, and the average of the weights if there is one.
    pub optimiser: f64,
}

/// What pruning left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PruningReport {
    /// What the first pass's scores come from.
    pub scores: FirstPassScores,
    /// Sites of the second pass.
    pub retained: usize,
    /// Their share of the lattice.
    pub share: f64,
}

/// Bound and truth of what skipping changed, in the measures of [`rnnt_loss::SkippedSites`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SkipReport {
    /// Sites left out although they had an adjoint.
    pub sites: usize,
    /// Their summed occupancy.
    pub mass: f64,
    /// Bounds on the errors in bias, weight, and frame and label rows.
    pub bounds: [f64; 3],
    /// The errors themselves, against the gradient without skipping.
    pub errors: [f64; 3],
}

impl SkipReport {
    /// The largest share of a bound that an error takes; above 1 the bound would be broken.
    pub fn share(&self) -> f64 {
        let shares = self.errors.iter().zip(&self.bounds);
        shares.map(|(error, bound)| if *error == 0.0 { 0.0 } else { error / bound }).fold(0.0, f64::max)
    }
}

/// A system with its inputs in place.
pub trait Workload {
    /// Sizes of the work.
    fn shape(&self) -> CaseShape;
    /// Bytes of what a step returns.
    fn result_bytes(&self) -> u64;
    /// Floating-point operations of a step's matrix products, known after a step.
    fn operations(&self) -> Option<u64>;
    /// Forward and backward, once.
    fn step(&mut self) -> Result<NamedGradients>;
    /// What the last step's skipping cost, compared with a step that skips nothing.
    fn skip_report(&mut self) -> Result<Option<SkipReport>> {
        Ok(None)
    }
    /// Whether the last step's outcome is right, where that can be known; outside of all that is measured.
    ///
    /// # Errors
    /// It is not.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
    /// What the last step decoded.
    fn decoding_report(&self) -> Option<DecodingReport> {
        None
    }
    /// Steps before the first that is timed; the peak is that of all of them.
    fn warm_up(&self) -> usize {
        1
    }
    /// How long the parts of a step take, measured now, and what it cannot do without.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn training_report(&mut self) -> Result<Option<TrainingReport>> {
        Ok(None)
    }
    /// What the last step's pruning left.
    fn pruning_report(&self) -> Option<PruningReport> {
        None
    }
}

/// The middle one, or the mean of the two in the middle; `None` for nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
