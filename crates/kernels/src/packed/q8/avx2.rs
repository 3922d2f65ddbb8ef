//! 8-bit products and packing with AVX2: products of 16-bit pairs.
//!
//! The micro-kernel has 4 rows by two registers of columns; `f32` sums are in memory, as a block
//! needs them once. `vpmaddubsw` would need another instruction for the signs and is not faster.
//! Products of many rows are in [`super::avx2_wide`].
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::quantize::row_scale;
use super::{BLOCK_STEPS, ColumnBlock, MAX_ROWS, PANEL_COLUMNS, RowBits, RowBlock, TileRow, block_bytes};
use crate::simd::Avx2F16c;

/// Rows of a micro-kernel, at most.
pub(super) const ROWS: usize = 4;
/// Registers of columns that are computed at once.
const REGISTERS: usize = 2;
/// Lanes of a register.
const LANES: usize = 8;

/// Adds the products of up to 4 rows and 32 columns.
pub(super) fn multiply<const BYTES: usize>(
    _token: Avx2F16c,
    rows: &[&[RowBlock]],
    columns: &[ColumnBlock],
    sums: &mut [TileRow; MAX_ROWS],
) {
    // SAFETY: the token proves the features.
    unsafe {
        match *rows {
            [a] => multiply_rows::<1, BYTES>([a], columns, sums),
            [a, b] => multiply_rows::<2, BYTES>([a, b], columns, sums),
            [a, b, c] => multiply_rows::<3, BYTES>([a, b, c], columns, sums),
            [a, b, c, d] => multiply_rows::<4, BYTES>([a, b, c, d], columns, sums),
            _ => unreachable!("a micro-kernel has at most {ROWS} rows"),
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn multiply_rows<const M: usize, const BYTES: usize>(
    rows: [&[RowBlock]; M],
    columns: &[ColumnBlock],
    sums: &mut [TileRow; MAX_ROWS],
) {
    for (index, column_block) in columns.iter().enumerate() {
        let blocks: [&[RowBlock; BYTES]; M] = rows.map(|row| block_bytes(row, index));
        // Pairs of 16-bit steps.
        let pairs = blocks.map(|bytes| row_pairs(bytes));
        for first in (0..PANEL_COLUMNS).step_by(REGISTERS * LANES) {
            let mut products = [[_mm256_setzero_si256(); REGISTERS]; M];
            for pair in 0..BLOCK_STEPS / 2 {
                let values: [__m256i; REGISTERS] = std::array::from_fn(|register| {
                    let position = pair * 2 * PANEL_COLUMNS + 2 * (first + register * LANES);
                    // SAFETY: a pair has 2 steps of 32 columns.
                    let values = unsafe { _mm_load_si128(column_block.values.as_ptr().add(position).cast()) };
                    _mm256_cvtepi8_epi16(values)
                });
                for (pairs, products) in pairs.iter().zip(&mut products) {
                    let steps = _mm256_set1_epi32(pairs[pair]);
                    for (product, values) in products.iter_mut().zip(values) {
                        *product = _mm256_add_epi32(*product, _mm256_madd_epi16(steps, values));
                    }
                }
            }
            for (register, scales) in
                column_block.scales[first..].chunks_exact(LANES).take(REGISTERS).enumerate()
            {
                // SAFETY: the chunks have 8 elements.
                let scales = unsafe { _mm256_cvtph_ps(_mm_load_si128(scales.as_ptr().cast())) };
                for ((bytes, products), sums) in blocks.iter().zip(&products).zip(sums.iter_mut()) {
                    add_scaled(sums, first + register * LANES, products[register], bytes[0].scale, scales);
                }
            }
        }
    }
}

/// Returns the integers of a block as pairs of 16 bits.
#[target_feature(enable = "avx2")]
pub(super) fn row_pairs<const BYTES: usize>(bytes: &[RowBlock; BYTES]) -> [i32; BLOCK_STEPS / 2] {
    let mut pairs = [0; BLOCK_STEPS / 2];
    for half in 0..2 {
        let mut values = _mm256_setzero_si256();
        for byte in bytes {
            // SAFETY: a half of 16 values.
            let next = unsafe { _mm_loadu_si128(byte.values.as_ptr().add(16 * half).cast()) };
            values = _mm256_add_epi16(_mm256_slli_epi16::<8>(values), _mm256_cvtepi8_epi16(next));
        }
        // SAFETY: a half of 8 pairs.
        unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().add(8 * half).cast(), values) };
    }
    pairs
}

/// Adds integer sums times their scales to 8 columns from `first` on.
#[target_feature(enable = "avx2")]
pub(super) fn add_scaled(
    sums: &mut TileRow,
    first: usize,
    products: __m256i,
    row_scale: f32,
    scales: __m256,
) {
    let scales = _mm256_mul_ps(_mm256_set1_ps(row_scale), scales);
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(products), scales);
    let sums = &mut sums[first..first + LANES];
    // SAFETY: the slice has 8 elements.
    unsafe {
        let sum = _mm256_add_ps(_mm256_loadu_ps(sums.as_ptr()), scaled);
        _mm256_storeu_ps(sums.as_mut_ptr(), sum);
    }
}

