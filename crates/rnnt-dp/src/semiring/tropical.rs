//! Scores of which the largest counts.
use super::{Differentiable, Semiring, expect_places};

/// Scores of which the largest counts: `⊕` is `max`, `⊗` is `+`. Of equal ones the first is meant.
#[derive(Debug, Clone, Copy)]
pub struct Tropical;

impl Semiring for Tropical {
    type Weight = f64;
    const ZERO: f64 = f64::NEG_INFINITY;
    const ONE: f64 = 0.0;

    #[inline]
    fn plus(a: f64, b: f64) -> f64 {
        // NaN stays one, wherever it stands.
        if a >= b || a.is_nan() { a } else { b }
    }

    #[inline]
    fn times(a: f64, b: f64) -> f64 {
        a + b
    }
}

impl Differentiable for Tropical {
    /// All of `g` for the first of the largest values, -inf or not.
    fn sum_backward(values: &[f64], g: f64, gradient: &mut [f64]) {
        expect_places(values, gradient);
        gradient.fill(0.0);
        let better =
            |best: usize, i: usize| if values[best] >= values[i] || values[best].is_nan() { best } else { i };
        if let Some(best) = (0..values.len()).reduce(better) {
            gradient[best] = g;
        }
    }

    fn prod_backward(values: &[f64], g: f64, gradient: &mut [f64]) {
        expect_places(values, gradient);
        gradient.fill(g);
    }
}
