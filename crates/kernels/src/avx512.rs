//! The functions that every score goes through, by hand for AVX-512: the compiler's own version of [`super::math`] keeps
//! to half registers and takes three times as long.
//!
//! ```text
//! exp x = 2^k · p(r)      k = round(x / ln 2), r = x - k ln 2, p(r) = Σ_{j<=7} r^j / j!    as in `math`
//! ```
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::math::{LN2_HIGH, LN2_LOW, SMALLEST, TINY};
use super::{Fan, fan::width};

/// Elements of a register.
const LANES: usize = 16;
/// Beyond this `exp` is infinite, and so is `2^k`.
const LARGEST: f32 = 89.0;

/// The lanes that `len` elements fill.
#[inline(always)]
pub(super) fn filled(len: usize) -> __mmask16 {
    if len >= LANES { !0 } else { (1 << len) - 1 }
}

/// 16 values from `row[at..]`, `fill` in the lanes beyond its end.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn load(row: &[f32], at: usize, fill: f32) -> __m512 {
    let row = &row[at..];
    // SAFETY: only as many lanes are read as there are elements.
    unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), filled(row.len()), row.as_ptr()) }
}

/// Writes to `row[at..]` as many of the 16 values as it has room for.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn store(row: &mut [f32], at: usize, values: __m512) {
    let row = &mut row[at..];
    // SAFETY: only as many lanes are written as there are elements.
    unsafe { _mm512_mask_storeu_ps(row.as_mut_ptr(), filled(row.len()), values) }
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn exp_lanes(x: __m512) -> __m512 {
    // Minimum and maximum return their second argument where one is NaN.
    let inside = _mm512_max_ps(_mm512_set1_ps(SMALLEST), _mm512_min_ps(_mm512_set1_ps(LARGEST), x));
    let k = _mm512_roundscale_ps::<0>(_mm512_mul_ps(inside, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_HIGH), inside);
    let r = _mm512_fnmadd_ps(k, _mm512_set1_ps(LN2_LOW), r);
    let mut p = _mm512_set1_ps(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
    }
    // Not less, so that NaN passes.
    let visible = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(SMALLEST));
    _mm512_maskz_scalef_ps(visible, p, k)
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn exp(values: &mut [f32]) {
    for at in (0..values.len()).step_by(LANES) {
        store(values, at, exp_lanes(load(values, at, 0.0)));
    }
}

/// `tanh x = e / (e + 2)` with `e = exp(2|x|) - 1` as in `math`, and the sign of x.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn tanh_lanes(x: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
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
    let power = _mm512_scalef_ps(one, k);
    let e = _mm512_fmadd_ps(power, p, _mm512_sub_ps(power, one));
    // Two Newton steps instead of a division, the second on the quotient.
    let below = _mm512_add_ps(e, _mm512_set1_ps(2.0));
    let inverse = _mm512_rcp14_ps(below);
    let inverse = _mm512_fmadd_ps(_mm512_fnmadd_ps(below, inverse, one), inverse, inverse);
    let y = _mm512_mul_ps(e, inverse);
    let y = _mm512_fmadd_ps(_mm512_fnmadd_ps(y, below, e), inverse, y);
    let sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0));
    _mm512_or_ps(y, sign)
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh(values: &mut [f32]) {
    for at in (0..values.len()).step_by(LANES) {
        store(values, at, tanh_lanes(load(values, at, 0.0)));
    }
}

/// As [`super::math::tanh_sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh_sum(out: &mut [f32], a: &[f32], b: &[f32]) {
    for at in (0..out.len()).step_by(LANES) {
        store(out, at, tanh_lanes(_mm512_add_ps(load(a, at, 0.0), load(b, at, 0.0))));
    }
}

/// `1 - 2 / (1 + a b)`, one Newton step in place of the division; `a b` is finite.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn pair_lanes(a: __m512, b: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
    let below = _mm512_fmadd_ps(a, b, one);
    let inverse = _mm512_rcp14_ps(below);
    let inverse = _mm512_fmadd_ps(_mm512_fnmadd_ps(below, inverse, one), inverse, inverse);
    _mm512_fnmadd_ps(_mm512_set1_ps(2.0), inverse, one)
}

/// As [`super::math::tanh_pairs`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) {
    for at in (0..out.len()).step_by(LANES) {
        store(out, at, pair_lanes(load(a, at, 1.0), load(b, at, 1.0)));
    }
}

/// As [`super::math::tanh_panel`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn tanh_panel(out: &mut [f32], panel: &[f32], rows: &[f32]) {
    let width = (panel.len() / rows.len().max(1)).max(1);
    for ((out, a), &b) in out.chunks_exact_mut(width).zip(panel.chunks_exact(width)).zip(rows) {
        let b = _mm512_set1_ps(b);
        for at in (0..width).step_by(LANES) {
            store(out, at, pair_lanes(load(a, at, 1.0), b));
        }
    }
}

/// As [`super::math::add_rows`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn add_rows(out: &mut [f32], rows: &[f32]) {
    let width = out.len().max(1);
    for at in (0..out.len()).step_by(LANES) {
        let mut sum = load(out, at, 0.0);
        for row in rows.chunks_exact(width) {
            sum = _mm512_add_ps(sum, load(row, at, 0.0));
        }
        store(out, at, sum);
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
            Some(bias) => add_max(row, bias),
            None => row_max(row),
        };
        *statistic = (max, exp_sum(row, max));
    }
}