/// As [`super::pack_values`].
pub(super) fn pack_values(_token: Avx2F16c, bits: RowBits, values: &[f32], blocks: &mut [RowBlock]) {
    // SAFETY: the token proves the features.
    unsafe { pack_values_wide(bits, values, blocks) }
}

#[target_feature(enable = "avx2,f16c")]
fn pack_values_wide(bits: RowBits, values: &[f32], blocks: &mut [RowBlock]) {
    let mut chunks = values.chunks(BLOCK_STEPS);
    for bytes in blocks.chunks_mut(bits.bytes()) {
        let chunk = chunks.next().unwrap_or(&[]);
        match chunk.try_into() {
            Ok(values) => pack_block(bits, values, bytes),
            Err(_) => {
                let mut padded = [0.0; BLOCK_STEPS];
                padded[..chunk.len()].copy_from_slice(chunk);
                pack_block(bits, &padded, bytes);
            }
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn pack_block(bits: RowBits, values: &[f32; BLOCK_STEPS], bytes: &mut [RowBlock]) {
    let quarters: [__m256; 4] = std::array::from_fn(|i| {
        // SAFETY: 4 times 8 values.
        unsafe { _mm256_loadu_ps(values.as_ptr().add(i * LANES)) }
    });
    let magnitudes = quarters
        .map(|quarter| _mm256_and_si256(_mm256_castps_si256(quarter), _mm256_set1_epi32(0x7fff_ffff)));
    let max = _mm256_max_epu32(
        _mm256_max_epu32(magnitudes[0], magnitudes[1]),
        _mm256_max_epu32(magnitudes[2], magnitudes[3]),
    );
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    let (scale, inverse) = row_scale(bits, _mm_cvtsi128_si32(max).cast_unsigned());
    let inverse = _mm256_set1_ps(inverse);
    let values = quarters.map(|quarter| _mm256_cvtps_epi32(_mm256_mul_ps(quarter, inverse)));
    match bytes {
        [block] => store_block(values, scale, block),
        bytes => {
            // A number is 256 high + low.
            let high = values.map(|x| _mm256_srai_epi32::<8>(_mm256_add_epi32(x, _mm256_set1_epi32(128))));
            let low: [__m256i; 4] =
                std::array::from_fn(|i| _mm256_sub_epi32(values[i], _mm256_slli_epi32::<8>(high[i])));
            bytes.iter_mut().zip([high, low]).for_each(|(byte, values)| store_block(values, scale, byte));
        }
    }
}

/// Stores 32 integers of 8 bits, and the scale.
#[target_feature(enable = "avx2")]
fn store_block([a, b, c, d]: [__m256i; 4], scale: f32, block: &mut RowBlock) {
    let sums = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums));
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    // Packing mixes the halves: lanes a b c d of 4 bytes, low halves first.
    let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the block has 32 values.
    unsafe { _mm256_storeu_si256(block.values.as_mut_ptr().cast(), packed) };
    block.scale = scale;
    block.offset = (-128i32).wrapping_mul(_mm_cvtsi128_si32(sums));
    if scale.is_nan() {
        (block.values, block.offset) = ([0; BLOCK_STEPS], 0);
    }
}
