//! Weights that are log-probabilities of the arcs from each state.
mod log_probabilities;
mod rows;
mod selected;

use kernels::Real;

pub use log_probabilities::Normalize;
use selected::Selected;

use super::{Arcs, ArcsMut, Chain, Load, Parameters, WeightFn, Weights};
use crate::{Error, Result, pool::Pool};

/// Bytes of the selected normaliser unless somebody says otherwise.
const DEFAULT: usize = 32 << 20;

/// Another weight function, normalised at each state, so that `exp b' + Σ exp l' = 1` (LAST's `LocallyNormalizedWeightFn`).
///
/// The loss of such a model needs the weights along its labels alone. Where the inner function is a [`Joint`](super::Joint),
/// they come from the selected normaliser of panda-core, so that nothing of the size of sites x V exists; for any other, the
/// V weights of a site are asked for, a few sites at a time.
///
/// The gradients of parameters are named as those of the inner function, with one more `weight_fn/` before `weight_fn/`.
///
/// # Cost
/// Along a chain of a joint network 2 H V floating-point operations a site, and 6 to 8 H V backward; whole frames cost an
/// exponential an arc more than the inner function's.
#[derive(Debug, Clone, Copy)]
pub struct LocallyNormalized<W> {
    /// What is normalised.
    pub inner: W,
    /// How.
    pub normalize: Normalize,
    /// Limit on the bytes of the selected normalizer, a part of the session's.
    pub budget: usize,
}

impl<W> LocallyNormalized<W> {
    /// A weight function with a budget of 32 MiB.
    pub fn new(inner: W, normalize: Normalize) -> Self {
        Self { inner, normalize, budget: DEFAULT }
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

    fn bytes(&self, load: Load) -> usize {
        let shape = rows::Shape { states: self.states(), vocabulary: self.vocabulary() };
        let chain = match self.inner.joint_sizes() {
            Some(sizes) if sizes.has_plan(load) => selected::bytes::<F>(&sizes, self.normalize, self.budget),
            Some(_) => 0,
            None => shape.chain_bytes::<F>(),
        };
        let pulled = if load.gradients { load.wave } else { 0 };
        self.inner.bytes(load).saturating_add(shape.pull_bytes::<F>(pulled)).saturating_add(chain)
    }

    fn open(&self) -> Result<Box<dyn Weights<F> + '_>> {
        self.open_with(&mut Vec::new())
    }

    fn open_with(&self, spare: &mut Vec<Vec<F>>) -> Result<Box<dyn Weights<F> + '_>> {
        if self.vocabulary() == 0 {
            return Err(Error::shape("vocabulary", "at least 1", 0));
        }
        let inner = match self.inner.as_joint() {
            Some(joint) => Inner::Joint(Box::new(Selected::new(joint, self.normalize, self.budget, spare)?)),
            None => Inner::Any(self.inner.open_with(spare)?),
        };
        let shape = rows::Shape { states: self.states(), vocabulary: self.vocabulary() };
        Ok(Box::new(Opened { inner, normalize: self.normalize, shape, pool: Pool::default() }))
    }
}

/// A weight function at work under its normaliser.
struct Opened<'a, F: Real> {
    inner: Inner<'a, F>,
    normalize: Normalize,
    shape: rows::Shape,
    pool: Pool<F>,
}

enum Inner<'a, F: Real> {
    Any(Box<dyn Weights<F> + 'a>),
    Joint(Box<Selected<'a, F>>),
}

impl<F: Real> Inner<'_, F> {
    fn weights(&self) -> &dyn Weights<F> {
        match self {
            Self::Any(weights) => &**weights,
            Self::Joint(joint) => &joint.opened,
        }
    }

    fn weights_mut(&mut self) -> &mut dyn Weights<F> {
        match self {
            Self::Any(weights) => &mut **weights,
            Self::Joint(joint) => &mut joint.opened,
        }
    }
}

impl<F: panda_core::Real> Weights<F> for Opened<'_, F> {
    fn enter(&mut self, rows: &[F], utterances: &[u32]) -> Result<()> {
        self.inner.weights_mut().enter(rows, utterances)
    }

    fn weigh(&self, frames: &[usize], arcs: ArcsMut<F>) {
        rows::weigh(self.inner.weights(), self.normalize, self.shape, frames, arcs);
    }

    fn weigh_state(&self, frame: usize, state: usize, lexical: &mut [F]) -> F {
        let mut blank = self.inner.weights().weigh_state(frame, state, lexical);
        self.normalize.forward(&mut blank, lexical);
        blank
    }

    fn pull(&mut self, frames: &[usize], adjoints: Arcs<F>) {
        rows::pull(self.inner.weights_mut(), self.normalize, self.shape, frames, adjoints);
    }

    fn weigh_chain(&self, first: usize, chain: Chain, arcs: ArcsMut<F>) -> Result<()> {
        match &self.inner {
            Inner::Joint(joint) => joint.weigh(first, chain, arcs),
            Inner::Any(weights) => {
                rows::weigh_chain(&**weights, self.normalize, self.shape, &self.pool, (first, chain), arcs);
                Ok(())
            }
        }
    }

    fn pull_chain(&mut self, first: usize, chain: Chain, adjoints: Arcs<F>) -> Result<()> {
        match &mut self.inner {
            Inner::Joint(joint) => joint.pull(first, chain, adjoints),
            Inner::Any(weights) => {
                rows::pull_chain(&mut **weights, self.normalize, self.shape, (first, chain), adjoints)
            }
        }
    }

    fn frame_gradient(&mut self, rows: &[F]) -> Vec<F> {
        self.inner.weights_mut().frame_gradient(rows)
    }

    fn spare(&mut self) -> Vec<Vec<F>> {
        self.inner.weights_mut().spare()
    }

    fn finish(self: Box<Self>) -> Parameters<F> {
        let inner = match self.inner {
            Inner::Any(weights) => weights.finish(),
            Inner::Joint(joint) => joint.finish(),
        };
        let outer =
            |name: String| if name.starts_with("weight_fn/") { format!("weight_fn/{name}") } else { name };
        inner.into_iter().map(|(name, gradient)| (outer(name), gradient)).collect()
    }
}
