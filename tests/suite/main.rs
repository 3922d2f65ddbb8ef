//! Tests of the composed loss by the public API of all crates.
//!
//! `loss_problem` draws random batches and computes their reference losses.

mod bad_input;
mod batching;
mod golden;
mod gradients;
mod invariants;
mod loss_problem;
mod send_and_sync;
mod threads;
