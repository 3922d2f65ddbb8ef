//! Semirings of pairs: mean of lattice path values, and products of two semirings.
use std::marker::PhantomData;

use super::{Log, Semiring};

/// The log-sum of path probabilities and the mean of path values.
///
/// The value of a path is the sum of the values of its arcs. This is an
/// [`Expectation`](super::Expectation) (Eisner 2002) with means in place of sums, so that nothing
/// underflows and values may have any sign.
#[derive(Debug, Clone, Copy)]
pub struct Average;

/// An element of [`Average`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageWeight {
    /// Log-sum of path probabilities.
    pub log_prob: f64,
    /// Mean of path values, weighted by probability.
    pub value: f64,
}

impl Semiring for Average {
    type Weight = AverageWeight;
    const ZERO: AverageWeight = AverageWeight { log_prob: f64::NEG_INFINITY, value: 0.0 };
    const ONE: AverageWeight = AverageWeight { log_prob: 0.0, value: 0.0 };

    fn plus(a: AverageWeight, b: AverageWeight) -> AverageWeight {
        let log_prob = Log::plus(a.log_prob, b.log_prob);
        match (a.log_prob == f64::NEG_INFINITY, b.log_prob == f64::NEG_INFINITY) {
            (true, _) => b,
            (_, true) => a,
            _ => AverageWeight {
                log_prob,
                value: a.value + (b.value - a.value) * (b.log_prob - log_prob).exp(),
            },
        }
    }

    fn times(a: AverageWeight, b: AverageWeight) -> AverageWeight {
        match a.log_prob + b.log_prob {
            f64::NEG_INFINITY => Self::ZERO,
            log_prob => AverageWeight { log_prob, value: a.value + b.value },
        }
    }
}

/// The product of two semirings: pairs with componentwise operations.
#[derive(Debug, Clone, Copy)]
pub struct Cartesian<X, Y>(PhantomData<(X, Y)>);

impl<X: Semiring, Y: Semiring> Semiring for Cartesian<X, Y> {
    type Weight = (X::Weight, Y::Weight);
    const ZERO: Self::Weight = (X::ZERO, Y::ZERO);
    const ONE: Self::Weight = (X::ONE, Y::ONE);

    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight {
        (X::plus(a.0, b.0), Y::plus(a.1, b.1))
    }

    fn times(a: Self::Weight, b: Self::Weight) -> Self::Weight {
        (X::times(a.0, b.0), Y::times(a.1, b.1))
    }

    fn sum<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        let values = values.into_iter();
        (X::sum(values.clone().map(|pair| pair.0)), Y::sum(values.map(|pair| pair.1)))
    }

    fn prod<I>(values: I) -> Self::Weight
    where
        I: IntoIterator<Item = Self::Weight, IntoIter: Clone>,
    {
        let values = values.into_iter();
        (X::prod(values.clone().map(|pair| pair.0)), Y::prod(values.map(|pair| pair.1)))
    }
}
