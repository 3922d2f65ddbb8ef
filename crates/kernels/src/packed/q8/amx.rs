//! 8-bit products of many rows with AMX tiles.
//!
//! Four registers hold the exact sums of a block of 32 steps for up to 32 rows by 32 columns. Those
//! of a few blocks are stored, and AVX-512 adds them times their scales.
#![allow(unsafe_code)]
use std::arch::{asm, x86_64::*};

use super::{BLOCK_STEPS, Blocks, ColumnBlock, Operands, PANEL_COLUMNS, RowBlock};
use crate::avx512::lane_mask;
use crate::packed::OutputTile;
use crate::packed::tile_config::{self, TileConfig};
use crate::simd::{Amx, Avx512Vnni};
use crate::{Accumulate, ViewMut};

/// Smallest number of rows.
pub(super) const MIN_ROWS: usize = 16;
/// Rows of a group, at most: two tiles.
const GROUP_ROWS: usize = 32;
/// Blocks of a part of the sum: the output is read and written once for each part.
const PART_BLOCKS: usize = 4;
/// Lanes of a register of AVX-512.
const LANES: usize = 16;
/// Registers of a row of sums.
const REGISTERS: usize = PANEL_COLUMNS / LANES;
/// Bytes of a row of sums in a tile.
const TILE_ROW_BYTES: usize = 64;
/// Steps of a row of a tile of columns.
const GROUP_STEPS: usize = 4;

/// Returns the configuration of the registers for two groups of rows.
///
/// tmm0 to tmm3 are the sums: left and right columns of the upper rows, then of the lower ones;
/// tmm4 and tmm5 32 steps of the upper and lower rows, tmm6 and tmm7 of left and right columns.
fn configuration(upper: usize, lower: usize) -> TileConfig {
    let [upper_sums, lower_sums] = [upper, lower].map(|rows| (rows, TILE_ROW_BYTES));
    let columns = (BLOCK_STEPS / GROUP_STEPS, TILE_ROW_BYTES);
    let rows = [(upper, BLOCK_STEPS), (lower, BLOCK_STEPS)];
    TileConfig::new([upper_sums, upper_sums, lower_sums, lower_sums, rows[0], rows[1], columns, columns])
}

/// Exact sums of a block.
#[repr(C, align(64))]
struct Products([[i32; PANEL_COLUMNS]; GROUP_ROWS]);

/// As [`super::product`], for at least 16 rows.
///
/// ```text
/// for rows I of at most 32, in groups of nearly equal size:
///   for columns J of 32:
///     for blocks P of 4:  out[I, J] (=|+=) left[I, P] · right[P, J]
/// ```
/// No called function uses the tile registers. After a panic they stay configured, and the next
/// call configures them again.
pub(super) fn product<const BYTES: usize>(
    (token, _vnni): (Amx, Avx512Vnni),
    out: ViewMut<f32>,
    Operands { left, right, count }: Operands,
    accumulate: Accumulate,
) {
    let ViewMut { data, rows, cols, stride } = out;
    assert!(rows >= MIN_ROWS, "8-bit tiles: {rows} rows");
    let mut products = [const { [const { Products([[0; PANEL_COLUMNS]; GROUP_ROWS]) }; BYTES] }; PART_BLOCKS];
    let groups = rows.div_ceil(GROUP_ROWS);
    for group in 0..groups {
        let (first_row, end_row) = (group * rows / groups, (group + 1) * rows / groups);
        let group_rows = end_row - first_row;
        let upper = group_rows.div_ceil(2);
        configuration(upper, group_rows - upper).load(token);
        for col in (0..cols).step_by(PANEL_COLUMNS) {
            let panel = right.first(col / PANEL_COLUMNS, count);
            let (out, cols) = (&mut data[first_row * stride + col..], PANEL_COLUMNS.min(cols - col));
            for (part, columns) in panel.chunks(PART_BLOCKS).enumerate() {
                let first = first_row * left.stride + part * PART_BLOCKS * BYTES;
                let rows = Blocks { blocks: &left.blocks[first..], stride: left.stride };
                let products = products.as_flattened_mut();
                for (index, products) in products.iter_mut().take(BYTES * columns.len()).enumerate() {
                    let columns = &columns[index / BYTES];
                    // SAFETY: the registers are configured for these rows.
                    unsafe { multiply_block(rows, index, (upper, group_rows), columns, products) };
                }
                let accumulate = if part == 0 { accumulate } else { Accumulate::Add };
                let output = OutputTile { out: &mut *out, rows: group_rows, cols, stride, accumulate };
                // SAFETY: the token proves the features.
                unsafe { add_part::<BYTES>(products.as_chunks().0, rows, columns, output) };
            }
        }
    }
    tile_config::release(token);
}

