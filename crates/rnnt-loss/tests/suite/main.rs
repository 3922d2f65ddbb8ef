//! The tests of this crate: kinds of loss, what goes with them, and mistakes at the doors.

mod combinations;
mod ctc;
mod dropout;
mod functional;
mod pending;
mod pruned;
mod regularizers;
mod sums;
mod tensors;
mod topologies;
