//! 8-bit products and packing with AVX-512 VNNI.
//!
//! The micro-kernel has 6 rows by two registers of columns: 12 exact sums of a block and 12 `f32`
//! sums are in registers. 4 steps of two weights and 6 rows need 8 loads for 12 dot products.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::quantize::row_scale;
use super::{BLOCK_STEPS, ColumnBlock, MAX_ROWS, PANEL_COLUMNS, RowBits, RowBlock};
use crate::{Accumulate, avx512::lane_mask, packed::OutputTile, simd::Avx512Vnni};

/// Rows of a micro-kernel, at most.
pub(super) const ROWS: usize = MAX_ROWS;
/// Lanes of a register.
const LANES: usize = 16;

/// Multiplies up to 6 rows by up to 32 columns.
pub(super) fn multiply<const BYTES: usize>(
    _token: Avx512Vnni,
    rows: &[&[RowBlock]],
    columns: &[ColumnBlock],
    output: OutputTile<f32>,
) {
    assert!(rows.len() <= output.rows && output.cols <= PANEL_COLUMNS);
    // SAFETY: the token proves the features.
    unsafe {
        match (rows, output.cols > LANES) {
            (&[a], true) => multiply_rows::<1, 2, BYTES>([a], columns, output),
            (&[a, b], true) => multiply_rows::<2, 2, BYTES>([a, b], columns, output),
            (&[a, b, c], true) => multiply_rows::<3, 2, BYTES>([a, b, c], columns, output),
            (&[a, b, c, d], true) => multiply_rows::<4, 2, BYTES>([a, b, c, d], columns, output),
            (&[a, b, c, d, e], true) => multiply_rows::<5, 2, BYTES>([a, b, c, d, e], columns, output),
            (&[a, b, c, d, e, f], true) => multiply_rows::<6, 2, BYTES>([a, b, c, d, e, f], columns, output),
            // Few columns: at the end of an operand only.
            (rows, _) => {
                let OutputTile { out, cols, stride, accumulate, .. } = output;
                for (index, &row) in rows.iter().enumerate() {
                    let out = &mut out[index * stride..];
                    let output = OutputTile { out, rows: 1, cols, stride, accumulate };
                    multiply_rows::<1, 1, BYTES>([row], columns, output);
                }
            }
        }
    }
}

/// Multiplies M rows by R registers of columns.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
fn multiply_rows<const M: usize, const R: usize, const BYTES: usize>(
    rows: [&[RowBlock]; M],
    columns: &[ColumnBlock],
    output: OutputTile<f32>,
) {
    let OutputTile { out, cols, stride, accumulate, .. } = output;
    let rows = rows.map(|row| &row[..BYTES * columns.len()]);
    let mut sums = [[_mm512_setzero_ps(); R]; M];
    if accumulate == Accumulate::Add {
        for (row, sums) in sums.iter_mut().enumerate() {
            let from = &out[row * stride..][..cols];
            for (from, sum) in from.chunks(LANES).zip(sums) {
                // SAFETY: the mask contains only lanes that have elements.
                *sum = unsafe { _mm512_maskz_loadu_ps(lane_mask(from.len()), from.as_ptr()) };
            }
        }
    }
    for (index, block) in columns.iter().enumerate() {
        // SAFETY: there are scales of 2 registers, and all rows have as many blocks as the columns.
        let (scales, blocks): ([__m512; R], [&[RowBlock; BYTES]; M]) = unsafe {
            (
                std::array::from_fn(|register| {
                    let scales = block.scales.as_ptr().add(register * LANES);
                    _mm512_cvtph_ps(_mm256_load_si256(scales.cast()))
                }),
                rows.map(|row| row.as_chunks().0.get_unchecked(index)),
            )
        };
        let mut products = blocks.map(|bytes| [_mm512_set1_epi32(bytes[0].offset); R]);
        for byte in 0..BYTES {
            if byte > 0 {
                for (products, bytes) in products.iter_mut().zip(&blocks) {
                    let offset = _mm512_set1_epi32(bytes[byte].offset);
                    *products = products.map(|high| _mm512_add_epi32(_mm512_slli_epi32::<8>(high), offset));
                }
            }
            for group in 0..BLOCK_STEPS / 4 {
                // SAFETY: a group has 4 steps of 32 columns, and of each row.
                unsafe {
                    let values: [__m512i; R] = std::array::from_fn(|register| {
                        let values = block.values.as_ptr().add(group * 4 * PANEL_COLUMNS + register * 64);
                        _mm512_load_si512(values.cast())
                    });
                    for (bytes, products) in blocks.iter().zip(&mut products) {
                        let steps = bytes[byte].values.as_ptr().add(group * 4).cast::<i32>().read_unaligned();
                        let steps = _mm512_set1_epi32(steps);
                        for (product, values) in products.iter_mut().zip(values) {
                            *product = _mm512_dpbusd_epi32(*product, values, steps);
                        }
                    }
                }
            }
        }
        for ((bytes, products), sums) in blocks.iter().zip(products).zip(&mut sums) {
            let row_scale = _mm512_set1_ps(bytes[0].scale);
            for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(product), _mm512_mul_ps(row_scale, scale));
                *sum = _mm512_add_ps(*sum, scaled);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let to = &mut out[row * stride..][..cols];
        for (to, sum) in to.chunks_mut(LANES).zip(sums) {
            // SAFETY: the mask contains only lanes that have elements.
            unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), lane_mask(to.len()), sum) };
        }
    }
}

