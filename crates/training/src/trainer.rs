//! The training loop.
//!
//! Everything random is a function of (seed, epoch, batch or utterance), so a run is its checkpoint: what follows from there is the
//! same bit for bit whether the process went on, was stopped, or was killed and started again.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use speech::Tokenizer;

use crate::checkpoint::{Checkpoint, Progress};
use crate::data::{Batch, Batcher, Example};
use crate::divergence::{self, Divergence};
use crate::dropout::Masks;
use crate::ema::Ema;
use crate::evaluate::{Evaluation, evaluate};
use crate::loading::{Loaded, Stopped};
use crate::losses::LossSessions;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::observer::{EpochReport, Observer, RunReport, StepReport};
use crate::optimiser::{self, Optimiser};
use crate::recipe::{Recipe, Select};
use crate::run_folder::{RunFolder, Start};
use crate::schedule::{Moment, learning_rate};
use crate::search::Search;
use crate::skips::Skips;
use crate::{Error, Fingerprint, Result};
use decoding::Aggregate;

/// Batches that wait ready while one is computed.
const AHEAD: usize = 2;

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Whether the stop flag ended it early; the checkpoint is there to resume from.
    pub stopped: bool,
    /// Optimiser steps done in all.
    pub steps: u64,
    /// Report on the dev set, if the run finished and has one.
    pub dev: Option<Evaluation>,
    /// Report on the test set, if the run finished and has one.
    pub test: Option<Evaluation>,
}

/// Trains by a recipe in a run folder, then evaluates.
///
/// `epochs` replaces the recipe's number. When `stop` becomes true, the run writes a checkpoint after the current step and
/// returns; while it loads or evaluates what it has learnt, it returns at once, and what is saved is there to go on from.
///
/// # Errors
/// Anything that the recipe, the data or a checkpoint may have wrong, before anything is written; [`Error::Io`] if the folder
/// refuses; [`Error::Diverged`] if a score, a loss or a gradient is no number: the last checkpoint is then still there.
pub fn train(
    recipe: &Path,
    epochs: Option<u64>,
    folder: &Path,
    start: Start,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let (recipe, text) = Recipe::read(recipe, epochs)?;
    let folder = RunFolder::new(folder, start)?;

    let stopped = |steps| Ok(Outcome { stopped: true, steps, dev: None, test: None });
    let loaded = match Loaded::new(&recipe, &folder, start, observer, stop) {
        Ok(loaded) => loaded,
        Err(error) => {
            folder.leave();
            return match error {
                Stopped::At(steps) => stopped(steps),
                Stopped::By(error) => Err(error),
            };
        }
    };
    let Loaded { resumed, tokenizer, front_end, examples, dev, test, data } = loaded;
    let mut run = Run::new(&recipe, &text, &tokenizer, data, folder)?;
    if let Some(checkpoint) = &resumed {
        run.restore(checkpoint)?;
    }
    run.folder.clear(resumed.is_some())?;
    run.folder.write("recipe.toml", text.as_bytes())?;
    observer.on_start(&RunReport {
        parameters: run.model.parameters().count(),
        classes: run.model.classes(),
        utterances: examples.len(),
        audio_seconds: examples.iter().map(|example| example.seconds).sum(),
        epochs: recipe.training.epochs,
        first_epoch: run.progress.epoch,
    });

    let batcher = Batcher::new(&examples, &recipe, front_end.mel_scale());
    while run.progress.epoch < recipe.training.epochs {
        let started = Instant::now();
        if !run.epoch(&batcher, observer, stop)? {
            run.save(&run.folder.last())?;
            return stopped(run.progress.step);
        }
        run.finish_epoch(&dev, started, observer)?;
    }

    if recipe.training.select == Select::Best && run.progress.best.is_some() {
        let best = Checkpoint::read(&run.folder.best())?;
        best.check(&run.folder.best(), &run.model.parameters().shapes())?;
        run.model.parameters().set(best.average.as_ref().unwrap_or(&best.weights))?;
    } else if let Some(ema) = &run.ema {
        run.model.parameters().set(&ema.values)?;
    }
    let report = |examples: &[Example]| match examples.is_empty() {
        true => Ok(None),
        false => evaluate(
            (&run.model, &Search::of(&recipe), Aggregate::default()),
            &tokenizer,
            &recipe,
            examples,
            0.0,
            stop,
        )
        .map(Some),
    };
    let both = || Ok((report(&dev)?, report(&test)?));
    let (dev, test) = match both() {
        // All of the training is saved; a run that goes on from there has only this left to do.
        Err(Error::Stopped) => return stopped(run.progress.step),
        reports => reports?,
    };
    let outcome = Outcome { stopped: false, steps: run.progress.step, dev, test };
    let sets = [("dev", &outcome.dev), ("test", &outcome.test)];
    let sets: Vec<_> = sets.iter().filter_map(|(name, set)| Some((*name, set.as_ref()?))).collect();
    run.folder.write_evaluations(&sets)?;
    Ok(outcome)
}

