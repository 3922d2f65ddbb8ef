//! Pruned transducer training: the joint network evaluates only sites that a simple joiner retains.
//!
//! A site is a lattice node (t, u). The first pass is the simple joiner over the whole lattice, the
//! second pass the joint network over the retained sites; the budget is shared by both. Kuang et
//! al., arXiv 2206.13236.
use std::borrow::Cow;

use ::pruned::{FirstPass, Unigram};
use panda_core::Real;

use crate::{
    Error, Loss, LossOutput, Options, PassScales, PrunedInputs, PruningOutput, Result, SimpleInputs, Targets,
    budget::{CallPlan, SessionBuffers},
    first_pass::{FirstPassCall, FirstPassPlan, retained_targets},
    head_call::{HeadCall, HeadCallInputs},
    inputs::InputValues,
    lattice_state::ForwardResult,
    objective::LatticeObjective,
};

/// Options of pruning, for [`Loss::Pruned`].
///
/// The first pass ([`pruned::first_pass`](fn@::pruned::first_pass)) is exact over the whole lattice
/// and selects the label positions that each frame retains; the selection has no gradient. The
/// second pass is [`Loss::Transducer`] over the retained sites ([`Targets::with_bands`]). Pruning
/// limits the sites and the selected normalizer stores no classes, so that neither lattice nor
/// vocabulary costs memory.
///
/// | option | first pass | second pass |
/// |---|---|---|
/// | topology, FastEmit, delay penalty, weights of tokens and of utterances | yes | yes |
/// | `lm_only_scale`, `am_only_scale` | yes | no |
/// | budget | yes | yes |
/// | label smoothing, z-loss, clamp, factored blank, skip, precision | no | yes |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// Label positions that each frame retains.
    pub s_range: usize,
    /// Share of the label scores only in the simple joiner's log-probabilities.
    pub lm_only_scale: f64,
    /// Share of frame scores with a unigram in the simple joiner's log-probabilities.
    pub am_only_scale: f64,
    /// Rows over which the unigram is averaged.
    pub unigram: Unigram,
}

/// Five positions a frame, no smoothing.
impl Default for Pruning {
    fn default() -> Self {
        Self { s_range: 5, lm_only_scale: 0.0, am_only_scale: 0.0, unigram: Unigram::default() }
    }
}

impl Pruning {
    /// Accepts everything; the first pass checks its options.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl PassScales {
    pub(crate) fn check(self) -> Result<()> {
        for (argument, found) in [("scales.simple", self.simple), ("scales.pruned", self.pruned)] {
            if !(0.0..=f64::MAX).contains(&found) {
                return Err(Error::Regularizer { argument, max: f64::MAX, found });
            }
        }
        Ok(())
    }
}

/// The loss of the second pass, over the retained sites.
pub(crate) fn second_pass_loss(loss: &Loss) -> Loss {
    match loss {
        Loss::Pruned { topology, tokens, .. } => {
            Loss::Transducer { topology: topology.clone(), tokens: *tokens, sigma: 0.0 }
        }
        other => other.clone(),
    }
}

/// A checked call of both passes.
pub(crate) struct PrunedCall<'t, F> {
    first_pass: FirstPassCall,
    second_pass: HeadCallInputs<F>,
    second_pass_loss: Loss,
    targets: Cow<'t, Targets>,
    scales: PassScales,
}

/// State of the first pass for its backward pass.
pub(crate) struct FirstPassState<F> {
    pub pass: FirstPass<F>,
    pub output: PruningOutput,
    pub scales: PassScales,
}

/// Multiplies the weights of the utterances by the scale of a pass.
pub(crate) fn scale_weights(weights: &[f64], scale: f64) -> Vec<f64> {
    weights.iter().map(|weight| scale * weight).collect()
}

