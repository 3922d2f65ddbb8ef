//! AVX-512 versions of the vector functions: exp, tanh, softmax, LSTM cell.
//!
//! They are hand-written because the compiler vectorizes [`super::math`] with half registers, which
//! takes three times as long.
//!
//! ```text
//! exp x = 2^k · p(r)    k = round(x / ln 2), r = x - k ln 2, p(r) = Σ_{j<=7} r^j / j!
//! ```
#![allow(unsafe_code)]
mod arc_scatter;
pub(super) mod quantized_argmax;
mod rows;
pub(super) mod tanh;

use std::arch::x86_64::*;

pub(super) use arc_scatter::{gather_exp, merge_self_loops, scatter_argmax, scatter_exp_sum, scatter_max};
pub(super) use rows::{add_exp, add_glu, add_pair, add_relu, add_silu, layer_norm, silu, weighted_sum};
pub(super) use tanh::{tanh_pairs, tanh_panel};

use super::math::{FLUSH_THRESHOLD, LN2_HIGH, LN2_LOW, MIN_EXP_ARGUMENT};

/// Elements of a register.
pub(super) const LANES: usize = 16;
/// Registers of independent sums in [`dot`].
const DOT_SUMS: usize = 4;
/// Arguments of `exp` beyond this limit give +inf, as `2^k` overflows.
const MAX_EXP_ARGUMENT: f32 = 89.0;

/// Returns the mask of the lanes that `len` elements fill.
#[inline(always)]
pub(super) fn lane_mask(len: usize) -> __mmask16 {
    if len >= LANES { !0 } else { (1 << len) - 1 }
}

/// Loads 16 values from `row[offset..]`, with `fill` beyond its end.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn load(row: &[f32], offset: usize, fill: f32) -> __m512 {
    let row = &row[offset..];
    // SAFETY: only as many lanes are read as there are elements.
    unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), lane_mask(row.len()), row.as_ptr()) }
}

/// Stores values to `row[offset..]`, up to its end.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn store(row: &mut [f32], offset: usize, values: __m512) {
    let row = &mut row[offset..];
    // SAFETY: only as many lanes are written as there are elements.
    unsafe { _mm512_mask_storeu_ps(row.as_mut_ptr(), lane_mask(row.len()), values) }
}

/// Runs a body for each register of `$len` elements.
///
/// The constant `FULL` in the body is true if all lanes have elements.
macro_rules! lanes {
    ($len:expr, |$offset:ident| $body:block) => {{
        let (len, mut $offset) = ($len, 0);
        while $offset + crate::avx512::LANES <= len {
            const FULL: bool = true;
            $body
            $offset += crate::avx512::LANES;
        }
        if $offset < len {
            const FULL: bool = false;
            $body
        }
    }};
}
pub(super) use lanes;

/// Loads a register that is full if `FULL` is true.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn load_from<const FULL: bool>(row: &[f32], offset: usize, fill: f32) -> __m512 {
    if !FULL {
        return load(row, offset, fill);
    }
    load_full(row[offset..].first_chunk().expect("the register is full"))
}

/// Loads a whole register.
#[target_feature(enable = "avx512f")]
fn load_full(row: &[f32; LANES]) -> __m512 {
    // SAFETY: the array has as many elements as the register.
    unsafe { _mm512_loadu_ps(row.as_ptr()) }
}

/// Stores a whole register.
#[target_feature(enable = "avx512f")]
fn store_full(row: &mut [f32; LANES], values: __m512) {
    // SAFETY: the array has as many elements as the register.
    unsafe { _mm512_storeu_ps(row.as_mut_ptr(), values) }
}

/// Stores a register that is full if `FULL` is true.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn store_to<const FULL: bool>(row: &mut [f32], offset: usize, values: __m512) {
    if !FULL {
        return store(row, offset, values);
    }
    store_full(row[offset..].first_chunk_mut().expect("the register is full"), values);
}

/// Computes `exp x`; exactly 0 below `MIN_EXP_ARGUMENT`, and NaN stays NaN.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn exp_lanes(x: __m512) -> __m512 {
    // Minimum and maximum return their second argument where one is NaN.
    let inside =
        _mm512_max_ps(_mm512_set1_ps(MIN_EXP_ARGUMENT), _mm512_min_ps(_mm512_set1_ps(MAX_EXP_ARGUMENT), x));
    let k = _mm512_roundscale_ps::<0>(_mm512_mul_ps(inside, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_HIGH), inside);
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_LOW), r);
    let mut p = _mm512_set1_ps(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
    }
    // Not less, so that NaN passes.
    let is_not_flushed = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(MIN_EXP_ARGUMENT));
    _mm512_maskz_scalef_ps(is_not_flushed, p, k)
}

/// As [`super::math::exp`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn exp(values: &mut [f32]) {
    for offset in (0..values.len()).step_by(LANES) {
        store(values, offset, exp_lanes(load(values, offset, 0.0)));
    }
}

