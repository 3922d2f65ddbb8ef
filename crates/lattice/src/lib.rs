//! Differentiable recognition lattices: globally normalised transducers, exact and small.
//!
//! ```text
//! states (t, a, p)    frame, state of the alignment, context        arcs  blank: b_t[p], p stays     label y: l_t[p, y], to δ(p, y)
//! D = log Σ_paths exp(weight)      S = the same over the paths of the labels      loss = D - S
//! ```
//! (GNAT: Variani et al., arXiv 2205.13674; LAST: Wu et al., arXiv 2304.13134.) Three choices make a [`RecognitionLattice`]:
//!
//! | | what | ready-made |
//! |---|---|---|
//! | [`Context`] | what a path remembers of its labels | [`FullNGram`], [`NextStateTable`] |
//! | [`AlignmentLattice`] | how many labels a frame may emit | one or none; at most K, then a blank |
//! | [`WeightFn`] | what an arc weighs, by frame and context | [`JointWeightFn`] over [`Embeddings`], [`TableWeightFn`], [`LocallyNormalized`] |
//!
//! A [`LatticeSession`] sums over its paths, with gradients for frames and every parameter, and finds the best of them. Arc weights of a few
//! frames exist at a time; what stays is `α`, *T x C* of an utterance. The budget is a promise, results do not depend on threads or
//! batch mates, and an utterance without a path is a value that no other notices.
//!
//! Beside the best path there are the n best ones and paths drawn from the posterior, the n best strings, by their best path or by
//! the sum over all their paths, and beam search with fusion. [`BestPathStream`] and [`LatticeBeamStream`] take frames as they come.
//! [`ArcList`] shows a small lattice, as a picture or as text for OpenFst. [`distance`] has the same recursions in any
//! semiring, readable rather than fast, and [`candle`] the face over tensors.
//!
//! ```
//! use lattice::{AlignmentLattice, Frames, FullNGram, Labels, RecognitionLattice, LatticeSession, TableWeightFn};
//! let context = FullNGram::new(2, 0)?; // two labels, nothing remembered
//! let table = TableWeightFn::new(&[0.0f32, 0.0, 0.0], &[1, 1, 3])?; // all arcs weigh the same
//! let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
//! let (frames, labels) = (Frames::new(&[0.0; 2], &[1, 2, 1], &[2])?, Labels::new(&[1], &[1, 1], &[1])?);
//! let out = LatticeSession::default().sum(&lattice, &frames, &labels, &[1.0])?;
//! assert!((out.sums[0] - (9f64.ln() - 2f64.ln())).abs() < 1e-6); // 9 paths, 2 of them say [1]
//! # Ok::<(), lattice::Error>(())
//! ```
#![warn(missing_docs)]

mod alignment;
mod arc_list;
mod batch;
mod beam;
mod best_path;
mod best_path_stream;
#[cfg(feature = "candle")]
pub mod candle;
pub mod context;
mod denominator;
pub mod distance;
mod error;
mod execution;
pub mod expectation;
mod export;
mod forced;
mod group;
mod n_best;
mod n_best_strings;
mod numerator;
mod path_search;
mod plan;
mod potentials;
mod reach;
mod recognition;
mod sample;
mod screened;
mod session;
mod step;
pub mod weight_fn;

pub use alignment::{AlignmentLattice, ArcEnd};
pub use arc_list::{ArcList, ListedArc, StateId};
pub use batch::{Frames, Labels};
pub use beam::{BeamOptions, LabelScorer, LatticeBeamStream};
pub use best_path::LatticePath;
pub use best_path_stream::BestPathStream;
pub use context::{Context, FullNGram, NextStateTable};
pub use error::{Error, Result};
pub use execution::Sum;
pub use export::OpenFst;
pub use kernels::{Real, ScratchReq};
pub use n_best_strings::NBestOptions;
pub use plan::{Options, Plan};
pub use potentials::{Merge, WeightedString};
pub use recognition::RecognitionLattice;
pub use session::{LatticeOutput, LatticeSession, PendingLosses};
pub use weight_fn::{
    Arcs, ArcsMut, BoundWeights, Embeddings, JointWeightFn, LabelChain, LocallyNormalized, Normalize,
    Parameters, SharedRnn, TableWeightFn, WeightFn, Workload,
};
