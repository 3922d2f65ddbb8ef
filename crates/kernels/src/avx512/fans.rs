//! Rows of weights that fan out over states.
use std::arch::x86_64::*;

use super::{LANES, exp_lanes, filled, lanes, load_from, store_to};
use crate::fan::{Fan, width};

/// As [`crate::fan::max`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn fan_max(out: &mut [f32], fan: Fan<f32>) {
    for (_, row, shift, start) in fan.each() {
        let (out, shift) = (&mut out[start..][..row.len()], _mm512_set1_ps(shift));
        lanes!(row.len(), |at| {
            let old = load_from::<FULL>(out, at, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load_from::<FULL>(row, at, f32::NEG_INFINITY), shift);
            store_to::<FULL>(out, at, _mm512_max_ps(w, old));
        });
    }
}

/// As [`crate::fan::sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn fan_sum(sums: &mut [f32], max: &[f32], fan: Fan<f32>) {
    for (_, row, shift, start) in fan.each() {
        let (sums, max) = (&mut sums[start..][..row.len()], &max[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        lanes!(row.len(), |at| {
            let w = _mm512_add_ps(load_from::<FULL>(row, at, f32::NEG_INFINITY), shift);
            let e = exp_lanes(_mm512_sub_ps(w, load_from::<FULL>(max, at, 0.0)));
            store_to::<FULL>(sums, at, _mm512_add_ps(load_from::<FULL>(sums, at, 0.0), e));
        });
    }
}

/// As [`crate::fan::best`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn fan_best(best: &mut [f32], from: &mut [u32], fan: Fan<f32>) {
    let lane = _mm512_set_epi32(16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
    for (state, row, shift, start) in fan.each() {
        let (best, from) = (&mut best[start..][..row.len()], &mut from[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        lanes!(row.len(), |at| {
            let old = load_from::<FULL>(best, at, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load_from::<FULL>(row, at, f32::NEG_INFINITY), shift);
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(w, old);
            let better = if FULL { better } else { better & filled(row.len() - at) };
            let arc =
                _mm512_add_epi32(lane, _mm512_set1_epi32(((fan.first + state) * row.len() + at) as i32));
            let (best, from) = (&mut best[at..], &mut from[at..]);
            debug_assert!(!FULL || best.len() >= LANES);
            // SAFETY: the mask has only lanes that there are elements for.
            unsafe {
                _mm512_mask_storeu_ps(best.as_mut_ptr(), better, w);
                _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), better, arc);
            }
        });
    }
}

/// As [`crate::fan::stay`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn fan_stay(best: &mut [f32], from: &mut [u32], alpha: &[f32], blank: &[f32], places: &[u32]) -> f32 {
    let c = best.len();
    assert!(from.len() == c && alpha.len() == c && places.len() == c, "fan: one of each for {c} states");
    let end = i32::try_from(blank.len()).expect("as many blanks as a gather can tell apart");
    let mut tops = _mm512_set1_ps(f32::NEG_INFINITY);
    for at in (0..c).step_by(LANES) {
        let (best, from, alpha, places) = (&mut best[at..], &mut from[at..], &alpha[at..], &places[at..]);
        let here = filled(best.len());
        // SAFETY: the mask has only lanes that there are elements for in each of the four, and places within `blank`.
        unsafe {
            let places = _mm512_maskz_loadu_epi32(here, places.as_ptr().cast());
            let within = _mm512_mask_cmplt_epu32_mask(here, places, _mm512_set1_epi32(end));
            assert_eq!(within, here, "fan: places beyond {end} blanks");
            let blank =
                _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), within, places, blank.as_ptr().cast());
            let w = _mm512_add_ps(_mm512_maskz_loadu_ps(here, alpha.as_ptr()), blank);
            let known = _mm512_maskz_loadu_ps(here, best.as_ptr());
            // Not greater, so that NaN is seen.
            let stays = _mm512_mask_cmp_ps_mask::<_CMP_NGT_UQ>(here, known, w);
            _mm512_mask_storeu_ps(best.as_mut_ptr(), stays, w);
            _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), stays, _mm512_setzero_si512());
            tops = _mm512_mask_max_ps(tops, here, _mm512_mask_mov_ps(known, stays, w), tops);
        }
    }
    _mm512_reduce_max_ps(tops)
}

/// As [`crate::fan::back`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub fn fan_back(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) {
    let width = width(rows, starts).max(1);
    let states = rows.chunks_exact_mut(width).zip(sums).zip(shifts.iter().zip(starts));
    for ((row, sum), (&shift, &start)) in states {
        if shift == f32::NEG_INFINITY {
            row.fill(0.0);
            *sum = 0.0;
            continue;
        }
        let (next, mut all) = (&next[start as usize..][..width], _mm512_setzero_ps());
        let shift = _mm512_set1_ps(shift);
        lanes!(width, |at| {
            let w = load_from::<FULL>(row, at, f32::NEG_INFINITY);
            let w = _mm512_add_ps(w, load_from::<FULL>(next, at, 0.0));
            let e = exp_lanes(_mm512_add_ps(w, shift));
            all = _mm512_add_ps(all, e);
            store_to::<FULL>(row, at, e);
        });
        *sum = _mm512_reduce_add_ps(all);
    }
}
