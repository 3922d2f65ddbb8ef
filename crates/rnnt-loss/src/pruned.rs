//! Pruned training: a simple joiner chooses the sites, and the joint network evaluates no others.
use std::borrow::Cow;

use ::pruned::{FirstPass, Unigram};
use panda_core::Real;

use crate::{
    Error, Loss, LossOutput, Options, PassScales, PrunedInputs, PruningOutput, Result, SimpleInputs, Targets,
    budget::{CallPlan, SessionBuffers},
    first_pass::{FirstPlan, PruningPass, retained},
    head_call::{HeadCall, HeadModel},
    inputs::InputValues,
    lattice_state::Built,
    objective::LatticeObjective,
};

/// How the trivial joiner chooses sites, for [`Loss::Pruned`].
///
/// The first pass ([`pruned::first_pass`](fn@::pruned::first_pass)) is exact over the whole lattice; it says which label positions
/// each frame keeps, and no gradient goes through that choice. The second is that of [`Loss::Transducer`] over the retained
/// sites ([`Targets::with_bands`]): pruning leaves out sites and the selected normaliser keeps no classes, so that neither lattice
/// nor vocabulary costs memory.
///
/// | option | first pass | second pass |
/// |---|---|---|
/// | topology, FastEmit, delay penalty, weights of tokens and of utterances | yes | yes |
/// | shares below | yes | no |
/// | budget | yes | yes |
/// | label smoothing, z-loss, clamp, factored blank, skip, precision | no | yes |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// Label positions that a frame keeps.
    pub s_range: usize,
    /// Share of the trivial joiner's log-probabilities that the label scores have alone.
    pub lm_only_scale: f64,
    /// Share that the frame scores and the unigram have alone.
    pub am_only_scale: f64,
    /// What the unigram is averaged over.
    pub unigram: Unigram,
}

/// Five positions a frame, no smoothing.
impl Default for Pruning {
    fn default() -> Self {
        Self { s_range: 5, lm_only_scale: 0.0, am_only_scale: 0.0, unigram: Unigram::default() }
    }
}

impl Pruning {
    /// The first pass checks shares and width where it meets them.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl PassScales {
    pub(crate) fn check(self) -> Result<()> {
        for (argument, found) in [("scales.simple", self.simple), ("scales.pruned", self.pruned)] {
            if !(0.0..=f64::MAX).contains(&found) {
                return Err(Error::Regularizer { argument, most: f64::MAX, found });
            }
        }
        Ok(())
    }
}

/// The loss of the retained sites.
pub(crate) fn second_loss(loss: &Loss) -> Loss {
    match loss {
        Loss::Pruned { topology, tokens, .. } => {
            Loss::Transducer { topology: topology.clone(), tokens: *tokens, sigma: 0.0 }
        }
        other => other.clone(),
    }
}

/// Both passes of a call, checked.
pub(crate) struct PrunedCall<'t, F> {
    first: PruningPass,
    second: HeadModel<F>,
    /// Of the second pass.
    loss: Loss,
    targets: Cow<'t, Targets>,
    scales: PassScales,
}

/// The first pass of pruned training.
pub(crate) struct PruningState<F> {
    pub pass: FirstPass<F>,
    pub output: PruningOutput,
    pub scales: PassScales,
}

/// Weights of the utterances times the scale of a pass.
pub(crate) fn scaled(weights: &[f64], scale: f64) -> Vec<f64> {
    weights.iter().map(|weight| scale * weight).collect()
}

impl<'t, F: Real> PrunedCall<'t, F> {
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn new(
        inputs: &PrunedInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let first = PruningPass::new(options, inputs, &loss, &targets)?;
        let second = HeadModel::joint(&inputs.joint, &targets, options)?;
        Ok(Self { first, second, loss: second_loss(&loss), targets, scales: inputs.scales })
    }

    /// The plans of both passes; that of the second includes the bytes of the first.
    ///
    /// Half of the budget at most for the first pass, unless its smallest cut needs more; a quarter where the second cannot keep most of
    /// its scores beside half, if the first still takes utterances together then: one alone leaves threads without work.
    ///
    /// # Errors
    /// As the passes, as far as shapes tell; [`Error::Budget`] with the bytes of the smallest cuts of both.
    pub fn plan(
        &self,
        values: &InputValues<F>,
        options: &Options,
        whole: bool,
    ) -> Result<(FirstPlan, CallPlan)> {
        let (simple, shapes) = (simple(values)?, self.first.shapes(&self.targets)?);
        let objective = LatticeObjective::new(Cow::Borrowed(&self.loss), Cow::Owned(shapes))?;
        let with = |bytes: usize| {
            let first = self.first.plan(simple, bytes, whole);
            let sizes = self.second.sizes(&objective, options, first.bytes);
            let second = if whole { sizes.whole::<F>() } else { sizes.in_groups::<F>() };
            second.map(|second| (first, second))
        };
        let limit = options.working_bytes();
        match with(limit / 2) {
            Ok(half) if !half.1.kept => {
                let together = |(first, _): &(FirstPlan, CallPlan)| {
                    first.groups.len() <= self.targets.batch().div_ceil(2)
                };
                Ok(with(limit / 4).ok().filter(together).unwrap_or(half))
            }
            Err(Error::Budget { .. }) => with(0),
            both => both,
        }
    }

    /// The plans, which the buffers keep within.
    fn applied(
        &self,
        values: &InputValues<F>,
        options: &Options,
        whole: bool,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<FirstPlan> {
        let (first, second) = self.plan(values, options, whole)?;
        buffers.pruning.keep_within(&first.of_group, second.left);
        buffers.apply_plan(&second, self.second.heads(options), options)?;
        Ok(first)
    }

    /// The second pass over the sites of some ranges.
    fn into_second(self, ranges: &::pruned::Ranges) -> Result<HeadCall<'static, F>> {
        let retained = retained(&self.targets, ranges)?;
        Ok(self.second.over(LatticeObjective::new(Cow::Owned(self.loss), Cow::Owned(retained))?))
    }

    /// Both passes group after group, one after the other.
    pub fn sum(
        self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let first = self.applied(values, options, false, buffers)?;
        let [of_first, of_second] =
            [self.scales.simple, self.scales.pruned].map(|scale| scaled(weights, scale));
        let (gradient, output) = self.first.sum(simple(values)?, &first, &of_first, &mut buffers.pruning)?;
        let second = self.into_second(&output.ranges)?;
        let mut out = second.sum(values, &of_second, options, first.bytes, buffers)?;
        out.gradients.simple = Some(gradient);
        out.first_pass = Some(output);
        Ok(out)
    }

    /// Both passes of all utterances at once, and the call of the second.
    pub fn forward(
        self,
        values: &InputValues<F>,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<(HeadCall<'static, F>, Built<F>, PruningState<F>)> {
        let first = self.applied(values, options, true, buffers)?;
        let (pass, output) = self.first.run(simple(values)?, &first, &mut buffers.pruning)?;
        let scales = self.scales;
        let second = self.into_second(&output.ranges)?;
        let built = second.forward(values, options, first.bytes, buffers)?;
        Ok((second, built, PruningState { pass, output, scales }))
    }
}

fn simple<'v, F>(values: &'v InputValues<F>) -> Result<&'v SimpleInputs<'v, F>> {
    values.simple.as_ref().ok_or(Error::Inputs { expected: "a trivial joiner", found: "none" })
}
