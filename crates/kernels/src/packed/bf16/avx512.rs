//! bf16 matrix products with AVX-512, for CPUs without AMX.
//!
//! The micro-kernel has 8 rows by two registers of columns: 16 independent sums hide the latency of
//! the dot product, and each pair of steps needs 10 loads for 16 of them.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::{BLOCK_SIDE, TILE_SIDE, Tile, TilePanels};
use crate::{Accumulate, ViewMut, avx512::lane_mask, packed::OutputTile, simd::Avx512Bf16};

/// Rows of a micro-kernel.
const ROWS: usize = 8;

/// Computes `out (=|+=) left · right`.
///
/// ```text
/// for blocks of steps P:
///   for columns J of 32:
///     for rows I of 8:  out[I, J] (=|+=) left[I, P] · right[P, J]
/// ```
pub(super) fn product(
    _token: Avx512Bf16,
    out: ViewMut<f32>,
    [left, right]: [TilePanels; 2],
    (step_tiles, block_tiles): (usize, usize),
    accumulate: Accumulate,
) {
    let ViewMut { data, rows, cols, stride } = out;
    for first in (0..step_tiles.max(1)).step_by(block_tiles.max(1)) {
        let tiles = first..step_tiles.min(first + block_tiles);
        let accumulate = if first == 0 { accumulate } else { Accumulate::Add };
        for col in (0..cols).step_by(BLOCK_SIDE) {
            let right = right.pair(col, step_tiles).map(|panel| &panel[tiles.clone()]);
            for row in (0..rows).step_by(ROWS) {
                let left = &left.panel(row / TILE_SIDE, step_tiles)[tiles.clone()];
                let out = &mut data[row * stride + col..];
                let output = OutputTile { out, rows: rows - row, cols: cols - col, stride, accumulate };
                // SAFETY: the token proves the features.
                unsafe {
                    match cols - col > TILE_SIDE {
                        true => multiply_rows::<2>(left, row % TILE_SIDE, right, output),
                        false => multiply_rows::<1>(left, row % TILE_SIDE, right, output),
                    }
                }
            }
        }
    }
}

/// Computes 8 rows by R registers of columns; `first` is the first row in the tiles of `left`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn multiply_rows<const R: usize>(left: &[Tile], first: usize, right: [&[Tile]; 2], output: OutputTile<f32>) {
    assert!(first + ROWS <= TILE_SIDE);
    let mut sums = [[_mm512_setzero_ps(); R]; ROWS];
    for (left, (right0, right1)) in left.iter().zip(right[0].iter().zip(right[1])) {
        let right = [right0, right1];
        for pair in 0..TILE_SIDE {
            // SAFETY: a tile has 16 rows of 64 bytes, and in the left one eight of them are read.
            unsafe {
                let columns: [__m512bh; R] = std::array::from_fn(|panel| {
                    let columns = right[panel].0.as_ptr().add(pair * 2 * TILE_SIDE);
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_load_si512(columns.cast()))
                });
                for (i, sums) in sums.iter_mut().enumerate() {
                    let row_pair = left.0.as_ptr().add((first + i) * 2 * TILE_SIDE + 2 * pair);
                    let row_pair = _mm512_set1_epi32(row_pair.cast::<i32>().read());
                    let row_pair = std::mem::transmute::<__m512i, __m512bh>(row_pair);
                    for (sum, columns) in sums.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, row_pair, columns);
                    }
                }
            }
        }
    }
    let OutputTile { out, rows, cols, stride, accumulate } = output;
    for (row, sums) in sums.into_iter().enumerate().take(rows) {
        let to = &mut out[row * stride..][..cols.min(R * TILE_SIDE)];
        for (to, sum) in to.chunks_mut(TILE_SIDE).zip(sums) {
            let mask = lane_mask(to.len());
            // SAFETY: the mask contains only lanes that have elements.
            unsafe {
                let old = match accumulate {
                    Accumulate::Add => _mm512_maskz_loadu_ps(mask, to.as_ptr()),
                    Accumulate::Replace => _mm512_setzero_ps(),
                };
                _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, _mm512_add_ps(old, sum));
            }
        }
    }
}
