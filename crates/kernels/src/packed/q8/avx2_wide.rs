//! 8-bit products of many rows with AVX2: operands widened to 16 bits, columns read from memory.
//!
//! The micro-kernel has 2 rows by 4 registers of columns: 18 instructions (2 broadcasts, 8
//! products of pairs, 8 sums) for 128 multiply-adds. The widened rows of a part of the sum are
//! allocated by each call: 68 bytes for each block of 32 steps.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::avx2::{add_scaled, row_pairs};
use super::{BLOCK_STEPS, ColumnBlock, Operands, PANEL_COLUMNS, RowBlock, TileRow, with_sums};
use crate::packed::OutputTile;
use crate::simd::Avx2F16c;
use crate::{Accumulate, ViewMut};

/// Smallest number of rows for which the widening saves time.
pub(super) const MIN_ROWS: usize = 32;
/// Lanes of a register.
const LANES: usize = 8;
/// Registers of a micro-panel.
const REGISTERS: usize = PANEL_COLUMNS / LANES;
/// Blocks of a part of the sum: their 17 KiB of a micro-panel stay in the first-level cache.
const PART_BLOCKS: usize = 8;

/// A block of a row, widened to 16 bits.
struct WideRow {
    /// Pairs of 16-bit integers.
    pairs: [i32; BLOCK_STEPS / 2],
    scale: f32,
}

/// A [`ColumnBlock`] in 16 bits.
#[repr(C, align(64))]
struct WideColumns {
    values: [i16; BLOCK_STEPS * PANEL_COLUMNS],
    scales: [f32; PANEL_COLUMNS],
}

/// As [`super::product`].
///
/// ```text
/// for blocks P of 8:
///   widen left[P]
///   for columns J of 32:
///     widen right[P, J]
///     for rows I of 2:  micro-kernel: out[I, J] (=|+=) left[I, P] · right[P, J]
/// ```
pub(super) fn product<const BYTES: usize>(
    _token: Avx2F16c,
    out: ViewMut<f32>,
    operands: Operands,
    accumulate: Accumulate,
) {
    // SAFETY: the token proves the features.
    unsafe { product_wide::<BYTES>(out, operands, accumulate) }
}

#[target_feature(enable = "avx2,f16c")]
fn product_wide<const BYTES: usize>(out: ViewMut<f32>, operands: Operands, accumulate: Accumulate) {
    let Operands { left, right, count } = operands;
    let ViewMut { data, rows, cols, stride } = out;
    let mut wide_rows = Vec::with_capacity(rows * PART_BLOCKS.min(count));
    let mut wide_columns = [const { WideColumns { values: [0; _], scales: [0.0; _] } }; PART_BLOCKS];
    for first in (0..count).step_by(PART_BLOCKS) {
        let part = first..count.min(first + PART_BLOCKS);
        let accumulate = if first == 0 { accumulate } else { Accumulate::Add };
        wide_rows.clear();
        for row in 0..rows {
            let blocks = left.first(row, BYTES * count).as_chunks().0;
            wide_rows.extend(blocks[part.clone()].iter().map(|bytes: &[RowBlock; BYTES]| widen_row(bytes)));
        }
        for col in (0..cols).step_by(PANEL_COLUMNS) {
            let panel = &right.first(col / PANEL_COLUMNS, count)[part.clone()];
            panel.iter().zip(&mut wide_columns).for_each(|(block, wide)| widen_columns(block, wide));
            let columns = &wide_columns[..part.len()];
            for (index, pair) in wide_rows.chunks(2 * part.len()).enumerate() {
                let out = &mut data[2 * index * stride + col..];
                let (rows, cols) = (pair.len() / part.len(), PANEL_COLUMNS.min(cols - col));
                let output = OutputTile { out, rows, cols, stride, accumulate };
                // An odd last row is multiplied twice; the second result is not used.
                let (a, b) = pair.split_at(part.len());
                let b = if b.is_empty() { a } else { b };
                with_two_rows(output, |sums| multiply_pair(a, b, columns, sums));
            }
        }
    }
}

/// Calls `multiply` with two rows of the output.
///
/// At the end of an operand these are copies, as there are fewer rows or columns.
#[inline(always)]
fn with_two_rows(output: OutputTile<f32>, multiply: impl FnOnce([&mut TileRow; 2])) {
    if output.rows < 2 || output.cols < PANEL_COLUMNS {
        return with_sums(output, |sums: &mut [TileRow; 2]| multiply(sums.each_mut()));
    }
    let (first, second) = output.out.split_at_mut(output.stride);
    let rows = [first, second].map(|row| row.first_chunk_mut().expect("32 columns"));
    let mut rows: [&mut TileRow; 2] = rows;
    if output.accumulate == Accumulate::Replace {
        rows.iter_mut().for_each(|row| row.fill(0.0));
    }
    multiply(rows);
}

/// Adds the products of two rows and 32 columns.
#[target_feature(enable = "avx2")]
fn multiply_pair(a: &[WideRow], b: &[WideRow], columns: &[WideColumns], sums: [&mut TileRow; 2]) {
    let [a_sums, b_sums] = sums;
    for ((a, b), columns) in a.iter().zip(b).zip(columns) {
        let [a_products, b_products] = pair_products(a, b, columns);
        add_block(a_sums, a_products, a, columns);
        add_block(b_sums, b_products, b, columns);
    }
}

