//! What learns: a model, its optimizer and the average of its weights.
//!
//! A step is three functions, of which other ranks take part in the second:
//!
//! ```text
//! gradients   Σ over the batches of the step, each with its share of the mean over all utterances of the step
//! reduce      Σ over ranks, see `reduction.rs`
//! apply       the optimizer, then the moving average
//! ```
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use distributed::ProcessGroup;

use crate::data::Batch;
use crate::ema::Ema;
use crate::metrics::LossSums;
use crate::optimizer;
use crate::optimizer::Optimizer;
use crate::optimizer::OptimizerConfig;
use crate::reduction::{GradientReduction, StepTotals};
use crate::run_plan::RunPlan;
use crate::schedule::{StepPosition, learning_rate};
use crate::{Error, Result};
use model::checkpoint::Values;
use model::{Divergence, GradientSum, GradientTerms, Gradients, LossSessions, Losses, Model, TrainingPass};
use recognizer::bad_items::BadItems;

/// A model in training.
pub struct Learner {
    model: Model,
    objective: Box<dyn TrainingObjective>,
    optimizer: Box<dyn Optimizer>,
    ema: Option<Ema>,
    config: OptimizerConfig,
    plan: Option<RunPlan>,
    reduction: GradientReduction,
}

/// A step of all ranks.
pub(crate) struct FinishedStep {
    pub totals: StepTotals,
    /// Norm of the gradient before any clipping; if it is not finite, nothing has changed.
    pub norm: f64,
    /// Ids of the utterances of this rank.
    pub ids: Vec<String>,
}

impl Learner {
    /// A model that has not learnt yet.
    ///
    /// # Errors
    /// [`Error::Loss`](model::Error::Loss) for options that the loss refuses; candle's own errors.
    pub fn new(model: Model, config: &OptimizerConfig) -> Result<Self> {
        let optimizer = optimizer::build(config, model.parameters());
        Self::with_optimizer(model, config, optimizer)
    }

    /// [`Learner::new`], with an optimizer of one's own.
    ///
    /// # Errors
    /// As [`Learner::new`].
    pub fn with_optimizer(
        model: Model,
        config: &OptimizerConfig,
        optimizer: Box<dyn Optimizer>,
    ) -> Result<Self> {
        let ema = match config.ema > 0.0 {
            true => Some(Ema::new(config.ema, config.ema_warmup, model.parameters())?),
            false => None,
        };
        let objective = Box::new(LossSessions::new(model.config())?);
        let (config, reduction) = (config.clone(), GradientReduction::default());
        Ok(Learner { model, objective, optimizer, ema, config, plan: None, reduction })
    }

    /// Replaces the objective that the model's configuration names.
    #[must_use]
    pub fn with_objective(mut self, objective: Box<dyn TrainingObjective>) -> Self {
        self.objective = objective;
        self
    }

    /// From now on, batches that would take more are computed in parts.
    pub(crate) fn with_plan(mut self, plan: Option<RunPlan>) -> Self {
        self.plan = plan;
        self
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The moving average of the weights, if there is one.
    pub fn average(&self) -> Option<&Values> {
        self.ema.as_ref().map(|ema| &ema.values)
    }

    /// What the optimizer remembers.
    pub fn optimizer_state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        self.optimizer.state()
    }

