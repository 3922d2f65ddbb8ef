//! Tests of the composed loss by the public API of all crates; `common` draws problems.

mod bad_input;
mod batching;
mod common;
mod golden;
mod gradients;
mod invariants;
mod sharing;
mod threads;
