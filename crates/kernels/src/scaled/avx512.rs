//! AVX-512 gather and scatter of lattice diagonals with two arcs per site.
//!
//! A pair is the blank and label number of one site, a lattice node (t, u).
#![allow(unsafe_code)]
use std::{arch::x86_64::*, ops::Range};

use super::{DiagonalPositions, LANES, LOG_ZERO};
use crate::simd::Avx512;

/// Loads four pairs.
///
/// # Safety
/// The pairs must be inside the memory of the pointers.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
unsafe fn load_four_pairs(addresses: [*const f64; 4]) -> __m512d {
    // SAFETY: guaranteed by the caller.
    let [a, b, c, d] = addresses.map(|address| unsafe { _mm_loadu_pd(address) });
    let low = _mm256_insertf64x2::<1>(_mm256_castpd128_pd256(a), b);
    let high = _mm256_insertf64x2::<1>(_mm256_castpd128_pd256(c), d);
    _mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high)
}

/// Prefetches the two cache lines from an index on; any index is allowed.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
fn prefetch_lines(values: *const f64, index: usize) {
    _mm_prefetch::<_MM_HINT_T1>(values.wrapping_add(index).cast());
    _mm_prefetch::<_MM_HINT_T1>(values.wrapping_add(index + LANES).cast());
}

/// Returns the mask of the lanes whose index is in a range.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
fn range_mask(range: &Range<usize>, indices: __m512i) -> __mmask8 {
    let after_start = _mm512_cmpge_epi64_mask(indices, _mm512_set1_epi64(range.start as i64));
    _mm512_mask_cmplt_epi64_mask(after_start, indices, _mm512_set1_epi64(range.end as i64))
}

/// Stores four pairs, each `distance` numbers before the previous one.
///
/// # Safety
/// As [`load_four_pairs`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
unsafe fn store_four_pairs(first: *mut f64, distance: usize, pairs: __m512d) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm_storeu_pd(first, _mm512_castpd512_pd128(pairs));
        _mm_storeu_pd(first.sub(distance), _mm512_extractf64x2_pd::<1>(pairs));
        _mm_storeu_pd(first.sub(2 * distance), _mm512_extractf64x2_pd::<2>(pairs));
        _mm_storeu_pd(first.sub(3 * distance), _mm512_extractf64x2_pd::<3>(pairs));
    }
}

/// As [`super::diagonals::gather`] for two arcs.
pub(super) fn gather(
    _token: Avx512,
    values: &[f64],
    positions: DiagonalPositions,
    sites: usize,
    prefetch: usize,
    arc_sites: [Range<usize>; 2],
    rows: &mut [f64],
) -> bool {
    // SAFETY: the token proves the features.
    unsafe { gather_wide(values, positions, sites, prefetch, arc_sites, rows) }
}

/// Gathers the sites of a diagonal, eight at a time.
///
/// ```text
/// for eight sites:  load pairs, separate the arcs, mask by LOG_ZERO, write a register for each arc
/// ```
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
fn gather_wide(
    values: &[f64],
    positions: DiagonalPositions,
    sites: usize,
    prefetch: usize,
    arc_sites: [Range<usize>; 2],
    rows: &mut [f64],
) -> bool {
    // Hence each register has a site.
    assert!(sites > 0 && rows.len() == 2 * sites.next_multiple_of(LANES));
    assert!(positions.is_within(2, sites, values.len()));
    let (first, second) = rows.split_at_mut(rows.len() / 2);
    let (log_zero, infinite) = (_mm512_set1_pd(LOG_ZERO), _mm512_set1_pd(f64::INFINITY));
    let mut invalid = 0;
    let mut site_indices = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    for (i, (first, second)) in first.chunks_exact_mut(LANES).zip(second.chunks_exact_mut(LANES)).enumerate()
    {
        // SAFETY: this site exists and is inside, as checked above.
        let first_site = unsafe { values.as_ptr().add(positions.first - i * LANES * positions.distance) };
        let remaining = sites - i * LANES;
        prefetch_lines(values.as_ptr(), prefetch + 2 * i * LANES);
        // SAFETY: as above; lanes beyond the last site read the last site again.
        let load_sites = |site: [usize; 4]| unsafe {
            load_four_pairs(site.map(|site| first_site.sub(site.min(remaining - 1) * positions.distance)))
        };
        let (even, odd) = if remaining >= LANES {
            // The same code, but without a minimum after inlining.
            (load_sites([0, 2, 4, 6]), load_sites([1, 3, 5, 7]))
        } else {
            (load_sites([0, 2, 4, 6]), load_sites([1, 3, 5, 7]))
        };
        let (a, b) = (_mm512_unpacklo_pd(even, odd), _mm512_unpackhi_pd(even, odd));
        invalid |= _mm512_cmp_pd_mask::<_CMP_NLT_UQ>(a, infinite);
        invalid |= _mm512_cmp_pd_mask::<_CMP_NLT_UQ>(b, infinite);
        // A maximum with NaN returns its second argument.
        let a = _mm512_mask_max_pd(log_zero, range_mask(&arc_sites[0], site_indices), a, log_zero);
        let b = _mm512_mask_max_pd(log_zero, range_mask(&arc_sites[1], site_indices), b, log_zero);
        site_indices = _mm512_add_epi64(site_indices, _mm512_set1_epi64(LANES as i64));
        // SAFETY: each chunk has eight numbers.
        unsafe {
            _mm512_storeu_pd(first.as_mut_ptr(), a);
            _mm512_storeu_pd(second.as_mut_ptr(), b);
        }
    }
    invalid == 0
}

/// As [`super::Diagonals::scatter`] for whole registers of two arcs; returns the number of sites.
///
/// # Safety
/// As for the portable loop.
pub(super) unsafe fn scatter(
    _token: Avx512,
    rows: &[f64],
    positions: DiagonalPositions,
    sites: usize,
    prefetch: usize,
    values: *mut f64,
) -> usize {
    // SAFETY: the token proves the features; the rest is guaranteed by the caller.
    unsafe { scatter_wide(rows, positions, sites, prefetch, values) }
}

/// Scatters the sites of a diagonal, eight at a time.
///
/// # Safety
/// As [`scatter`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
unsafe fn scatter_wide(
    rows: &[f64],
    positions: DiagonalPositions,
    sites: usize,
    prefetch: usize,
    values: *mut f64,
) -> usize {
    let (first, second) = rows.split_at(rows.len() / 2);
    let registers = first.chunks_exact(LANES).zip(second.chunks_exact(LANES)).take(sites / LANES);
    for (i, (first, second)) in registers.enumerate() {
        // SAFETY: eight sites follow, as the caller guarantees; each chunk has eight numbers.
        unsafe {
            let (a, b) = (_mm512_loadu_pd(first.as_ptr()), _mm512_loadu_pd(second.as_ptr()));
            let first_site = values.add(positions.first - i * LANES * positions.distance);
            prefetch_lines(values, prefetch + 2 * i * LANES);
            store_four_pairs(first_site, 2 * positions.distance, _mm512_unpacklo_pd(a, b));
            store_four_pairs(
                first_site.sub(positions.distance),
                2 * positions.distance,
                _mm512_unpackhi_pd(a, b),
            );
        }
    }
    sites / LANES * LANES
}
