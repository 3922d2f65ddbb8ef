//! The exact selected normaliser: a few log-probabilities a row out of a very large softmax.
//!
//! A transducer lattice asks each site for two log-probabilities, but their denominator needs every class.
//! With hidden rows `h` *N x H*, a head `W` *C x H*, `b` *C* and selected classes `id` *N x S*,
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
//! Neither `z` nor `g` ever exists as a whole: both directions go through waves of sites and tiles of classes ([`Plan`]), and
//! keep `N (S + 2)` numbers between them, and as many scores and hidden rows as the budget has room for. [`forward`] and
//! [`backward`] work on slices; [`candle`] has the same as autograd operations; [`scores`] has the case where somebody else
//! computed `z` already. [`Precision`] says in which numbers the large products are done.
//!
//! Compact values (emissions, adjoints, log sums) are `f64` whatever the type of the rows: they are few, and
//! a log-probability near zero keeps its digits only there.
//!
//! ```
//! use panda_core::{backward, forward, Adjoints, Backward, Gradients, Head, Rows, Selection, Sites, Workspace, DEFAULT_BUDGET};
//! let (hidden, weight) = ([0.5f32, -1.0], [1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]); // N = 1, H = 2, C = 3
//! let rows = Rows::new(&hidden, 2)?;
//! let head = Head::new(&weight, None, 2)?;
//! let selection = Selection::new(vec![0, 2], vec![true, true], 2)?;
//! let mut workspace = Workspace::new(DEFAULT_BUDGET, true);
//! let out = forward(&rows, &head, &selection, &mut workspace)?;
//! assert!((out.emissions[0] - (0.5 - out.log_z(0))).abs() < 1e-6);
//! let mut grads = Gradients::zero(rows.zero_gradient(), &head);
//! let adjoints = &Adjoints::new(&[-1.0, 0.0]);
//! let arguments = Backward { sites: &rows, head: &head, selection: &selection, normalized: &out, adjoints };
//! backward(arguments, &mut workspace, &mut grads)?;
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
pub use backward::{Backward, Gradients, backward};
pub use error::{Error, Result};
pub use forward::forward;
pub use head::Head;
pub use normalized::Normalized;
pub use numbers::{Precision, Real};
pub use plan::{DEFAULT_BUDGET, Plan, Shape};
pub use selection::Selection;
pub use sites::{Rows, Sites};
pub use workspace::Workspace;