/// The state of a run; a checkpoint is a copy of it.
struct Run<'a> {
    recipe: &'a Recipe,
    text: &'a str,
    tokenizer: &'a Tokenizer,
    data: Fingerprint,
    folder: RunFolder,
    model: Model,
    sessions: LossSessions,
    optimiser: Box<dyn Optimiser>,
    ema: Option<Ema>,
    progress: Progress,
    metrics: Vec<Metrics>,
    /// Share of the current epoch's rows that is padding.
    padding: f64,
}

impl<'a> Run<'a> {
    fn new(
        recipe: &'a Recipe,
        text: &'a str,
        tokenizer: &'a Tokenizer,
        data: Fingerprint,
        folder: RunFolder,
    ) -> Result<Self> {
        let model = Model::new(recipe, tokenizer.size())?;
        let sessions = LossSessions::new(recipe)?;
        let optimiser = optimiser::build(&recipe.optimiser, model.parameters());
        let ema = match recipe.optimiser.ema > 0.0 {
            true => Some(Ema::new(recipe.optimiser.ema, recipe.optimiser.ema_warmup, model.parameters())?),
            false => None,
        };
        let (progress, metrics) = (Progress::default(), Vec::new());
        let run = Run {
            recipe,
            text,
            tokenizer,
            data,
            folder,
            model,
            sessions,
            optimiser,
            ema,
            progress,
            metrics,
            padding: 0.0,
        };
        Ok(run)
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let path = self.folder.last();
        checkpoint.check(&path, &self.model.parameters().shapes())?;
        self.model.parameters().set(&checkpoint.weights)?;
        self.optimiser.restore(&checkpoint.memory, checkpoint.progress.step)?;
        match (&mut self.ema, &checkpoint.average) {
            (Some(ema), Some(average)) => ema.values.clone_from(average),
            (None, None) => {}
            _ => {
                return Err(Error::checkpoint(
                    &path,
                    "an average exactly if the recipe has optimiser.ema",
                    "otherwise",
                ));
            }
        }
        self.progress = checkpoint.progress.clone();
        self.metrics = self.folder.read_metrics(self.progress.epoch)?;
        Ok(())
    }

    /// Writes the state as it is now.
    fn save(&self, path: &Path) -> Result<()> {
        let parameters = self.model.parameters();
        let checkpoint = Checkpoint {
            recipe: self.text.to_owned(),
            tokenizer: self.tokenizer.to_json()?,
            progress: self.progress.clone(),
            shapes: parameters.shapes(),
            weights: parameters.values()?,
            average: self.ema.as_ref().map(|ema| ema.values.clone()),
            memory: self.optimiser.memory(),
            data: Some(self.data.clone()),
            summed: true,
        };
        checkpoint.write(path)
    }

