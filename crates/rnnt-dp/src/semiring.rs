//! Semirings: in what the weights of paths are multiplied along a path and added up over paths (Mohri 2002).
//!
//! [`Axis`] has sums and products of whole arrays.
//!
//! ```
//! use rnnt_dp::semiring::{Differentiable, Log, LogLogExpectation, Semiring};
//! // The entropy of a coin: the second component of a sum of probabilities weighted with -log p.
//! let toss = |p: f64| LogLogExpectation::weighted(p.ln(), (-p.ln()).ln());
//! let (total, entropy) = LogLogExpectation::sum([toss(0.5), toss(0.5)]);
//! assert!(total.abs() < 1e-15 && (entropy.exp() - 2f64.ln()).abs() < 1e-15);
//! // What is blocked has no gradient.
//! assert_eq!(Log::plus_backward(f64::NEG_INFINITY, 3.0, 1.0), [0.0, 1.0]);
//! ```
mod axis;
mod basic;
mod expectation;
mod log;
mod pairs;

pub use axis::Axis;
pub use basic::{Count, Probability, Tropical};
pub use expectation::{Carry, Expectation, Exponential, LogLogExpectation, Same};
pub use log::Log;
pub use pairs::{Average, Cartesian, Mean};

/// `⊕` adds up alternatives, `⊗` goes on along a path and distributes over `⊕`.
///
/// A lattice is the same to all of them: with the log-probabilities of its arcs brought into a semiring, the shortest distance
/// from its start to its end is the sum over all paths ([`Log`], [`Probability`]), the best of them ([`Tropical`]), their number
/// ([`Count`]), a mean over them ([`Average`], [`Expectation`]) or two of these at once ([`Cartesian`]).
pub trait Semiring {
    /// An element.
    type Weight: Copy + PartialEq;
    /// Of no path: `0 ⊕ a = a`, `0 ⊗ a = 0`.
    const ZERO: Self::Weight;
    /// Of the path without arcs: `1 ⊗ a = a`.
    const ONE: Self::Weight;
    /// `a ⊕ b`
    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight;
    /// `a ⊗ b`
    fn times(a: Self::Weight, b: Self::Weight) -> Self::Weight;

    /// `⊕` of all values, in their order; zero of none.
    fn sum<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        values.into_iter().fold(Self::ZERO, Self::plus)
    }

    /// `⊗` of all values, in their order; one of none.
    fn prod<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        values.into_iter().fold(Self::ONE, Self::times)
    }
}

/// A semiring of numbers whose operations have gradients. `g` is the cotangent of the result.
pub trait Differentiable: Semiring<Weight = f64> {
    /// Gradient of [`sum`](Semiring::sum) for each value.
    ///
    /// # Panics
    /// If there is not one place for each value.
    fn sum_backward(values: &[f64], g: f64, gradient: &mut [f64]);

    /// Gradient of [`prod`](Semiring::prod) for each value.
    ///
    /// # Panics
    /// As [`sum_backward`](Self::sum_backward).
    fn prod_backward(values: &[f64], g: f64, gradient: &mut [f64]);

    /// Gradients of `a ⊕ b` for both.
    fn plus_backward(a: f64, b: f64, g: f64) -> [f64; 2] {
        let mut gradient = [0.0; 2];
        Self::sum_backward(&[a, b], g, &mut gradient);
        gradient
    }

    /// Gradients of `a ⊗ b` for both.
    fn times_backward(a: f64, b: f64, g: f64) -> [f64; 2] {
        let mut gradient = [0.0; 2];
        Self::prod_backward(&[a, b], g, &mut gradient);
        gradient
    }
}

/// There is one place for each value.
fn expect_places(values: &[f64], gradient: &[f64]) {
    assert_eq!(gradient.len(), values.len(), "gradient: expected a place for each value");
}
