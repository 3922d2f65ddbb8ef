//! bf16 packing with AVX-512, for products with AVX-512 and with AMX.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::{Operand, OperandSource, TILE_SIDE, Tile, is_transposed};
use crate::{avx512::lane_mask, packed::pack_avx512::transpose, simd::Avx512Bf16};

/// Loads 16 elements of a row from a column on, 0 beyond the matrix.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn load(source: &OperandSource<f32>, row: usize, col: usize) -> __m512 {
    if row >= source.rows || col >= source.cols {
        return _mm512_setzero_ps();
    }
    let row = &source.data[row * source.stride..][col..source.cols];
    // SAFETY: only as many lanes are read as there are elements.
    unsafe { _mm512_maskz_loadu_ps(lane_mask(row.len()), row.as_ptr()) }
}

/// As [`super::pack_tile`].
pub(super) fn pack_tile(
    _token: Avx512Bf16,
    source: &OperandSource<f32>,
    position: (usize, usize),
    operand: Operand,
    tile: &mut Tile,
) {
    // SAFETY: the token proves the features.
    unsafe { pack_tile_wide(source, position, operand, tile) }
}

/// As [`super::split::pack_split_tile`].
pub(super) fn pack_split_tile(
    _token: Avx512Bf16,
    source: &OperandSource<f32>,
    position: (usize, usize),
    operand: Operand,
    tiles: [&mut Tile; 2],
) {
    // SAFETY: the token proves the features.
    unsafe { pack_split_tile_wide(source, position, operand, tiles) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_tile_wide(source: &OperandSource<f32>, position: (usize, usize), operand: Operand, tile: &mut Tile) {
    let mut halves = [_mm512_setzero_si512(); TILE_SIDE];
    for (i, halves) in halves.iter_mut().enumerate() {
        *halves = round_to_bf16(load_pair(source, position, i));
    }
    store_tile(halves, source, operand, tile);
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_split_tile_wide(
    source: &OperandSource<f32>,
    position: (usize, usize),
    operand: Operand,
    [high_tile, low_tile]: [&mut Tile; 2],
) {
    let [mut high, mut low] = [[_mm512_setzero_si512(); TILE_SIDE]; 2];
    for (i, (high, low)) in high.iter_mut().zip(&mut low).enumerate() {
        let [first, second] = load_pair(source, position, i);
        *high = round_to_bf16([first, second]);
        let widen = |half: __m256i| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)));
        let (first_high, second_high) =
            (widen(_mm512_castsi512_si256(*high)), widen(_mm512_extracti64x4_epi64::<1>(*high)));
        *low = round_to_bf16([_mm512_sub_ps(first, first_high), _mm512_sub_ps(second, second_high)]);
    }
    store_tile(high, source, operand, high_tile);
    store_tile(low, source, operand, low_tile);
}

/// Loads row `i` of both halves of a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn load_pair(source: &OperandSource<f32>, (row, col): (usize, usize), i: usize) -> [__m512; 2] {
    match source.steps_are_rows {
        true => [load(source, row + 2 * i, col), load(source, row + 2 * i + 1, col)],
        false => [load(source, row + i, col), load(source, row + i, col + TILE_SIDE)],
    }
}

/// Rounds two registers to the lower and the upper half of one.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn round_to_bf16([low, high]: [__m512; 2]) -> __m512i {
    // SAFETY: both types are 64 bytes without any invariant.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Writes the halves of a tile in the order of its operand.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn store_tile(
    mut pairs: [__m512i; TILE_SIDE],
    source: &OperandSource<f32>,
    operand: Operand,
    tile: &mut Tile,
) {
    // Interleaves the 16-bit words of two registers.
    let interleaved = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
        2, 17, 1, 16, 0,
    );
    if source.steps_are_rows {
        for pairs in &mut pairs {
            *pairs = _mm512_permutexvar_epi16(interleaved, *pairs);
        }
    }
    if is_transposed(source, operand) {
        transpose(&mut pairs);
    }
    for (to, pairs) in tile.0.chunks_exact_mut(2 * TILE_SIDE).zip(pairs) {
        // SAFETY: the chunk has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
    }
}
