//! Transducer and CTC losses by forward-backward, with their gradients and paths.
//!
//! The lattice of an utterance with T frames and U labels has sites (nodes) `(t, u)`,
//! `0 <= t < T`, `0 <= u <= U`; the sites of a batch are packed without padding. A [`Topology`]
//! defines which arcs leave a site. The caller computes a log-probability e for each arc, its
//! emission; the derivative of the loss with respect to it is the arc's adjoint. With `α` and `β`
//! the log-sums over all partial paths,
//!
//! ```text
//! α(0,0) = 0      α(n) = log Σ_{arcs m -> n} exp(α(m) + e(m -> n))
//! β(end) = 0      β(m) = log Σ_{arcs m -> n} exp(e(m -> n) + β(n))
//! loss = -β(0,0)  o(m -> n) = exp(α(m) + e(m -> n) + β(n) - β(0,0))   (posterior of an arc)
//! dloss/de(m -> n) = -o(m -> n)
//! ```
//!
//! (Graves 2012, equations 16-20.) All values are `f64`: after 10,000 steps a log-likelihood has
//! five digits before the decimal point, which would leave two after it in `f32`. The recursions
//! process the anti-diagonals of a lattice, several sites at a time. They work on scaled numbers (a
//! mantissa and an exponent) instead of logarithms, so that they only multiply and add.
//! [`log_sums()`] is the plain form.
//!
//! The types to know:
//!
//! - [`Lattices`]: the packed sites of a batch, full or banded;
//! - [`Topology`]: the arcs of a site and their emission columns (regular, modified, constrained,
//!   big blanks, TDT);
//! - [`Workspace`]: the memory of repeated calls.
//!
//! [`walk`] has the recursions in any [`semiring`], for sums, best paths and sampled paths. [`ctc`]
//! has losses, paths and emission times for connectionist temporal classification.
//!
//! ```
//! use rnnt_dp::{forward_backward, Lattices, Regularizers, Topology};
//! let lattices = Lattices::new(vec![2], vec![1])?; // T = 2, U = 1: sites (0,0) (0,1) (1,0) (1,1)
//! let emissions = [0.5f64.ln(); 8]; // blank, label at each site; the label at u = U is not used
//! let out = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default())?;
//! assert!((out.losses[0] - 4f64.ln()).abs() < 1e-12); // two paths of three arcs
//! # Ok::<(), rnnt_dp::Error>(())
//! ```
#![warn(missing_docs)]

mod anti_diagonals;
mod banded;
#[cfg(feature = "candle")]
pub mod candle;
mod compose;
pub mod ctc;
mod error;
mod forward_backward;
mod lanes;
mod lattice;
mod log_sums;
mod path;
mod recursions;
mod scaled_rows;
mod schedule;
pub mod semiring;
mod topology;
mod utterance;
pub mod walk;
mod workspace;

pub use error::{Error, Result};
pub use forward_backward::{Posterior, Regularizers, delay_shift, forward_backward};
pub use lattice::{Lattices, Site};
pub use log_sums::{LogSums, log_sums};
pub use path::{
    AlignmentPath, PathRng, PathStep, best_path, confidences, expected_emission_frames, sample_paths,
};
pub use topology::{EmissionTerm, Token, Topology, TopologyArc, TopologyKind};
pub use workspace::Workspace;
