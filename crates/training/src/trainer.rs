//! The training loop.
//!
//! Everything random is a function of (seed, epoch, batch or utterance), so a run is its checkpoint: what follows from there is the
//! same bit for bit whether the process went on, was stopped, or was killed and started again.
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
use crate::events::Events;
use crate::learner::Learner;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::recipe::RunConfig;
use crate::run_folder::RunFolder;
use crate::run_plan::RunPlan;
use crate::{Error, Result};

/// What a checkpoint says beside weights and progress.
#[derive(Debug, Clone, Default)]
pub struct CheckpointMetadata {
    /// The recipe's text.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// The data that is learnt from.
    pub data: Option<DataFingerprint>,
}

/// How the model does on what it does not learn from.
pub type Validator<'a> = dyn FnMut(&Model, &mut ProcessGroup) -> Result<Option<Evaluation>> + 'a;

/// Trains a model, epoch after epoch, in a run folder, in which rank 0 writes.
pub struct Trainer<'a> {
    learner: Learner,
    run: RunConfig,
    /// Batches of a step.
    accumulate: usize,
    about: CheckpointMetadata,
    folder: &'a RunFolder,
    group: &'a mut ProcessGroup,
    progress: Progress,
    metrics: Vec<Metrics>,
    /// Share of the current epoch's rows that is padding.
    padding: f64,
    /// Seconds that each process took for its gradients in this epoch, as far as it was seen.
    seconds: Vec<f64>,
    /// Bytes of the plan, or 0.
    planned: u64,
    events: Events,
    bad: BadItemLog,
}

impl<'a> Trainer<'a> {
    /// A run that has not begun, or, with a checkpoint, goes on from there; `accumulate` batches make a step.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](model::Error::Checkpoint) or [`Error::Shape`](model::Error::Shape) if the checkpoint does not fit the model, [`Error::Io`](model::Error::Io) if the folder refuses.
    pub fn new(
        mut learner: Learner,
        (run, accumulate): (&RunConfig, usize),
        about: CheckpointMetadata,
        (folder, resumed): (&'a RunFolder, Option<&Checkpoint>),
        group: &'a mut ProcessGroup,
    ) -> Result<Self> {
        let (mut progress, mut metrics) = (Progress::default(), Vec::new());
        if let Some(checkpoint) = resumed {
            let path = folder.last();
            checkpoint.check(&path, &learner.model().parameters().shapes())?;
            progress = checkpoint.progress.clone();
            let Checkpoint { weights, average, optimizer_state, .. } = checkpoint;
            learner
                .restore(weights, average.as_ref(), optimizer_state, progress.step)
                .map_err(|source| Error::Inside { path, source: Box::new(source) })?;
            metrics = folder.read_metrics(progress.epoch)?;
        }
        let (run, accumulate) = (run.clone(), accumulate.max(1));
        let events = Events::new(&progress);
        Ok(Trainer {
            learner,
            run,
            accumulate,
            about,
            folder,
            group,
            progress,
            metrics,
            padding: 0.0,
            seconds: Vec::new(),
            planned: 0,
            events,
            bad: BadItemLog::default(),
        })
    }

    /// Starts with the bad items that are known before the first step.
    ///
    /// # Errors
    /// [`Error::TooManyBad`].
    pub(crate) fn with_bad_items(mut self, mut bad: BadItemLog) -> Result<Self> {
        if self.progress != Progress::default() {
            bad.resume(self.folder.read_bad_items());
        }
        bad.check()?;
        self.bad = bad;
        Ok(self)
    }

    /// The bad items of all sets; none if there is none.
    pub(crate) fn bad_items(&self) -> &BadItemLog {
        &self.bad
    }

    /// What the run takes in memory, to be written down beside what it took.
    pub(crate) fn planned(&mut self, plan: Option<RunPlan>) {
        self.planned = plan.map_or(0, |plan| plan.peak() as u64);
    }

    /// The model and its optimizer.
    pub fn learner(&self) -> &Learner {
        &self.learner
    }

    /// How far it has come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// What has learnt, and how far it has come.
    pub fn into_parts(self) -> (Learner, Progress) {
        (self.learner, self.progress)
    }

    /// Trains to the end; false if the stop flag ended it earlier, with a checkpoint to go on from.
    ///
    /// # Errors
    /// Those of the source; [`Error::Diverged`] if a score, a loss or a gradient is no number: the last checkpoint is then still
    /// there; [`Error::Io`](model::Error::Io) if the folder refuses.
    pub fn fit(
        &mut self,
        source: &dyn BatchSource,
        judge: &mut Validator,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<bool> {
        while self.progress.epoch < self.run.epochs {
            let started = Instant::now();
            if !self.epoch(source, observer, stop)? {
                let saved = self.save_last();
                self.agree(saved)?;
                return Ok(false);
            }
            self.finish_epoch(judge, started, observer)?;
        }
        Ok(true)
    }

    /// Whether this process writes what all have learnt.
    fn writes(&self) -> bool {
        self.group.rank() == 0
    }

    /// Writes the state as it is now to go on from; what happened since the one before comes first.
    fn save_last(&mut self) -> Result<()> {
        if !self.writes() {
            return Ok(());
        }
        if let Some((name, records)) = self.events.take(&self.progress) {
            self.folder.write(&name, &records)?;
        }
        self.save(&self.folder.last())?;
        // Behind the checkpoint, without which a folder with other files of a run is none to go on in.
        self.bad.sets().map_or(Ok(()), |sets| self.folder.write_bad_items(sets))
    }

    /// What this process wants to have done, if no process has failed.
    ///
    /// # Errors
    /// That of this process or of another: see [`ProcessGroup::agree`].
    pub(crate) fn agree(&mut self, mine: Result<()>) -> Result<()> {
        self.group.agree(mine)
    }

    /// Writes the state as it is now.
    ///
    /// # Errors
    /// [`Error::Diverged`] for values that are no numbers: a checkpoint that is there stays.
    fn save(&self, path: &Path) -> Result<()> {
        let parameters = self.learner.model().parameters();
        let (average, optimizer_state) = (self.learner.average(), self.learner.optimizer_state());
        if let Some(what) = self.learner.unsound()? {
            let (step, what) = (self.progress.step, what.into());
            return Err(Error::Diverged { step, what, found: None, utterances: Vec::new(), source: None });
        }
        let CheckpointMetadata { recipe, tokenizer, data } = &self.about;
        let said = MetadataRef { recipe, tokenizer, progress: &self.progress, data: data.as_ref() };
        let shapes = parameters.shapes();
        let mut writer = CheckpointWriter::new(said);
        writer.parameters(parameters);
        if let Some(average) = average {
            writer.values("average", average, &shapes);
        }
        for (kind, values) in &optimizer_state {
            writer.values(kind, values, &shapes);
        }
        Ok(writer.write(path)?)
    }
}