/// Computes the exact sums of a block's byte, of unsigned columns.
///
/// # Safety
/// The registers must be configured for `upper` and `count - upper` rows.
unsafe fn multiply_block(
    rows: Blocks<RowBlock>,
    block: usize,
    (upper, count): (usize, usize),
    columns: &ColumnBlock,
    products: &mut Products,
) {
    assert!(upper < count && count <= GROUP_ROWS);
    assert!((count - 1) * rows.stride + block < rows.blocks.len());
    // The values are at the start of a block.
    let x = rows.blocks.as_ptr().wrapping_add(block);
    let y = products.0.as_mut_ptr();
    // SAFETY: reads a block of each row, and the columns; writes `count` rows of sums.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tileloadd tmm6, [{w} + {w_bytes}*1]",
            "tileloadd tmm4, [{x0} + {x_bytes}*1]",
            "tileloadd tmm7, [{w} + {w_bytes}*1 + 64]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{x1} + {x_bytes}*1]",
            "tdpbsud tmm1, tmm4, tmm7",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbsud tmm3, tmm5, tmm7",
            "tilestored [{y0} + {y_bytes}*1], tmm0",
            "tilestored [{y0} + {y_bytes}*1 + 64], tmm1",
            "tilestored [{y1} + {y_bytes}*1], tmm2",
            "tilestored [{y1} + {y_bytes}*1 + 64], tmm3",
            w = in(reg) columns.values.as_ptr(),
            w_bytes = in(reg) GROUP_STEPS * PANEL_COLUMNS,
            x0 = in(reg) x,
            x1 = in(reg) x.wrapping_add(upper * rows.stride),
            x_bytes = in(reg) rows.stride * size_of::<RowBlock>(),
            y0 = in(reg) y,
            y1 = in(reg) y.wrapping_add(upper),
            y_bytes = in(reg) PANEL_COLUMNS * size_of::<i32>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Adds sums of blocks, times their scales, to the output.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
fn add_part<const BYTES: usize>(
    products: &[[Products; BYTES]],
    rows: Blocks<RowBlock>,
    columns: &[ColumnBlock],
    output: OutputTile<f32>,
) {
    let OutputTile { out, rows: count, cols, stride, accumulate } = output;
    let mut scales = [[_mm512_setzero_ps(); REGISTERS]; PART_BLOCKS];
    for (scales, block) in scales.iter_mut().zip(columns) {
        for (register, scales) in scales.iter_mut().enumerate() {
            // SAFETY: there are as many scales as columns.
            *scales = unsafe {
                _mm512_cvtph_ps(_mm256_load_si256(block.scales.as_ptr().add(register * LANES).cast()))
            };
        }
    }
    for row in 0..count {
        let blocks = rows.blocks[row * rows.stride..][..BYTES * columns.len()].as_chunks::<BYTES>().0;
        let out = &mut out[row * stride..][..cols];
        for register in 0..REGISTERS {
            let first = register * LANES;
            let mask = lane_mask(cols.saturating_sub(first));
            let out = out.as_mut_ptr().wrapping_add(first);
            let mut sum = _mm512_setzero_ps();
            if accumulate == Accumulate::Add {
                // SAFETY: the mask contains only lanes that have elements.
                sum = unsafe { _mm512_maskz_loadu_ps(mask, out) };
            }
            for ((bytes, products), scales) in blocks.iter().zip(products).zip(&scales) {
                let mut total = _mm512_setzero_si512();
                for (byte, products) in bytes.iter().zip(products) {
                    // SAFETY: a row of products has 16 elements from `first` on.
                    let products = unsafe { _mm512_load_si512(products.0[row].as_ptr().add(first).cast()) };
                    let products = _mm512_add_epi32(products, _mm512_set1_epi32(byte.offset));
                    total = _mm512_add_epi32(_mm512_slli_epi32::<8>(total), products);
                }
                let scales = _mm512_mul_ps(_mm512_set1_ps(bytes[0].scale), scales[register]);
                sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(total), scales));
            }
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(out, mask, sum) };
        }
    }
}
