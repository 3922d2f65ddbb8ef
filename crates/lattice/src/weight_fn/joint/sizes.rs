//! Sizes of a joint network, which are enough to plan its memory.
use kernels::Real;

use super::{opened, screened};
use crate::panels::Screens;
use crate::weight_fn::{Load, WeightFn, Weights};
use crate::{Error, Result};

/// Sizes of a [`Joint`](super::Joint): a weight function that can be planned and not evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointSizes {
    /// C
    pub states: usize,
    /// V
    pub vocabulary: usize,
    /// H
    pub hidden: usize,
    /// E
    pub embedding: usize,
    /// F
    pub features: usize,
    /// Bytes of the network that computes embeddings, 0 for a table.
    pub rnn_bytes: usize,
}

impl JointSizes {
    /// True if the bytes of a load can be counted without overflow.
    pub fn has_plan(&self, load: Load) -> bool {
        let sizes = [self.states, self.vocabulary, self.hidden];
        let arcs = self.states.saturating_mul(self.vocabulary.saturating_add(1));
        let most = load.frames.max(load.positions).max(load.wave.saturating_mul(arcs));
        !sizes.contains(&0) && arcs <= u32::MAX as usize && self.hidden <= 1 << 20 && most <= 1 << 40
    }
}

impl<F: Real> WeightFn<F> for JointSizes {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn states(&self) -> usize {
        self.states
    }

    fn frame_size(&self) -> Option<usize> {
        Some(self.features)
    }

    fn is_checked(&self) -> bool {
        true
    }

    fn joint_sizes(&self) -> Option<JointSizes> {
        Some(*self)
    }

    fn screens(&self, among: Screens) -> bool {
        self.hidden > 0 && screened::is_worth::<F>(self, among)
    }

    fn bytes(&self, load: Load) -> usize {
        if self.has_plan(load) {
            return opened::bytes::<F>(self, load);
        }
        // A size of 0 is an error when the weights are opened.
        if self.states.min(self.vocabulary).min(self.hidden) == 0 { 0 } else { usize::MAX }
    }

    fn open(&self) -> Result<Box<dyn Weights<F> + '_>> {
        Err(Error::shape("weight_fn", "parameters", "sizes of parameters"))
    }
}
