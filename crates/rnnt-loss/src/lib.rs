//! The exact transducer loss: joint network, selected normaliser and lattice, composed.
//!
//! ```text
//! h(t,u) = act(f_t + g_u)      z = h Wᵀ + b      e = (z_blank, z_label) - logZ      loss = -log Σ_paths exp Σ e
//! ```
//!
//! A [`Session`] owns the kind of the loss ([`Loss`]), its [`Options`] and its buffers. [`Session::forward`] gives losses at once
//! and gradients when the weights of the utterances are known; [`Session::sum`] goes through the batch utterance group by
//! utterance group, forwards and backwards. Neither keeps sites x H, or more of sites x classes than [`Options::budget`]
//! allows. [`Inputs`] say what scores are made of:
//!
//! | inputs | what | for |
//! |---|---|---|
//! | [`JointInputs`] | what the joint adds: projected encodings and predictions, head | training |
//! | [`PrunedInputs`] | the same and a trivial joiner | pruned training |
//! | [`HiddenInputs`] | hidden rows at the sites (CTC: at the frames), head | a joint of your own; CTC |
//! | [`ScoreInputs`] | ready-made scores *[N, C]* | what other toolkits' `rnnt_loss` takes |
//!
//! [`JointNetwork`] adds the projections, [`candle`] has the same as operations on tensors.
//!
//! An utterance that no path explains has the loss +inf and zero gradients; the others do not notice.
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
#![warn(missing_docs)]

mod align;
mod budget;
#[cfg(feature = "candle")]
pub mod candle;
mod columns;
mod ctc;
mod dropout;
mod engine;
mod error;
mod first_pass;
mod head_call;
mod heads;
mod inputs;
mod internal_lm;
mod joint_sites;
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
mod sites;
mod skipped_sites;
mod smoothing;
mod targets;

pub use align::{AlignedLabel, LabelAlignment};
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
pub use skipped_sites::Skipped;
pub use targets::{Layout, Targets};
