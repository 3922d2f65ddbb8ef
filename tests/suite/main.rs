//! The composed loss as a user of the whole workspace sees it; `common` draws problems.

mod bad_input;
mod batching;
mod common;
mod golden;
mod gradients;
mod invariants;
mod sharing;
mod threads;
