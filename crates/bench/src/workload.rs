//! Trait of benchmarked systems (`Workload`), and measurements of one case.
use serde::{Deserialize, Serialize};

use super::case::{Family, FirstPassScores};
use super::error::Result;
use super::gradients::NamedGradients;

/// Measurements of a child process, as one line of JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct CaseMeasurement {
    /// Sizes of the work.
    pub shape: CaseShape,
    /// Milliseconds of each timed step.
    pub milliseconds: Vec<f64>,
    /// Peak resident bytes of the first step, without inputs and gradients.
    ///
    /// None on systems without `/proc`.
    pub peak_bytes: Option<u64>,
    /// Floating-point operations of the matrix products of a step; none for lattices.
    pub operations: Option<u64>,
    /// GFLOP/s of a large matrix product, measured between the steps.
    pub sgemm: Option<f64>,
    /// Error of skipped sites, for cases that skip.
    pub skip: Option<SkipReport>,
    /// Retained sites, for cases that prune.
    pub pruning: Option<PruningReport>,
    /// Decoded labels, for cases that decode.
    pub decoding: Option<DecodingReport>,
    /// Times and bytes of a training step, for cases that train.
    pub training: Option<TrainingReport>,
}

/// Sizes of a case; null for axes that the case lacks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(non_snake_case, reason = "one letter per axis, as in the glossary")]
pub(crate) struct CaseShape {
    /// Utterances.
    pub B: Option<usize>,
    /// Frames of the longest utterance.
    pub T: Option<usize>,
    /// Labels of the longest utterance.
    pub U: Option<usize>,
    /// Joint width.
    pub H: Option<usize>,
    /// Classes.
    pub C: Option<usize>,
    /// Sites without padding.
    pub N: Option<usize>,
}

/// Counts of decoded utterances.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct DecodingReport {
    /// Kind of model.
    pub family: Family,
    /// Number of utterances.
    pub utterances: usize,
    /// Number of frames of all utterances.
    pub frames: usize,
    /// Number of decoded labels.
    pub labels: usize,
    /// Number of sites on the decoded paths.
    pub sites: usize,
}

/// Sizes, times and bytes of a training step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TrainingReport {
    /// Utterances of a step.
    pub utterances: usize,
    /// Parameters of the model.
    pub parameters: usize,
    /// Times of the parts of a step.
    pub parts: PartTimes,
    /// Peak resident memory of the whole process since its start.
    pub resident_bytes: Option<u64>,
    /// Bytes of recurrent weights, each read at every frame, forward and backward.
    pub recurrent_bytes: u64,
    /// Bytes that a step of the optimizer reads and writes.
    pub optimizer_bytes: u64,
    /// GB/s of cached reads of the size of a recurrent weight.
    #[serde(rename = "cached")]
    pub cached_read_rate: f64,
    /// GB/s of reads from memory.
    #[serde(rename = "streamed")]
    pub memory_read_rate: f64,
}

/// Milliseconds of the parts of a step.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartTimes {
    /// Forward pass of the encoder.
    pub encoder: f64,
    /// Forward pass of the predictor.
    pub predictor: f64,
    /// Forward pass of joint network, normalizer and lattice.
    pub loss: f64,
    /// All backward passes.
    pub backward: f64,
    /// Optimizer, and moving average of the weights if enabled.
    pub optimizer: f64,
}

/// Retained sites of a pruned loss.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PruningReport {
    /// Source of the scores of the first pass.
    pub scores: FirstPassScores,
    /// Sites of the second pass.
    #[serde(rename = "retained")]
    pub retained_sites: usize,
    /// Share of the sites of the full lattice.
    pub share: f64,
}

/// Bounds and errors of skipping, in the norms of [`rnnt_loss::SkippedSites`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SkipReport {
    /// Number of skipped sites with a nonzero adjoint.
    pub sites: usize,
    /// Summed occupancy of the skipped sites.
    pub mass: f64,
    /// Bounds on the errors in bias, weight, and frame and label rows.
    pub bounds: [f64; 3],
    /// Errors compared with the gradient without skipping.
    pub errors: [f64; 3],
}

impl SkipReport {
    /// Returns the largest ratio of error to bound; at most 1 if the bounds hold.
    pub(crate) fn share(&self) -> f64 {
        let shares = self.errors.iter().zip(&self.bounds);
        shares.map(|(error, bound)| if *error == 0.0 { 0.0 } else { error / bound }).fold(0.0, f64::max)
    }
}

/// A system with its inputs, ready to be measured.
pub(crate) trait Workload {
    /// Returns the sizes of the work.
    fn shape(&self) -> CaseShape;
    /// Returns the bytes of the results of a step.
    fn result_bytes(&self) -> u64;
    /// Returns the floating-point operations of the matrix products of a step.
    ///
    /// Call it after a step.
    fn operations(&self) -> Option<u64>;
    /// Runs forward and backward once.
    fn step(&mut self) -> Result<NamedGradients>;
    /// Compares the skipping of the last step with a step without skipping.
    fn skip_report(&mut self) -> Result<Option<SkipReport>> {
        Ok(None)
    }
    /// Checks the result of the last step, without being measured.
    ///
    /// # Errors
    /// If the result is wrong.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
    /// Returns the counts of the last step, if it decodes.
    fn decoding_report(&self) -> Option<DecodingReport> {
        None
    }
    /// Returns the number of steps before the first timed one.
    ///
    /// The memory peak is taken over these steps.
    fn warm_up(&self) -> usize {
        1
    }
    /// Measures the parts of a training step.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn training_report(&mut self) -> Result<Option<TrainingReport>> {
        Ok(None)
    }
    /// Returns the retained sites of the last step, if it prunes.
    fn pruning_report(&self) -> Option<PruningReport> {
        None
    }
}

/// Returns the median; `None` for no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians_are_middle_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
