//! The 14 x 32 kernel: 28 registers of sums, two of the right side, and a row of the left one everywhere in another.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::{
    Source,
    strips::{Kernel, Place},
};
use crate::{Accumulate, avx512::filled};

const M: usize = 14;
const N: usize = 32;
const LANES: usize = 16;

pub(super) const KERNEL: Kernel<f32> = Kernel { sides: [M, N], pack, block };

fn pack(source: &Source<f32>, from: usize, side: usize, out: &mut [f32]) {
    // SAFETY: only a machine that has these features is given this kernel.
    unsafe {
        match (source.across, side) {
            (true, M) => pack_across::<M>(source, from, out),
            (true, _) => pack_across::<N>(source, from, out),
            (false, _) => {
                for part in (0..side).step_by(LANES) {
                    pack_along(source, from + part, side, LANES.min(side - part), &mut out[part..]);
                }
            }
        }
    }
}

/// Packs columns from one on, as many as a strip has or there are.
#[target_feature(enable = "avx512f")]
fn pack_across<const SIDE: usize>(source: &Source<f32>, from: usize, out: &mut [f32]) {
    let count = SIDE.min(source.cols - from);
    for (step, out) in out.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
        let row = &source.data[step * source.stride + from..][..count];
        match row.as_array::<SIDE>() {
            Some(row) => *out = *row,
            None => {
                out[..count].copy_from_slice(row);
                out[count..].fill(0.0);
            }
        }
    }
}

/// Elements that a row is called for in advance.
const AHEAD: usize = 128;

/// Packs `count <= 16` rows from one on into columns of `out`, whose rows are `side` wide.
#[target_feature(enable = "avx512f")]
fn pack_along(source: &Source<f32>, from: usize, side: usize, count: usize, out: &mut [f32]) {
    let lanes = filled(count);
    for step in (0..source.cols).step_by(LANES) {
        let mut rows = [_mm512_setzero_si512(); LANES];
        for (row, to) in (from..source.rows).zip(&mut rows[..count]) {
            let row = &source.data[row * source.stride..][step..source.cols];
            _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(AHEAD).cast());
            // SAFETY: only as many lanes are read as there are elements.
            *to = unsafe { _mm512_maskz_loadu_epi32(filled(row.len()), row.as_ptr().cast()) };
        }
        transpose(&mut rows);
        for (row, values) in (step..source.cols).zip(rows) {
            let to = &mut out[row * side..][..count];
            // SAFETY: only as many lanes are written as `to` has elements.
            unsafe { _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), lanes, values) };
        }
    }
}

fn block(left: &[f32], right: &[f32], place: Place<f32>, ahead: &[f32]) {
    // SAFETY: only a machine that has these features is given this kernel.
    unsafe {
        match place.cols {
            0..=LANES => block_wide::<1>(left, right, place, ahead),
            _ => block_wide::<2>(left, right, place, ahead),
        }
    }
}

/// Elements that the right side is called for in advance.
const SOON: usize = 512;

/// Over the first R registers of the right side.
#[target_feature(enable = "avx512f,fma")]
fn block_wide<const R: usize>(left: &[f32], right: &[f32], place: Place<f32>, ahead: &[f32]) {
    let Place { out, rows, cols, stride, how } = place;
    let mut sums = [[_mm512_setzero_ps(); R]; M];
    if how == Accumulate::Add {
        for row in 0..rows {
            let to = out[row * stride..].as_ptr();
            (0..R).for_each(|part| _mm_prefetch::<_MM_HINT_T0>(to.wrapping_add(part * LANES).cast()));
        }
    }
    let (left, right) = (left.as_chunks::<M>().0, right.as_chunks::<N>().0);
    let (mut next, pace) = (ahead.as_ptr(), ahead.len().div_ceil(left.len().max(1)));
    for (left, right) in left.iter().zip(right) {
        let right = right.as_ptr();
        // SAFETY: the chunk has two registers of elements.
        let right = unsafe {
            _mm_prefetch::<_MM_HINT_T0>(right.wrapping_add(SOON).cast());
            _mm_prefetch::<_MM_HINT_T0>(right.wrapping_add(SOON + LANES).cast());
            _mm_prefetch::<_MM_HINT_T1>(next.cast());
            std::array::from_fn::<_, R, _>(|part| _mm512_loadu_ps(right.add(part * LANES)))
        };
        next = next.wrapping_add(pace);
        for (sums, &left) in sums.iter_mut().zip(left) {
            let left = _mm512_set1_ps(left);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_fmadd_ps(left, right, *sum);
            }
        }
    }
    let masks = [filled(cols), filled(cols.saturating_sub(LANES))];
    for (row, sums) in sums.into_iter().enumerate().take(rows) {
        let to = &mut out[row * stride..][..cols];
        for ((part, sum), mask) in sums.into_iter().enumerate().zip(masks) {
            // SAFETY: the mask holds as many lanes as `to` has elements from there on; no lane outside is touched.
            unsafe {
                let to = to.as_mut_ptr().wrapping_add(part * LANES);
                let old = match how {
                    Accumulate::Add => _mm512_maskz_loadu_ps(mask, to),
                    Accumulate::Replace => _mm512_setzero_ps(),
                };
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(old, sum));
            }
        }
    }
}

/// Exchanges rows and columns of 16 x 16 double words.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: &mut [__m512i; LANES]) {
    // Pairs of rows, then of pairs, inside quarters of registers.
    let mut t = *rows;
    for i in (0..LANES).step_by(2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut u = t;
    for i in (0..LANES).step_by(4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Register 4 q + c: columns c, c + 4, c + 8, c + 12 of rows 4 q to 4 q + 3. Then the quarters.
    for c in 0..4 {
        let [a, b, d, e] = [u[c], u[4 + c], u[8 + c], u[12 + c]];
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (de_even, de_odd) = (_mm512_shuffle_i32x4::<0x88>(d, e), _mm512_shuffle_i32x4::<0xdd>(d, e));
        rows[c] = _mm512_shuffle_i32x4::<0x88>(ab_even, de_even);
        rows[4 + c] = _mm512_shuffle_i32x4::<0x88>(ab_odd, de_odd);
        rows[8 + c] = _mm512_shuffle_i32x4::<0xdd>(ab_even, de_even);
        rows[12 + c] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, de_odd);
    }
}
