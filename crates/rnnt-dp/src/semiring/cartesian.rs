//! Two semirings side by side.
use std::marker::PhantomData;

use super::Semiring;

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
