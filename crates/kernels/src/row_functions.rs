//! Functions of the rows of an encoder, `f32` only: norm, activations, softmax, weighted sums.
//!
//! `dispatch.rs` selects the version for the instructions of this machine.
use crate::{dispatch, simd::SimdLevel};

/// Term that [`layer_norm`] adds to the variance: constant rows do not divide by 0.
pub const LAYER_NORM_EPSILON: f32 = 1e-5;

/// Computes `x / (1 + exp(-x))` in place, also called swish; NaN stays NaN.
pub fn silu(values: &mut [f32]) {
    dispatch::silu(SimdLevel::best(), values);
}

/// Computes `silu(x + bias)` in place.
///
/// # Panics
/// If the lengths differ.
pub fn add_silu(values: &mut [f32], bias: &[f32]) {
    assert_eq!(values.len(), bias.len(), "add_silu: slices of different lengths");
    dispatch::add_silu(SimdLevel::best(), values, bias);
}

/// Computes `max(x + bias, 0)` in place; NaN stays NaN.
///
/// # Panics
/// If the lengths differ.
pub fn add_relu(values: &mut [f32], bias: &[f32]) {
    assert_eq!(values.len(), bias.len(), "add_relu: slices of different lengths");
    dispatch::add_relu(SimdLevel::best(), values, bias);
}

/// Computes `out += a + b`.
///
/// # Panics
/// If the lengths differ.
pub fn add_pair(out: &mut [f32], a: &[f32], b: &[f32]) {
    assert!(out.len() == a.len() && out.len() == b.len(), "add_pair: slices of different lengths");
    dispatch::add_pair(SimdLevel::best(), out, a, b);
}

/// Computes `out = x / (1 + exp(-g))` of `[x g] = group + bias`.
///
/// # Panics
/// Unless `group` and `bias` have twice as many elements as `out`.
pub fn add_glu(out: &mut [f32], group: &[f32], bias: &[f32]) {
    let len = 2 * out.len();
    assert!(group.len() == len && bias.len() == len, "add_glu: expected slices of {len} elements");
    dispatch::add_glu(SimdLevel::best(), out, group, bias);
}

/// Computes `row = exp(row + addends - max)` and returns the sum of the results.
///
/// `max` is the largest of the sums, so that a softmax is the result divided by the returned sum.
/// NaN in a row makes the sum NaN.
///
/// # Panics
/// If the lengths differ.
pub fn add_exp(row: &mut [f32], addends: &[f32]) -> f32 {
    assert_eq!(row.len(), addends.len(), "add_exp: slices of different lengths");
    dispatch::add_exp(SimdLevel::best(), row, addends)
}

/// Computes the layer norm of a row: `out = (x - μ) / √(σ² + 1e-5) ∘ weight + bias`.
///
/// # Panics
/// If the lengths differ.
pub fn layer_norm(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    let is_valid = [x.len(), weight.len(), bias.len()].iter().all(|&len| len == out.len());
    assert!(is_valid, "layer_norm: slices of different lengths");
    dispatch::layer_norm(SimdLevel::best(), out, x, weight, bias);
}

