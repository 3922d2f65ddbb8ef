//! Probability, tropical (maximum) and counting semirings for paths of transducer lattices.
use super::{Differentiable, Semiring, expect_gradient_len};

/// Probabilities: `⊕` is `+`, `⊗` is `·`.
#[derive(Debug, Clone, Copy)]
pub struct Probability;

impl Semiring for Probability {
    type Weight = f64;
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn plus(a: f64, b: f64) -> f64 {
        a + b
    }

    fn times(a: f64, b: f64) -> f64 {
        a * b
    }
}

impl Differentiable for Probability {
    fn sum_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        gradient.fill(cotangent);
    }

    /// `cotangent · Π_{j != i} a_j`, without division.
    fn prod_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        let mut product_before = cotangent;
        for (gradient_i, value) in gradient.iter_mut().zip(values) {
            *gradient_i = product_before;
            product_before *= value;
        }
        let mut product_after = 1.0;
        for (gradient_i, value) in gradient.iter_mut().zip(values).rev() {
            *gradient_i *= product_after;
            product_after *= value;
        }
    }
}

/// Scores: `⊕` is `max`, `⊗` is `+`; the first of equal scores wins.
#[derive(Debug, Clone, Copy)]
pub struct Tropical;

impl Semiring for Tropical {
    type Weight = f64;
    const ZERO: f64 = f64::NEG_INFINITY;
    const ONE: f64 = 0.0;

    #[inline]
    fn plus(a: f64, b: f64) -> f64 {
        // NaN propagates from either side.
        if a >= b || a.is_nan() { a } else { b }
    }

    #[inline]
    fn times(a: f64, b: f64) -> f64 {
        a + b
    }
}

impl Differentiable for Tropical {
    /// The cotangent for the first of the largest values, -inf included; 0 for others.
    fn sum_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        gradient.fill(0.0);
        let better =
            |best: usize, i: usize| if values[best] >= values[i] || values[best].is_nan() { best } else { i };
        if let Some(best) = (0..values.len()).reduce(better) {
            gradient[best] = cotangent;
        }
    }

    fn prod_backward(values: &[f64], cotangent: f64, gradient: &mut [f64]) {
        expect_gradient_len(values, gradient);
        gradient.fill(cotangent);
    }
}

/// Path counts as `u64`; sums and products saturate.
#[derive(Debug, Clone, Copy)]
pub struct Count;

impl Semiring for Count {
    type Weight = u64;
    const ZERO: u64 = 0;
    const ONE: u64 = 1;

    fn plus(a: u64, b: u64) -> u64 {
        a.saturating_add(b)
    }

    fn times(a: u64, b: u64) -> u64 {
        a.saturating_mul(b)
    }
}
