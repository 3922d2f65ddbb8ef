//! The steps of an epoch.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use model::checkpoint::Progress;
use recognizer::bad_items::BadItems;

use super::Trainer;
use crate::data::{Batch, BatchSource, PREFETCHED_BATCHES, Prefetcher};
use crate::learner::FinishedStep;
use crate::metrics::LossSums;
use crate::non_finite::NonFinitePolicy;
use crate::observer::{Observer, StepReport};
use crate::rank_differences::expect_same;
use crate::reduction::{StepTotals, shard_step};
use crate::schedule::StepPosition;
use crate::{Error, Result};

impl Trainer<'_> {
    /// The rest of the current epoch; false if the stop flag ended it.
    pub(super) fn epoch(
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
    fn moment(&self, batches: u64) -> StepPosition {
        let Progress { epoch, batch, step, .. } = self.progress;
        let progress = (epoch as f64 + batch as f64 / batches as f64) / self.run.epochs as f64;
        StepPosition { epoch, step, steps_per_epoch: batches.div_ceil(self.accumulate as u64), progress }
    }
}

/// Adds a step of so many batches to the progress of a run.
fn count(progress: &mut Progress, tally: &LossSums, norm: f64, batches: u64) {
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