/// Computes `out = bias + Σ x ∘ weight` over pairs `(x, weight)`, in their order.
///
/// A depthwise convolution is such a sum for each position.
///
/// # Panics
/// If a slice is shorter than `out`.
pub fn weighted_sum(out: &mut [f32], bias: &[f32], taps: &[(&[f32], &[f32])]) {
    let is_valid = |slice: &[f32]| slice.len() >= out.len();
    let is_valid = is_valid(bias) && taps.iter().all(|(x, weight)| is_valid(x) && is_valid(weight));
    assert!(is_valid, "weighted_sum: expected slices of at least {} elements", out.len());
    dispatch::weighted_sum(SimdLevel::best(), out, bias, taps);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::synthetic;

    const WIDTHS: [usize; 9] = [1, 7, 8, 15, 16, 17, 64, 100, 515];

    fn sigmoid(x: f32) -> f64 {
        1.0 / (1.0 + (-f64::from(x)).exp())
    }

    fn assert_close(actual: f32, exact: f64, tolerance: f64) {
        assert!((f64::from(actual) - exact).abs() <= tolerance * (1.0 + exact.abs()), "{actual} {exact}");
    }

    #[test]
    fn activations_equal_the_formulas_at_every_level() {
        let mut x: Vec<f32> = synthetic(515, 1);
        x[..8].copy_from_slice(&[0.0, -0.0, 1e30, -1e30, 90.0, -90.0, 30.0, -30.0]);
        let gates: Vec<f32> = x.iter().rev().map(|x| 4.0 * x).collect();
        for level in SimdLevel::all() {
            let mut y = x.clone();
            dispatch::silu(level, &mut y);
            y.iter().zip(&x).for_each(|(&y, &x)| assert_close(y, f64::from(x) * sigmoid(x), 4e-7));
            y.copy_from_slice(&x);
            dispatch::add_silu(level, &mut y, &gates);
            let sums: Vec<f32> = x.iter().zip(&gates).map(|(x, gate)| x + gate).collect();
            y.iter().zip(&sums).for_each(|(&y, &x)| assert_close(y, f64::from(x) * sigmoid(x), 4e-7));
            y.copy_from_slice(&x);
            dispatch::add_relu(level, &mut y, &gates);
            assert!(y.iter().zip(&sums).all(|(&y, &x)| y == x.max(0.0)));
            y.copy_from_slice(&x);
            dispatch::add_pair(level, &mut y, &x, &gates);
            assert!(y.iter().zip(x.iter().zip(&sums)).all(|(&y, (x, sum))| y == x + sum));
            // The first half are values, the second gates.
            let bias: Vec<f32> = synthetic(514, 9);
            let mut y = vec![0.0; 257];
            dispatch::add_glu(level, &mut y, &x[..514], &bias);
            for (i, y) in y.iter().enumerate() {
                let (value, gate) = (x[i] + bias[i], x[257 + i] + bias[257 + i]);
                assert_close(*y, f64::from(value) * sigmoid(gate), 4e-7);
            }
            let mut special = [f32::NAN, f32::INFINITY];
            dispatch::add_relu(level, &mut special, &[0.0; 2]);
            assert!(special[0].is_nan() && special[1] == f32::INFINITY);
            dispatch::silu(level, &mut special);
            assert!(special[0].is_nan() && special[1] == f32::INFINITY, "{special:?}");
        }
    }

    #[test]
    fn softmax_numerators_equal_the_formula_at_every_level() {
        for level in SimdLevel::all() {
            for width in WIDTHS {
                let (row, addends): (Vec<f32>, Vec<f32>) = (synthetic(width, 2), synthetic(width, 3));
                let z: Vec<f64> = row.iter().zip(&addends).map(|(a, b)| f64::from(a + b)).collect();
                let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut actual = row.clone();
                let sum = dispatch::add_exp(level, &mut actual, &addends);
                actual.iter().zip(&z).for_each(|(&e, z)| assert_close(e, (z - max).exp(), 3e-7));
                assert_close(sum, z.iter().map(|z| (z - max).exp()).sum(), 1e-6);
                actual[0] = f32::NAN;
                assert!(dispatch::add_exp(level, &mut actual, &addends).is_nan());
            }
        }
    }

    #[test]
    fn norms_and_weighted_sums_equal_the_formulas_at_every_level() {
        for level in SimdLevel::all() {
            for width in WIDTHS {
                let [x, weight, bias]: [Vec<f32>; 3] = [4, 5, 6].map(|seed| synthetic(width, seed));
                let mut out = vec![f32::NAN; width];
                dispatch::layer_norm(level, &mut out, &x, &weight, &bias);
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let normalized = (f64::from(x[i]) - mean) / (variance + 1e-5).sqrt();
                    assert_close(out[i], normalized * f64::from(weight[i]) + f64::from(bias[i]), 2e-6);
                }
                for count in [0, 1, 9] {
                    let rows: Vec<[Vec<f32>; 2]> =
                        (0..count).map(|k| [synthetic(width, 10 + k), synthetic(width, 40 + k)]).collect();
                    let taps: Vec<(&[f32], &[f32])> = rows.iter().map(|[x, w]| (&x[..], &w[..])).collect();
                    dispatch::weighted_sum(level, &mut out, &bias, &taps);
                    for i in 0..width {
                        let terms = rows.iter().map(|[x, w]| f64::from(x[i]) * f64::from(w[i]));
                        assert_close(out[i], f64::from(bias[i]) + terms.sum::<f64>(), 3e-6);
                    }
                }
            }
        }
    }
}
