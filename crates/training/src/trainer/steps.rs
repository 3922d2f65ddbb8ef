//! The steps of an epoch in the training loop: prefetch, step, skip, checkpoint.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use model::checkpoint::Progress;
use recognizer::bad_items::BadItems;

use super::Trainer;
use crate::data::{Batch, BatchSource, PREFETCHED_BATCHES, Prefetcher};
use crate::learner::FinishedStep;
use crate::metrics::LossSums;
use crate::non_finite::NonFinitePolicy;
use crate::observer::Observer;
use crate::rank_differences::expect_equal_text;
use crate::reduction::{StepTotals, shard_step};
use crate::schedule::StepPosition;
use crate::step_report::StepReport;
use crate::{Error, Result};

impl Trainer<'_> {
    /// Trains the rest of the current epoch; false if the stop flag ended it.
    pub(super) fn train_epoch(
        &mut self,
        source: &dyn BatchSource,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<bool> {
        // 1. The plan of the epoch, equal in all processes, from the first unfinished batch on.
        let epoch = self.progress.epoch;
        let plan = source.plan(epoch)?;
        let (progress, parameters) = (&self.progress, self.learner.model().parameters());
        let describe_state = || format!("{progress:?} {plan:?} {:?}", parameters.checksum());
        expect_equal_text(self.group, "plan and weights", describe_state)?;
        self.padding = source.padding(&plan);
        let first_batch = self.progress.batch as usize;
        let Some(remaining) = plan.get(first_batch..) else {
            let expected =
                format!("at most {} finished batches of epoch {epoch}, as the data has", plan.len());
            return Err(Error::checkpoint(
                &self.folder.last_checkpoint(),
                expected,
                self.progress.batch.to_string(),
            ));
        };
        // 2. The share of this rank in each step, loaded ahead by worker threads.
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let steps =
            || remaining.chunks(self.batches_per_step).map(|step| (step, shard_step(step, rank, ranks)));
        let own_batches: Vec<Vec<usize>> = steps().flat_map(|(_, shard)| shard).collect();
        let steps_and_counts: Vec<(&[Vec<usize>], usize)> =
            steps().map(|(step, shard)| (step, shard.len())).collect();
        let prefetcher = Prefetcher::new(own_batches.len(), PREFETCHED_BATCHES);
        let load = |position: usize| {
            // Dropout depends on the index of an utterance in the whole set, so that its masks are
            // the same on any rank.
            source.batch(epoch, &own_batches[position]).map(|batch| {
                let present = own_batches[position].iter().filter(|index| !batch.absent.contains(index));
                Batch { indices: present.map(|&index| index as u64).collect(), ..batch }
            })
        };
        // 3. One optimizer step after the other, with checkpoints between them.
        std::thread::scope(|scope| {
            let mut batches = prefetcher.run(scope, source.workers(), &load);
            for (step_batches, num_own_batches) in steps_and_counts {
                if self.group.any_rank(stop.load(Ordering::Relaxed))? {
                    return Ok(false);
                }
                let started = Instant::now();
                let epoch_batches = plan.len() as u64;
                let mut shard = batches.by_ref().take(num_own_batches);
                match self.make_step(&mut shard, step_batches, epoch_batches) {
                    Ok((report, bad)) => {
                        let warnings = [source.warnings(), self.bad_item_log.record(bad)].concat();
                        warnings.iter().for_each(|warning| observer.on_warning(warning));
                        if rank == 0 {
                            self.event_writer.add_step(&report);
                        }
                        let seconds = started.elapsed().as_secs_f64();
                        observer.on_step(&StepReport { seconds, ..report });
                    }
                    Err(error) => {
                        let is_input_error = matches!(
                            error,
                            Error::Model(model::Error::Speech(_) | model::Error::Io { .. })
                                | Error::Rank { .. }
                        );
                        if let Err(error) = self.skip_step(error, step_batches, epoch_batches, observer) {
                            // The step has changed nothing, and the steps before it are saved.
                            if is_input_error {
                                let _ = self.save_last();
                            }
                            return Err(error);
                        }
                    }
                }
                // A failed step leaves batches unread; the next step starts at its own.
                shard.for_each(drop);
                if let Err(error) = self.bad_item_log.check() {
                    let saved = self.save_last();
                    self.agree(saved)?;
                    return Err(error);
                }
                // The end of the epoch writes its own checkpoint.
                let interval = self.run_config.checkpoint_every;
                let is_last = self.progress.batch == epoch_batches;
                if interval > 0 && !is_last && self.progress.step.is_multiple_of(interval) {
                    let saved = self.save_last();
                    match self.agree(saved) {
                        // The next step reports the error with its utterances.
                        Err(Error::Diverged { .. }) => {}
                        saved => saved?,
                    }
                }
            }
            Ok(true)
        })
    }

    /// Skips a step that has failed, if the recipe allows it; the step has changed nothing.
    fn skip_step(
        &mut self,
        error: Error,
        step_batches: &[Vec<usize>],
        epoch_batches: u64,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let policy = NonFinitePolicy { max_in_a_row: self.run_config.skip_nonfinite };
        let progress = &mut self.progress;
        let is_skipped = policy.skips(
            &error,
            progress.in_a_row,
            progress.nonfinite,
            epoch_batches.div_ceil(self.batches_per_step as u64),
        );
        // Weights that are not finite stay so in all later steps.
        if !is_skipped || !self.learner.model().parameters().are_finite()? {
            return Err(error);
        }
        observer.on_warning(&policy.warning(&error, progress.in_a_row));
        progress.batch += step_batches.len() as u64;
        progress.nonfinite += 1;
        progress.in_a_row += 1;
        Ok(())
    }

    /// Makes one optimizer step in an epoch of `epoch_batches` batches.
    ///
    /// `batches` is the share of this rank, `step_batches` are the utterances of all ranks. The
    /// caller sets the `seconds` of the report.
    fn make_step(
        &mut self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        step_batches: &[Vec<usize>],
        epoch_batches: u64,
    ) -> Result<(StepReport, BadItems)> {
        let position = self.next_position(epoch_batches);
        let Progress { epoch, batch, step, nonfinite, .. } = self.progress;
        let step_utterances: usize = step_batches.iter().map(Vec::len).sum();
        let FinishedStep { totals, norm, ids } =
            self.learner.step(self.group, batches, step_utterances, &position)?;
        let StepTotals { loss_sums, bad, seconds, .. } = totals;
        self.rank_seconds.resize(seconds.len(), 0.0);
        self.rank_seconds.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds);
        if !norm.is_finite() {
            let (what, found, source) = ("gradient norm".into(), Some(norm), None);
            return Err(Error::Diverged { step, what, found, utterances: ids, source });
        }
        add_to_progress(&mut self.progress, &loss_sums, norm, step_batches.len() as u64);
        let mean = |sum: f64| sum / loss_sums.utterances.max(1) as f64;
        let steps_of = |batches: u64| batches.div_ceil(self.batches_per_step as u64);
        // `step` does not count the skipped steps of this epoch, and `batch` does.
        let steps_before_epoch = step + nonfinite - steps_of(batch);
        // An estimate: later epochs have as many steps as this one.
        let total_steps = steps_before_epoch
            .saturating_add(steps_of(epoch_batches).saturating_mul(self.run_config.epochs - epoch));
        let report = StepReport {
            epoch,
            batch: self.progress.batch - 1,
            batches: epoch_batches,
            step,
            steps: total_steps,
            loss: mean(loss_sums.loss),
            ctc_loss: mean(loss_sums.ctc_loss),
            simple_loss: mean(loss_sums.simple_loss),
            learning_rate: self.learner.learning_rate(&position),
            gradient_norm: norm,
            audio_seconds: loss_sums.audio_seconds,
            seconds: 0.0,
        };
        Ok((report, bad))
    }

    /// Returns the position of the next step.
    ///
    /// `batches` is the number of batches of the epoch.
    fn next_position(&self, batches: u64) -> StepPosition {
        let Progress { epoch, batch, step, .. } = self.progress;
        let progress = (epoch as f64 + batch as f64 / batches as f64) / self.run_config.epochs as f64;
        StepPosition {
            epoch,
            step,
            steps_per_epoch: batches.div_ceil(self.batches_per_step as u64),
            progress,
        }
    }
}

/// Adds a step of `batches` batches to the progress of a run.
fn add_to_progress(progress: &mut Progress, loss_sums: &LossSums, norm: f64, batches: u64) {
    let sums = [loss_sums.loss, loss_sums.ctc_loss, norm, loss_sums.utterances as f64];
    for (sum, value) in progress.sums.iter_mut().zip(sums) {
        *sum = (f64::from_bits(*sum) + value).to_bits();
    }
    progress.simple = (f64::from_bits(progress.simple) + loss_sums.simple_loss).to_bits();
    progress.batch += batches;
    progress.step += 1;
    progress.skipped += loss_sums.skipped;
    progress.in_a_row = 0;
}
