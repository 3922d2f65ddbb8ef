//! The recognition lattice: context states x alignment states x arc weights.
//!
//! It only combines and checks its three components; sessions compute with it.
use kernels::Real;

use crate::{
    AlignmentLattice, Context, Error, Frames, Result, WeightFn, context::NextStates, step::FrameStep,
};

/// A weighted product of an alignment lattice and a context.
///
/// Weights depend on the frame and the context state.
///
/// States are `(t, a, p)`: frame, alignment state, context state. `0 <= t < N` for N frames; the
/// final states are `(N, 0, p)`, all of weight 1̄ (0 as a log-weight). Paths start in
/// `(0, 0, start)`. A blank arc keeps the context state p and has weight `b_t[p]`. An arc
/// with label y leads to `δ(p, y)` and has weight `l_t[p, y]`. The [`AlignmentLattice`] determines
/// the next t and a. The lattice is never materialized. [`LatticeSession`](crate::LatticeSession)
/// sums over its paths, with gradients, and finds the best ones.
///
/// (Variani et al., arXiv 2205.13674; Wu et al., arXiv 2304.13134, section 2.)
#[derive(Clone, Copy)]
pub struct RecognitionLattice<'a, F> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    weight_fn: &'a dyn WeightFn<F>,
}

impl<'a, F: Real> RecognitionLattice<'a, F> {
    /// Creates a lattice from a context and weights for its states.
    ///
    /// # Errors
    /// Weights whose number of states or labels differs from the context; an invalid context.
    pub fn new(
        context: &'a dyn Context,
        alignment: AlignmentLattice,
        weight_fn: &'a dyn WeightFn<F>,
    ) -> Result<Self> {
        let sizes = [
            ("weight_fn.states", context.states(), weight_fn.states()),
            ("weight_fn.vocabulary", context.vocabulary(), weight_fn.vocabulary()),
        ];
        for (argument, expected, found) in sizes {
            if expected != found {
                return Err(Error::shape(argument, format!("{expected}, as in the context"), found));
            }
        }
        // Arcs have numbers of 32 bits.
        let (max_arcs, states, labels) = (u32::MAX as usize, context.states(), context.vocabulary());
        if states == 0 || labels == 0 || context.start() >= states {
            let sizes = format!("{states} states and {labels} labels from state {}", context.start());
            return Err(Error::shape(
                "context",
                "at least 1 state and 1 label, and a valid start state",
                sizes,
            ));
        }
        if states.saturating_mul(labels.saturating_add(1)) > max_arcs {
            let sizes = format!("{states} states x {labels} labels");
            return Err(Error::States { argument: "context", limit: max_arcs, found: sizes });
        }
        let is_invalid = |state: &usize| match context.next_states(*state) {
            NextStates::Run(first) => first.saturating_add(labels) > states,
            NextStates::Same(target) => target >= states,
            NextStates::List(targets) => {
                targets.len() != labels || targets.iter().any(|&target| target as usize >= states)
            }
        };
        if let Some(state) = (0..states).find(is_invalid) {
            let expected = format!("a state below {states} after each of {labels} labels");
            return Err(Error::shape("context", expected, format!("others after state {state}")));
        }
        Ok(Self { context, alignment, weight_fn })
    }

    /// The context.
    pub fn context(&self) -> &'a dyn Context {
        self.context
    }

    /// The alignment lattice.
    pub fn alignment(&self) -> AlignmentLattice {
        self.alignment
    }

    /// The weights.
    pub fn weight_fn(&self) -> &'a dyn WeightFn<F> {
        self.weight_fn
    }

    /// The transition of one frame.
    pub(crate) fn step(&self) -> FrameStep<'a> {
        let step = FrameStep::new(self.context, self.alignment);
        if self.weight_fn.is_checked() { step } else { step.with_unchecked_weights() }
    }

    /// Checks the number of utterances and the frame size.
    pub(crate) fn check_frames(&self, frames: &Frames<F>) -> Result<()> {
        if let Some(utterances) = self.weight_fn.utterances().filter(|&count| count != frames.utterances()) {
            let expected = format!("{utterances} utterances, as in the weights");
            return Err(Error::shape("frames", expected, frames.utterances()));
        }
        match self.weight_fn.frame_size() {
            Some(size) if size != frames.frame_size() && frames.utterances() > 0 => {
                Err(Error::shape("frames", format!("frames of {size} features"), frames.frame_size()))
            }
            _ => Ok(()),
        }
    }
}
