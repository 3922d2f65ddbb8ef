//! The exact transducer loss: joint network, selected normaliser and lattice, composed.
//!
//! ```text
//! h(t,u) = act(f_t + g_u)      z = h Wᵀ + b      e = (z_blank, z_label) - logZ      loss = -log Σ_paths exp Σ e
//! ```
//!
//! There are eight doors, all onto the same engine, none of which keeps sites x H, or more of sites x classes than
//! [`Options::budget`] allows:
//!
//! | door | takes | for |
//! |---|---|---|
//! | [`joint_loss`] | encodings, predictions, joint and head parameters | an explicit call with every gradient |
//! | [`projected_loss`] | what the joint adds: projected encodings and predictions, head | training, sample-wise |
//! | [`tdt_loss`], [`tdt_scores_loss`] | the same with a duration head; scores with durations | token-and-duration transducers |
//! | [`pruned_loss`] | the same and scores of a trivial joiner | pruned training |
//! | [`rows_loss`] | hidden rows at the sites, head | a joint of your own |
//! | [`ctc_loss`] | encodings, head | CTC, alone or beside a transducer |
//! | [`scores_loss`], [`scores_loss_in_place`] | ready-made scores *[N, C]* | what other toolkits' `rnnt_loss` takes |
//! | [`candle`] | tensors | candle models, by autograd |
//!
//! An utterance that no path explains has the loss +inf and zero gradients; the others do not notice.
//!
//! ```
//! use rnnt_loss::{scores_loss, Layout, Options, Targets};
//! // One utterance: T = 2, one label (id 1), C = 3, blank 0; all scores equal.
//! let targets = Targets::new(0, vec![2], vec![vec![1]])?;
//! let out = scores_loss(&[0.0f32; 2 * 2 * 3], 3, Layout::Packed, &targets, &Options::default(), &[1.0])?;
//! assert!((out.losses[0] - (3.0 * 3f64.ln() - 2f64.ln())).abs() < 1e-9); // 3 arcs a path, 2 paths
//! # Ok::<(), rnnt_loss::Error>(())
//! ```
#![warn(missing_docs)]

mod align;
pub mod candle;
mod columns;
mod ctc;
mod engine;
mod error;
mod heads;
mod internal;
mod joint;
mod linear;
mod memory_plan;
mod objective;
mod options;
mod projected;
mod pruned;
mod reduction;
mod rows;
mod scores;
mod skip;
mod smoothing;
mod targets;
mod tdt;

pub use align::{AlignedToken, Alignment, align};
pub use ctc::ctc_loss;
pub use engine::Workspace;
pub use error::{Error, Result};
pub use internal::internal_lm;
pub use joint::{JointLoss, JointNetwork, joint_loss};
pub use memory_plan::MemoryPlan;
pub use options::Options;
pub use panda_core::{Activation, Head, MemoryBudget, Plan, Precision, Real};
pub use projected::{ProjectedLoss, projected_loss};
pub use pruned::{PrunedLoss, Pruning, pruned_loss};
pub use reduction::Reduction;
pub use rnnt_dp::Topology;
pub use rows::{RowsLoss, rows_loss};
pub use scores::{ScoresLoss, scores_loss, scores_loss_in_place};
pub use skip::Skipped;
pub use targets::{Layout, Targets};
pub use tdt::{TdtLoss, tdt_loss, tdt_scores_loss};
