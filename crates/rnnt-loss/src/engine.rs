//! The engine of a session, compiled once for each type of numbers.
use std::borrow::Cow;

use panda_core::{Head, Real};

use crate::{
    Alignment, Inputs, Joint, Layout, Options, Output, Result, Scores, Targets, align,
    buffers::SessionBuffers,
    error::expect_len,
    internal,
    loss_call::{ForwardState, LossCall, expect_unpruned},
    score_call::ScoreCall,
};

/// `f32` or `f64`; sealed by [`Real`].
///
/// The engine is compiled in this crate, once for each type, and not again in every crate that uses it.
pub trait Element: Real {
    #[doc(hidden)]
    fn engine(buffers: &mut SessionBuffers<Self>) -> &mut dyn SessionEngine<Self>;
    #[doc(hidden)]
    fn engine_ref(buffers: &SessionBuffers<Self>) -> &dyn SessionEngine<Self>;
}

macro_rules! compiled {
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

compiled!(f32, f64);

/// The methods of a session for any inputs; see those of the same names.
pub trait SessionEngine<F> {
    #[doc(hidden)]
    fn plan(&self, inputs: &Inputs<F>, targets: &Targets, options: &Options, whole: bool) -> Result<usize>;
    #[doc(hidden)]
    fn sum(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<Output<F>>;
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
    ) -> Result<Output<F>>;
    #[doc(hidden)]
    fn align(&self, joint: &Joint<F>, targets: &Targets, options: &Options)
    -> Result<Vec<Option<Alignment>>>;
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

/// A checked call over borrowed targets.
fn problem<'t, F: Real>(
    inputs: &Inputs<F>,
    targets: &'t Targets,
    options: &'t Options,
) -> Result<LossCall<'t, F>> {
    LossCall::new(inputs, Cow::Borrowed(&options.loss), Cow::Borrowed(targets), options)
}

impl<F: Real> SessionEngine<F> for SessionBuffers<F> {
    fn plan(&self, inputs: &Inputs<F>, targets: &Targets, options: &Options, whole: bool) -> Result<usize> {
        problem(inputs, targets, options)?.plan(&inputs.values(), options, whole)
    }

    fn sum(
        &mut self,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
        options: &Options,
    ) -> Result<Output<F>> {
        expect_len("weights", targets.batch(), weights.len())?;
        problem(inputs, targets, options)?.sum(&inputs.values(), weights, options, self)
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
        // All utterances at once, so that a mistake in the last is found before the first is overwritten.
        let (loss, targets) = (Cow::Borrowed(&options.loss), Cow::Borrowed(targets));
        expect_unpruned(&options.loss)?;
        let call = ScoreCall::new(&Scores { scores: &*scores, classes, layout }, loss, targets, options)?;
        let built = call.forward(scores, options, self);
        let losses = built.and_then(|built| call.backward_in_place(built, scores, weights, options, self));
        losses.map_err(|error| error.of(&options.loss))
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
    ) -> Result<Output<F>> {
        state.backward(&inputs.values(), weights, options, self)
    }

    fn align(
        &self,
        joint: &Joint<F>,
        targets: &Targets,
        options: &Options,
    ) -> Result<Vec<Option<Alignment>>> {
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
        internal::label_side(self, predicted, head, layout, targets, options)
    }
}
