//! The exact selected normalizer: a few log-probabilities of a very large softmax.
//!
//! A transducer lattice needs two log-probabilities at each site (lattice node), but their
//! denominator covers every class. For hidden rows `h` *N x H* (outputs of the joint network), a
//! head `W` *C x H*, `b` *C* and selected classes `id` *N x S*,
//!
//! ```text
//! z[i,c] = Σ_k h[i,k] W[c,k] + b[c]        logZ[i] = log Σ_c exp z[i,c]
//! r[i,s] = z[i, id[i,s]] - logZ[i]         (the emissions, exact over all C classes)
//! ```
//!
//! and, for adjoints `a[i,s] = dL/dr[i,s]` with row sum `A[i]`,
//!
//! ```text
//! g[i,c] = Σ_{s: id[i,s]=c} a[i,s] - A[i] exp(z[i,c] - logZ[i])
//! dh = g W        dW = gᵀ h        db = Σ_i g[i]
//! ```
//!
//! Neither `z` nor `g` is ever stored as a whole: both passes process waves of sites and tiles of
//! classes ([`Plan`]). Between them, `N (S + 2)` numbers are stored, and as many scores and hidden
//! rows as the budget allows.
//!
//! [`forward()`] and [`backward()`] work on slices. The main types are [`Head`], [`Selection`] and
//! [`Workspace`], which holds budget and buffers; [`Sites`] are the hidden rows, given or computed
//! on the fly. [`candle`] has autograd operations, [`scores`] the case of given scores `z`, and
//! [`Precision`] the number types of the large products.
//!
//! Compact values (emissions, adjoints, log-sums) are `f64` for rows of any type: they are few, and
//! a log-probability near zero keeps its digits only in `f64`.
//!
//! ```
//! use panda_core::{backward, forward, Adjoints, BackwardInputs, Gradients, Head, Rows, Selection};
//! use panda_core::{Sites, Workspace, DEFAULT_BUDGET};
//! // N = 1, H = 2, C = 3
//! let (hidden, weight) = ([0.5f32, -1.0], [1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]);
//! let rows = Rows::new(&hidden, 2)?;
//! let head = Head::new(&weight, None, 2)?;
//! let selection = Selection::new(vec![0, 2], vec![true, true], 2)?;
//! let mut workspace = Workspace::new(DEFAULT_BUDGET, true);
//! let out = forward(&rows, &head, &selection, &mut workspace)?;
//! assert!((out.emissions[0] - (0.5 - out.log_z(0))).abs() < 1e-6);
//! let mut grads = Gradients::zero(rows.zero_gradient(), &head);
//! let adjoints = &Adjoints::new(&[-1.0, 0.0]);
//! let (sites, selection) = (&rows, &selection);
//! let inputs = BackwardInputs { sites, head: &head, selection, normalized: &out, adjoints };
//! backward(inputs, &mut workspace, &mut grads)?;
//! assert_eq!(grads.weight.len(), 6);
//! # Ok::<(), panda_core::Error>(())
//! ```
#![warn(missing_docs)]

mod adjoints;
mod backward;
mod blocking;
#[cfg(feature = "candle")]
pub mod candle;
mod error;
mod forward;
mod head;
mod normalized;
mod numbers;
mod plan;
mod saved;
pub mod scores;
mod selection;
mod sites;
mod workspace;

pub use adjoints::{Adjoints, Clamp};
pub use backward::{BackwardInputs, Gradients, backward};
pub use error::{Error, Result};
pub use forward::forward;
pub use head::Head;
pub use normalized::Normalized;
pub use numbers::{Precision, Real};
pub use plan::{DEFAULT_BUDGET, Plan, Shape};
pub use selection::Selection;
pub use sites::{Rows, Sites};
pub use workspace::Workspace;
