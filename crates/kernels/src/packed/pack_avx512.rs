//! AVX-512 packing of `f32` matrices into micro-panels.
//!
//! Rows are transposed in registers, 16 x 16 numbers at a time.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::OperandSource;
use crate::{avx512::lane_mask, simd::Avx512};

/// Elements of a register.
const LANES: usize = 16;
/// Prefetch distance within a row, in elements.
const PREFETCH_DISTANCE: usize = 128;

/// As [`super::micro::pack`].
pub(crate) fn pack(
    _token: Avx512,
    source: &OperandSource<f32>,
    (from, step): (usize, usize),
    side: usize,
    out: &mut [f32],
) {
    // SAFETY: the token proves the features.
    unsafe {
        match (source.across, side) {
            (true, 32) if from + 32 <= source.cols => across_whole::<32>(source, from, step, out),
            (true, 14) if from + 14 <= source.cols => across_whole::<14>(source, from, step, out),
            (true, _) => across(source, from, step, (side, out)),
            (false, 1) if from < source.rows => {
                out.copy_from_slice(&source.data[from * source.stride + step..][..out.len()]);
            }
            (false, _) => along(source, from, step, (side, out)),
        }
    }
}

/// Packs columns that all exist.
#[target_feature(enable = "avx512f")]
fn across_whole<const SIDE: usize>(source: &OperandSource<f32>, from: usize, step: usize, out: &mut [f32]) {
    for (step, out) in (step..).zip(out.as_chunks_mut::<SIDE>().0) {
        let row = &source.data[step * source.stride + from..];
        *out = *row.first_chunk::<SIDE>().expect("the columns are there");
    }
}

/// Packs columns; padding is 0.
#[target_feature(enable = "avx512f")]
fn across(source: &OperandSource<f32>, from: usize, step: usize, (side, out): (usize, &mut [f32])) {
    for (step, out) in (step..).zip(out.chunks_exact_mut(side)) {
        let row = &source.data[step * source.stride..][from..source.cols.min(from + side)];
        for part in (0..side).step_by(LANES) {
            let (from, to) = (&row[part.min(row.len())..], &mut out[part..]);
            // SAFETY: the masks contain only lanes that have elements.
            unsafe {
                let values = _mm512_maskz_loadu_ps(lane_mask(from.len()), from.as_ptr());
                _mm512_mask_storeu_ps(to.as_mut_ptr(), lane_mask(to.len()), values);
            }
        }
    }
}

/// Packs rows; padding is 0.
///
/// ```text
/// for each 16 rows:
///   for each 16 steps:  load a register for each row, transpose, store a register for each step
/// ```
#[target_feature(enable = "avx512f")]
fn along(source: &OperandSource<f32>, from: usize, first: usize, (side, out): (usize, &mut [f32])) {
    let (steps, len) = (out.len() / side, out.len());
    assert!(out.len() == steps * side);
    for part in (0..side).step_by(LANES) {
        let (from, lanes) = (from + part, lane_mask(side - part));
        let present = LANES.min(side - part).min(source.rows.saturating_sub(from));
        let last = (from + present.max(1) - 1) * source.stride + first + steps;
        assert!(present == 0 || first + steps <= source.cols && last <= source.data.len());
        let rows = source.data.as_ptr().wrapping_add(from * source.stride + first);
        for step in (0..steps).step_by(LANES) {
            let columns = lane_mask(steps - step);
            let prefetch = PREFETCH_DISTANCE.min(steps - step - 1);
            let mut block: [__m512i; LANES] = std::array::from_fn(|i| {
                let row = rows.wrapping_add(i.min(present.saturating_sub(1)) * source.stride + step);
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(prefetch).cast());
                let mask = if i < present { columns } else { 0 };
                // SAFETY: only lanes of existing rows and steps are read, as checked.
                unsafe { _mm512_maskz_loadu_epi32(mask, row.cast()) }
            });
            transpose(&mut block);
            for (i, values) in block.into_iter().enumerate() {
                let at = (step + i) * side + part;
                let to = out.as_mut_ptr().wrapping_add(at).cast();
                // SAFETY: all writes are inside `out`. A narrow step also writes to the next one,
                // which is written later.
                unsafe {
                    if side - part >= LANES && at < len || side < LANES && at + LANES <= len {
                        _mm512_storeu_epi32(to, values);
                    } else if at < len {
                        _mm512_mask_storeu_epi32(to, lanes, values);
                    }
                }
            }
        }
    }
}

/// Transposes 16 x 16 double words.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: &mut [__m512i; LANES]) {
    // Interleave rows, then pairs of rows, within 128-bit quarters of registers.
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
