//! Differentiable recognition lattices: globally normalised transducers (GNAT, LAST), exact and small.
#![warn(missing_docs)]

mod ahead;
mod alignment;
mod batch;
mod beam;
mod best_path;
pub mod context;
mod denominator;
pub mod distance;
mod error;
pub mod expectation;
mod forced;
mod group;
mod merge;
mod n_best;
mod n_best_strings;
mod numerator;
mod pending;
mod plan;
mod pool;
mod recognition;
mod sample;
mod session;
mod step;
pub mod weight_fn;

pub use alignment::{Alignment, Next};
pub use batch::{Frames, Labels};
pub use beam::{Beam, BeamStream, Fusion};
pub use best_path::Path;
pub use context::{Context, FullNGram, NextStateTable};
pub use error::{Error, Result};
pub use kernels::Real;
pub use merge::{Hypothesis, Merge};
pub use n_best_strings::Strings;
pub use panda_core::MemoryBudget;
pub use pending::Pending;
pub use plan::Plan;
pub use recognition::RecognitionLattice;
pub use session::{Output, Session, Sum};
pub use weight_fn::{
    Arcs, ArcsMut, Chain, Embeddings, Joint, Load, LocallyNormalized, Normalize, Parameters, SharedRnn,
    Table, WeightFn, Weights,
};
