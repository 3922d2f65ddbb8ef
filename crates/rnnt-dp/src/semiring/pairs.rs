//! Semirings of pairs: means over paths, and two semirings side by side.
use std::marker::PhantomData;

use super::{Log, Semiring};

/// The mean over all paths of what their arcs are worth together, beside the log-sum of their probabilities: an
/// [`Expectation`](super::Expectation) (Eisner 2002) with means in place of sums, so that nothing underflows and values have signs.
#[derive(Debug, Clone, Copy)]
pub struct Average;

/// An element of [`Average`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// Log-sum of the paths' probabilities.
    pub log_prob: f64,
    /// Mean of their values, weighted with their probabilities.
    pub value: f64,
}

impl Semiring for Average {
    type Weight = Mean;
    const ZERO: Mean = Mean { log_prob: f64::NEG_INFINITY, value: 0.0 };
    const ONE: Mean = Mean { log_prob: 0.0, value: 0.0 };

    fn plus(a: Mean, b: Mean) -> Mean {
        let log_prob = Log::plus(a.log_prob, b.log_prob);
        match (a.log_prob == f64::NEG_INFINITY, b.log_prob == f64::NEG_INFINITY) {
            (true, _) => b,
            (_, true) => a,
            _ => Mean { log_prob, value: a.value + (b.value - a.value) * (b.log_prob - log_prob).exp() },
        }
    }

    fn times(a: Mean, b: Mean) -> Mean {
        match a.log_prob + b.log_prob {
            f64::NEG_INFINITY => Self::ZERO,
            log_prob => Mean { log_prob, value: a.value + b.value },
        }
    }
}

/// Two semirings side by side: pairs, of which each component goes its own way.
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
