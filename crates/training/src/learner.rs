//! `Learner`: one optimizer step of a model, with its optimizer and weight average.
//!
//! A step has three parts; all ranks (processes) take part in `reduce`:
//!
//! ```text
//! gradients   Σ over the batches of the step, each divided by the step's number of utterances
//! reduce      Σ over ranks, see `reduction.rs`
//! apply       the optimizer, then the moving average
//! ```
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use distributed::ProcessGroup;

use crate::data::Batch;
use crate::ema::Ema;
use crate::encoder_pass::EncoderPass;
use crate::metrics::LossSums;
use crate::optimizer::{self, Optimizer, OptimizerConfig, RateFactors};
use crate::reduction::{GradientReduction, StepTotals};
use crate::run_plan::RunPlan;
use crate::schedule::{StepPosition, learning_rate};
use crate::{Error, Result};
use model::checkpoint::Values;
use model::{
    BatchStatistics, Divergence, GradientSum, GradientTerms, Gradients, LossSessions, Losses, Model,
    TrainingPass,
};
use recognizer::bad_items::BadItems;

/// A model, its objective, its optimizer and its moving average.
pub struct Learner {
    model: Model,
    objective: Box<dyn TrainingObjective>,
    optimizer: Box<dyn Optimizer>,
    ema: Option<Ema>,
    config: OptimizerConfig,
    /// The memory plan, by which batches are split.
    plan: Option<RunPlan>,
    /// True if the backward pass computes the encoder's layers again.
    recomputes: bool,
    reduction: GradientReduction,
}

/// The result of a step of all ranks.
pub(crate) struct FinishedStep {
    pub totals: StepTotals,
    /// Norm of the gradient before clipping; if it is not finite, nothing has changed.
    pub norm: f64,
    /// Ids of the utterances of this rank.
    pub ids: Vec<String>,
}

impl Learner {
    /// Creates a learner for a model at its initial weights.
    ///
    /// # Errors
    /// [`Error::Loss`](model::Error::Loss) for options that the loss rejects;
    /// [`Error::RecipeValue`](model::Error::RecipeValue) for a name in `rates` without a trained
    /// parameter; errors of candle.
    pub fn new(model: Model, config: &OptimizerConfig) -> Result<Self> {
        RateFactors::new(&config.rates).check_names(model.parameters())?;
        let optimizer = optimizer::build(config, model.parameters());
        Self::with_optimizer(model, config, optimizer)
    }

