//! End of an epoch in the training loop: evaluation, metrics, checkpoints.
use std::time::Instant;

use model::checkpoint::Progress;
use recognizer::Evaluation;

use super::{Trainer, Validator};
use crate::Result;
use crate::metrics::{Metrics, peak_resident_bytes};
use crate::observer::{EpochReport, Observer};
use crate::reduction::slow_rank;
use crate::schedule::StepPosition;

impl Trainer<'_> {
    /// Finishes an epoch: evaluation on the dev set, metrics, checkpoints.
    pub(super) fn finish_epoch(
        &mut self,
        validate: &mut Validator,
        started: Instant,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        // 1. Warnings about the epoch.
        let seconds = started.elapsed().as_secs_f64();
        if let Some((rank, ratio)) = slow_rank(&std::mem::take(&mut self.rank_seconds)) {
            observer.on_warning(&format!(
                "rank {rank} took {ratio:.1} times as long for its gradients as the others"
            ));
        }
        self.bad_item_log.count_warning().iter().for_each(|count| observer.on_warning(count));
        let run_config = self.run_config.clone();
        let Progress { step, best, skipped, nonfinite, in_a_row, .. } = self.progress;
        // All batches of the epoch are finished.
        let batches = self.progress.batch;
        let steps = batches.div_ceil(self.batches_per_step as u64);
        let [loss_sum, ctc_sum, norm_sum, num_utterances] = self.progress.sums.map(f64::from_bits);
        let simple_sum = f64::from_bits(self.progress.simple);
        if skipped > 0 && loss_sum == 0.0 && ctc_sum == 0.0 {
            observer.on_warning(&format!(
                "epoch {}: no training utterance has a path, so that nothing is trained; are there more labels than encoder frames?",
                self.progress.epoch + 1
            ));
        }
        let fraction_before_last_step =
            (steps.saturating_sub(1) * self.batches_per_step as u64) as f64 / batches as f64;
        let last_step = StepPosition {
            epoch: self.progress.epoch,
            step: step.saturating_sub(1),
            steps_per_epoch: steps,
            progress: (self.progress.epoch as f64 + fraction_before_last_step) / run_config.epochs as f64,
        };
        // 2. Evaluation and metrics. Other files in the folder require a checkpoint to resume from.
        let saved = if self.folder.last_checkpoint().exists() { Ok(()) } else { self.save_last() };
        self.agree(saved)?;
        let epoch = self.progress.epoch + 1;
        self.progress = Progress { epoch, step, best, in_a_row, ..Progress::default() };
        let is_due = epoch.is_multiple_of(run_config.evaluate_every) || epoch == run_config.epochs;
        let evaluation = if is_due { self.evaluate(validate)? } else { None };
        let score = evaluation.as_ref().map(|evaluation| &evaluation.overall);
        let error_rate = score.map(|score| score.rate(run_config.metric));
        let metrics = Metrics {
            epoch,
            step,
            loss: loss_sum / num_utterances,
            ctc_loss: ctc_sum / num_utterances,
            simple_loss: simple_sum / num_utterances,
            learning_rate: self.learner.learning_rate(&last_step),
            gradient_norm: norm_sum / (steps - nonfinite) as f64,
            skipped,
            nonfinite,
            padding: self.padding,
            planned_bytes: self.planned_bytes,
            resident_bytes: peak_resident_bytes().unwrap_or(0) as u64,
            seconds,
            dev_wer: score.map(|score| score.wer),
            dev_cer: score.map(|score| score.cer),
        };
        let best_rate = error_rate.filter(|&rate| best.is_none_or(|best| rate < f64::from_bits(best)));
        if let Some(rate) = best_rate {
            self.progress.best = Some(rate.to_bits());
        }
        // 3. Files and report.
        self.metrics.push(metrics.clone());
        let written =
            if self.writes() { self.write_epoch(&metrics, best_rate.is_some(), observer) } else { Ok(()) };
        self.agree(written)?;
        observer.on_epoch(&EpochReport { metrics, epochs: self.run_config.epochs, evaluation });
        Ok(())
    }

    /// Writes the files of an epoch.
    fn write_epoch(&mut self, metrics: &Metrics, is_best: bool, observer: &mut dyn Observer) -> Result<()> {
        self.event_writer.add_epoch(metrics);
        if is_best {
            self.save(&self.folder.best_checkpoint())?;
        }
        self.folder.write_metrics(&self.metrics)?;
        observer.write_epoch(self.folder, &self.metrics)?;
        if self.run_config.keep > 0 {
            self.save(&self.folder.epoch_checkpoint(metrics.epoch))?;
            self.folder.remove_old_checkpoints(metrics.epoch, self.run_config.keep)?;
        }
        // The last write of the epoch: a run killed before repeats the end of the epoch.
        self.save_last()
    }

    /// Evaluates the moving average of the weights, if there is one; the weights are then restored.
    fn evaluate(&mut self, validate: &mut Validator) -> Result<Option<Evaluation>> {
        let parameters = self.learner.model().parameters();
        let weights = parameters.values()?;
        if let Some(average) = self.learner.average() {
            parameters.set(average)?;
        }
        let evaluation = validate(self.learner.model(), self.group);
        parameters.set(&weights)?;
        evaluation
    }
}
