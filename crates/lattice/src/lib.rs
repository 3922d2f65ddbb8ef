//! Differentiable recognition lattices: globally normalised transducers (GNAT, LAST), exact and small.
#![warn(missing_docs)]

mod alignment;
mod batch;
pub mod context;
mod error;
mod pool;
pub mod weight_fn;

pub use alignment::{Alignment, Next};
pub use batch::{Frames, Labels};
pub use context::{Context, FullNGram, NextStateTable};
pub use error::{Error, Result};
pub use kernels::Real;
pub use panda_core::MemoryBudget;
pub use weight_fn::{
    Arcs, ArcsMut, Chain, Embeddings, Joint, LocallyNormalized, Normalize, Parameters, SharedRnn, Table,
    WeightFn, Weights,
};
