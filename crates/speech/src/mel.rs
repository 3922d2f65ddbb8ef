//! The mel axis: where each bin lies in hertz, and the triangular filters on it.

mod filter;
mod scale;

pub(crate) use filter::Filter;
pub use scale::{MelKind, MelScale};