impl<'t, F: Real> PrunedCall<'t, F> {
    /// Checks the inputs of both passes.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub(crate) fn new(
        inputs: &PrunedInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let first_pass = FirstPassCall::new(options, inputs, &loss, &targets)?;
        let second_pass = HeadCallInputs::joint(&inputs.joint, &targets, options)?;
        let second_pass_loss = second_pass_loss(&loss);
        Ok(Self { first_pass, second_pass, second_pass_loss, targets, scales: inputs.scales })
    }

    /// Plans both passes; the second plan includes the bytes of the first.
    ///
    /// The first pass uses at most half of the budget, unless its minimum needs more. It uses a
    /// quarter if the second pass cannot keep most of its scores otherwise, provided that the first
    /// pass still processes several utterances together: a single one leaves threads idle.
    ///
    /// # Errors
    /// Those of the passes that depend on shapes; [`Error::Budget`] with the minimum of both.
    pub(crate) fn plan(
        &self,
        values: &InputValues<F>,
        options: &Options,
        all_at_once: bool,
    ) -> Result<(FirstPassPlan, CallPlan)> {
        let (inputs, retained) = (simple_inputs(values)?, self.first_pass.retained_shapes(&self.targets)?);
        let objective = LatticeObjective::new(Cow::Borrowed(&self.second_pass_loss), Cow::Owned(retained))?;
        let plans = |bytes: usize| {
            let first = self.first_pass.plan(inputs, bytes, all_at_once);
            let sizes = self.second_pass.sizes(&objective, options, first.bytes);
            let second = if all_at_once { sizes.all_at_once::<F>() } else { sizes.in_groups::<F>() };
            second.map(|second| (first, second))
        };
        let limit = options.working_bytes();
        match plans(limit / 2) {
            Ok((first, second)) if !second.keeps_scores => {
                // Groups of at least two utterances on average.
                let has_large_groups = |(first, _): &(FirstPassPlan, CallPlan)| {
                    first.groups.len() <= self.targets.batch().div_ceil(2)
                };
                Ok(plans(limit / 4).ok().filter(has_large_groups).unwrap_or((first, second)))
            }
            Err(Error::Budget { .. }) => plans(0),
            outcome => outcome,
        }
    }

    /// Plans both passes and applies the plans to the buffers.
    fn apply_plans(
        &self,
        values: &InputValues<F>,
        options: &Options,
        all_at_once: bool,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<FirstPassPlan> {
        let (first, second) = self.plan(values, options, all_at_once)?;
        buffers.pruning.keep_within(&first.group_scratch, second.unused_bytes);
        buffers.apply_plan(&second, self.second_pass.num_heads(options), options)?;
        Ok(first)
    }

    /// Creates the call of the second pass over retained sites.
    fn into_second_pass(self, ranges: &::pruned::Ranges) -> Result<HeadCall<'static, F>> {
        let targets = retained_targets(&self.targets, ranges)?;
        let loss = Cow::Owned(self.second_pass_loss);
        Ok(self.second_pass.with_objective(LatticeObjective::new(loss, Cow::Owned(targets))?))
    }

    /// Runs both passes, each one group at a time.
    pub(crate) fn sum(
        self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let first_plan = self.apply_plans(values, options, false, buffers)?;
        let [first_weights, second_weights] =
            [self.scales.simple, self.scales.pruned].map(|scale| scale_weights(weights, scale));
        let (gradient, output) =
            self.first_pass.sum(simple_inputs(values)?, &first_plan, &first_weights, &mut buffers.pruning)?;
        let second = self.into_second_pass(&output.ranges)?;
        let mut out = second.sum(values, &second_weights, options, first_plan.bytes, buffers)?;
        out.gradients.simple = Some(gradient);
        out.first_pass = Some(output);
        Ok(out)
    }

    /// Runs both forward passes over all utterances; returns the call of the second.
    pub(crate) fn forward(
        self,
        values: &InputValues<F>,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<(HeadCall<'static, F>, ForwardResult<F>, FirstPassState<F>)> {
        let first_plan = self.apply_plans(values, options, true, buffers)?;
        let (pass, output) =
            self.first_pass.forward(simple_inputs(values)?, &first_plan, &mut buffers.pruning)?;
        let scales = self.scales;
        let second = self.into_second_pass(&output.ranges)?;
        let forward_result = second.forward(values, options, first_plan.bytes, buffers)?;
        Ok((second, forward_result, FirstPassState { pass, output, scales }))
    }
}

/// Returns the inputs of the simple joiner.
fn simple_inputs<'v, F>(values: &'v InputValues<F>) -> Result<&'v SimpleInputs<'v, F>> {
    values.simple.as_ref().ok_or(Error::Inputs { expected: "a simple joiner", found: "none" })
}
