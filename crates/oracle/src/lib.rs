//! Slow, simple references for the tests of the workspace. The program does not link this crate.
//!
//! Each reference checks the next:
//!
//! 1. [`paths`] and [`ctc`] enumerate every alignment of a tiny lattice and sum the probabilities,
//!    directly by the definition.
//! 2. [`reference`](mod@reference) is the textbook forward-backward recursion in f64, in plain
//!    loops.
//! 3. [`dense`] computes the same loss with candle's tensor operations, with gradients by autograd.
//! 4. [`differences`] differentiates any scalar function by central differences.
//!
//! [`golden`] reads golden vectors, which independent programs computed. [`compare`] has
//! assertions, and [`noise`] seeded random numbers. This crate depends on no crate that it checks.
//!
//! ```
//! use oracle::{compare::assert_close, dense, reference};
//! use candle_core::{DType, Device, Tensor};
//! let logits = Tensor::zeros((1, 2, 2, 3), DType::F64, &Device::Cpu)?; // [B, T, U + 1, C]
//! let (frames, labels) = ([2], [vec![1]]);
//! let loss = dense::transducer_loss(&logits, &frames, &labels, 0)?.to_vec1::<f64>()?;
//! let expected = reference::transducer_loss(&[0.0; 12], [1, 2, 2, 3], &frames, &labels, 0, 0.0)?;
//! assert_close("loss", &loss, &expected.loss, 1e-12);
//! # Ok::<(), oracle::Error>(())
//! ```
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
