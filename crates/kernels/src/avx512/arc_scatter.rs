//! AVX-512 versions of max, sum and argmax over recognition lattice arcs.
//!
//! `crate::arc_scatter` defines them and has the formulas.
use std::arch::x86_64::*;

use super::{LANES, exp_lanes, lane_mask, lanes, load_from, store_to};
use crate::arc_scatter::{ArcScatter, width};

/// As [`crate::arc_scatter::scatter_max`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn scatter_max(out: &mut [f32], arcs: ArcScatter<f32>) {
    for (_, row, shift, start) in arcs.reachable() {
        let (out, shift) = (&mut out[start..][..row.len()], _mm512_set1_ps(shift));
        lanes!(row.len(), |offset| {
            let old = load_from::<FULL>(out, offset, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load_from::<FULL>(row, offset, f32::NEG_INFINITY), shift);
            store_to::<FULL>(out, offset, _mm512_max_ps(w, old));
        });
    }
}

/// As [`crate::arc_scatter::scatter_exp_sum`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn scatter_exp_sum(sums: &mut [f32], max: &[f32], arcs: ArcScatter<f32>) {
    for (_, row, shift, start) in arcs.reachable() {
        let (sums, max) = (&mut sums[start..][..row.len()], &max[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        lanes!(row.len(), |offset| {
            let w = _mm512_add_ps(load_from::<FULL>(row, offset, f32::NEG_INFINITY), shift);
            let e = exp_lanes(_mm512_sub_ps(w, load_from::<FULL>(max, offset, 0.0)));
            store_to::<FULL>(sums, offset, _mm512_add_ps(load_from::<FULL>(sums, offset, 0.0), e));
        });
    }
}

/// As [`crate::arc_scatter::scatter_argmax`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn scatter_argmax(best: &mut [f32], from: &mut [u32], arcs: ArcScatter<f32>) {
    // Arc ids start at 1.
    let lane_arcs = _mm512_set_epi32(16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
    for (state, row, shift, start) in arcs.reachable() {
        let (best, from) = (&mut best[start..][..row.len()], &mut from[start..][..row.len()]);
        let shift = _mm512_set1_ps(shift);
        lanes!(row.len(), |offset| {
            let old = load_from::<FULL>(best, offset, f32::NEG_INFINITY);
            let w = _mm512_add_ps(load_from::<FULL>(row, offset, f32::NEG_INFINITY), shift);
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(w, old);
            let better = if FULL { better } else { better & lane_mask(row.len() - offset) };
            let arcs_before = ((arcs.first_row + state) * row.len() + offset) as i32;
            let arc = _mm512_add_epi32(lane_arcs, _mm512_set1_epi32(arcs_before));
            let (best, from) = (&mut best[offset..], &mut from[offset..]);
            debug_assert!(!FULL || best.len() >= LANES);
            // SAFETY: the mask contains only lanes that have elements.
            unsafe {
                _mm512_mask_storeu_ps(best.as_mut_ptr(), better, w);
                _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), better, arc);
            }
        });
    }
}

/// As [`crate::arc_scatter::merge_self_loops`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn merge_self_loops(
    best: &mut [f32],
    from: &mut [u32],
    alpha: &[f32],
    blank: &[f32],
    positions: &[u32],
) -> f32 {
    let states = best.len();
    assert!(
        from.len() == states && alpha.len() == states && positions.len() == states,
        "arc scatter: expected slices of {states} states"
    );
    let blank_count = i32::try_from(blank.len()).expect("the number of blanks fits the index of a gather");
    let mut tops = _mm512_set1_ps(f32::NEG_INFINITY);
    for offset in (0..states).step_by(LANES) {
        let (best, from, alpha, positions) =
            (&mut best[offset..], &mut from[offset..], &alpha[offset..], &positions[offset..]);
        let mask = lane_mask(best.len());
        // SAFETY: the mask contains only lanes that have elements, and positions within `blank`.
        unsafe {
            let positions = _mm512_maskz_loadu_epi32(mask, positions.as_ptr().cast());
            let within = _mm512_mask_cmplt_epu32_mask(mask, positions, _mm512_set1_epi32(blank_count));
            assert_eq!(within, mask, "arc scatter: expected positions below {blank_count}");
            let blank =
                _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), within, positions, blank.as_ptr().cast());
            let w = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, alpha.as_ptr()), blank);
            let old = _mm512_maskz_loadu_ps(mask, best.as_ptr());
            // Not greater, so that NaN propagates.
            let stays = _mm512_mask_cmp_ps_mask::<_CMP_NGT_UQ>(mask, old, w);
            _mm512_mask_storeu_ps(best.as_mut_ptr(), stays, w);
            _mm512_mask_storeu_epi32(from.as_mut_ptr().cast(), stays, _mm512_setzero_si512());
            tops = _mm512_mask_max_ps(tops, mask, _mm512_mask_mov_ps(old, stays, w), tops);
        }
    }
    _mm512_reduce_max_ps(tops)
}

/// As [`crate::arc_scatter::gather_exp`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn gather_exp(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) {
    let width = width(rows, starts).max(1);
    let states = rows.chunks_exact_mut(width).zip(sums).zip(shifts.iter().zip(starts));
    for ((row, sum), (&shift, &start)) in states {
        if shift == f32::NEG_INFINITY {
            row.fill(0.0);
            *sum = 0.0;
            continue;
        }
        let (next, mut lane_sums) = (&next[start as usize..][..width], _mm512_setzero_ps());
        let shift = _mm512_set1_ps(shift);
        lanes!(width, |offset| {
            let w = load_from::<FULL>(row, offset, f32::NEG_INFINITY);
            let w = _mm512_add_ps(w, load_from::<FULL>(next, offset, 0.0));
            let e = exp_lanes(_mm512_add_ps(w, shift));
            lane_sums = _mm512_add_ps(lane_sums, e);
            store_to::<FULL>(row, offset, e);
        });
        *sum = _mm512_reduce_add_ps(lane_sums);
    }
}
