//! bf16 matrix products with AVX2: operands are expanded to `f32` in registers.
//!
//! The bits of a bf16 number are the upper half of an `f32`: a shift extracts the first step of a
//! pair, and a mask the second. The micro-kernel has 4 rows by two registers of columns, and a
//! pair of steps needs 6 loads and 12 shifts and masks for 16 multiply-adds.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::{DEPTH, TILE_SIDE, Tile, TilePanels};
use crate::{Accumulate, ViewMut, packed::OutputTile, simd::Avx2Fma};

/// Rows of a micro-kernel.
const ROWS: usize = 4;
/// Registers of columns.
const REGISTERS: usize = 2;
/// Lanes of a register.
const LANES: usize = 8;

/// Computes `out (=|+=) left · right`.
///
/// ```text
/// for blocks of steps P:
///   for columns J of 16:
///     for rows I of 4:  out[I, J] (=|+=) left[I, P] · right[P, J]
/// ```
pub(super) fn product(
    _token: Avx2Fma,
    out: ViewMut<f32>,
    [left, right]: [TilePanels; 2],
    (step_tiles, block_tiles): (usize, usize),
    accumulate: Accumulate,
) {
    let ViewMut { data, rows, cols, stride } = out;
    for first in (0..step_tiles.max(1)).step_by(block_tiles.max(1)) {
        let tiles = first..step_tiles.min(first + block_tiles);
        let accumulate = if first == 0 { accumulate } else { Accumulate::Add };
        for col in (0..cols).step_by(TILE_SIDE) {
            let right = &right.panel(col / TILE_SIDE, step_tiles)[tiles.clone()];
            for row in (0..rows).step_by(ROWS) {
                let left = &left.panel(row / TILE_SIDE, step_tiles)[tiles.clone()];
                let out = &mut data[row * stride + col..];
                let cols = TILE_SIDE.min(cols - col);
                let output = OutputTile { out, rows: rows - row, cols, stride, accumulate };
                // SAFETY: the token proves the features.
                unsafe { multiply_rows(left, row % TILE_SIDE, right, output) };
            }
        }
    }
}

/// Computes 4 rows by 16 columns; `first` is the first row in the tiles of `left`.
#[target_feature(enable = "avx2,fma")]
fn multiply_rows(left: &[Tile], first: usize, right: &[Tile], output: OutputTile<f32>) {
    assert!(first + ROWS <= TILE_SIDE);
    let mut sums = [[_mm256_setzero_ps(); REGISTERS]; ROWS];
    for (left, right) in left.iter().zip(right) {
        for pair in 0..DEPTH / 2 {
            let columns: [__m256i; REGISTERS] = std::array::from_fn(|register| {
                let position = 2 * (pair * TILE_SIDE + register * LANES);
                // SAFETY: a tile has 16 pairs of 16 columns; it and each register start at a
                // multiple of 32 bytes.
                unsafe { _mm256_load_si256(right.0.as_ptr().add(position).cast()) }
            });
            let columns = columns.map(|pairs| expand(pairs));
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: a tile has 16 rows of 16 pairs, `first + ROWS` is at most 16, and a pair
                // starts at a multiple of 4 bytes.
                let row_pair =
                    unsafe { left.0.as_ptr().add((first + i) * DEPTH + 2 * pair).cast::<i32>().read() };
                let [row0, row1] = expand(_mm256_set1_epi32(row_pair));
                for (sum, [column0, column1]) in sums.iter_mut().zip(columns) {
                    *sum = _mm256_fmadd_ps(row1, column1, _mm256_fmadd_ps(row0, column0, *sum));
                }
            }
        }
    }
    let OutputTile { out, rows, cols, stride, accumulate } = output;
    for (row, sums) in sums.into_iter().enumerate().take(rows) {
        let to = &mut out[row * stride..][..cols];
        let mut lanes = [0.0; REGISTERS * LANES];
        for (lanes, sum) in lanes.chunks_exact_mut(LANES).zip(sums) {
            // SAFETY: the chunks have 8 elements.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        }
        for (to, sum) in to.iter_mut().zip(lanes) {
            *to = if accumulate == Accumulate::Add { *to + sum } else { sum };
        }
    }
}

/// Expands eight pairs of bf16 numbers: the first ones, then the second ones.
#[target_feature(enable = "avx2")]
fn expand(pairs: __m256i) -> [__m256; 2] {
    let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))]
}
