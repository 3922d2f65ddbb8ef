//! AVX-512 functions of encoder rows: norm, activations, softmax, weighted sums.
use std::arch::x86_64::*;

use super::{LANES, exp_lanes, lanes, load, load_from, load_full, store, store_full, store_to};

/// Registers of sums in [`weighted_sum`].
const SUMS: usize = 4;

/// Computes `1 / (1 + exp(-x))` without a division.
///
/// One Newton step doubles the 14 correct bits of the approximate reciprocal.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn fast_sigmoid_lanes(x: __m512) -> __m512 {
    let splat_one = _mm512_set1_ps(1.0);
    // Beyond 88 the sum would be infinite and the Newton step NaN; NaN stays the second argument.
    let negated = _mm512_min_ps(_mm512_set1_ps(88.0), _mm512_sub_ps(_mm512_setzero_ps(), x));
    let sum = _mm512_add_ps(splat_one, exp_lanes(negated));
    let inverse = _mm512_rcp14_ps(sum);
    _mm512_fmadd_ps(_mm512_fnmadd_ps(sum, inverse, splat_one), inverse, inverse)
}

/// As [`crate::silu`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn silu(values: &mut [f32]) {
    lanes!(values.len(), |offset| {
        let x = load_from::<FULL>(values, offset, 0.0);
        store_to::<FULL>(values, offset, _mm512_mul_ps(x, fast_sigmoid_lanes(x)));
    });
}

/// As [`crate::add_silu`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn add_silu(values: &mut [f32], bias: &[f32]) {
    lanes!(values.len(), |offset| {
        let x = load_from::<FULL>(values, offset, 0.0);
        let x = _mm512_add_ps(x, load_from::<FULL>(bias, offset, 0.0));
        store_to::<FULL>(values, offset, _mm512_mul_ps(x, fast_sigmoid_lanes(x)));
    });
}

/// As [`crate::add_relu`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn add_relu(values: &mut [f32], bias: &[f32]) {
    lanes!(values.len(), |offset| {
        let x = load_from::<FULL>(values, offset, 0.0);
        let x = _mm512_add_ps(x, load_from::<FULL>(bias, offset, 0.0));
        // The maximum returns its second argument where one is NaN.
        store_to::<FULL>(values, offset, _mm512_max_ps(_mm512_setzero_ps(), x));
    });
}

/// As [`crate::add_pair`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn add_pair(out: &mut [f32], a: &[f32], b: &[f32]) {
    lanes!(out.len(), |offset| {
        let sum = _mm512_add_ps(load_from::<FULL>(a, offset, 0.0), load_from::<FULL>(b, offset, 0.0));
        store_to::<FULL>(out, offset, _mm512_add_ps(load_from::<FULL>(out, offset, 0.0), sum));
    });
}

/// As [`crate::add_glu`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn add_glu(out: &mut [f32], group: &[f32], bias: &[f32]) {
    let (values, gates) = group.split_at(out.len());
    let (value_bias, gate_bias) = bias.split_at(out.len());
    lanes!(out.len(), |offset| {
        let (x, gate) = (load_from::<FULL>(values, offset, 0.0), load_from::<FULL>(gates, offset, 0.0));
        let x = _mm512_add_ps(x, load_from::<FULL>(value_bias, offset, 0.0));
        let gate = _mm512_add_ps(gate, load_from::<FULL>(gate_bias, offset, 0.0));
        store_to::<FULL>(out, offset, _mm512_mul_ps(x, fast_sigmoid_lanes(gate)));
    });
}

/// As [`crate::add_exp`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn add_exp(row: &mut [f32], addends: &[f32]) -> f32 {
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    lanes!(row.len(), |offset| {
        let z = load_from::<FULL>(row, offset, f32::NEG_INFINITY);
        let z = _mm512_add_ps(z, load_from::<FULL>(addends, offset, 0.0));
        store_to::<FULL>(row, offset, z);
        best = _mm512_max_ps(z, best);
    });
    let max = _mm512_set1_ps(_mm512_reduce_max_ps(best));
    let mut sum = _mm512_setzero_ps();
    lanes!(row.len(), |offset| {
        let z = load_from::<FULL>(row, offset, f32::NEG_INFINITY);
        let e = exp_lanes(_mm512_sub_ps(z, max));
        store_to::<FULL>(row, offset, e);
        sum = _mm512_add_ps(sum, e);
    });
    _mm512_reduce_add_ps(sum)
}

/// As [`crate::layer_norm`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn layer_norm(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    let inverse_width = 1.0 / x.len() as f32;
    let mut sum = _mm512_setzero_ps();
    lanes!(x.len(), |offset| {
        sum = _mm512_add_ps(sum, load_from::<FULL>(x, offset, 0.0));
    });
    let mean = _mm512_reduce_add_ps(sum) * inverse_width;
    let splat_mean = _mm512_set1_ps(mean);
    let mut squares = _mm512_setzero_ps();
    lanes!(x.len(), |offset| {
        let centered = _mm512_sub_ps(load_from::<FULL>(x, offset, mean), splat_mean);
        squares = _mm512_fmadd_ps(centered, centered, squares);
    });
    let variance = _mm512_reduce_add_ps(squares) * inverse_width;
    let scale = _mm512_set1_ps(1.0 / (variance + crate::LAYER_NORM_EPSILON).sqrt());
    lanes!(x.len(), |offset| {
        let centered = _mm512_sub_ps(load_from::<FULL>(x, offset, 0.0), splat_mean);
        let (weight, bias) = (load_from::<FULL>(weight, offset, 0.0), load_from::<FULL>(bias, offset, 0.0));
        store_to::<FULL>(out, offset, _mm512_fmadd_ps(_mm512_mul_ps(centered, scale), weight, bias));
    });
}

/// As [`crate::weighted_sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn weighted_sum(out: &mut [f32], bias: &[f32], taps: &[(&[f32], &[f32])]) {
    const BLOCK: usize = SUMS * LANES;
    let full_len = out.len() / BLOCK * BLOCK;
    for offset in (0..full_len).step_by(BLOCK) {
        let bias: &[[f32; LANES]; SUMS] = bias[offset..].as_chunks().0.first_chunk().expect("full registers");
        let mut sums = [_mm512_setzero_ps(); SUMS];
        // Loops rather than `map`, which is compiled without the instructions.
        for (sum, bias) in sums.iter_mut().zip(bias) {
            *sum = load_full(bias);
        }
        for (x, weight) in taps {
            let x: &[[f32; LANES]; SUMS] = x[offset..].as_chunks().0.first_chunk().expect("full registers");
            let weight: &[[f32; LANES]; SUMS] =
                weight[offset..].as_chunks().0.first_chunk().expect("full registers");
            for (sum, (x, weight)) in sums.iter_mut().zip(x.iter().zip(weight)) {
                *sum = _mm512_fmadd_ps(load_full(x), load_full(weight), *sum);
            }
        }
        for (out, sum) in out[offset..].as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            store_full(out, sum);
        }
    }
    for offset in (full_len..out.len()).step_by(LANES) {
        let mut sum = load(bias, offset, 0.0);
        for (x, weight) in taps {
            sum = _mm512_fmadd_ps(load(x, offset, 0.0), load(weight, offset, 0.0), sum);
        }
        store(out, offset, sum);
    }
}
