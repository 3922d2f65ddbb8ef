//! Dispatches the calls of a loss session by their kind of inputs.
//!
//! | inputs | call |
//! |---|---|
//! | projected rows or hidden rows, with heads | [`HeadCall`] |
//! | scores | [`ScoreCall`] |
//! | pruned training | [`PrunedCall`]: first pass, then a [`HeadCall`] |
//!
//! `Session` uses [`SessionEngine`], which is compiled once for `f32` and once for `f64`.
use std::borrow::Cow;

use panda_core::{Head, Real};

use crate::{
    Error, Inputs, JointInputs, LabelAlignment, Layout, Loss, LossOutput, Options, PruningOutput, Result,
    ScoreInputs, Targets, align,
    budget::{CallSizes, SessionBuffers},
    error::expect_len,
    first_pass::first_pass_backward,
    head_call::HeadCall,
    inputs::InputValues,
    internal_lm,
    lattice_state::ForwardResult,
    pruned::{FirstPassState, PrunedCall, scale_weights},
    score_call::ScoreCall,
};

/// `f32` or `f64`; sealed by [`Real`].
///
/// The engine is compiled in this crate, once for each type, and not in every dependent crate.
pub trait Element: Real {
    #[doc(hidden)]
    fn engine(buffers: &mut SessionBuffers<Self>) -> &mut dyn SessionEngine<Self>;
    #[doc(hidden)]
    fn engine_ref(buffers: &SessionBuffers<Self>) -> &dyn SessionEngine<Self>;
}

macro_rules! impl_element {
    ($($float:ty),*) => {$(
        impl Element for $float {
            #[inline(never)]
            fn engine(buffers: &mut SessionBuffers<Self>) -> &mut dyn SessionEngine<Self> {
                buffers
            }
            #[inline(never)]
            fn engine_ref(buffers: &SessionBuffers<Self>) -> &dyn SessionEngine<Self> {
                buffers
            }
        }
    )*};
}

impl_element!(f32, f64);

/// The methods of a session, compiled once per type.
pub trait SessionEngine<F> {
    #[doc(hidden)]
    fn plan(
        &self,
        inputs: &Inputs<F>,
        targets: &Targets,
        options: &Options,
        all_at_once: bool,
    ) -> Result<usize>;
    #[doc(hidden)]
    fn sum(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<LossOutput<F>>;
    #[doc(hidden)]
    fn sum_in_place(
        &mut self,
        scores: &mut [F],
        shape: (usize, Layout),
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<Vec<f64>>;
    #[doc(hidden)]
    fn forward(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        options: &Options,
    ) -> Result<ForwardState<F>>;
    #[doc(hidden)]
    fn backward(
        &mut self,
        state: ForwardState<F>,
        inputs: &Inputs<F>,
        weights: &[f64],
        options: &Options,
    ) -> Result<LossOutput<F>>;
    #[doc(hidden)]
    fn align(
        &self,
        joint: &JointInputs<F>,
        targets: &Targets,
        options: &Options,
    ) -> Result<Vec<Option<LabelAlignment>>>;
    #[doc(hidden)]
    fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
        options: &Options,
    ) -> Result<Vec<Vec<f64>>>;
}

/// Creates a checked call over borrowed targets.
fn loss_call<'t, F: Real>(
    inputs: &Inputs<F>,
    targets: &'t Targets,
    options: &'t Options,
) -> Result<LossCall<'t, F>> {
    LossCall::new(inputs, Cow::Borrowed(&options.loss), Cow::Borrowed(targets), options)
}

impl<F: Real> SessionEngine<F> for SessionBuffers<F> {
    fn plan(
        &self,
        inputs: &Inputs<F>,
        targets: &Targets,
        options: &Options,
        all_at_once: bool,
    ) -> Result<usize> {
        loss_call(inputs, targets, options)?.plan(&inputs.values(), options, all_at_once)
    }

