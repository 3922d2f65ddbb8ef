//! The tests of this crate: kinds of loss, what goes with them, and mistakes at the doors.

mod combinations;
mod ctc;
mod doors;
mod dropout;
mod pending;
mod pruned;
mod regularisers;
mod sums;
mod tensors;
mod topologies;
