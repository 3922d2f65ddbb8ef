//! The log semiring of lattice sums: `⊕` is log-sum-exp, `⊗` is plus.
use super::{Differentiable, Semiring, expect_gradient_len};

/// Log-probabilities: `⊕` is `log(exp a + exp b)`, `⊗` is `+`.
///
/// -inf is a blocked path: it adds nothing and has no gradient, even if all values are -inf. +inf
/// is an error and propagates: sums with it are +inf and their gradient is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Semiring for Log {
    type Weight = f64;
    const ZERO: f64 = f64::NEG_INFINITY;
    const ONE: f64 = 0.0;

    /// Accurate to about two ULPs of the larger argument.
    #[inline]
    fn plus(a: f64, b: f64) -> f64 {
        let (high, low) = if a > b { (a, b) } else { (b, a) };
        // Also if both are +inf, whose difference is NaN.
        if low.is_infinite() { high } else { high + (low - high).exp().ln_1p() }
    }

    #[inline]
    fn times(a: f64, b: f64) -> f64 {
        a + b
    }

    /// `max + log Σ exp(a_i - max)`, where max is the largest value.
    ///
    /// max is 0 if the largest value is not finite.
    fn sum<I>(values: I) -> f64
    where
        I: IntoIterator<Item = f64, IntoIter: Clone>,
    {
        let values = values.into_iter();
        let max = finite_max(values.clone());
        max + values.map(|a| (a - max).exp()).sum::<f64>().ln()
    }
}

impl Differentiable for Log {
    /// `cotangent · e_i / z` where `e_i = exp(a_i - max)` and `z = Σ e_i`, or 1 if that is 0.
    fn sum_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        let max = finite_max(values.iter().copied());
        gradient.iter_mut().zip(values).for_each(|(e, a)| *e = (a - max).exp());
        let z: f64 = gradient.iter().sum();
        let z = if z == 0.0 { 1.0 } else { z };
        gradient.iter_mut().for_each(|e| *e = cotangent * *e / z);
    }

    fn prod_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        gradient.fill(cotangent);
    }
}

/// The largest value, or 0 if that is not finite.
fn finite_max(values: impl Iterator<Item = f64>) -> f64 {
    let max = values.fold(f64::NEG_INFINITY, f64::max);
    if max.is_finite() { max } else { 0.0 }
}
