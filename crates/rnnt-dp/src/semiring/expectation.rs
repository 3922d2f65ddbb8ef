//! Expectation semirings (Eisner 2002): probability-weighted sums of path values.
use std::marker::PhantomData;

use super::{Log, Probability, Semiring};

/// Pairs of a weight and a weighted value (Eisner 2002):
///
/// ```text
/// (w1, x1) ⊕ (w2, x2) = (w1 ⊕ w2, x1 ⊕ x2)
/// (w1, x1) ⊗ (w2, x2) = (w1 ⊗ w2, f(w1) ⊗ x2 ⊕ f(w2) ⊗ x1)
/// ```
///
/// With [`weighted`](Self::weighted) elements on the arcs, the first component of the sum over
/// paths is the sum of the path weights. The second is the sum over paths of the path weight times
/// the sum of the values of the path: an entropy or an expected number of errors, for example. `F`
/// is the conversion f from W to X, a [`WeightConvert`].
#[derive(Debug, Clone, Copy)]
pub struct Expectation<W, X, F = IdentityWeight>(PhantomData<(W, X, F)>);

/// Expectations of nonnegative values, as logarithms.
pub type LogLogExpectation = Expectation<Log, Log>;

/// The conversion `f` of an [`Expectation`], from W to X.
///
/// It must be a homomorphism: `f(a ⊕ b) = f(a) ⊕ f(b)`, `f(a ⊗ b) = f(a) ⊗ f(b)`, and zero and one
/// map to zero and one.
pub trait WeightConvert<W: Semiring, X: Semiring> {
    /// `f(weight)`
    fn convert(weight: W::Weight) -> X::Weight;
}

/// The identity conversion, `f(w) = w`.
#[derive(Debug, Clone, Copy)]
pub struct IdentityWeight;

/// The conversion `f(w) = exp w` from [`Log`] to [`Probability`], for values of any sign.
///
/// It underflows where probabilities do.
#[derive(Debug, Clone, Copy)]
pub struct LogToProbability;

impl<W: Semiring, X: Semiring<Weight = W::Weight>> WeightConvert<W, X> for IdentityWeight {
    fn convert(weight: W::Weight) -> X::Weight {
        weight
    }
}

impl WeightConvert<Log, Probability> for LogToProbability {
    fn convert(weight: f64) -> f64 {
        weight.exp()
    }
}

impl<W: Semiring, X: Semiring, F: WeightConvert<W, X>> Expectation<W, X, F> {
    /// Returns `(w, f(w) ⊗ v)`; if w is zero, the second component is zero for any v.
    pub fn weighted(w: W::Weight, v: X::Weight) -> (W::Weight, X::Weight) {
        (w, if w == W::ZERO { X::ZERO } else { X::times(F::convert(w), v) })
    }
}

impl<W: Semiring, X: Semiring, F: WeightConvert<W, X>> Semiring for Expectation<W, X, F> {
    type Weight = (W::Weight, X::Weight);
    const ZERO: Self::Weight = (W::ZERO, X::ZERO);
    const ONE: Self::Weight = (W::ONE, X::ZERO);

    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight {
        (W::plus(a.0, b.0), X::plus(a.1, b.1))
    }

    fn times((w1, x1): Self::Weight, (w2, x2): Self::Weight) -> Self::Weight {
        (W::times(w1, w2), X::plus(X::times(F::convert(w1), x2), X::times(F::convert(w2), x1)))
    }

    fn sum<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        let values = values.into_iter();
        (W::sum(values.clone().map(|pair| pair.0)), X::sum(values.map(|pair| pair.1)))
    }
}
