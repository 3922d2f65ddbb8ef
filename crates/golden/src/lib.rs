//! Compares losses, decoders, lattices and MLPerf's RNN-T with golden vectors of independent programs.
//!
//! The program `golden` prints what [`report`] writes. Tests stand in `tests/suite`, so that this crate is compiled once.
#![warn(missing_docs)]

mod bars;
mod case;
mod decoding;
mod doors;
mod error;
mod lattice;
mod mlperf;
mod outcome;
mod pruned;
mod report;
mod topologies;

pub use bars::{Verdict, Width, judge};
pub use case::{Peers, Stored};
pub use error::Error;
pub use mlperf::{Bar, share};
pub use outcome::{Comparison, LossOutcome};
pub use report::{PrintableLines, report};
