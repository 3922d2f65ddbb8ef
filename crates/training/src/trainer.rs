//! The training loop.
//!
//! Everything random is a function of (seed, epoch, batch or utterance), so a run is its checkpoint: what follows from there is the
//! same bit for bit whether the process went on, was stopped, or was killed and started again.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use distributed::ProcessGroup;

use crate::bad_item_log::BadItemLog;
use crate::data::{Batch, BatchSource, PREFETCHED_BATCHES, Prefetcher};
use crate::events::Events;
use crate::learner::{FinishedStep, Learner};
use crate::metrics::{Metrics, Tally};
use crate::non_finite::NonFinitePolicy;
use crate::observer::{EpochReport, Observer, StepReport};
use crate::rank_differences::expect_same;
use crate::recipe::RunConfig;
use crate::reduction::{StepTotals, shard_step, slow_rank};
use crate::run_folder::RunFolder;
use crate::run_plan::RunPlan;
use crate::schedule::Moment;
use crate::{Error, Result};
use model::Model;
use model::checkpoint::{Checkpoint, Contents, MetadataRef, Progress};
use model::{Fingerprint, memory};
use recognizer::Evaluation;
use recognizer::bad_items::BadItems;

/// What a checkpoint says beside weights and progress.
#[derive(Debug, Clone, Default)]
pub struct CheckpointMetadata {
    /// The recipe's text.
    pub recipe: String,
    /// The tokenizer's JSON.
    pub tokenizer: String,
    /// The data that is learnt from.
    pub data: Option<Fingerprint>,
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
            let Checkpoint { weights, average, memory, .. } = checkpoint;
            learner
                .restore(weights, average.as_ref(), memory, progress.step)
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
        let (average, memory) = (self.learner.average(), self.learner.memory());
        if let Some(what) = self.learner.unsound()? {
            let (step, what) = (self.progress.step, what.into());
            return Err(Error::Diverged { step, what, found: None, utterances: Vec::new(), source: None });
        }
        let CheckpointMetadata { recipe, tokenizer, data } = &self.about;
        let said = MetadataRef { recipe, tokenizer, progress: &self.progress, data: data.as_ref() };
        let shapes = parameters.shapes();
        let mut contents = Contents::new(said);
        contents.parameters(parameters);
        if let Some(average) = average {
            contents.values("average", average, &shapes);
        }
        for (kind, values) in &memory {
            contents.values(kind, values, &shapes);
        }
        Ok(contents.write(path)?)
    }

    /// The rest of the current epoch; false if the stop flag ended it.
    fn epoch(
        &mut self,
        source: &dyn BatchSource,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<bool> {
        let epoch = self.progress.epoch;
        let plan = source.plan(epoch)?;
        let (progress, parameters) = (&self.progress, self.learner.model().parameters());
        let state = || format!("{progress:?} {plan:?} {:?}", parameters.bits());
        expect_same(self.group, "plan and weights", state)?;
        self.padding = source.padding(&plan);
        let first = self.progress.batch as usize;
        let Some(todo) = plan.get(first..) else {
            let expected = format!("at most {} batches of epoch {epoch} done, as the data has", plan.len());
            return Err(Error::checkpoint(&self.folder.last(), expected, self.progress.batch.to_string()));
        };
        let (rank, count) = (self.group.rank(), self.group.size());
        let steps = || todo.chunks(self.accumulate).map(|step| (step, shard_step(step, rank, count)));
        let mine: Vec<Vec<usize>> = steps().flat_map(|(_, share)| share).collect();
        let cuts: Vec<(&[Vec<usize>], usize)> = steps().map(|(step, share)| (step, share.len())).collect();
        let (ahead, make) = (Prefetcher::new(mine.len(), PREFETCHED_BATCHES), |index: usize| {
            // Whoever makes it, dropout knows its utterances by their numbers.
            source.batch(epoch, &mine[index]).map(|batch| {
                let here = mine[index].iter().filter(|number| !batch.absent.contains(number));
                Batch { numbers: here.map(|&number| number as u64).collect(), ..batch }
            })
        });
        std::thread::scope(|scope| {
            let mut batches = ahead.run(scope, source.workers(), &make);
            for (utterances, share) in cuts {
                if self.group.any(stop.load(Ordering::Relaxed))? {
                    return Ok(false);
                }
                let started = Instant::now();
                let cut = (utterances, plan.len() as u64);
                let mut these = batches.by_ref().take(share);
                match self.step(&mut these, cut) {
                    Ok((report, bad)) => {
                        let warnings = [source.warnings(), self.bad.record(bad)].concat();
                        warnings.iter().for_each(|warning| observer.on_warning(warning));
                        if rank == 0 {
                            self.events.step(&report);
                        }
                        let seconds = started.elapsed().as_secs_f64();
                        observer.on_step(&StepReport { seconds, ..report });
                    }
                    Err(error) => {
                        let unread = matches!(
                            error,
                            Error::Model(model::Error::Speech(_) | model::Error::Io { .. })
                                | Error::Rank { .. }
                        );
                        if let Err(error) = self.skip(error, cut, observer) {
                            // The step has changed nothing: the steps before it are not lost.
                            if unread {
                                let _ = self.save_last();
                            }
                            return Err(error);
                        }
                    }
                }
                these.for_each(drop);
                if let Err(error) = self.bad.check() {
                    let saved = self.save_last();
                    self.agree(saved)?;
                    return Err(error);
                }
                // The end of the epoch writes its own.
                let every = self.run.checkpoint_every;
                let done = self.progress.batch == plan.len() as u64;
                if every > 0 && !done && self.progress.step.is_multiple_of(every) {
                    let saved = self.save_last();
                    match self.agree(saved) {
                        // The next step says with which utterances.
                        Err(Error::Diverged { .. }) => {}
                        saved => saved?,
                    }
                }
            }
            Ok(true)
        })
    }

    /// Goes on without the step that went wrong, if the recipe forgives it: nothing has changed in it.
    fn skip(&mut self, error: Error, cut: (&[Vec<usize>], u64), observer: &mut dyn Observer) -> Result<()> {
        let (skips, progress) = (NonFinitePolicy { most: self.run.skip_nonfinite }, &mut self.progress);
        let (of_step, batches) = (cut.0.len() as u64, cut.1);
        let forgiven = skips.skips(
            &error,
            progress.in_a_row,
            progress.nonfinite,
            batches.div_ceil(self.accumulate as u64),
        );
        // No step mends weights that are no numbers themselves.
        if !forgiven || !self.learner.model().parameters().are_finite()? {
            return Err(error);
        }
        observer.on_warning(&skips.warning(&error, progress.in_a_row));
        progress.batch += of_step;
        progress.nonfinite += 1;
        progress.in_a_row += 1;
        Ok(())
    }

    /// One optimizer step over these utterances in an epoch of so many batches; the report's `seconds` are left to the caller.
    fn step(
        &mut self,
        batches_of_it: &mut dyn Iterator<Item = Result<Batch>>,
        (utterances, batches): (&[Vec<usize>], u64),
    ) -> Result<(StepReport, BadItems)> {
        let moment = self.moment(batches);
        let Progress { epoch, batch, step, nonfinite, .. } = self.progress;
        let of: usize = utterances.iter().map(Vec::len).sum();
        let finished = self.learner.step(self.group, batches_of_it, of, &moment)?;
        let FinishedStep { totals: StepTotals { tally, bad, seconds }, norm, ids } = finished;
        self.seconds.resize(seconds.len(), 0.0);
        self.seconds.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds);
        if !norm.is_finite() {
            let (what, found, source) = ("gradient norm".into(), Some(norm), None);
            return Err(Error::Diverged { step, what, found, utterances: ids, source });
        }
        count(&mut self.progress, &tally, norm, utterances.len() as u64);
        let mean = |sum: f64| sum / tally.utterances.max(1) as f64;
        let in_epoch = |batches: u64| batches.div_ceil(self.accumulate as u64);
        let steps = step + nonfinite - in_epoch(batch);
        let steps = steps.saturating_add(in_epoch(batches).saturating_mul(self.run.epochs - epoch));
        let report = StepReport {
            epoch,
            batch: self.progress.batch - 1,
            batches,
            step,
            steps,
            loss: mean(tally.loss),
            ctc_loss: mean(tally.ctc_loss),
            simple_loss: mean(tally.simple_loss),
            learning_rate: self.learner.learning_rate(&moment),
            gradient_norm: norm,
            audio_seconds: tally.audio_seconds,
            seconds: 0.0,
        };
        Ok((report, bad))
    }

    /// Now, in an epoch of so many batches.
    fn moment(&self, batches: u64) -> Moment {
        let Progress { epoch, batch, step, .. } = self.progress;
        let progress = (epoch as f64 + batch as f64 / batches as f64) / self.run.epochs as f64;
        Moment { epoch, step, steps_per_epoch: batches.div_ceil(self.accumulate as u64), progress }
    }

    /// Closes the epoch: evaluation on the dev set, metrics, checkpoints.
    fn finish_epoch(
        &mut self,
        judge: &mut Validator,
        started: Instant,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let seconds = started.elapsed().as_secs_f64();
        if let Some((rank, times)) = slow_rank(&std::mem::take(&mut self.seconds)) {
            observer.on_warning(&format!(
                "rank {rank} took {times:.1} times as long for its gradients as the others"
            ));
        }
        self.bad.count().iter().for_each(|count| observer.on_warning(count));
        let run = self.run.clone();
        let Progress { batch: batches, step, best, skipped, nonfinite, in_a_row, .. } = self.progress;
        let steps = batches.div_ceil(self.accumulate as u64);
        let [loss, ctc, norm, count] = self.progress.sums.map(f64::from_bits);
        let simple = f64::from_bits(self.progress.simple);
        if skipped > 0 && loss == 0.0 && ctc == 0.0 {
            observer.on_warning(&format!(
                "epoch {}: no training utterance has a path, as where there are more labels than frames can say: nothing is learnt",
                self.progress.epoch + 1
            ));
        }
        let last = (steps.saturating_sub(1) * self.accumulate as u64) as f64 / batches as f64;
        let last = Moment {
            epoch: self.progress.epoch,
            step: step.saturating_sub(1),
            steps_per_epoch: steps,
            progress: (self.progress.epoch as f64 + last) / run.epochs as f64,
        };
        // Whatever else is in the folder, there is a checkpoint to go on from.
        let saved = if self.folder.last().exists() { Ok(()) } else { self.save_last() };
        self.agree(saved)?;
        let epoch = self.progress.epoch + 1;
        self.progress = Progress { epoch, step, best, in_a_row, ..Progress::default() };
        let due = epoch.is_multiple_of(run.evaluate_every) || epoch == run.epochs;
        let evaluation = if due { self.evaluate(judge)? } else { None };
        let score = evaluation.as_ref().map(|evaluation| &evaluation.overall);
        let rate = score.map(|score| score.rate(run.metric));
        let metrics = Metrics {
            epoch,
            step,
            loss: loss / count,
            ctc_loss: ctc / count,
            simple_loss: simple / count,
            learning_rate: self.learner.learning_rate(&last),
            gradient_norm: norm / (steps - nonfinite) as f64,
            skipped,
            nonfinite,
            padding: self.padding,
            planned_bytes: self.planned,
            resident_bytes: memory::peak_resident().unwrap_or(0) as u64,
            seconds,
            dev_wer: score.map(|score| score.wer),
            dev_cer: score.map(|score| score.cer),
        };
        let rate = rate.filter(|&rate| best.is_none_or(|best| rate < f64::from_bits(best)));
        if let Some(rate) = rate {
            self.progress.best = Some(rate.to_bits());
        }
        self.metrics.push(metrics.clone());
        let written =
            if self.writes() { self.write_epoch(&metrics, rate.is_some(), observer) } else { Ok(()) };
        self.agree(written)?;
        observer.on_epoch(&EpochReport { metrics, epochs: self.run.epochs, evaluation });
        Ok(())
    }

    /// What is written of an epoch, which may be the best so far.
    fn write_epoch(&mut self, metrics: &Metrics, best: bool, observer: &mut dyn Observer) -> Result<()> {
        self.events.epoch(metrics);
        if best {
            self.save(&self.folder.best())?;
        }
        self.folder.write_metrics(&self.metrics)?;
        observer.write_epoch(self.folder, &self.metrics)?;
        if self.run.keep > 0 {
            self.save(&self.folder.epoch(metrics.epoch))?;
            self.folder.keep(metrics.epoch, self.run.keep)?;
        }
        // The last write of the epoch: a kill before it redoes the epoch's end from the checkpoint before.
        self.save_last()
    }

    /// Judges the averaged weights if there are any, and puts the others back.
    fn evaluate(&mut self, judge: &mut Validator) -> Result<Option<Evaluation>> {
        let parameters = self.learner.model().parameters();
        let weights = parameters.values()?;
        if let Some(average) = self.learner.average() {
            parameters.set(average)?;
        }
        let evaluation = judge(self.learner.model(), self.group);
        parameters.set(&weights)?;
        evaluation
    }
}

/// Adds a step of so many batches to the progress of a run.
fn count(progress: &mut Progress, tally: &Tally, norm: f64, batches: u64) {
    let sums = [tally.loss, tally.ctc_loss, norm, tally.utterances as f64];
    for (sum, value) in progress.sums.iter_mut().zip(sums) {
        *sum = (f64::from_bits(*sum) + value).to_bits();
    }
    progress.simple = (f64::from_bits(progress.simple) + tally.simple_loss).to_bits();
    progress.batch += batches;
    progress.step += 1;
    progress.skipped += tally.skipped;
    progress.in_a_row = 0;
}
