//! The recognition lattice: contexts x alignments x weights.
use kernels::Real;

use crate::{
    AlignmentLattice, Context, Error, Frames, Result, WeightFn, context::NextStates, step::FrameStep,
};

/// The intersection of an alignment lattice with a context, weighted by frame and context state.
///
/// States are `(t, a, p)`, `0 <= t < N`, and the final ones `(N, 0, p)`, all of weight 1̄; paths start in `(0, 0, start)`. A blank
/// arc keeps the context state p and weighs `b_t[p]`, an arc with label y leads to `δ(p, y)` and weighs `l_t[p, y]`; the
/// [`AlignmentLattice`] says how t and a go on. The lattice is never materialised. [`LatticeSession`](crate::LatticeSession) sums over its paths, with
/// gradients, and finds the best ones.
///
/// (Variani et al., arXiv 2205.13674; Wu et al., arXiv 2304.13134, section 2.)
#[derive(Clone, Copy)]
pub struct RecognitionLattice<'a, F> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    weight_fn: &'a dyn WeightFn<F>,
}

impl<'a, F: Real> RecognitionLattice<'a, F> {
    /// A lattice of a context and of weights for its states.
    ///
    /// # Errors
    /// Weights of other states or labels than the context's.
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
                return Err(Error::shape(argument, format!("{expected}, as the context has"), found));
            }
        }
        let (limit, states, labels) = (u32::MAX as usize, context.states(), context.vocabulary());
        if states == 0 || labels == 0 || context.start() >= states {
            let found = format!("{states} states and {labels} labels from state {}", context.start());
            return Err(Error::shape(
                "context",
                "at least 1 state and 1 label, and a start among the states",
                found,
            ));
        }
        if states.saturating_mul(labels.saturating_add(1)) > limit {
            let found = format!("{states} states x {labels} labels");
            return Err(Error::States { argument: "context", limit, found });
        }
        let leads_out = |state: &usize| match context.after(*state) {
            NextStates::Run(first) => first.saturating_add(labels) > states,
            NextStates::Same(to) => to >= states,
            NextStates::List(to) => to.len() != labels || to.iter().any(|&to| to as usize >= states),
        };
        if let Some(state) = (0..states).find(leads_out) {
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

    pub(crate) fn step(&self) -> FrameStep<'a> {
        let step = FrameStep::new(self.context, self.alignment);
        if self.weight_fn.is_checked() { step } else { step.unsure() }
    }

    pub(crate) fn check_frames(&self, frames: &Frames<F>) -> Result<()> {
        if let Some(utterances) = self.weight_fn.utterances().filter(|&own| own != frames.utterances()) {
            let expected = format!("{utterances} utterances, as the weights are for");
            return Err(Error::shape("frames", expected, frames.utterances()));
        }
        match self.weight_fn.frame_size() {
            Some(size) if size != frames.size() && frames.utterances() > 0 => {
                Err(Error::shape("frames", format!("frames of {size} features"), frames.size()))
            }
            _ => Ok(()),
        }
    }
}