    /// What has values that are no finite numbers, if anything has.
    pub(crate) fn unsound(&self) -> Result<Option<&'static str>> {
        let finite = |values: &Values| values.values().flatten().all(|value| value.is_finite());
        Ok(if !self.model.parameters().are_finite()? {
            Some("weight")
        } else if !self.average().is_none_or(finite) {
            Some("moving average of a weight")
        } else {
            self.optimizer_state()
                .values()
                .any(|values| !finite(values))
                .then_some("optimiser's memory of a weight")
        })
    }

    /// Goes on where another was after so many steps.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if a parameter, its average or a memory is missing, or has another number of values.
    pub fn restore(
        &mut self,
        weights: &Values,
        average: Option<&Values>,
        memory: &BTreeMap<String, Values>,
        steps: u64,
    ) -> Result<()> {
        match (&mut self.ema, average) {
            (Some(ema), Some(average)) => ema.values.clone_from(average),
            (None, None) => {}
            (_, average) => {
                let found = if average.is_some() { "one" } else { "none" };
                return Err(Error::shape("average", "an average exactly if optimiser.ema is above 0", found));
            }
        }
        self.model.parameters().set(weights)?;
        self.optimizer.restore(memory, steps)
    }

    /// Step size at a moment.
    pub fn learning_rate(&self, moment: &StepPosition) -> f64 {
        learning_rate(&self.config, *moment)
    }

    /// The gradients of some batches of a step of `of` utterances in all processes.
    ///
    /// # Errors
    /// Those of reading the batches; [`Error::Diverged`] if a score or a loss is no number; errors of the model.
    pub fn gradients(
        &self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        of: usize,
        moment: &StepPosition,
    ) -> Result<(Gradients, LossSums)> {
        let mut gradients = GradientSum::new(self.model.parameters());
        let tally = self.add_batches(&mut gradients, batches, (of, moment), None)?;
        Ok((gradients.into_gradients(), tally))
    }

    /// One step of all ranks, of `of` utterances in all.
    ///
    /// # Errors
    /// The same problem on all ranks: those of [`gradients`](Self::gradients) and [`apply`](Self::apply).
    pub(crate) fn step(
        &mut self,
        group: &mut ProcessGroup,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        of: usize,
        moment: &StepPosition,
    ) -> Result<FinishedStep> {
        let (mut ids, mut bad) = (Vec::new(), BadItems::default());
        let mut batches = batches.inspect(|batch| {
            if let Ok(batch) = batch {
                ids.extend(batch.ids.iter().cloned());
                bad.extend(batch.bad.clone());
            }
        });
        group.set_step(moment.step);
        let started = Instant::now();
        let begun = self.reduction.begin(group, self.model.parameters());
        let mut own = GradientSum::new(self.model.parameters());
        let terms = begun.as_ref().map(|begun| &begun.terms);
        let tally = self.add_batches(&mut own, &mut batches, (of, moment), terms);
        let seconds = started.elapsed().as_secs_f64();
        let (mut gradients, totals) = self.reduction.finish(group, begun, own, tally, bad, seconds)?;
        // The mean is over the utterances that are there.
        let StepTotals { tally, bad, .. } = &totals;
        let counted = tally.utterances > 0 && tally.utterances < of as u64;
        if counted && !bad.left_out.is_empty() {
            for gradient in gradients.values_mut() {
                *gradient = (&*gradient * (of as f64 / tally.utterances as f64))?;
            }
        }
        let norm = self.apply(&gradients, moment)?;
        Ok(FinishedStep { totals, norm, ids })
    }

    /// Adds the gradients of some batches, of which the last backward pass sends those that are final.
    fn add_batches(
        &self,
        gradients: &mut GradientSum,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        (of, moment): (usize, &StepPosition),
        terms: Option<&GradientTerms>,
    ) -> Result<LossSums> {
        let mut tally = LossSums::default();
        while let Some(batch) = batches.next() {
            let batch = batch?;
            if batch.labels.is_empty() {
                continue;
            }
            let parts = match &self.plan {
                Some(plan) => plan.parts(&self.model, batch)?,
                None => vec![batch],
            };
            let (last, count) = (batches.size_hint() == (0, Some(0)), parts.len());
            for (at, part) in parts.into_iter().enumerate() {
                let terms = terms.filter(|_| last && at + 1 == count);
                tally += self.add_batch(gradients, &part, (of, moment), terms)?;
            }
        }
        Ok(tally)
    }

    /// Adds those of one batch.
    fn add_batch(
        &self,
        gradients: &mut GradientSum,
        batch: &Batch,
        (of, moment): (usize, &StepPosition),
        terms: Option<&GradientTerms>,
    ) -> Result<LossSums> {
        let StepPosition { step, progress, .. } = *moment;
        let config = self.model.config();
        let utterances = || batch.ids.clone();
        let hooks = terms.and_then(|terms| gradients.hooks(terms));
        let pass = TrainingPass::new(config.seed, moment.epoch, &batch.numbers);
        let mut pass = pass.with_gradient_hooks(hooks.clone());
        let losses = self.objective.losses(&self.model, batch, of, step, Some(&mut pass));
        let losses = losses.map_err(|error| match error {
            Error::Model(error) => match error.divergence() {
                Some(Divergence { what, found }) => {
                    let (what, source) = (what.into(), Some(Box::new(error.into())));
                    Error::Diverged { step, what, found, utterances: utterances(), source }
                }
                None => error.with_utterances(utterances).into(),
            },
            error => error,
        })?;
        let (loss, mut skipped) = sum(&losses.transducer);
        let (simple_loss, _) = sum(losses.simple.as_deref().unwrap_or_default());
        let (mut total, mut ctc_loss) = (losses.mean, 0.0);
        if let Some((values, tensor)) = losses.ctc {
            let (value, without) = sum(&values);
            ctc_loss = value;
            skipped = skipped.max(without);
            total = (total + (tensor * config.terms.ctc_weight(progress))?)?;
        }
        let found = loss + simple_loss + ctc_loss;
        if !found.is_finite() {
            let (what, found, source) = ("loss".into(), Some(found), None);
            return Err(Error::Diverged { step, what, found, utterances: utterances(), source });
        }
        gradients.backward(&total, hooks)?;
        let (utterances, audio_seconds) = (batch.labels.len() as u64, batch.seconds);
        Ok(LossSums { utterances, skipped, loss, ctc_loss, simple_loss, audio_seconds })
    }

    /// Moves the weights, and then their average; returns the norm of the gradient, before any clipping. If it is not finite, nothing
    /// is changed.
    ///
    /// # Errors
    /// Those of the optimizer.
    pub fn apply(&mut self, gradients: &Gradients, moment: &StepPosition) -> Result<f64> {
        let rate = self.learning_rate(moment);
        let norm = self.optimizer.step(self.model.parameters(), gradients, rate)?;
        if let Some(ema) = self.ema.as_mut().filter(|_| norm.is_finite()) {
            ema.update(moment.step, self.model.parameters())?;
        }
        Ok(norm)
    }
}

/// The objective of a step, from batches of rows and labels.
pub trait TrainingObjective: Send + Sync {
    /// Losses of a batch that is all or a part of the `of` utterances of an optimizer step; see [`Losses::mean`]. With a training pass, dropout
    /// is on.
    ///
    /// # Errors
    /// [`model::Error::Shape`] or [`model::Error::Loss`] if the batch does not fit the model.
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        of: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses>;
}

/// What the model's own configuration says.
impl TrainingObjective for LossSessions {
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        of: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        Ok(model.losses(self, batch.labeled(), of, step, pass)?)
    }
}

/// Sum over the utterances that have a path, and how many have none.
fn sum(losses: &[f64]) -> (f64, u64) {
    let possible = losses.iter().filter(|&&loss| loss != f64::INFINITY);
    let without = losses.len() - possible.clone().count();
    (possible.sum(), without as u64)
}
