//! Context embeddings from a recurrent network over the labels of an n-gram.
use kernels::Real;

use crate::{Result, weight_fn::Parameters};

/// LAST's `SharedRNNCacher`.
#[derive(Debug, Clone, Copy)]
pub struct SharedRnn<'a, F> {
    /// `Embed_0/embedding`, *(V + 1) x RE*; row 0 is the start symbol.
    pub embedding: &'a [F],
}

impl<F: Real> SharedRnn<'_, F> {
    /// R, the width of an embedding.
    pub fn width(&self) -> usize {
        todo!()
    }

    /// Fails unless the parameters fit together and make so many embeddings.
    pub fn check(&self, _states: usize) -> Result<()> {
        todo!()
    }

    /// `e`, *C x R*.
    pub fn forward(&self) -> Result<Vec<F>> {
        todo!()
    }

    /// Gradients of the parameters, by their names.
    pub fn backward(&self, _gradient: &[F]) -> Parameters<F> {
        todo!()
    }
}