    /// The rest of the current epoch; false if the stop flag ended it.
    fn epoch(&mut self, batcher: &Batcher, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<bool> {
        let epoch = self.progress.epoch;
        let plan = batcher.plan(epoch)?;
        self.padding = batcher.padding(&plan).share();
        let Some(todo) = plan.get(self.progress.batch as usize..) else {
            let expected = format!("at most {} batches of epoch {epoch} done, as the data has", plan.len());
            return Err(Error::checkpoint(&self.folder.last(), expected, self.progress.batch.to_string()));
        };
        let batches = plan.len() as u64;
        let Progress { batch, step, nonfinite, .. } = self.progress;
        let steps = step + nonfinite - batch + batches * (self.recipe.training.epochs - epoch);
        let every = self.recipe.training.checkpoint_every;
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel(AHEAD);
            // Ends by itself when the receiver is gone.
            scope
                .spawn(move || todo.iter().all(|examples| send.send(batcher.batch(epoch, examples)).is_ok()));
            for batch in receive {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let started = Instant::now();
                match self.step(&batch?, batcher.examples, batches) {
                    Ok(report) => {
                        let seconds = started.elapsed().as_secs_f64();
                        observer.on_step(&StepReport { steps, seconds, ..report });
                    }
                    Err(error) => self.skip(error, batches, observer)?,
                }
                // The end of the epoch writes its own.
                let done = self.progress.batch == batches;
                if every > 0 && !done && self.progress.step.is_multiple_of(every) {
                    self.save(&self.folder.last())?;
                }
            }
            Ok(true)
        })
    }

    /// Goes on without the step that went wrong, if the recipe forgives it: nothing has changed in it.
    fn skip(&mut self, error: Error, batches: u64, observer: &mut dyn Observer) -> Result<()> {
        let (skips, progress) = (Skips { most: self.recipe.training.skip_nonfinite }, &mut self.progress);
        let forgiven = skips.forgives(&error, progress.in_a_row, progress.nonfinite, batches);
        // No step mends weights that are no numbers themselves.
        if !forgiven || !self.model.parameters().are_finite()? {
            return Err(error);
        }
        observer.on_warning(&skips.warning(&error, progress.in_a_row));
        progress.batch += 1;
        progress.nonfinite += 1;
        progress.in_a_row += 1;
        Ok(())
    }

    /// One optimiser step on one of the epoch's `batches`; the report's `steps` and `seconds` are left to the caller.
    fn step(&mut self, batch: &Batch, examples: &[Example], batches: u64) -> Result<StepReport> {
        let Recipe { seed, training, optimiser: config, .. } = self.recipe;
        let Progress { epoch, batch: index, step, .. } = self.progress;
        let over = (epoch as f64 + index as f64 / batches as f64) / training.epochs as f64;
        let utterances = || batch.examples.iter().map(|&index| examples[index].id.clone()).collect();
        let diverged = |what, found| {
            Err(Error::Diverged { step, what, found: Some(found), utterances: utterances(), source: None })
        };

        let mut masks = Masks::new(*seed, epoch, index);
        let model = &self.model;
        let losses =
            model.losses(&self.sessions, &batch.rows, &batch.lengths, &batch.labels, step, Some(&mut masks));
        let losses = losses.map_err(|error| match divergence::of(&error) {
            Some(Divergence { what, found }) => {
                Error::Diverged { step, what, found, utterances: utterances(), source: Some(error.into()) }
            }
            None => error,
        })?;
        let (loss, mut skipped) = mean(&losses.transducer);
        let (simple, _) = mean(losses.simple.as_deref().unwrap_or_default());
        let (mut total, mut ctc) = (losses.mean, 0.0);
        if let Some((values, tensor)) = losses.ctc {
            let (value, without) = mean(&values);
            ctc = value;
            skipped = skipped.max(without);
            total = (total + (tensor * training.ctc_weight(over))?)?;
        }
        if !(loss + simple + ctc).is_finite() {
            return diverged("loss", loss + simple + ctc);
        }
        let rate = learning_rate(config, Moment { step, epoch, steps_per_epoch: batches, progress: over });
        let grads = total.backward()?;
        let norm = self.optimiser.step(model.parameters(), &grads, rate)?;
        if !norm.is_finite() {
            return diverged("gradient norm", norm);
        }
        if let Some(ema) = &mut self.ema {
            ema.update(step, model.parameters())?;
        }

        let count = batch.examples.len() as f64;
        let progress = &mut self.progress;
        for (sum, value) in progress.sums.iter_mut().zip([loss * count, ctc * count, norm, count]) {
            *sum = (f64::from_bits(*sum) + value).to_bits();
        }
        progress.simple = (f64::from_bits(progress.simple) + simple * count).to_bits();
        progress.batch += 1;
        progress.step += 1;
        progress.skipped += skipped;
        progress.in_a_row = 0;
        Ok(StepReport {
            epoch,
            batch: index,
            batches,
            step,
            steps: 0,
            loss,
            ctc_loss: ctc,
            simple_loss: simple,
            learning_rate: rate,
            gradient_norm: norm,
            audio_seconds: batch.examples.iter().map(|&index| examples[index].seconds).sum(),
            seconds: 0.0,
        })
    }

    /// Closes the epoch: evaluation on the dev set, metrics, checkpoints.
    fn finish_epoch(&mut self, dev: &[Example], started: Instant, observer: &mut dyn Observer) -> Result<()> {
        let seconds = started.elapsed().as_secs_f64();
        let training = &self.recipe.training;
        let [loss, ctc, norm, count] = self.progress.sums.map(f64::from_bits);
        let simple = f64::from_bits(self.progress.simple);
        let batches = self.progress.batch as f64;
        let skipped = self.progress.skipped;
        let over = (self.progress.epoch as f64 + (batches - 1.0) / batches) / training.epochs as f64;
        let last = Moment {
            step: self.progress.step - 1,
            epoch: self.progress.epoch,
            steps_per_epoch: self.progress.batch,
            progress: over,
        };
        let rate = learning_rate(&self.recipe.optimiser, last);
        if !self.folder.last().exists() {
            // Whatever else is in the folder, there is a checkpoint to go on from.
            self.save(&self.folder.last())?;
        }
        let Progress { best, step, nonfinite, in_a_row, .. } = self.progress;
        let epoch = self.progress.epoch + 1;
        self.progress = Progress { epoch, step, best, in_a_row, ..Progress::default() };
        let due = epoch.is_multiple_of(training.evaluate_every) || epoch == training.epochs;
        let evaluation = match due && !dev.is_empty() {
            true => Some(self.evaluate(dev)?),
            false => None,
        };
        let dev_wer = evaluation.as_ref().map(|evaluation| evaluation.overall.wer);
        let metrics = Metrics {
            epoch,
            step,
            loss: loss / count,
            ctc_loss: ctc / count,
            simple_loss: simple / count,
            learning_rate: rate,
            gradient_norm: norm / (batches - nonfinite as f64),
            skipped,
            nonfinite,
            padding: self.padding,
            seconds,
            dev_wer,
        };
        self.metrics.push(metrics.clone());
        if let Some(wer) = dev_wer.filter(|&wer| best.is_none_or(|best| wer < f64::from_bits(best))) {
            self.progress.best = Some(wer.to_bits());
            self.save(&self.folder.best())?;
        }
        self.folder.write_metrics(&self.metrics)?;
        self.folder.write_curve(&self.metrics)?;
        if training.keep > 0 {
            self.save(&self.folder.epoch(epoch))?;
            self.folder.keep(epoch, training.keep)?;
        }
        // The last write of the epoch: a kill before it redoes the epoch's end from the checkpoint before.
        self.save(&self.folder.last())?;
        observer.on_epoch(&EpochReport { metrics, epochs: training.epochs, evaluation });
        Ok(())
    }

    /// Evaluates the averaged weights if there are any, and puts the others back.
    fn evaluate(&self, examples: &[Example]) -> Result<Evaluation> {
        let parameters = self.model.parameters();
        let weights = parameters.values()?;
        if let Some(ema) = &self.ema {
            parameters.set(&ema.values)?;
        }
        // A run that stops here could not go on from here.
        let evaluation = evaluate(
            (&self.model, &Search::of(self.recipe), Aggregate::default()),
            self.tokenizer,
            self.recipe,
            examples,
            0.0,
            &AtomicBool::new(false),
        );
        parameters.set(&weights)?;
        evaluation
    }
}

/// Mean over the batch without the utterances that have no path, and how many those are.
fn mean(losses: &[f64]) -> (f64, u64) {
    let possible = losses.iter().filter(|&&loss| loss != f64::INFINITY);
    let without = losses.len() - possible.clone().count();
    (possible.map(|loss| loss / losses.len() as f64).sum(), without as u64)
}
