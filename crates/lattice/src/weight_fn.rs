//! Weight functions: the weight of a lattice arc by frame, context and label.
//!
//! Two kinds of arcs leave a context state: the blank, and an arc for each label (*lexical* in
//! LAST).
//! A [`WeightFn`] borrows parameters. [`WeightFn::bind`] computes what depends only on parameters,
//! once per call. Then, for each group of frames, [`BoundWeights::forward`] computes the arc
//! weights of whole frames, and [`BoundWeights::forward_chain`] those along one label string.
//! [`BoundWeights::backward`] and [`BoundWeights::backward_chain`] propagate their adjoints to
//! parameters and frames.
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

/// Parameters, or their gradients, by LAST names such as `project_frame/kernel`.
pub type Parameters<F> = BTreeMap<String, Vec<F>>;

/// Arc weights, or their adjoints, of some frames.
///
/// *n x C* for blanks and *n x C x V* for labels, with n frames, C context states and V labels;
/// along a chain of U labels *n x (U + 1)* each.
#[derive(Debug, Clone, Copy)]
pub struct Arcs<'a, F> {
    /// Weights of blank arcs, `b`.
    pub blank: &'a [F],
    /// Weights of label arcs, `l`.
    pub labels: &'a [F],
}

/// Mutable [`Arcs`].
#[derive(Debug)]
pub struct ArcsMut<'a, F> {
    /// Weights of blank arcs, `b`.
    pub blank: &'a mut [F],
    /// Weights of label arcs, `l`.
    pub labels: &'a mut [F],
}

/// One label string in a context: the states `c_0 .. c_U`, and the label after each but the last.
///
/// Weight functions do not check that a label leads from its state to the next.
#[derive(Debug, Clone, Copy)]
pub struct LabelChain<'a> {
    /// Context states, *U + 1*.
    pub states: &'a [usize],
    /// Labels, *U*, 1 to V.
    pub labels: &'a [u32],
}

/// Size of a group of utterances, for planning memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Frames of the group.
    pub frames: usize,
    /// Frames of a wave: of one call of `forward` or `backward`.
    pub wave: usize,
    /// *U + 1* of the longest chain; 0 without chains.
    pub positions: usize,
    /// Whether there is a backward pass.
    pub gradients: bool,
}

/// The weights of arcs: `(b_t[p], l_t[p, 1..V])` from frame `x_t` and context state `p`.
pub trait WeightFn<F: Real>: Sync {
    /// V, the number of labels.
    fn vocabulary(&self) -> usize;

    /// C, the number of context states.
    fn states(&self) -> usize;

    /// F, the number of features of a frame; none if any number is valid.
    fn frame_size(&self) -> Option<usize>;

    /// Number of utterances with separate weights; none if all share them.
    fn utterances(&self) -> Option<usize> {
        None
    }

    /// Returns true if the arcs from each state are log-probabilities.
    ///
    /// The loss then needs no denominator.
    fn is_locally_normalized(&self) -> bool {
        false
    }

    /// Returns true if binding ensures that no weight is NaN or +inf.
    ///
    /// Parameters and frames are checked then. Searches check the weights of other functions.
    fn is_checked(&self) -> bool {
        false
    }

    /// The joint network, if this is one; its normalizer does not need rows of V weights.
    #[doc(hidden)]
    fn as_joint(&self) -> Option<&JointWeightFn<'_, F>> {
        None
    }

    /// Sizes of the joint network, if this is one.
    #[doc(hidden)]
    fn joint_sizes(&self) -> Option<JointSizes> {
        None
    }

    /// Largest memory that [`BoundWeights`] allocate for groups of a workload, including gradients.
    ///
    /// The packing buffers of threads ([`kernels::packing_bytes`]) are not counted.
    fn scratch(&self, workload: Workload) -> ScratchReq;

    /// Computes what depends only on the parameters.
    ///
    /// Reuses `buffers` of earlier calls ([`BoundWeights::take_buffers`]) if they are large enough.
    ///
    /// # Errors
    /// Parameters that do not fit together, or are NaN or infinite where they must not be.
    fn bind(&self, buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>>;
}

/// A weight function bound to its parameters.
pub trait BoundWeights<F: Real>: Send + Sync {
    /// Sets the frames, and the utterance of each frame.
    ///
    /// Frames are packed rows *n x F*. They have indices 0 to n - 1. Gradients of earlier frames
    /// are discarded.
    ///
    /// # Errors
    /// Frames for which the weights are not defined.
    fn set_frames(&mut self, rows: &[F], utterances: &[u32]) -> Result<()>;

    /// Computes the weights of all arcs of some frames.
    ///
    /// The weights of a frame do not depend on other frames.
    fn forward(&self, frames: &[usize], arcs: ArcsMut<F>);

    /// Computes the weights of the arcs from one state; returns the weight of the blank.
    fn forward_state(&self, frame: usize, state: usize, label_arcs: &mut [F]) -> F;

    /// Projections of the joint network, if this is one.
    #[doc(hidden)]
    fn projections(&mut self) -> Option<&mut Projections<F>> {
        None
    }

    /// Propagates adjoints of the results of [`forward`](Self::forward).
    fn backward(&mut self, frames: &[usize], adjoints: Arcs<F>);

    /// Computes weights along a chain in successive frames from `first_frame` on.
    ///
    /// The last label weight of each frame is -inf.
    fn forward_chain(&self, first_frame: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()>;

    /// Propagates adjoints of the results of [`forward_chain`](Self::forward_chain).
    fn backward_chain(&mut self, first_frame: usize, chain: LabelChain, adjoints: Arcs<F>) -> Result<()>;

    /// Returns the gradient of the last frames, *n x F*; `rows` are these frames.
    fn frame_gradient(&mut self, rows: &[F]) -> Vec<F>;

    /// Removes the large buffers after the last call, for later calls.
    fn take_buffers(&mut self) -> Vec<Vec<F>> {
        Vec::new()
    }

    /// Returns the gradients of the parameters.
    fn finish(self: Box<Self>) -> Parameters<F>;
}

/// Returns a buffer of `len` arbitrary elements: the smallest of `buffers` that fits, or a new one.
fn reuse<F: Real>(buffers: &mut Vec<Vec<F>>, len: usize) -> Vec<F> {
    let fits =
        |(index, buffer): (usize, &Vec<F>)| (buffer.capacity() >= len).then_some((buffer.capacity(), index));
    match buffers.iter().enumerate().filter_map(fits).min() {
        Some((_, index)) => {
            let mut buffer = buffers.swap_remove(index);
            buffer.resize(len, F::ZERO);
            buffer
        }
        None => {
            // No buffer fits; old and new memory should not exist at the same time.
            buffers.clear();
            kernels::alloc(len, F::ZERO)
        }
    }
}
