//! 8-bit products with the 256-bit dot products of AVX-VNNI.
//!
//! The micro-kernel has 3 rows by 4 registers of columns; `f32` sums are in memory.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::avx2::add_scaled;
use super::{BLOCK_STEPS, ColumnBlock, MAX_ROWS, PANEL_COLUMNS, RowBlock, TileRow, block_bytes};
use crate::simd::AvxVnni;

/// Rows of a micro-kernel, at most.
pub(super) const ROWS: usize = 3;
/// Lanes of a register.
const LANES: usize = 8;
/// Registers of columns.
const REGISTERS: usize = PANEL_COLUMNS / LANES;

/// Adds the products of up to 3 rows and 32 columns.
pub(super) fn multiply<const BYTES: usize>(
    _token: AvxVnni,
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
            _ => unreachable!("a micro-kernel has at most {ROWS} rows"),
        }
    }
}

#[target_feature(enable = "avx2,f16c,avxvnni")]
fn multiply_rows<const M: usize, const BYTES: usize>(
    rows: [&[RowBlock]; M],
    columns: &[ColumnBlock],
    sums: &mut [TileRow; MAX_ROWS],
) {
    for (index, column_block) in columns.iter().enumerate() {
        let blocks: [&[RowBlock; BYTES]; M] = rows.map(|row| block_bytes(row, index));
        let mut products = blocks.map(|bytes| [_mm256_set1_epi32(bytes[0].offset); REGISTERS]);
        for byte in 0..BYTES {
            if byte > 0 {
                for (products, bytes) in products.iter_mut().zip(&blocks) {
                    let offset = _mm256_set1_epi32(bytes[byte].offset);
                    *products = products.map(|high| _mm256_add_epi32(_mm256_slli_epi32::<8>(high), offset));
                }
            }
            for group in 0..BLOCK_STEPS / 4 {
                // SAFETY: a group has 4 steps of each row.
                let steps = blocks.map(|bytes| unsafe {
                    let steps = bytes[byte].values.as_ptr().add(group * 4).cast::<i32>().read_unaligned();
                    _mm256_set1_epi32(steps)
                });
                for register in 0..REGISTERS {
                    let position = 4 * (group * PANEL_COLUMNS + register * LANES);
                    let values = column_block.values.as_ptr().wrapping_add(position);
                    // SAFETY: a group has 4 steps of 32 columns.
                    let values = unsafe { _mm256_load_si256(values.cast()) };
                    for (products, steps) in products.iter_mut().zip(steps) {
                        products[register] = _mm256_dpbusd_avx_epi32(products[register], values, steps);
                    }
                }
            }
        }
        for (register, scales) in column_block.scales.chunks_exact(LANES).enumerate() {
            // SAFETY: the chunks have 8 elements.
            let scales = unsafe { _mm256_cvtph_ps(_mm_load_si128(scales.as_ptr().cast())) };
            for ((bytes, products), sums) in blocks.iter().zip(&products).zip(sums.iter_mut()) {
                add_scaled(sums, register * LANES, products[register], bytes[0].scale, scales);
            }
        }
    }
}
