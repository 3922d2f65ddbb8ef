//! Local normalization of arc weights: log-probabilities at each lattice state.
mod log_probabilities;
mod rows;
mod selected;

use kernels::{BufferPool, Real, ScratchReq};

pub use log_probabilities::Normalize;
use selected::SelectedNormalizer;

use super::{Arcs, ArcsMut, BoundWeights, LabelChain, Parameters, WeightFn, Workload};
use crate::{Error, Result};

/// Default budget of the selected normalizer, in bytes.
const DEFAULT_NORMALIZER_BUDGET: usize = 32 << 20;

/// A weight function normalized at each state: `exp b' + Σ exp l' = 1`.
///
/// This is LAST's `LocallyNormalizedWeightFn`. The loss of such a model needs only the weights
/// along its labels. If the inner function is a [`JointWeightFn`](super::JointWeightFn), they come
/// from the selected normalizer of panda-core, and nothing of the size of sites x V exists.
/// Otherwise the V weights of each site are computed, a few sites at a time.
///
/// Gradients have the names of the inner function's parameters, with one more `weight_fn/` before
/// `weight_fn/`.
///
/// # Cost
/// Along a chain of a joint network 2 H V floating-point operations per site, and 6 to 8 H V
/// backward. Whole frames cost one exponential per arc more than the inner function.
#[derive(Debug, Clone, Copy)]
pub struct LocallyNormalized<W> {
    /// The weight function that is normalized.
    pub inner: W,
    /// The kind of normalization.
    pub normalize: Normalize,
    /// Byte limit of the selected normalizer, part of the session's budget.
    pub budget: usize,
}

impl<W> LocallyNormalized<W> {
    /// Creates a normalized weight function with a normalizer budget of 32 MiB.
    pub fn new(inner: W, normalize: Normalize) -> Self {
        Self { inner, normalize, budget: DEFAULT_NORMALIZER_BUDGET }
    }
}

impl<F: panda_core::Real, W: WeightFn<F>> WeightFn<F> for LocallyNormalized<W> {
    fn vocabulary(&self) -> usize {
        self.inner.vocabulary()
    }

    fn states(&self) -> usize {
        self.inner.states()
    }

    fn frame_size(&self) -> Option<usize> {
        self.inner.frame_size()
    }

    fn utterances(&self) -> Option<usize> {
        self.inner.utterances()
    }

    fn is_locally_normalized(&self) -> bool {
        true
    }

    fn is_checked(&self) -> bool {
        self.inner.is_checked()
    }

    fn scratch(&self, workload: Workload) -> ScratchReq {
        let shape = rows::ArcShape { states: self.states(), vocabulary: self.vocabulary() };
        let chain = match self.inner.joint_sizes() {
            Some(sizes) if sizes.has_plan(workload) => {
                selected::scratch::<F>(&sizes, self.normalize, self.budget)
            }
            Some(_) => ScratchReq::EMPTY,
            None => shape.chain_scratch::<F>(),
        };
        let frames = if workload.gradients { workload.wave } else { 0 };
        ScratchReq::all_of([self.inner.scratch(workload), shape.backward_scratch::<F>(frames), chain])
    }

    fn bind(&self, buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>> {
        if self.vocabulary() == 0 {
            return Err(Error::shape("vocabulary", "at least 1", 0));
        }
        let inner = match self.inner.as_joint() {
            Some(joint) => InnerWeights::Joint(Box::new(SelectedNormalizer::new(
                joint,
                self.normalize,
                self.budget,
                buffers,
            )?)),
            None => InnerWeights::Generic(self.inner.bind(buffers)?),
        };
        let shape = rows::ArcShape { states: self.states(), vocabulary: self.vocabulary() };
        let (normalize, pool) = (self.normalize, BufferPool::new());
        Ok(Box::new(BoundNormalized { inner, normalize, shape, pool }))
    }
}

/// A bound weight function with its normalization.
struct BoundNormalized<'a, F: Real> {
    inner: InnerWeights<'a, F>,
    normalize: Normalize,
    shape: rows::ArcShape,
    pool: BufferPool<F>,
}

/// The bound weight function that is normalized.
enum InnerWeights<'a, F: Real> {
    /// Any weight function: all V weights of a state are computed.
    Generic(Box<dyn BoundWeights<F> + 'a>),
    /// A joint network: the selected normalizer computes the weights along a chain.
    Joint(Box<SelectedNormalizer<'a, F>>),
}

impl<F: Real> InnerWeights<'_, F> {
    fn weights(&self) -> &dyn BoundWeights<F> {
        match self {
            Self::Generic(weights) => &**weights,
            Self::Joint(joint) => &joint.joint,
        }
    }

    fn weights_mut(&mut self) -> &mut dyn BoundWeights<F> {
        match self {
            Self::Generic(weights) => &mut **weights,
            Self::Joint(joint) => &mut joint.joint,
        }
    }
}

impl<F: panda_core::Real> BoundWeights<F> for BoundNormalized<'_, F> {
    fn set_frames(&mut self, rows: &[F], utterances: &[u32]) -> Result<()> {
        self.inner.weights_mut().set_frames(rows, utterances)
    }

    fn forward(&self, frames: &[usize], arcs: ArcsMut<F>) {
        rows::forward(self.inner.weights(), self.normalize, self.shape, frames, arcs);
    }

    fn forward_state(&self, frame: usize, state: usize, label_arcs: &mut [F]) -> F {
        let mut blank = self.inner.weights().forward_state(frame, state, label_arcs);
        self.normalize.forward(&mut blank, label_arcs);
        blank
    }

    fn backward(&mut self, frames: &[usize], adjoints: Arcs<F>) {
        rows::backward(self.inner.weights_mut(), self.normalize, self.shape, frames, adjoints);
    }

    fn forward_chain(&self, first_frame: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()> {
        match &self.inner {
            InnerWeights::Joint(joint) => joint.forward(first_frame, chain, arcs),
            InnerWeights::Generic(weights) => {
                rows::forward_chain(
                    &**weights,
                    self.normalize,
                    self.shape,
                    &self.pool,
                    first_frame,
                    chain,
                    arcs,
                );
                Ok(())
            }
        }
    }

    fn backward_chain(&mut self, first_frame: usize, chain: LabelChain, adjoints: Arcs<F>) -> Result<()> {
        match &mut self.inner {
            InnerWeights::Joint(joint) => joint.backward(first_frame, chain, adjoints),
            InnerWeights::Generic(weights) => {
                rows::backward_chain(&mut **weights, self.normalize, self.shape, first_frame, chain, adjoints)
            }
        }
    }

    fn frame_gradient(&mut self, rows: &[F]) -> Vec<F> {
        self.inner.weights_mut().frame_gradient(rows)
    }

    fn take_buffers(&mut self) -> Vec<Vec<F>> {
        self.inner.weights_mut().take_buffers()
    }

    fn finish(self: Box<Self>) -> Parameters<F> {
        let inner = match self.inner {
            InnerWeights::Generic(weights) => weights.finish(),
            InnerWeights::Joint(joint) => joint.finish(),
        };
        let outer_name =
            |name: String| if name.starts_with("weight_fn/") { format!("weight_fn/{name}") } else { name };
        inner.into_iter().map(|(name, gradient)| (outer_name(name), gradient)).collect()
    }
}
