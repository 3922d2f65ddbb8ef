//! Semirings of plain numbers: probabilities, scores of which the largest counts, natural numbers.
use super::{Differentiable, Semiring, expect_places};

/// Probabilities as they are.
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
    fn sum_backward(values: &[f64], g: f64, gradient: &mut [f64]) {
        expect_places(values, gradient);
        gradient.fill(g);
    }

    /// `g Π_{j != i} a_j`, without a division.
    fn prod_backward(values: &[f64], g: f64, gradient: &mut [f64]) {
        expect_places(values, gradient);
        let mut before = g;
        for (place, value) in gradient.iter_mut().zip(values) {
            *place = before;
            before *= value;
        }
        let mut behind = 1.0;
        for (place, value) in gradient.iter_mut().zip(values).rev() {
            *place *= behind;
            behind *= value;
        }
    }
}

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

/// Natural numbers; more than `u64` holds are as many as it holds.
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
