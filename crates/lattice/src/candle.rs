//! The tensor face: losses and best paths of recognition lattices over candle tensors, with autograd.
//!
//! A [`Gnat`] is a lattice over the last labels with the weights of a [`Joint`](crate::Joint), and the session that its buffers live
//! in. [`Gnat::losses`] gives losses *B..* (`f64`), differentiable in frames and all parameters; [`Gnat::loss_sum`] does forward and
//! backward at once, where the weights of the utterances are known beforehand: what training wants. Gradients have the types of
//! their tensors. Nothing is copied but tensors with gaps.
//!
//! Parameters have the names of LAST, with a point where its paths have a slash; [`JointWeights::save`] and [`load`] write and read
//! files that have the slashes.
mod batch;
mod gnat;
mod weights;

pub use batch::BatchTensors;
pub use gnat::{Gnat, LossSum};
pub use weights::{EmbeddingConfig, JointConfig, JointWeights, load};
