//! Probabilities as they are.
use super::{Differentiable, Semiring, expect_places};

/// Probabilities as they are.
#[derive(Debug, Clone, Copy)]
pub struct Real;

impl Semiring for Real {
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

impl Differentiable for Real {
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
