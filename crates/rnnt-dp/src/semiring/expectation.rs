//! Weighted sums of what paths are worth.
use std::marker::PhantomData;

use super::{Log, Probability, Semiring};

/// Pairs of a weight and a weighted value (Eisner 2002):
///
/// ```text
/// (w1, x1) ⊕ (w2, x2) = (w1 ⊕ w2, x1 ⊕ x2)
/// (w1, x1) ⊗ (w2, x2) = (w1 ⊗ w2, f(w1) ⊗ x2 ⊕ f(w2) ⊗ x1)
/// ```
///
/// With [`weighted`](Self::weighted) elements on the arcs, the sum over paths has the paths' weights and, second, the sum over
/// paths of weight times the sum of the values along the path. `F` is the [`Carry`] f from W to X.
#[derive(Debug, Clone, Copy)]
pub struct Expectation<W, X, F = Same>(PhantomData<(W, X, F)>);

/// Expectations of values that are not negative, as their logarithms.
pub type LogLogExpectation = Expectation<Log, Log>;

/// `f` of an [`Expectation`]: weights of W as those of X, so that `f(a ⊕ b) = f(a) ⊕ f(b)`, `f(a ⊗ b) = f(a) ⊗ f(b)`, and zero and
/// one stay what they are.
pub trait Carry<W: Semiring, X: Semiring> {
    /// `f(weight)`
    fn carry(weight: W::Weight) -> X::Weight;
}

/// `f(w) = w`
#[derive(Debug, Clone, Copy)]
pub struct Same;

/// `f(w) = exp w`, from [`Log`] to [`Probability`], for values of any sign; it underflows where probabilities do.
#[derive(Debug, Clone, Copy)]
pub struct Exponential;

impl<W: Semiring, X: Semiring<Weight = W::Weight>> Carry<W, X> for Same {
    fn carry(weight: W::Weight) -> X::Weight {
        weight
    }
}

impl Carry<Log, Probability> for Exponential {
    fn carry(weight: f64) -> f64 {
        weight.exp()
    }
}

impl<W: Semiring, X: Semiring, F: Carry<W, X>> Expectation<W, X, F> {
    /// `(w, f(w) ⊗ v)`; zero of X where w is that of W, whatever v is.
    pub fn weighted(w: W::Weight, v: X::Weight) -> (W::Weight, X::Weight) {
        (w, if w == W::ZERO { X::ZERO } else { X::times(F::carry(w), v) })
    }
}

impl<W: Semiring, X: Semiring, F: Carry<W, X>> Semiring for Expectation<W, X, F> {
    type Weight = (W::Weight, X::Weight);
    const ZERO: Self::Weight = (W::ZERO, X::ZERO);
    const ONE: Self::Weight = (W::ONE, X::ZERO);

    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight {
        (W::plus(a.0, b.0), X::plus(a.1, b.1))
    }

    fn times((w1, x1): Self::Weight, (w2, x2): Self::Weight) -> Self::Weight {
        (W::times(w1, w2), X::plus(X::times(F::carry(w1), x2), X::times(F::carry(w2), x1)))
    }

    fn sum<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        let values = values.into_iter();
        (W::sum(values.clone().map(|pair| pair.0)), X::sum(values.map(|pair| pair.1)))
    }
}
