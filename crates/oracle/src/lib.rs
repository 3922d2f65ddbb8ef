//! Slow, simple, correct references, for the tests of the workspace only.
//!
//! Trust climbs a ladder, and each rung checks the next:
//!
//! 1. [`paths`] and [`ctc`] write down every alignment of a tiny lattice and add up their probabilities: nothing
//!    to get wrong but the definition itself;
//! 2. [`reference`](mod@reference) is the textbook forward-backward recursion in f64, with plain loops;
//! 3. [`dense`] is the same loss out of candle's own tensor operations, so that its gradients come from autograd and
//!    not from anyone's algebra;
//! 4. [`differences`] differentiates any scalar function by central differences, knowing nothing about it.
//!
//! The [`golden`] vectors, made by independent programs, check the ladder from outside. The fast
//! crates stand on it; none of them is known here.
//!
//! Axis letters: `B` batch, `T` frames, `U` labels, `C` classes, `H` joint width, `N` sites.
#![warn(missing_docs)]

mod batch;
pub mod compare;
pub mod ctc;
pub mod dense;
pub mod differences;
mod error;
pub mod golden;
pub mod noise;
pub mod paths;
pub mod reference;

pub use error::{Error, Result};