    /// Creates a learner with a custom optimizer.
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
        Ok(Learner { model, objective, optimizer, ema, config, plan: None, recomputes: false, reduction })
    }

    /// Replaces the objective that the model's configuration names.
    #[must_use]
    pub fn with_objective(mut self, objective: Box<dyn TrainingObjective>) -> Self {
        self.objective = objective;
        self
    }

    /// Sets a memory plan: batches that exceed it are computed in parts.
    ///
    /// The encoder's layers save only their input if the plan has [`EncoderPass::Recomputed`].
    pub(crate) fn with_plan(mut self, plan: Option<RunPlan>) -> Self {
        self.plan = plan;
        self.recomputes |= plan.is_some_and(|plan| plan.encoder_pass == EncoderPass::Recomputed);
        self
    }

    /// Sets whether the encoder's layers save only their input.
    ///
    /// See [`TrainingPass::with_recomputation`]; losses and gradients do not change.
    #[must_use]
    pub fn with_recomputation(mut self, recomputes: bool) -> Self {
        self.recomputes = recomputes;
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the moving average of the weights, if there is one.
    pub fn average(&self) -> Option<&Values> {
        self.ema.as_ref().map(|ema| &ema.values)
    }

    /// Returns the state of the optimizer.
    pub fn optimizer_state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        self.optimizer.state()
    }

    /// Returns the kind of values that are not finite; none if all are finite.
    pub(crate) fn first_non_finite(&self) -> Result<Option<&'static str>> {
        let are_finite = |values: &Values| values.values().flatten().all(|value| value.is_finite());
        Ok(if !self.model.parameters().are_finite()? {
            Some("weight")
        } else if !self.average().is_none_or(are_finite) {
            Some("moving average of a weight")
        } else {
            self.optimizer_state()
                .values()
                .any(|values| !are_finite(values))
                .then_some("optimizer state of a weight")
        })
    }

    /// Restores the state after `steps` optimizer steps.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if a parameter, its average or its optimizer state is
    /// missing, or has another number of values.
    pub fn restore(
        &mut self,
        weights: &Values,
        average: Option<&Values>,
        optimizer_state: &BTreeMap<String, Values>,
        steps: u64,
    ) -> Result<()> {
        match (&mut self.ema, average) {
            (Some(ema), Some(average)) => ema.values.clone_from(average),
            (None, None) => {}
            (_, average) => {
                let presence = if average.is_some() { "one" } else { "none" };
                return Err(Error::shape(
                    "average",
                    "an average exactly if optimizer.ema is above 0",
                    presence,
                ));
            }
        }
        self.model.parameters().set(weights)?;
        self.optimizer.restore(optimizer_state, steps)
    }

    /// Returns the learning rate at a position of the run.
    pub fn learning_rate(&self, position: &StepPosition) -> f64 {
        learning_rate(&self.config, *position)
    }

    /// Computes the gradients of some batches of a step.
    ///
    /// The step has `step_utterances` utterances in all processes together. Running statistics of
    /// batch norms follow the steps of a [`Trainer`](crate::Trainer) only.
    ///
    /// # Errors
    /// Those of reading the batches; [`Error::Diverged`] if a score or a loss is not finite; errors
    /// of the model.
    pub fn gradients(
        &self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        step_utterances: usize,
        position: &StepPosition,
    ) -> Result<(Gradients, LossSums)> {
        let mut gradients = GradientSum::new(self.model.parameters());
        let loss_sums = self.add_batches(&mut gradients, batches, step_utterances, position, None)?;
        Ok((gradients.into_gradients(), loss_sums))
    }

    /// Makes one step of all ranks, with `step_utterances` utterances in all.
    ///
    /// # Errors
    /// The same on all ranks: those of [`gradients`](Self::gradients) and [`apply`](Self::apply).
    pub(crate) fn step(
        &mut self,
        group: &mut ProcessGroup,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        step_utterances: usize,
        position: &StepPosition,
    ) -> Result<FinishedStep> {
        let (mut ids, mut bad) = (Vec::new(), BadItems::default());
        let mut batches = batches.inspect(|batch| {
            if let Ok(batch) = batch {
                ids.extend(batch.ids.iter().cloned());
                bad.extend(batch.bad.clone());
            }
        });
        // Gradients of this rank, whose all-reduce begins during the last backward pass.
        group.set_step(position.step);
        let started = Instant::now();
        let reduction = self.reduction.begin(group, self.model.parameters());
        let mut gradient_sum = GradientSum::new(self.model.parameters());
        let all_reduce_terms = reduction.as_ref().map(|reduction| &reduction.terms);
        let loss_sums =
            self.add_batches(&mut gradient_sum, &mut batches, step_utterances, position, all_reduce_terms);
        let seconds = started.elapsed().as_secs_f64();
        let (mut gradients, totals) =
            self.reduction.finish(group, reduction, gradient_sum, loss_sums, bad, seconds)?;
        // The mean is over the utterances that can be used.
        let StepTotals { loss_sums, bad, statistics, .. } = &totals;
        let is_partial = loss_sums.utterances > 0 && loss_sums.utterances < step_utterances as u64;
        if is_partial && !bad.excluded.is_empty() {
            for gradient in gradients.values_mut() {
                *gradient = (&*gradient * (step_utterances as f64 / loss_sums.utterances as f64))?;
            }
        }
        let norm = self.apply_with_statistics(&gradients, statistics, position)?;
        Ok(FinishedStep { totals, norm, ids })
    }

    /// Adds the gradients of batches.
    ///
    /// With `all_reduce_terms`, the last backward pass sends each finished gradient to the
    /// all-reduce.
    fn add_batches(
        &self,
        gradients: &mut GradientSum,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        step_utterances: usize,
        position: &StepPosition,
        all_reduce_terms: Option<&GradientTerms>,
    ) -> Result<LossSums> {
        let mut loss_sums = LossSums::default();
        while let Some(batch) = batches.next() {
            let batch = batch?;
            if batch.labels.is_empty() {
                continue;
            }
            let parts = match &self.plan {
                Some(plan) => plan.split(&self.model, batch)?,
                None => vec![batch],
            };
            let (is_last_batch, num_parts) = (batches.size_hint() == (0, Some(0)), parts.len());
            for (index, part) in parts.into_iter().enumerate() {
                let all_reduce_terms = all_reduce_terms.filter(|_| is_last_batch && index + 1 == num_parts);
                loss_sums += self.add_batch(gradients, &part, step_utterances, position, all_reduce_terms)?;
            }
        }
        Ok(loss_sums)
    }

    /// Adds the gradients of one batch; `all_reduce_terms` as in [`Self::add_batches`].
    fn add_batch(
        &self,
        gradients: &mut GradientSum,
        batch: &Batch,
        step_utterances: usize,
        position: &StepPosition,
        all_reduce_terms: Option<&GradientTerms>,
    ) -> Result<LossSums> {
        // 1. The losses; errors name the utterances.
        let StepPosition { step, progress, .. } = *position;
        let config = self.model.config();
        let utterances = || batch.ids.clone();
        let hooks = all_reduce_terms.and_then(|all_reduce_terms| gradients.hooks(all_reduce_terms));
        let pass = TrainingPass::new(config.seed, position.epoch, &batch.indices);
        let mut pass = pass.with_gradient_hooks(hooks.clone()).with_recomputation(self.recomputes);
        let losses = self.objective.losses(&self.model, batch, step_utterances, step, Some(&mut pass));
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
        // 2. The sums of the report, and the mean that the step minimizes.
        let (loss, mut skipped) = sum_finite(&losses.transducer);
        let (simple_loss, _) = sum_finite(losses.simple.as_deref().unwrap_or_default());
        let (mut mean_loss, mut ctc_loss) = (losses.mean, 0.0);
        if let Some((ctc_losses, ctc_mean)) = losses.ctc {
            let (ctc_sum, without_path) = sum_finite(&ctc_losses);
            ctc_loss = ctc_sum;
            skipped = skipped.max(without_path);
            mean_loss = (mean_loss + (ctc_mean * config.terms.ctc_weight(progress))?)?;
        }
        let total_loss = loss + simple_loss + ctc_loss;
        if !total_loss.is_finite() {
            let (what, found, source) = ("loss".into(), Some(total_loss), None);
            return Err(Error::Diverged { step, what, found, utterances: utterances(), source });
        }
        // 3. The backward pass.
        gradients.add_statistics(pass.take_statistics());
        gradients.backward(&mean_loss, hooks)?;
        let (utterances, audio_seconds) = (batch.labels.len() as u64, batch.audio_seconds);
        Ok(LossSums { utterances, skipped, loss, ctc_loss, simple_loss, audio_seconds })
    }

    /// Updates the weights and their average; returns the norm of the gradient before clipping.
    ///
    /// If the norm is not finite, nothing is changed.
    ///
    /// # Errors
    /// Those of the optimizer.
    pub fn apply(&mut self, gradients: &Gradients, position: &StepPosition) -> Result<f64> {
        self.apply_with_statistics(gradients, &[], position)
    }

    /// Updates weights, running statistics of batch norms, and the average of both.
    fn apply_with_statistics(
        &mut self,
        gradients: &Gradients,
        statistics: &[BatchStatistics],
        position: &StepPosition,
    ) -> Result<f64> {
        let rate = self.learning_rate(position);
        let norm = self.optimizer.step(self.model.parameters(), gradients, rate)?;
        if norm.is_finite() {
            self.model.parameters().update_statistics(statistics)?;
        }
        if let Some(ema) = self.ema.as_mut().filter(|_| norm.is_finite()) {
            ema.update(position.step, self.model.parameters())?;
        }
        Ok(norm)
    }
}

/// The loss that a step minimizes.
pub trait TrainingObjective: Send + Sync {
    /// Computes the losses of a batch; see [`Losses::mean`].
    ///
    /// The batch is a part of the `step_utterances` utterances of an optimizer step, or all of
    /// them. With a training pass, dropout is on.
    ///
    /// # Errors
    /// [`model::Error::Shape`] or [`model::Error::Loss`] if the batch does not fit the model.
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        step_utterances: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses>;
}

/// The loss of the model's configuration.
impl TrainingObjective for LossSessions {
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        step_utterances: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        Ok(match batch.is_encoded {
            false => model.losses(self, batch.labeled(), step_utterances, step, pass)?,
            true => model.losses_from_encoder_rows(self, batch.labeled(), step_utterances, step, pass)?,
        })
    }
}

/// Sums the losses of utterances with a path; counts the others.
fn sum_finite(losses: &[f64]) -> (f64, u64) {
    let finite = losses.iter().filter(|&&loss| loss != f64::INFINITY);
    let without_path = losses.len() - finite.clone().count();
    (finite.sum(), without_path as u64)
}
