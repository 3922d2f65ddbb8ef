//! The recognition lattice: contexts x alignments x weights.
use kernels::Real;

use crate::{Alignment, Context, Error, Frames, Result, WeightFn, step::Step};

/// The intersection of an alignment lattice with a context, weighted by frame and context state.
///
/// States are `(t, a, p)`, `0 <= t < N`, and the final ones `(N, 0, p)`, all of weight 1̄; paths start in `(0, 0, start)`. A blank
/// arc keeps the context state p and weighs `b_t[p]`, an arc with label y leads to `δ(p, y)` and weighs `l_t[p, y]`; the
/// [`Alignment`] says how t and a go on. The lattice is never materialised. [`Session`](crate::Session) sums over its paths, with
/// gradients, and finds the best ones.
///
/// (Variani et al., arXiv 2205.13674; Wu et al., arXiv 2304.13134, section 2.)
#[derive(Clone, Copy)]
pub struct RecognitionLattice<'a, F> {
    context: &'a dyn Context,
    alignment: Alignment,
    weight_fn: &'a dyn WeightFn<F>,
}

impl<'a, F: Real> RecognitionLattice<'a, F> {
    /// A lattice of a context and of weights for its states.
    ///
    /// # Errors
    /// Weights of other states or labels than the context's.
    pub fn new(
        context: &'a dyn Context,
        alignment: Alignment,
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
        let limit = u32::MAX as usize;
        if context.states().saturating_mul(1 + context.vocabulary()) > limit {
            let found = format!("{} states x {} labels", context.states(), context.vocabulary());
            return Err(Error::States { argument: "context", limit, found });
        }
        Ok(Self { context, alignment, weight_fn })
    }

    /// The context.
    pub fn context(&self) -> &'a dyn Context {
        self.context
    }

    /// The alignment lattice.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// The weights.
    pub fn weight_fn(&self) -> &'a dyn WeightFn<F> {
        self.weight_fn
    }

    pub(crate) fn step(&self) -> Step<'a> {
        Step::new(self.context, self.alignment)
    }

    pub(crate) fn check_frames(&self, frames: &Frames<F>) -> Result<()> {
        match self.weight_fn.frame_size() {
            Some(size) if size != frames.size() && frames.utterances() > 0 => {
                Err(Error::shape("frames", format!("frames of {size} features"), frames.size()))
            }
            _ => Ok(()),
        }
    }
}
