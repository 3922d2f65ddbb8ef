//! What a run tells whoever watches it.
use crate::Result;
use crate::metrics::Metrics;
use crate::run_folder::RunFolder;
use crate::run_plan::RunPlan;
use recognizer::Evaluation;

/// Facts at the start of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// Number of weights.
    pub parameters: usize,
    /// Number of classes, blank included.
    pub classes: usize,
    /// Training utterances.
    pub utterances: usize,
    /// Their length in all.
    pub audio_seconds: f64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// The epoch it goes on with; not 0 after a resumption.
    pub first_epoch: u64,
    /// What the run takes in memory, if it may not take whatever it wants.
    pub plan: Option<RunPlan>,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Batch of the epoch, from 0.
    pub batch: u64,
    /// Batches of the epoch.
    pub batches: u64,
    /// Step of the run, from 0.
    pub step: u64,
    /// Steps of the whole run, counting the epochs to come like this one: an estimate until the last epoch, as the order of an
    /// epoch decides into how many batches it is cut.
    pub steps: u64,
    /// Mean transducer loss of the batch.
    pub loss: f64,
    /// Mean CTC loss of the batch.
    pub ctc_loss: f64,
    /// Mean loss of the batch under the trivial joiner; 0 without pruning.
    pub simple_loss: f64,
    /// Step size.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Length of the audio in the batch.
    pub audio_seconds: f64,
    /// Wall time of the step.
    pub seconds: f64,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochReport {
    /// The epoch's row in `metrics.csv`.
    pub metrics: Metrics,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Evaluation on the dev set, where it was due.
    pub evaluation: Option<Evaluation>,
}

/// Watches a run; every method does nothing unless overridden.
pub trait Observer {
    /// Something that is no error, but hardly meant.
    fn on_warning(&mut self, _warning: &str) {}
    /// Something that was asked for, and what it led to.
    fn on_note(&mut self, _note: &str) {}
    /// Before the first step.
    fn on_start(&mut self, _report: &RunReport) {}
    /// After each step.
    fn on_step(&mut self, _report: &StepReport) {}
    /// Writes further files of an epoch, of which `rows` has the metrics from the first epoch on.
    ///
    /// Called on rank 0 before the checkpoint that ends the epoch: a killed run repeats the epoch and writes them again.
    ///
    /// # Errors
    /// Errors of the files; they end the run.
    fn write_epoch(&mut self, _folder: &RunFolder, _rows: &[Metrics]) -> Result<()> {
        Ok(())
    }
    /// After each epoch.
    fn on_epoch(&mut self, _report: &EpochReport) {}
}

/// Watches nothing.
impl Observer for () {}