/// Adds the products of a block times their scales.
#[target_feature(enable = "avx2")]
fn add_block(sums: &mut TileRow, products: [__m256i; REGISTERS], row: &WideRow, columns: &WideColumns) {
    for (register, products) in products.into_iter().enumerate() {
        let first = register * LANES;
        // SAFETY: there are as many scales as columns.
        let scales = unsafe { _mm256_load_ps(columns.scales.as_ptr().add(first)) };
        add_scaled(sums, first, products, row.scale, scales);
    }
}

/// Returns the exact sums of a block of two rows.
///
/// Inline assembly keeps columns as memory operands: compilers load them once for both rows, and
/// reorder the sums so that registers are spilled.
#[target_feature(enable = "avx2")]
fn pair_products(a: &WideRow, b: &WideRow, columns: &WideColumns) -> [[__m256i; REGISTERS]; 2] {
    let (a0, a1, a2, a3): (__m256i, __m256i, __m256i, __m256i);
    let (b0, b1, b2, b3): (__m256i, __m256i, __m256i, __m256i);
    // SAFETY: reads 16 pairs of each row, and 16 times 4 registers of columns.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {pa}, dword ptr [{a}]",
            "vpbroadcastd {pb}, dword ptr [{b}]",
            "vpmaddwd {a0}, {pa}, ymmword ptr [{w}]",
            "vpmaddwd {b0}, {pb}, ymmword ptr [{w}]",
            "vpmaddwd {a1}, {pa}, ymmword ptr [{w} + 32]",
            "vpmaddwd {b1}, {pb}, ymmword ptr [{w} + 32]",
            "vpmaddwd {a2}, {pa}, ymmword ptr [{w} + 64]",
            "vpmaddwd {b2}, {pb}, ymmword ptr [{w} + 64]",
            "vpmaddwd {a3}, {pa}, ymmword ptr [{w} + 96]",
            "vpmaddwd {b3}, {pb}, ymmword ptr [{w} + 96]",
            ".irp pair, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            r"vpbroadcastd {pa}, dword ptr [{a} + 4 * \pair]",
            r"vpbroadcastd {pb}, dword ptr [{b} + 4 * \pair]",
            r"vpmaddwd {p}, {pa}, ymmword ptr [{w} + 128 * \pair]",
            "vpaddd {a0}, {a0}, {p}",
            r"vpmaddwd {q}, {pb}, ymmword ptr [{w} + 128 * \pair]",
            "vpaddd {b0}, {b0}, {q}",
            r"vpmaddwd {p}, {pa}, ymmword ptr [{w} + 128 * \pair + 32]",
            "vpaddd {a1}, {a1}, {p}",
            r"vpmaddwd {q}, {pb}, ymmword ptr [{w} + 128 * \pair + 32]",
            "vpaddd {b1}, {b1}, {q}",
            r"vpmaddwd {p}, {pa}, ymmword ptr [{w} + 128 * \pair + 64]",
            "vpaddd {a2}, {a2}, {p}",
            r"vpmaddwd {q}, {pb}, ymmword ptr [{w} + 128 * \pair + 64]",
            "vpaddd {b2}, {b2}, {q}",
            r"vpmaddwd {p}, {pa}, ymmword ptr [{w} + 128 * \pair + 96]",
            "vpaddd {a3}, {a3}, {p}",
            r"vpmaddwd {q}, {pb}, ymmword ptr [{w} + 128 * \pair + 96]",
            "vpaddd {b3}, {b3}, {q}",
            ".endr",
            a = in(reg) a.pairs.as_ptr(),
            b = in(reg) b.pairs.as_ptr(),
            w = in(reg) columns.values.as_ptr(),
            a0 = out(ymm_reg) a0, a1 = out(ymm_reg) a1, a2 = out(ymm_reg) a2, a3 = out(ymm_reg) a3,
            b0 = out(ymm_reg) b0, b1 = out(ymm_reg) b1, b2 = out(ymm_reg) b2, b3 = out(ymm_reg) b3,
            pa = out(ymm_reg) _, pb = out(ymm_reg) _, p = out(ymm_reg) _, q = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [[a0, a1, a2, a3], [b0, b1, b2, b3]]
}

#[target_feature(enable = "avx2")]
fn widen_row<const BYTES: usize>(bytes: &[RowBlock; BYTES]) -> WideRow {
    WideRow { pairs: row_pairs(bytes), scale: bytes[0].scale }
}

#[target_feature(enable = "avx2,f16c")]
fn widen_columns(block: &ColumnBlock, wide: &mut WideColumns) {
    for (from, to) in block.values.chunks_exact(16).zip(wide.values.chunks_exact_mut(16)) {
        // SAFETY: chunks of 16 values, aligned as the blocks.
        unsafe {
            let values = _mm256_cvtepi8_epi16(_mm_load_si128(from.as_ptr().cast()));
            _mm256_store_si256(to.as_mut_ptr().cast(), values);
        }
    }
    for (from, to) in block.scales.chunks_exact(LANES).zip(wide.scales.chunks_exact_mut(LANES)) {
        // SAFETY: chunks of 8 scales, aligned as the blocks.
        unsafe { _mm256_store_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_load_si128(from.as_ptr().cast()))) };
    }
}