/// Computes `tanh x = e / (e + 2)` with `e = exp(2|x|) - 1`, and the sign of x.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn tanh_lanes(x: __m512) -> __m512 {
    let splat_one = _mm512_set1_ps(1.0);
    // tanh(10) rounds to 1. The minimum returns its second argument where one is NaN.
    let a = _mm512_min_ps(_mm512_set1_ps(10.0), _mm512_abs_ps(x));
    let a = _mm512_add_ps(a, a);
    let k = _mm512_roundscale_ps::<0>(_mm512_mul_ps(a, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_HIGH), a);
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_LOW), r);
    let mut p = _mm512_set1_ps(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
    }
    let p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r); // exp r - 1
    let power = _mm512_scalef_ps(splat_one, k);
    let e = _mm512_fmadd_ps(power, p, _mm512_sub_ps(power, splat_one));
    // Two Newton steps instead of a division, the second on the quotient.
    let denominator = _mm512_add_ps(e, _mm512_set1_ps(2.0));
    let inverse = _mm512_rcp14_ps(denominator);
    let inverse = _mm512_fmadd_ps(_mm512_fnmadd_ps(denominator, inverse, splat_one), inverse, inverse);
    let y = _mm512_mul_ps(e, inverse);
    let y = _mm512_fmadd_ps(_mm512_fnmadd_ps(y, denominator, e), inverse, y);
    let sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0));
    _mm512_or_ps(y, sign)
}

/// As [`super::math::tanh`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh(values: &mut [f32]) {
    for offset in (0..values.len()).step_by(LANES) {
        store(values, offset, tanh_lanes(load(values, offset, 0.0)));
    }
}

/// As [`super::math::tanh_sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh_sum(out: &mut [f32], a: &[f32], b: &[f32]) {
    for offset in (0..out.len()).step_by(LANES) {
        store(out, offset, tanh_lanes(_mm512_add_ps(load(a, offset, 0.0), load(b, offset, 0.0))));
    }
}

/// As [`super::math::add_rows`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn add_rows(out: &mut [f32], rows: &[f32]) {
    let width = out.len().max(1);
    for offset in (0..out.len()).step_by(LANES) {
        let mut sum = load(out, offset, 0.0);
        for row in rows.chunks_exact(width) {
            sum = _mm512_add_ps(sum, load(row, offset, 0.0));
        }
        store(out, offset, sum);
    }
}

/// As [`super::math::tile_statistics`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tile_statistics(
    tile: &mut [f32],
    width: usize,
    bias: Option<&[f32]>,
    statistics: &mut [(f32, f64)],
) {
    for (row, statistic) in tile.chunks_exact_mut(width).zip(statistics) {
        let max = match bias {
            Some(bias) => row_add_max(row, bias),
            None => row_max(row),
        };
        *statistic = (max, row_exp_sum(row, max));
    }
}

/// As [`super::math::row_statistics`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn row_statistics(row: &[f32]) -> (f32, f64) {
    let max = row_max(row);
    (max, row_exp_sum(row, max))
}

/// Adds the bias to a row; returns the largest sum that is not NaN.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn row_add_max(row: &mut [f32], bias: &[f32]) -> f32 {
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    for offset in (0..row.len()).step_by(LANES) {
        let z = _mm512_add_ps(load(row, offset, f32::NEG_INFINITY), load(bias, offset, 0.0));
        store(row, offset, z);
        best = _mm512_max_ps(z, best);
    }
    _mm512_reduce_max_ps(best)
}

/// Returns the largest element that is not NaN.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn row_max(row: &[f32]) -> f32 {
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    for offset in (0..row.len()).step_by(LANES) {
        best = _mm512_max_ps(load(row, offset, f32::NEG_INFINITY), best);
    }
    _mm512_reduce_max_ps(best)
}

/// Returns `Σ exp(z - max)`, with an `f64` sum; 0 for a row of -inf.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn row_exp_sum(row: &[f32], max: f32) -> f64 {
    if max == f32::NEG_INFINITY && !row.iter().any(|z| z.is_nan()) {
        return 0.0; // exp(-inf + inf) would be NaN for every masked class.
    }
    let (mut low, mut high) = (_mm512_setzero_pd(), _mm512_setzero_pd());
    for offset in (0..row.len()).step_by(LANES) {
        let e = exp_lanes(_mm512_sub_ps(load(row, offset, f32::NEG_INFINITY), _mm512_set1_ps(max)));
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(e)));
    }
    _mm512_reduce_add_pd(_mm512_add_pd(low, high))
}