/// As [`super::pack_values`].
pub(super) fn pack_values(_token: Avx512Vnni, bits: RowBits, values: &[f32], blocks: &mut [RowBlock]) {
    // SAFETY: the token proves the features.
    unsafe { pack_values_wide(bits, values, blocks) }
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
fn pack_values_wide(bits: RowBits, values: &[f32], blocks: &mut [RowBlock]) {
    let mut chunks = values.chunks(BLOCK_STEPS);
    for bytes in blocks.chunks_mut(bits.bytes()) {
        let values = chunks.next().unwrap_or(&[]);
        let (low, high) = values.split_at(values.len().min(LANES));
        // SAFETY: only as many lanes are read as there are elements.
        let halves =
            unsafe { [low, high].map(|half| _mm512_maskz_loadu_ps(lane_mask(half.len()), half.as_ptr())) };
        let [first, second] =
            halves.map(|half| _mm512_and_si512(_mm512_castps_si512(half), _mm512_set1_epi32(0x7fff_ffff)));
        let magnitude = _mm512_reduce_max_epu32(_mm512_max_epu32(first, second));
        let (scale, inverse) = row_scale(bits, magnitude);
        let inverse = _mm512_set1_ps(inverse);
        // NaN times 0 becomes the smallest integer, whose low byte is 0.
        let values = halves.map(|half| _mm512_cvtps_epi32(_mm512_mul_ps(half, inverse)));
        match bytes {
            [block] => store_block(values, scale, block),
            bytes => {
                // A number is 256 high + low.
                let high =
                    values.map(|x| _mm512_srai_epi32::<8>(_mm512_add_epi32(x, _mm512_set1_epi32(128))));
                let low: [__m512i; 2] =
                    std::array::from_fn(|i| _mm512_sub_epi32(values[i], _mm512_slli_epi32::<8>(high[i])));
                bytes.iter_mut().zip([high, low]).for_each(|(byte, values)| store_block(values, scale, byte));
            }
        }
    }
}

/// Stores 32 integers of 8 bits, and the scale.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
fn store_block([first, second]: [__m512i; 2], scale: f32, block: &mut RowBlock) {
    let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
    let offset = (-128i32).wrapping_mul(sum);
    block.scale = scale;
    block.offset = if scale.is_nan() { 0 } else { offset };
    let to = block.values.as_mut_ptr();
    // SAFETY: the block has 32 values.
    unsafe {
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128(to.add(LANES).cast(), _mm512_cvtepi32_epi8(second));
    }
}
