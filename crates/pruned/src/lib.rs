//! First pass of the pruned RNN-T loss: a simple joiner over the whole lattice.
//!
//! It is cheap enough to visit all sites (lattice nodes), and its posteriors select the sites of
//! the second pass.
//!
//! The *simple joiner* (in k2's terms) adds scores of a frame and of a label position. Its
//! normalizers need no tensor of sites x classes, but one matrix product of exponentials (Kuang et
//! al. 2022, arXiv 2206.13236):
//!
//! ```text
//! log p(c | t,u) = am[t,c] + lm[u,c] - logZ[t,u]
//! logZ[t,u] = max am[t] + max lm[u] + log Σ_c exp(am[t,c] - max am[t]) exp(lm[u,c] - max lm[u])
//! ```
//! am: encoder scores of frame t; lm: predictor scores of label position u; c: class.
//!
//! *Smoothing* adds log-probabilities of the label scores only, and of the frame scores with a
//! unigram only ([`Options`]). [`first_pass()`] returns losses and the posterior of every arc, its
//! `backward` the gradients, and [`Ranges`] the bands of label positions that the second pass
//! keeps. Semantics are those of k2's fast_rnnt.
//!
//! Scores come from a [`ScoreSource`]: given [`Matrices`], or [`Heads`], which are linear layers
//! over hidden rows. Their scores are computed a tile of classes at a time, twice, and never
//! stored, so that memory does not grow with the vocabulary. Start with [`Batch`], [`ScoreSource`]
//! and [`FirstPass`].
//!
//! ```
//! use pruned::{first_pass, Batch, Matrices, Options};
//! // T = 2, U = 1, C = 2, blank 0: scores are all equal.
//! let (am, lm) = ([0.0f32; 4], [0.0f32; 4]);
//! let source = Matrices::new(&am, &lm, 2)?;
//! let batch = Batch::packed(0, vec![2], vec![vec![1]])?;
//! let pass = first_pass(&source, &batch, &Options::default())?;
//! assert!((pass.losses[0] - 4f64.ln()).abs() < 1e-6); // two paths of three arcs
//! let gradient = pass.backward(&source, &[1.0])?;
//! assert!((gradient.am.iter().sum::<f32>()).abs() < 1e-6);
//! assert_eq!(pass.ranges(5)?.band(0, 1), 0..2);
//! # Ok::<(), pruned::Error>(())
//! ```
#![warn(missing_docs)]

mod backward;
mod batch;
mod emissions;
mod error;
mod first_pass;
mod forward;
mod label_arc;
mod linear;
mod matrices;
mod normalizer;
mod options;
mod plan;
mod ranges;
mod source;
mod sums;
mod tile_gradients;
mod tiles;
mod underflow;
mod unigram;
mod utterance;
mod workspace;

pub use batch::Batch;
pub use error::{Error, Result};
pub use first_pass::{FirstPass, first_pass, first_pass_with};
pub use linear::{Heads, HeadsGradient, Linear, LinearGradient};
pub use matrices::{Matrices, MatrixGradient};
pub use options::{Options, Unigram};
pub use plan::{PassScratch, Plan};
pub use ranges::Ranges;
pub use source::{ScoreSource, Side};
pub use workspace::{TaskScratch, Workspace};
