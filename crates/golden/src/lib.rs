//! Compares this workspace with golden vectors of independent programs.
//!
//! [`report`] checks all cases of a folder (losses, decoders, recognition lattices, MLPerf's RNN-T)
//! and prints one line per run; the program `golden` calls it. [`evaluate`] compares the
//! [`LossOutcome`] of a loss with the tolerances and returns a [`Verdict`]. All tests are in
//! `tests/suite`, so that this crate is compiled once.
#![warn(missing_docs)]

mod case;
mod columns;
mod decoding;
mod duration_losses;
mod error;
mod lattice;
mod losses;
mod mlperf;
mod nemo;
mod outcome;
mod pruned;
mod report;
mod tolerances;

pub use case::{PeerErrors, StoredTensor};
pub use error::Error;
pub use mlperf::{Tolerance, tolerance_ratio};
pub use outcome::{Comparison, LossOutcome};
pub use report::{PrintableLines, report};
pub use tolerances::{FloatType, Verdict, evaluate};
