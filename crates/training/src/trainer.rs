//! `Trainer`: the training loop over epochs, with resumption from checkpoints.
//!
//! Everything random is a function of (seed, epoch, batch or utterance), so the checkpoint is the
//! whole state of a run: the steps after it have the same bits whether the process continued, was
//! stopped, or was killed and started again.
mod epoch_end;
mod steps;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use distributed::ProcessGroup;
use model::checkpoint::{Checkpoint, Progress};
use model::{CheckpointWriter, DataFingerprint, MetadataRef, Model};
use recognizer::Evaluation;

use crate::bad_item_log::BadItemLog;
use crate::data::BatchSource;
use crate::events::EventWriter;
use crate::learner::Learner;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::recipe::RunConfig;
use crate::run_folder::RunFolder;
use crate::run_plan::RunPlan;
use crate::{Error, Result};

/// The metadata of a checkpoint, apart from its progress.
#[derive(Debug, Clone, Default)]
pub struct CheckpointMetadata {
    /// The recipe's text.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// The fingerprint of the data.
    pub data: Option<DataFingerprint>,
}

/// The evaluation of a model on the dev set; all ranks take part.
pub type Validator<'a> = dyn FnMut(&Model, &mut ProcessGroup) -> Result<Option<Evaluation>> + 'a;

/// The training loop over epochs in a run folder; rank 0 writes.
pub struct Trainer<'a> {
    learner: Learner,
    run_config: RunConfig,
    /// Batches of a step.
    batches_per_step: usize,
    metadata: CheckpointMetadata,
    folder: &'a RunFolder,
    group: &'a mut ProcessGroup,
    progress: Progress,
    metrics: Vec<Metrics>,
    /// Fraction of the current epoch's rows that is padding.
    padding: f64,
    /// Seconds of each process for its gradients in this epoch.
    rank_seconds: Vec<f64>,
    /// Peak bytes of the plan, or 0.
    planned_bytes: u64,
    event_writer: EventWriter,
    bad_item_log: BadItemLog,
}

impl<'a> Trainer<'a> {
    /// Creates a trainer of a new or a resumed run.
    ///
    /// A step has `accumulate` batches.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](model::Error::Checkpoint) or [`Error::Shape`](model::Error::Shape) if
    /// the checkpoint does not match the model; [`Error::Io`](model::Error::Io) if the metrics
    /// cannot be read.
    pub fn new(
        mut learner: Learner,
        run_config: &RunConfig,
        accumulate: usize,
        metadata: CheckpointMetadata,
        folder: &'a RunFolder,
        resumed: Option<&Checkpoint>,
        group: &'a mut ProcessGroup,
    ) -> Result<Self> {
        let (mut progress, mut metrics) = (Progress::default(), Vec::new());
        if let Some(checkpoint) = resumed {
            let path = folder.last_checkpoint();
            checkpoint.check(&path, &learner.model().parameters().shapes())?;
            progress = checkpoint.progress.clone();
            let Checkpoint { weights, average, optimizer_state, .. } = checkpoint;
            learner
                .restore(weights, average.as_ref(), optimizer_state, progress.step)
                .map_err(|source| Error::Inside { path, source: Box::new(source) })?;
            metrics = folder.read_metrics(progress.epoch)?;
        }
        let event_writer = EventWriter::new(&progress);
        Ok(Trainer {
            learner,
            run_config: run_config.clone(),
            batches_per_step: accumulate.max(1),
            metadata,
            folder,
            group,
            progress,
            metrics,
            padding: 0.0,
            rank_seconds: Vec::new(),
            planned_bytes: 0,
            event_writer,
            bad_item_log: BadItemLog::default(),
        })
    }

    /// Sets the bad items that are known before the first step.
    ///
    /// # Errors
    /// [`recognizer::Error::TooManyBad`].
    pub(crate) fn with_bad_items(mut self, mut log: BadItemLog) -> Result<Self> {
        if self.progress != Progress::default() {
            log.resume(self.folder.read_bad_items());
        }
        log.check()?;
        self.bad_item_log = log;
        Ok(self)
    }

    /// Returns the bad items of all sets.
    pub(crate) fn bad_items(&self) -> &BadItemLog {
        &self.bad_item_log
    }

    /// Sets the plan of memory, for the metrics.
    pub(crate) fn set_plan(&mut self, plan: Option<RunPlan>) {
        self.planned_bytes = plan.map_or(0, |plan| plan.peak() as u64);
    }

    /// Returns the learner.
    pub fn learner(&self) -> &Learner {
        &self.learner
    }

    /// Returns the progress of the run.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the learner and the progress of the run.
    pub(crate) fn into_parts(self) -> (Learner, Progress) {
        (self.learner, self.progress)
    }

    /// Trains to the end; false if the stop flag ended it earlier, with a checkpoint.
    ///
    /// # Errors
    /// Those of the source; [`Error::Diverged`] if a score, a loss or a gradient is not finite: the
    /// last checkpoint is then unchanged; [`Error::Io`](model::Error::Io) if the folder cannot be
    /// written.
    pub fn fit(
        &mut self,
        source: &dyn BatchSource,
        validate: &mut Validator,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<bool> {
        while self.progress.epoch < self.run_config.epochs {
            let started = Instant::now();
            if !self.train_epoch(source, observer, stop)? {
                let saved = self.save_last();
                self.agree(saved)?;
                return Ok(false);
            }
            self.finish_epoch(validate, started, observer)?;
        }
        Ok(true)
    }

    /// Returns true if this process writes files.
    pub(crate) fn writes(&self) -> bool {
        self.group.rank() == 0
    }

    /// Writes events and the checkpoint to resume from.
    fn save_last(&mut self) -> Result<()> {
        if !self.writes() {
            return Ok(());
        }
        self.event_writer.write(self.folder.path())?;
        self.save(&self.folder.last_checkpoint())?;
        // After the checkpoint: without it, other files would make the folder invalid.
        self.bad_item_log.sets().map_or(Ok(()), |sets| self.folder.write_bad_items(sets))
    }

    /// Returns an error if any process has failed.
    ///
    /// # Errors
    /// That of this process or of another; see [`ProcessGroup::agree`].
    pub(crate) fn agree(&mut self, result: Result<()>) -> Result<()> {
        self.group.agree(result)
    }

    /// Writes a checkpoint of the current state.
    ///
    /// # Errors
    /// [`Error::Diverged`] for values that are not finite: an existing checkpoint is then
    /// unchanged.
    fn save(&self, path: &Path) -> Result<()> {
        let parameters = self.learner.model().parameters();
        let (average, optimizer_state) = (self.learner.average(), self.learner.optimizer_state());
        if let Some(what) = self.learner.first_non_finite()? {
            let (step, what) = (self.progress.step, what.into());
            return Err(Error::Diverged { step, what, found: None, utterances: Vec::new(), source: None });
        }
        let CheckpointMetadata { recipe, tokenizer, data } = &self.metadata;
        let metadata = MetadataRef { recipe, tokenizer, progress: &self.progress, data: data.as_ref() };
        let shapes = parameters.shapes();
        let mut writer = CheckpointWriter::new(metadata);
        writer.add_parameters(parameters);
        if let Some(average) = average {
            writer.add_values("average", average, &shapes);
        }
        for (kind, values) in &optimizer_state {
            writer.add_values(kind, values, &shapes);
        }
        Ok(writer.write(path)?)
    }
}