/// As [`super::math::row_softmax`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn row_softmax(out: &mut [f32], z: Option<&[f32]>, bias: Option<&[f32]>, max: f32, factor: f32) {
    // factor · e is flushed to 0 for e below this threshold.
    let threshold = _mm512_set1_ps(FLUSH_THRESHOLD / factor.abs());
    let (max, factor) = (_mm512_set1_ps(max), _mm512_set1_ps(factor));
    for offset in (0..out.len()).step_by(LANES) {
        let old = load(out, offset, 0.0);
        let score = match (z, bias) {
            (Some(z), _) => load(z, offset, 0.0),
            (None, Some(bias)) => _mm512_add_ps(old, load(bias, offset, 0.0)),
            (None, None) => old,
        };
        let e = exp_lanes(_mm512_sub_ps(score, max));
        // Not less, so that NaN passes.
        let mask = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(e, threshold);
        store(out, offset, _mm512_maskz_mul_ps(mask, factor, e));
    }
}

/// As [`super::math::dot`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    // Independent sums, as an addition takes four cycles.
    let mut sums = [_mm512_setzero_ps(); DOT_SUMS];
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        sums[index % DOT_SUMS] = _mm512_fmadd_ps(load_full(a), load_full(b), sums[index % DOT_SUMS]);
    }
    sums[0] = _mm512_fmadd_ps(load(last_a, 0, 0.0), load(last_b, 0, 0.0), sums[0]);
    let [first, second, third, fourth] = sums;
    _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(first, second), _mm512_add_ps(third, fourth)))
}

/// Computes `1 / (1 + exp(-x))`.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn sigmoid_lanes(x: __m512) -> __m512 {
    let splat_one = _mm512_set1_ps(1.0);
    let e = exp_lanes(_mm512_sub_ps(_mm512_setzero_ps(), x));
    _mm512_div_ps(splat_one, _mm512_add_ps(splat_one, e))
}

/// As `crate::lstm_cell_forward`; `gates` and `cell` are overwritten.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn lstm_cell_forward(gates: &mut [f32], cell: &mut [f32], state: &mut [f32]) {
    let cells = cell.as_chunks_mut::<LANES>().0.iter_mut().zip(state.as_chunks_mut::<LANES>().0);
    let (gates, _) = gates.as_chunks_mut::<LANES>();
    for ([i, f, g, o], (cell, state)) in gates.as_chunks_mut::<4>().0.iter_mut().zip(cells) {
        let (input, forget) = (sigmoid_lanes(load_full(i)), sigmoid_lanes(load_full(f)));
        let (candidate, output) = (tanh_lanes(load_full(g)), sigmoid_lanes(load_full(o)));
        let c = _mm512_add_ps(_mm512_mul_ps(forget, load_full(cell)), _mm512_mul_ps(input, candidate));
        store_full(state, _mm512_mul_ps(tanh_lanes(c), output));
        store_full(cell, c);
        for (gate, values) in [(i, input), (f, forget), (g, candidate), (o, output)] {
            store_full(gate, values);
        }
    }
}

/// As `crate::lstm_cell_backward`; `gates` and `cell_gradient` are overwritten.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn lstm_cell_backward(
    gates: &mut [f32],
    [cell, previous_cell, dh]: [&[f32]; 3],
    cell_gradient: &mut [f32],
) {
    let splat_one = _mm512_set1_ps(1.0);
    let [cell, previous_cell, dh] = [cell, previous_cell, dh].map(|row| row.as_chunks::<LANES>().0);
    let units = cell.iter().zip(previous_cell).zip(dh).zip(cell_gradient.as_chunks_mut::<LANES>().0);
    let (gates, _) = gates.as_chunks_mut::<LANES>();
    for ([i, f, g, o], (((cell, previous_cell), dh), cell_gradient)) in
        gates.as_chunks_mut::<4>().0.iter_mut().zip(units)
    {
        let [input, forget, candidate, output] = [&*i, f, g, o].map(|gate| load_full(gate));
        let (tanh_c, dh) = (tanh_lanes(load_full(cell)), load_full(dh));
        let slope = _mm512_fnmadd_ps(tanh_c, tanh_c, splat_one);
        let dc = _mm512_fmadd_ps(_mm512_mul_ps(dh, output), slope, load_full(cell_gradient));
        store_full(cell_gradient, _mm512_mul_ps(dc, forget));
        let sigmoid_slope = |y| _mm512_mul_ps(y, _mm512_sub_ps(splat_one, y));
        store_full(i, _mm512_mul_ps(_mm512_mul_ps(dc, candidate), sigmoid_slope(input)));
        store_full(f, _mm512_mul_ps(_mm512_mul_ps(dc, load_full(previous_cell)), sigmoid_slope(forget)));
        store_full(
            g,
            _mm512_mul_ps(_mm512_mul_ps(dc, input), _mm512_fnmadd_ps(candidate, candidate, splat_one)),
        );
        store_full(o, _mm512_mul_ps(_mm512_mul_ps(dh, tanh_c), sigmoid_slope(output)));
    }
}
