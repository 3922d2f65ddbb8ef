//! The exact transducer loss without a tensor of sites x classes.
//!
//! The joint network, the log-softmax of selected classes, and the sum over paths are composed:
//!
//! ```text
//! h(t,u) = act(f_t + g_u)      z = h Wᵀ + b
//! e      = (z_blank, z_label) - logZ
//! loss   = -log Σ_paths exp Σ e
//! ```
//!
//! `f_t`: projected encoder row of frame t; `g_u`: projected predictor row of label position u;
//! `W`, `b`: output layer (head); a site is a lattice node (t, u).
//!
//! Three types to start with: a [`Session`] owns the loss and its buffers for a training run;
//! [`Options`] select the [`Loss`], its regularization and its memory budget; [`Targets`] are the
//! label sequences and frame counts of a batch.
//!
//! [`Session::sum`] returns the losses and the gradients of their weighted sum, one group of
//! utterances at a time. [`Session::forward`] returns a [`PendingLoss`] with the losses of the
//! whole batch, and its gradients for weights that are known later. Neither stores sites x H, nor
//! more scores, sites x classes, than [`Options::budget`] allows. [`Inputs`] define the scores:
//!
//! | inputs | contents | use |
//! |---|---|---|
//! | [`JointInputs`] | projected encoder and predictor rows, head | training |
//! | [`PrunedInputs`] | the same and a simple joiner | pruned training |
//! | [`HiddenInputs`] | hidden rows of the sites (CTC: of the frames), head | custom joint networks; CTC |
//! | [`ScoreInputs`] | scores (logits) *[N, C]* | compatible with `rnnt_loss` of other toolkits |
//!
//! [`JointNetwork`] includes the projections. [`candle`] has the same operations on tensors, with
//! autograd.
//!
//! An utterance without a path has the loss +inf and zero gradients; other utterances are
//! unaffected.
//!
//! ```
//! use rnnt_loss::{Layout, Options, ScoreInputs, Session, Targets};
//! // One utterance: T = 2, one label (id 1), C = 3, blank 0; all scores equal.
//! let targets = Targets::new(0, vec![2], vec![vec![1]])?;
//! let scores = ScoreInputs { scores: &[0.0f32; 2 * 2 * 3], classes: 3, layout: Layout::Packed };
//! let out = Session::new(&Options::default())?.sum(scores, &targets, &[1.0])?;
//! assert!((out.losses[0] - (3.0 * 3f64.ln() - 2f64.ln())).abs() < 1e-9); // 3 arcs a path, 2 paths
//! # Ok::<(), rnnt_loss::Error>(())
//! ```
//!
//! Read on in [`Session`] and [`Loss`], and in docs/custom-encoder.md for training a custom
//! encoder.
#![warn(missing_docs)]

mod align;
mod budget;
#[cfg(feature = "candle")]
pub mod candle;
mod column_counts;
mod columns;
mod ctc;
mod ctc_align;
mod dropout;
mod engine;
mod error;
mod first_pass;
mod head_call;
mod heads;
mod hidden_rows;
mod inputs;
mod internal_lm;
mod joint_hidden_rows;
mod lattice_state;
mod loss;
mod memory_plan;
mod network;
mod objective;
mod options;
mod pruned;
mod score_call;
mod session;
mod site_buffers;
mod skipped_sites;
mod smoothing;
mod targets;

pub use align::{AlignedLabel, LabelAlignment};
pub use ctc_align::align_ctc;
pub use dropout::Dropout;
pub use engine::Element;
pub use error::{Error, Result};
pub use inputs::{
    Gradients, HeadGradient, HiddenInputs, Inputs, JointInputs, LossOutput, PassScales, PrunedInputs,
    PruningOutput, ScoreInputs, SimpleGradient, SimpleInputs,
};
pub use kernels::Activation;
pub use loss::{Loss, Reduction, TokenNormalization};
pub use memory_plan::MemoryPlan;
pub use network::{JointNetwork, NetworkInputs, NetworkOutput};
pub use options::Options;
pub use panda_core::{DEFAULT_BUDGET, Head, Plan, Precision, Real};
pub use pruned::Pruning;
pub use rnnt_dp::Topology;
pub use session::{PendingLoss, Session};
pub use skipped_sites::SkippedSites;
pub use targets::{Layout, Targets};
