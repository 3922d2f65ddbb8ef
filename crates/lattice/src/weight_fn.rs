//! Weight functions: what an arc weighs, by frame, context state and label.
//!
//! A [`WeightFn`] borrows parameters; [`WeightFn::bind`] computes all that depends on parameters only, once a call. Then, for each
//! group of frames, [`BoundWeights::forward`] computes the arc weights of whole frames, [`BoundWeights::forward_chain`] those along
//! one string of labels, and [`BoundWeights::backward`] and [`BoundWeights::backward_chain`] propagate their adjoints to parameters
//! and frames.
pub(crate) mod joint;
mod locally_normalized;
mod shared_rnn;
mod table;

use std::collections::BTreeMap;

use kernels::{Real, ScratchReq};

#[doc(hidden)]
pub use joint::JointSizes;
#[doc(hidden)]
pub use joint::projections::Projections;
pub use joint::{Embeddings, JointWeightFn};
pub use locally_normalized::{LocallyNormalized, Normalize};
pub use shared_rnn::SharedRnn;
pub use table::TableWeightFn;

use crate::Result;

/// Parameters by the names of the reference implementation, such as `project_frame/kernel`; or their gradients.
pub type Parameters<F> = BTreeMap<String, Vec<F>>;

/// Arc weights, or their adjoints, of some frames: *n x C* blank and *n x C x V* lexical; along a chain *n x (U + 1)* each.
#[derive(Debug, Clone, Copy)]
pub struct Arcs<'a, F> {
    /// `b`
    pub blank: &'a [F],
    /// `l`
    pub lexical: &'a [F],
}

/// [`Arcs`] to be written.
#[derive(Debug)]
pub struct ArcsMut<'a, F> {
    /// `b`
    pub blank: &'a mut [F],
    /// `l`
    pub lexical: &'a mut [F],
}

/// One string of labels in a context: the states `c_0 .. c_U` and the label that follows each; none follows the last. Weight
/// functions take both as they are, whether or not a label leads from its state to the next.
#[derive(Debug, Clone, Copy)]
pub struct LabelChain<'a> {
    /// *U + 1*
    pub states: &'a [usize],
    /// *U*, 1 to V.
    pub labels: &'a [u32],
}

/// Size of a group of utterances, by which the memory of a weight function is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Frames of the group.
    pub frames: usize,
    /// Frames of one forward or backward.
    pub wave: usize,
    /// *U + 1* of the longest chain; 0 without chains.
    pub positions: usize,
    /// Whether there is a backward.
    pub gradients: bool,
}

/// The weights of arcs. `x` is a frame, `p` a context state: `(b_t[p], l_t[p, 1..V])`.
pub trait WeightFn<F: Real>: Sync {
    /// V
    fn vocabulary(&self) -> usize;

    /// C
    fn states(&self) -> usize;

    /// F; none for any.
    fn frame_size(&self) -> Option<usize>;

    /// Utterances that it has weights of their own for; none for any.
    fn utterances(&self) -> Option<usize> {
        None
    }

    /// Whether the weights of the arcs from each state are log-probabilities, so that a loss needs no denominator.
    fn is_locally_normalized(&self) -> bool {
        false
    }

    /// Whether parameters and frames are looked at, so that no weight is ever NaN or +inf. Searches look at the weights of others.
    fn is_checked(&self) -> bool {
        false
    }

    /// This, if it is a joint network, whose normaliser needs no row of V weights.
    #[doc(hidden)]
    fn as_joint(&self) -> Option<&JointWeightFn<'_, F>> {
        None
    }

    /// Sizes of this, if it is a joint network.
    #[doc(hidden)]
    fn joint_sizes(&self) -> Option<JointSizes> {
        None
    }

    /// Memory that [`BoundWeights`] allocate at most for groups of a workload, gradients included if there are any; in addition to
    /// the packing buffers of threads ([`kernels::packing_bytes`]).
    fn scratch(&self, workload: Workload) -> ScratchReq;

    /// Computes all that depends on the parameters only, in `buffers` of earlier calls ([`BoundWeights::take_buffers`]) where they
    /// are large enough.
    ///
    /// # Errors
    /// Parameters that do not fit together or are NaN or infinite where they must not be.
    fn bind(&self, buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>>;
}

/// A weight function bound to its parameters.
pub trait BoundWeights<F: Real>: Send + Sync {
    /// Sets the frames, packed rows *n x F*, each of an utterance. They are numbered 0 to n - 1; gradients of earlier frames are
    /// lost.
    ///
    /// # Errors
    /// Frames that the weights are not defined for.
    fn set_frames(&mut self, rows: &[F], utterances: &[u32]) -> Result<()>;

    /// Computes the weights of all arcs of some frames. The weights of a frame do not depend on the other frames.
    fn forward(&self, frames: &[usize], arcs: ArcsMut<F>);

    /// Computes the weights of the arcs from one state; returns that of the blank.
    fn forward_state(&self, frame: usize, state: usize, lexical: &mut [F]) -> F;

    /// Projections of this, if it is a joint network.
    #[doc(hidden)]
    fn projections(&mut self) -> Option<&mut Projections<F>> {
        None
    }

    /// Propagates adjoints of the results of [`forward`](Self::forward).
    fn backward(&mut self, frames: &[usize], adjoints: Arcs<F>);

    /// Computes weights along a chain in successive frames from `first` on. The last lexical one of each frame is -inf.
    fn forward_chain(&self, first: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()>;

    /// Propagates adjoints of the results of [`forward_chain`](Self::forward_chain).
    fn backward_chain(&mut self, first: usize, chain: LabelChain, adjoints: Arcs<F>) -> Result<()>;

    /// Gradient of the last frames, *n x F*, which are given once more.
    fn frame_gradient(&mut self, rows: &[F]) -> Vec<F>;

    /// Removes the large buffers after the last forward and backward, for later calls.
    fn take_buffers(&mut self) -> Vec<Vec<F>> {
        Vec::new()
    }

    /// Gradients of the parameters.
    fn finish(self: Box<Self>) -> Parameters<F>;
}

/// Returns a buffer of `len` elements with any values: the smallest of `buffers` that fits, or a new one.
fn reuse<F: Real>(buffers: &mut Vec<Vec<F>>, len: usize) -> Vec<F> {
    let fits = |(at, buffer): (usize, &Vec<F>)| (buffer.capacity() >= len).then_some((buffer.capacity(), at));
    match buffers.iter().enumerate().filter_map(fits).min() {
        Some((_, at)) => {
            let mut buffer = buffers.swap_remove(at);
            buffer.resize(len, F::ZERO);
            buffer
        }
        None => {
            // None of them fits; old and new memory should not exist at the same time.
            buffers.clear();
            kernels::alloc(len, F::ZERO)
        }
    }
}
