//! Differentiable recognition lattices: globally normalized transducers, exact and
//! memory-efficient.
//!
//! ```text
//! states (t, a, p)    frame, alignment state, context state
//! arcs                blank: weight b_t[p], p stays      label y: weight l_t[p, y], to δ(p, y)
//! D = log Σ_paths exp(weight)    S = log of the sum over the paths of the labels    loss = D - S
//! ```
//! (GNAT: Variani et al., arXiv 2205.13674; LAST: Wu et al., arXiv 2304.13134.) A
//! [`RecognitionLattice`] combines three components:
//!
//! | component | defines | implementations |
//! |---|---|---|
//! | [`Context`] | the label history of a path | [`FullNGram`], [`NextStateTable`] |
//! | [`AlignmentLattice`] | how many labels a frame may emit | exactly one arc; at most K labels, then a blank |
//! | [`WeightFn`] | the weight of an arc, by frame and context | [`JointWeightFn`] over [`Embeddings`], [`TableWeightFn`], [`LocallyNormalized`] |
//!
//! A [`LatticeSession`] computes sums over all paths, with gradients for frames and parameters, and
//! best paths. It holds arc weights of a few frames at a time, and `α`, *T x C* of an utterance.
//! [`Options::budget`] is a hard limit. Results do not depend on threads or on other utterances of
//! the batch. An utterance without a path does not affect others.
//!
//! The session also finds the n best paths, paths sampled from the posterior, the n best strings
//! (by their best path, or by the sum over all their paths), and runs beam search with fusion.
//! [`BestPathStream`] and [`LatticeBeamStream`] process streams of frames. [`ArcList`] exports a
//! small lattice as a Graphviz graph or as OpenFst text. [`distance`] has the recursions in any
//! semiring, as a readable reference, and [`candle`] the operations over tensors.
//!
//! The types to know are [`RecognitionLattice`], [`LatticeSession`] and [`JointWeightFn`].
//! `docs/lattices.md` is a guide.
//!
//! ```
//! use lattice::{
//!     AlignmentLattice, Frames, FullNGram, Labels, LatticeSession, RecognitionLattice,
//!     TableWeightFn,
//! };
//! let context = FullNGram::new(2, 0)?; // two labels, no history
//! let table = TableWeightFn::new(&[0.0f32, 0.0, 0.0], &[1, 1, 3])?; // equal weights
//! let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
//! let frames = Frames::new(&[0.0; 2], &[1, 2, 1], &[2])?;
//! let labels = Labels::new(&[1], &[1, 1], &[1])?;
//! let out = LatticeSession::default().sum(&lattice, &frames, &labels, &[1.0])?;
//! // 9 paths, 2 of them with label string [1]
//! assert!((out.sums[0] - (9f64.ln() - 2f64.ln())).abs() < 1e-6);
//! # Ok::<(), lattice::Error>(())
//! ```
#![warn(missing_docs)]

mod alignment;
mod arc_list;
mod arc_targets;
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
mod forced_alignment;
mod n_best;
mod n_best_strings;
mod numerator;
mod path_search;
mod plan;
mod positions;
mod potentials;
mod recognition;
mod sample;
mod screened;
mod session;
mod step;
mod utterance_group;
pub mod weight_fn;

pub use alignment::{AlignmentLattice, ArcEnd};
pub use arc_list::{ArcList, ListedArc};
pub use batch::{Frames, Labels};
pub use beam::{BeamOptions, LabelScorer, LatticeBeamStream};
pub use best_path::LatticePath;
pub use best_path_stream::BestPathStream;
pub use context::{Context, FullNGram, NextStateTable};
pub use error::{Error, Result};
pub use execution::PathSum;
pub use export::OpenFstText;
pub use kernels::{Real, ScratchReq};
pub use n_best_strings::NBestOptions;
pub use plan::{Options, Plan};
pub use positions::StateId;
pub use potentials::{Merge, WeightedString};
pub use recognition::RecognitionLattice;
pub use session::{LatticeOutput, LatticeSession, PendingLosses};
pub use weight_fn::{
    Arcs, ArcsMut, BoundWeights, Embeddings, JointWeightFn, LabelChain, LocallyNormalized, Normalize,
    Parameters, SharedRnn, TableWeightFn, WeightFn, Workload,
};