/// As [`super::math::row_statistics`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn row_statistics(row: &[f32]) -> (f32, f64) {
    let max = row_max(row);
    (max, exp_sum(row, max))
}

/// Adds the bias to a row; returns the largest sum that is not NaN.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn add_max(row: &mut [f32], bias: &[f32]) -> f32 {
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    for at in (0..row.len()).step_by(LANES) {
        let z = _mm512_add_ps(load(row, at, f32::NEG_INFINITY), load(bias, at, 0.0));
        store(row, at, z);
        best = _mm512_max_ps(z, best);
    }
    _mm512_reduce_max_ps(best)
}

/// The largest element that is not NaN.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn row_max(row: &[f32]) -> f32 {
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    for at in (0..row.len()).step_by(LANES) {
        best = _mm512_max_ps(load(row, at, f32::NEG_INFINITY), best);
    }
    _mm512_reduce_max_ps(best)
}

/// `Σ exp(z - max)`, terms in `f32`, sum in `f64`; 0 for a row of -inf.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn exp_sum(row: &[f32], max: f32) -> f64 {
    if max == f32::NEG_INFINITY && !row.iter().any(|z| z.is_nan()) {
        return 0.0; // exp(-inf + inf) would be NaN for every masked class.
    }
    let (mut low, mut high) = (_mm512_setzero_pd(), _mm512_setzero_pd());
    for at in (0..row.len()).step_by(LANES) {
        let e = exp_lanes(_mm512_sub_ps(load(row, at, f32::NEG_INFINITY), _mm512_set1_ps(max)));
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(e)));
    }
    _mm512_reduce_add_pd(_mm512_add_pd(low, high))
}

/// As [`super::math::row_softmax`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn row_softmax(out: &mut [f32], z: Option<&[f32]>, bias: Option<&[f32]>, max: f32, factor: f32) {
    // factor · e is tiny where e is below this; with a tiny factor everywhere.
    let least = _mm512_set1_ps(TINY / factor.abs());
    let (max, factor) = (_mm512_set1_ps(max), _mm512_set1_ps(factor));
    for at in (0..out.len()).step_by(LANES) {
        let here = load(out, at, 0.0);
        let score = match (z, bias) {
            (Some(z), _) => load(z, at, 0.0),
            (None, Some(bias)) => _mm512_add_ps(here, load(bias, at, 0.0)),
            (None, None) => here,
        };
        let e = exp_lanes(_mm512_sub_ps(score, max));
        // Not less, so that NaN passes.
        let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(e, least);
        store(out, at, _mm512_maskz_mul_ps(counts, factor, e));
    }
}

/// As [`super::fan::max`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn fan_max(out: &mut [f32], fan: Fan<f32>) {
    for (_, row, shift, start) in fan.each() {
        let (out, shift) = (&mut out[start..][..row.len()], _mm512_set1_ps(shift));
        for at in (0..row.len()).step_by(LANES) {
            let old = load(out, at, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load(row, at, f32::NEG_INFINITY), shift);
            store(out, at, _mm512_max_ps(w, old));
        }
    }
}

/// As [`super::fan::sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn fan_sum(sums: &mut [f32], max: &[f32], fan: Fan<f32>) {
    for (_, row, shift, start) in fan.each() {
        let (sums, max) = (&mut sums[start..][..row.len()], &max[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        for at in (0..row.len()).step_by(LANES) {
            let w = _mm512_add_ps(load(row, at, f32::NEG_INFINITY), shift);
            let e = exp_lanes(_mm512_sub_ps(w, load(max, at, 0.0)));
            store(sums, at, _mm512_add_ps(load(sums, at, 0.0), e));
        }
    }
}

/// As [`super::fan::best`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn fan_best(best: &mut [f32], from: &mut [u32], fan: Fan<f32>) {
    let lanes = _mm512_set_epi32(16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
    for (state, row, shift, start) in fan.each() {
        let (best, from) = (&mut best[start..][..row.len()], &mut from[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        for at in (0..row.len()).step_by(LANES) {
            let old = load(best, at, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load(row, at, f32::NEG_INFINITY), shift);
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(w, old) & filled(row.len() - at);
            let arc = _mm512_add_epi32(lanes, _mm512_set1_epi32((state * row.len() + at) as i32));
            let (best, from) = (&mut best[at..], &mut from[at..]);
            // SAFETY: the mask has only lanes that there are elements for.
            unsafe {
                _mm512_mask_storeu_ps(best.as_mut_ptr(), better, w);
                _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), better, arc);
            }
        }
    }
}

/// As [`super::fan::back`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn fan_back(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) {
    let width = width(rows, starts).max(1);
    let states = rows.chunks_exact_mut(width).zip(sums).zip(shifts.iter().zip(starts));
    for ((row, sum), (&shift, &start)) in states {
        let (next, mut all) = (&next[start as usize..][..width], _mm512_setzero_ps());
        let blocked = shift == f32::NEG_INFINITY;
        let shift = _mm512_set1_ps(shift);
        for at in (0..width).step_by(LANES) {
            let w = _mm512_add_ps(load(row, at, f32::NEG_INFINITY), load(next, at, 0.0));
            let e = if blocked { _mm512_setzero_ps() } else { exp_lanes(_mm512_add_ps(w, shift)) };
            all = _mm512_add_ps(all, e);
            store(row, at, e);
        }
        *sum = _mm512_reduce_add_ps(all);
    }
}
