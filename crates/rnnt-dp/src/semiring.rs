//! Semirings for sums, best paths, counts and means over lattice paths.
//!
//! A semiring defines how weights multiply along a path and add over paths (Mohri 2002). [`Axis`]
//! computes sums and products along an axis of an array.
//!
//! ```
//! use rnnt_dp::semiring::{Differentiable, Log, LogLogExpectation, Semiring};
//! // The entropy of a coin: the second component of a sum of probabilities weighted by -log p.
//! let toss = |p: f64| LogLogExpectation::weighted(p.ln(), (-p.ln()).ln());
//! let (total, entropy) = LogLogExpectation::sum([toss(0.5), toss(0.5)]);
//! assert!(total.abs() < 1e-15 && (entropy.exp() - 2f64.ln()).abs() < 1e-15);
//! // A blocked path has no gradient.
//! assert_eq!(Log::plus_backward(f64::NEG_INFINITY, 3.0, 1.0), [0.0, 1.0]);
//! ```
mod axis;
mod basic;
mod expectation;
mod log;
mod pairs;

pub use axis::Axis;
pub use basic::{Count, Probability, Tropical};
pub use expectation::{Expectation, IdentityWeight, LogLogExpectation, LogToProbability, WeightConvert};
pub use log::Log;
pub use pairs::{Average, AverageWeight, Cartesian};

/// A semiring: `⊕` adds alternatives, `⊗` extends a path and distributes over `⊕`.
///
/// All semirings use the same lattice. With arc log-probabilities converted into a semiring, the
/// shortest distance from the start to the end is the sum over all paths ([`Log`],
/// [`Probability`]), the best path ([`Tropical`]), the number of paths ([`Count`]), a mean over
/// paths ([`Average`], [`Expectation`]), or two of these at once ([`Cartesian`]).
pub trait Semiring {
    /// An element.
    type Weight: Copy + PartialEq;
    /// Weight of no path: `0 ⊕ a = a`, `0 ⊗ a = 0`.
    const ZERO: Self::Weight;
    /// Weight of the path without arcs: `1 ⊗ a = a`.
    const ONE: Self::Weight;
    /// `a ⊕ b`
    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight;
    /// `a ⊗ b`
    fn times(a: Self::Weight, b: Self::Weight) -> Self::Weight;

    /// Returns `⊕` of all values in their order; zero for no value.
    fn sum<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        values.into_iter().fold(Self::ZERO, Self::plus)
    }

    /// Returns `⊗` of all values in their order; one for no value.
    fn prod<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        values.into_iter().fold(Self::ONE, Self::times)
    }
}

/// A semiring of `f64` weights whose operations have gradients.
///
/// The cotangent of a result is the derivative of the loss with respect to it.
pub trait Differentiable: Semiring<Weight = f64> {
    /// Writes the gradient of [`sum`](Semiring::sum) for each value.
    ///
    /// # Panics
    /// If `gradient` and `values` have different lengths.
    fn sum_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]);

    /// Writes the gradient of [`prod`](Semiring::prod) for each value.
    ///
    /// # Panics
    /// As [`sum_backward`](Self::sum_backward).
    fn prod_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]);

    /// Returns the gradients of `a ⊕ b`.
    fn plus_backward(a: f64, b: f64, cotangent: f64) -> [f64; 2] {
        let mut gradient = [0.0; 2];
        Self::sum_backward(&[a, b], cotangent, &mut gradient);
        gradient
    }

    /// Returns the gradients of `a ⊗ b`.
    fn times_backward(a: f64, b: f64, cotangent: f64) -> [f64; 2] {
        let mut gradient = [0.0; 2];
        Self::prod_backward(&[a, b], cotangent, &mut gradient);
        gradient
    }
}

/// Checks that there is one gradient for each value.
fn expect_gradient_len(values: &[f64], gradient: &[f64]) {
    assert_eq!(gradient.len(), values.len(), "gradient: expected one element for each value");
}
