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
    (first, first_step): (usize, usize),
    panel_width: usize,
    out: &mut [f32],
) {
    // SAFETY: the token proves the features.
    unsafe {
        // Usual sizes of micro-panels: 32 columns of a right operand, and 14 rows of a left one.
        match (source.steps_are_rows, panel_width) {
            (true, 32) if first + 32 <= source.cols => {
                pack_whole_columns::<32>(source, first, first_step, out)
            }
            (true, 14) if first + 14 <= source.cols => {
                pack_whole_columns::<14>(source, first, first_step, out)
            }
            (true, _) => pack_columns(source, first, first_step, panel_width, out),
            (false, 1) if first < source.rows => {
                out.copy_from_slice(&source.data[first * source.stride + first_step..][..out.len()]);
            }
            (false, _) => pack_rows(source, first, first_step, panel_width, out),
        }
    }
}

/// Packs columns that all exist.
#[target_feature(enable = "avx512f")]
fn pack_whole_columns<const WIDTH: usize>(
    source: &OperandSource<f32>,
    first_column: usize,
    first_step: usize,
    out: &mut [f32],
) {
    for (step, out) in (first_step..).zip(out.as_chunks_mut::<WIDTH>().0) {
        let row = &source.data[step * source.stride + first_column..];
        *out = *row.first_chunk::<WIDTH>().expect("the columns are there");
    }
}

/// Packs columns; padding is 0.
#[target_feature(enable = "avx512f")]
fn pack_columns(
    source: &OperandSource<f32>,
    first_column: usize,
    first_step: usize,
    panel_width: usize,
    out: &mut [f32],
) {
    for (step, out) in (first_step..).zip(out.chunks_exact_mut(panel_width)) {
        let row =
            &source.data[step * source.stride..][first_column..source.cols.min(first_column + panel_width)];
        for lane in (0..panel_width).step_by(LANES) {
            let (from, to) = (&row[lane.min(row.len())..], &mut out[lane..]);
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
fn pack_rows(
    source: &OperandSource<f32>,
    first: usize,
    first_step: usize,
    panel_width: usize,
    out: &mut [f32],
) {
    let (steps, len) = (out.len() / panel_width, out.len());
    assert!(out.len() == steps * panel_width);
    for lane in (0..panel_width).step_by(LANES) {
        let (first_row, lanes) = (first + lane, lane_mask(panel_width - lane));
        let row_count = LANES.min(panel_width - lane).min(source.rows.saturating_sub(first_row));
        let end = (first_row + row_count.max(1) - 1) * source.stride + first_step + steps;
        assert!(row_count == 0 || first_step + steps <= source.cols && end <= source.data.len());
        let rows = source.data.as_ptr().wrapping_add(first_row * source.stride + first_step);
        for step in (0..steps).step_by(LANES) {
            let step_lanes = lane_mask(steps - step);
            let prefetch_distance = PREFETCH_DISTANCE.min(steps - step - 1);
            let mut block: [__m512i; LANES] = std::array::from_fn(|i| {
                let row = rows.wrapping_add(i.min(row_count.saturating_sub(1)) * source.stride + step);
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(prefetch_distance).cast());
                let mask = if i < row_count { step_lanes } else { 0 };
                // SAFETY: only lanes of existing rows and steps are read, as checked.
                unsafe { _mm512_maskz_loadu_epi32(mask, row.cast()) }
            });
            transpose(&mut block);
            for (i, values) in block.into_iter().enumerate() {
                let index = (step + i) * panel_width + lane;
                let to = out.as_mut_ptr().wrapping_add(index).cast();
                // SAFETY: all writes are inside `out`. A narrow step also writes to the next one,
                // which is written later.
                unsafe {
                    if panel_width - lane >= LANES && index < len
                        || panel_width < LANES && index + LANES <= len
                    {
                        _mm512_storeu_epi32(to, values);
                    } else if index < len {
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
    let mut pairs = *rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..LANES).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // Register 4 q + c: columns c, c + 4, c + 8, c + 12 of rows 4 q to 4 q + 3. Then the quarters.
    for c in 0..4 {
        let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (de_even, de_odd) = (_mm512_shuffle_i32x4::<0x88>(d, e), _mm512_shuffle_i32x4::<0xdd>(d, e));
        rows[c] = _mm512_shuffle_i32x4::<0x88>(ab_even, de_even);
        rows[4 + c] = _mm512_shuffle_i32x4::<0x88>(ab_odd, de_odd);
        rows[8 + c] = _mm512_shuffle_i32x4::<0xdd>(ab_even, de_even);
        rows[12 + c] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, de_odd);
    }
}
