//! `Observer`: receives warnings and reports of steps and epochs of a run.
use crate::Result;
use crate::metrics::Metrics;
use crate::run_folder::RunFolder;
use crate::run_plan::RunPlan;
use crate::step_report::StepReport;
use recognizer::Evaluation;

/// The facts at the start of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// Number of weights.
    pub parameters: usize,
    /// Number of classes, blank included.
    pub classes: usize,
    /// Training utterances.
    pub utterances: usize,
    /// Total length of the audio in seconds.
    pub audio_seconds: f64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// The epoch of the first step; not 0 after a resumption.
    pub first_epoch: u64,
    /// The memory plan, if the run has a memory budget.
    pub plan: Option<RunPlan>,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochReport {
    /// The epoch's row in `metrics.csv`.
    pub metrics: Metrics,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Evaluation on the dev set, if it was due.
    pub evaluation: Option<Evaluation>,
}

/// An observer of a run; every method does nothing unless overridden.
pub trait Observer {
    /// Receives a warning: something that is valid but probably not intended.
    fn on_warning(&mut self, _warning: &str) {}
    /// Receives a note about the effect of a setting.
    fn on_note(&mut self, _note: &str) {}
    /// Receives the facts of the run before the first step.
    fn on_start(&mut self, _report: &RunReport) {}
    /// Receives the report of a step.
    fn on_step(&mut self, _report: &StepReport) {}
    /// Writes further files of an epoch; `rows` are the metrics from the first epoch on.
    ///
    /// Called on rank 0 before the checkpoint that ends the epoch: a killed run repeats the epoch
    /// and writes the files again.
    ///
    /// # Errors
    /// Errors of the files, which end the run.
    fn write_epoch(&mut self, _folder: &RunFolder, _rows: &[Metrics]) -> Result<()> {
        Ok(())
    }
    /// Receives the report of an epoch.
    fn on_epoch(&mut self, _report: &EpochReport) {}
}

/// An observer that ignores all reports.
impl Observer for () {}