    fn sum(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<LossOutput<F>> {
        expect_len("weights", targets.batch(), weights.len())?;
        loss_call(inputs, targets, options)?.sum(&inputs.values(), weights, options, self)
    }

    fn sum_in_place(
        &mut self,
        scores: &mut [F],
        (classes, layout): (usize, Layout),
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<Vec<f64>> {
        expect_len("weights", targets.batch(), weights.len())?;
        // All utterances at once: an error in the last is detected before the first is overwritten.
        let (loss, targets) = (Cow::Borrowed(&options.loss), Cow::Borrowed(targets));
        expect_unpruned(&options.loss)?;
        let call =
            ScoreCall::new(&ScoreInputs { scores: &*scores, classes, layout }, loss, targets, options)?;
        let forward_result = call.forward(scores, options, self);
        let losses =
            forward_result.and_then(|pass| call.backward_in_place(pass, scores, weights, options, self));
        losses.map_err(|error| error.for_loss(&options.loss))
    }

    fn forward(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        options: &Options,
    ) -> Result<ForwardState<F>> {
        ForwardState::new(inputs, targets, options, self)
    }

    fn backward(
        &mut self,
        state: ForwardState<F>,
        inputs: &Inputs<F>,
        weights: &[f64],
        options: &Options,
    ) -> Result<LossOutput<F>> {
        state.backward(&inputs.values(), weights, options, self)
    }

    fn align(
        &self,
        joint: &JointInputs<F>,
        targets: &Targets,
        options: &Options,
    ) -> Result<Vec<Option<LabelAlignment>>> {
        align::alignments(options, joint, targets)
    }

    fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
        options: &Options,
    ) -> Result<Vec<Vec<f64>>> {
        internal_lm::internal_lm(self, predicted, head, layout, targets, options)
    }
}

/// A checked call; the values of its inputs are arguments of each pass.
pub(crate) enum LossCall<'t, F: Real> {
    /// Projected rows or hidden rows with heads.
    Heads(HeadCall<'t, F>),
    Scores(ScoreCall<'t>),
    Pruned(Box<PrunedCall<'t, F>>),
}

impl<'t, F: Real> LossCall<'t, F> {
    /// Checks the inputs.
    ///
    /// # Errors
    /// Inputs that the loss does not support; shapes, classes, options or targets that do not
    /// match.
    pub(crate) fn new(
        inputs: &Inputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        if !matches!(inputs, Inputs::Pruned(_)) {
            expect_unpruned(&loss)?;
        }
        Ok(match inputs {
            Inputs::Joint(joint) => Self::Heads(HeadCall::joint(joint, loss, targets, options)?),
            Inputs::Hidden(rows) => Self::Heads(HeadCall::hidden(rows, loss, targets, options)?),
            Inputs::Scores(scores) => Self::Scores(ScoreCall::new(scores, loss, targets, options)?),
            Inputs::Pruned(pruned) => {
                Self::Pruned(Box::new(PrunedCall::new(pruned, loss, targets, options)?))
            }
        })
    }

    /// Bytes of the call, over all utterances at once or in groups.
    pub(crate) fn plan(
        &self,
        values: &InputValues<F>,
        options: &Options,
        all_at_once: bool,
    ) -> Result<usize> {
        let bytes = |sizes: CallSizes| {
            Ok(if all_at_once { sizes.all_at_once::<F>()? } else { sizes.in_groups::<F>()? }.bytes)
        };
        match self {
            Self::Heads(call) => bytes(call.sizes(options, 0)),
            Self::Scores(call) => bytes(call.sizes::<F>(options)),
            Self::Pruned(call) => Ok(call.plan(values, options, all_at_once)?.1.bytes),
        }
    }

    /// Computes losses and gradients, one group at a time.
    pub(crate) fn sum(
        self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let outcome = match self {
            Self::Heads(call) => call.sum(values, weights, options, 0, buffers),
            Self::Scores(call) => call.sum(values.scores, weights, options, buffers),
            Self::Pruned(call) => call.sum(values, weights, options, buffers),
        };
        outcome.map_err(|error| error.for_loss(&options.loss))
    }
}

/// Fails for the pruned loss, which requires a simple joiner.
pub(crate) fn expect_unpruned(loss: &Loss) -> Result<()> {
    match loss {
        Loss::Pruned { .. } => {
            let expected = "a simple joiner and a joint network";
            Err(Error::Inputs { expected, found: "no simple joiner" })
        }
        _ => Ok(()),
    }
}

impl<F: Real> LossCall<'static, F> {
    /// Computes the losses of all utterances at once.
    pub(crate) fn forward(
        self,
        values: &InputValues<F>,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<ForwardState<F>> {
        let run_forward = || {
            let (call, forward_result, first_pass) = match self {
                Self::Heads(call) => {
                    let forward_result = call.forward(values, options, 0, buffers)?;
                    (PendingCall::Heads(call), forward_result, None)
                }
                Self::Scores(call) => {
                    let forward_result = call.forward(values.scores, options, buffers)?;
                    (PendingCall::Scores(call), forward_result, None)
                }
                Self::Pruned(call) => {
                    let (call, forward_result, first_pass) = call.forward(values, options, buffers)?;
                    (PendingCall::Heads(call), forward_result, Some(first_pass))
                }
            };
            Ok(ForwardState { call, forward_result, first_pass })
        };
        run_forward().map_err(|error: Error| error.for_loss(&options.loss))
    }
}

/// State of the forward pass of a batch for its backward pass.
pub struct ForwardState<F> {
    call: PendingCall<F>,
    forward_result: ForwardResult<F>,
    /// State of the first pass, only with pruning.
    first_pass: Option<FirstPassState<F>>,
}

/// The call of a pending loss, whose backward pass follows.
enum PendingCall<F> {
    Heads(HeadCall<'static, F>),
    Scores(ScoreCall<'static>),
}

impl<F: Real> ForwardState<F> {
    /// Runs the forward pass over all utterances at once.
    pub(crate) fn new(
        inputs: &Inputs<F>,
        targets: &Targets,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Self> {
        let (loss, targets) = (Cow::Owned(options.loss.clone()), Cow::Owned(targets.clone()));
        LossCall::new(inputs, loss, targets, options)?.forward(&inputs.values(), options, buffers)
    }

    /// Loss of each utterance.
    pub fn losses(&self) -> &[f64] {
        self.forward_result.state.losses()
    }

    /// Losses and ranges of the first pass, only with pruning.
    pub fn first_pass(&self) -> Option<&PruningOutput> {
        self.first_pass.as_ref().map(|first_pass| &first_pass.output)
    }

    /// Emissions of all sites, before smoothing.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.forward_result.state.emissions()
    }

    /// Adjoints of the emissions.
    pub fn adjoints(&self) -> &[f64] {
        self.forward_result.state.adjoints()
    }

    /// Computes gradients for weights of the utterances.
    ///
    /// `values` must be those of the forward pass.
    pub(crate) fn backward(
        self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let Self { call, forward_result, first_pass } = self;
        let loss_weights = match &first_pass {
            Some(first_pass) => Cow::Owned(scale_weights(weights, first_pass.scales.pruned)),
            None => Cow::Borrowed(weights),
        };
        let outcome = match call {
            PendingCall::Heads(call) => {
                call.backward(forward_result, values, &loss_weights, options, buffers)
            }
            PendingCall::Scores(call) => {
                call.backward(forward_result, values.scores, &loss_weights, options, buffers)
            }
        };
        let mut out = outcome.map_err(|error| error.for_loss(&options.loss))?;
        if let (Some(FirstPassState { pass, output, scales }), Some(simple)) = (first_pass, &values.simple) {
            let simple_weights = scale_weights(weights, scales.simple);
            out.gradients.simple =
                Some(first_pass_backward(pass, simple, &simple_weights, &mut buffers.pruning)?);
            out.first_pass = Some(output);
        }
        Ok(out)
    }
}
