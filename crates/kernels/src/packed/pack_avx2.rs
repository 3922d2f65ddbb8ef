//! AVX2 packing of `f32` matrices into micro-panels.
//!
//! Rows are transposed in registers, 8 x 8 numbers at a time.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::{OperandSource, micro};
use crate::simd::Avx2Fma;

/// Elements of a register.
const LANES: usize = 8;

/// As [`super::micro::pack`].
pub(crate) fn pack(
    _token: Avx2Fma,
    source: &OperandSource<f32>,
    (first, first_step): (usize, usize),
    panel_width: usize,
    out: &mut [f32],
) {
    // Usual sizes of micro-panels: 16 columns of a right operand, and up to 6 rows of a left one.
    match (source.steps_are_rows, panel_width) {
        (true, 16) if first + 16 <= source.cols => pack_whole_columns::<16>(source, first, first_step, out),
        (true, 6) if first + 6 <= source.cols => pack_whole_columns::<6>(source, first, first_step, out),
        (true, 5) if first + 5 <= source.cols => pack_whole_columns::<5>(source, first, first_step, out),
        (true, 4) if first + 4 <= source.cols => pack_whole_columns::<4>(source, first, first_step, out),
        (true, _) => micro::pack(source, (first, first_step), panel_width, out),
        (false, 1) if first < source.rows => {
            out.copy_from_slice(&source.data[first * source.stride + first_step..][..out.len()]);
        }
        // SAFETY: the token proves the features.
        (false, _) => unsafe { pack_rows(source, first, first_step, panel_width, out) },
    }
}

/// Packs columns that all exist.
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

/// Packs rows; padding is 0.
///
/// ```text
/// for each 8 rows:
///   for each 8 steps:  load a register for each row, transpose, store a register for each step
/// ```
#[target_feature(enable = "avx2,fma")]
fn pack_rows(
    source: &OperandSource<f32>,
    first: usize,
    first_step: usize,
    panel_width: usize,
    out: &mut [f32],
) {
    let steps = out.len() / panel_width;
    for lane in (0..panel_width).step_by(LANES) {
        let (first_row, width) = (first + lane, LANES.min(panel_width - lane));
        let row_count = width.min(source.rows.saturating_sub(first_row));
        for step in (0..steps).step_by(LANES) {
            let count = LANES.min(steps - step);
            let mut block: [__m256; LANES] = std::array::from_fn(|i| {
                if i >= row_count {
                    return _mm256_setzero_ps();
                }
                let row = &source.data[(first_row + i) * source.stride + first_step + step..][..count];
                let mut lanes = [0.0; LANES];
                let lanes = row.first_chunk().unwrap_or_else(|| {
                    lanes[..count].copy_from_slice(row);
                    &lanes
                });
                // SAFETY: as many elements as lanes.
                unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
            });
            transpose(&mut block);
            for (i, values) in block.into_iter().enumerate().take(count) {
                let to = &mut out[(step + i) * panel_width + lane..];
                // A narrow step also writes to the next one, which is written later.
                match to.first_chunk_mut::<LANES>() {
                    // SAFETY: as many elements as lanes.
                    Some(to) if width == LANES || panel_width < LANES => unsafe {
                        _mm256_storeu_ps(to.as_mut_ptr(), values)
                    },
                    _ => {
                        let mut lanes = [0.0; LANES];
                        // SAFETY: as many elements as lanes.
                        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), values) };
                        to[..width].copy_from_slice(&lanes[..width]);
                    }
                }
            }
        }
    }
}

/// Transposes 8 x 8 numbers.
#[target_feature(enable = "avx2,fma")]
fn transpose(rows: &mut [__m256; LANES]) {
    // Interleave rows, then pairs of rows, within 128-bit halves; then exchange the halves.
    let mut pairs = *rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (a, b) = (pairs[i + half], pairs[i + 2 + half]);
            fours[i + 2 * half] = _mm256_shuffle_ps::<0x44>(a, b);
            fours[i + 2 * half + 1] = _mm256_shuffle_ps::<0xee>(a, b);
        }
    }
    for i in 0..LANES / 2 {
        rows[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
        rows[4 + i] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::{Operand, check::synthetic};
    use crate::simd::SimdLevel;
    use crate::{Real, View};

    #[test]
    fn panels_equal_plain_loops() {
        let Some(token) = SimdLevel::all().into_iter().find_map(|level| match level {
            SimdLevel::Avx2(token) => Some(token),
            _ => None,
        }) else {
            println!("skipped: no AVX2 on this machine");
            return;
        };
        for (rows, cols) in [(1, 1), (3, 20), (6, 8), (7, 9), (16, 16), (20, 33), (33, 5)] {
            let stride = cols + 3;
            let matrix: Vec<f32> = synthetic(rows * stride, 5);
            let view = View::with_stride(&matrix, rows, cols, stride);
            for operand in [Operand::Left, Operand::Right] {
                let source = OperandSource::new(view, operand);
                let (len, steps) = source.sizes();
                for panel_width in [1, 2, 4, 5, 6, 7, 8, 11, 16, len] {
                    for (first, first_step) in [(0, 0), (len / 2, steps / 3), (len - 1, steps - 1)] {
                        let mut actual = vec![f32::NAN; panel_width * (steps - first_step)];
                        let mut expected = actual.clone();
                        pack(token, &source, (first, first_step), panel_width, &mut actual);
                        micro::pack(&source, (first, first_step), panel_width, &mut expected);
                        let case = format!("{rows} x {cols} {operand:?} {panel_width} {first} {first_step}");
                        assert_eq!(actual, expected, "{case}");
                    }
                }
            }
        }
        let shape = <f32 as Real>::tile_shape(SimdLevel::Avx2(token));
        assert_eq!(shape, [6, 16], "the specialized sizes");
    }
}
