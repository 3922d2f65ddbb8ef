//! 8-bit products of many rows with AMX, the tile registers of recent Intel CPUs.
//!
//! Four registers hold the exact sums of a block of 32 steps for up to 32 rows by 32 columns; they
//! are stored, and AVX-512 adds them times their scales. The tile instructions of the next block
//! come before these additions, because the two do not depend on each other.
#![allow(unsafe_code)]
use std::arch::{asm, x86_64::*};

use super::{BLOCK_STEPS, Blocks, ColumnBlock, Operands, PANEL_COLUMNS, RowBlock, TileRow, with_sums};
use crate::packed::OutputTile;
use crate::simd::{Amx, Avx512Vnni};
use crate::{Accumulate, ViewMut};

/// Smallest number of rows.
pub(super) const MIN_ROWS: usize = 16;
/// Rows of a group, at most: two tiles.
const GROUP_ROWS: usize = 32;
/// Lanes of a register of AVX-512.
const LANES: usize = 16;
/// Bytes of a row of sums in a tile.
const TILE_ROW_BYTES: usize = 64;
/// Steps of a group in [`ColumnBlock`], a row of a tile of columns.
const GROUP_STEPS: usize = 4;

/// Configuration of the registers.
///
/// tmm0 to tmm3 are the sums: left and right columns of the upper rows, then of the lower ones;
/// tmm4 and tmm5 32 steps of the upper and lower rows, tmm6 and tmm7 of left and right columns.
#[repr(C, align(64))]
struct TileConfig([u8; 64]);

impl TileConfig {
    fn new(upper: usize, lower: usize) -> Self {
        // Layout of `ldtilecfg`: the palette, 16-bit bytes per row from 16 on, rows from 48 on.
        let mut config = [0; 64];
        config[0] = 1;
        let sums = |rows| (rows, TILE_ROW_BYTES);
        let columns = (BLOCK_STEPS / GROUP_STEPS, TILE_ROW_BYTES);
        let tiles = [
            sums(upper),
            sums(upper),
            sums(lower),
            sums(lower),
            (upper, BLOCK_STEPS),
            (lower, BLOCK_STEPS),
            columns,
            columns,
        ];
        for (tile, (rows, row_bytes)) in tiles.into_iter().enumerate() {
            config[16 + 2 * tile] = row_bytes as u8;
            config[48 + tile] = rows as u8;
        }
        TileConfig(config)
    }
}

/// Exact sums of a block.
#[repr(C, align(64))]
struct Products([[i32; PANEL_COLUMNS]; GROUP_ROWS]);

/// As [`super::product`], for at least 16 rows.
///
/// ```text
/// for rows I of at most 32, in groups of nearly equal size:
///   for columns J of 32:  out[I, J] (=|+=) left[I] · right[J]
/// ```
/// No called function uses the tile registers. After a panic they stay configured, and the next
/// call configures them again.
pub(super) fn product(
    _tokens: (Avx512Vnni, Amx),
    out: ViewMut<f32>,
    Operands { left, right, count }: Operands,
    accumulate: Accumulate,
) {
    let ViewMut { data, rows, cols, stride } = out;
    assert!(rows >= MIN_ROWS, "8-bit tiles: {rows} rows");
    let groups = rows.div_ceil(GROUP_ROWS);
    for group in 0..groups {
        let (first, end) = (group * rows / groups, (group + 1) * rows / groups);
        let upper = (end - first).div_ceil(2);
        let config = TileConfig::new(upper, end - first - upper);
        // SAFETY: the token proves that the registers are there; both tiles have 1 to 16 rows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        let rows = Blocks { blocks: &left.blocks[first * left.stride..], stride: left.stride };
        for col in (0..cols).step_by(PANEL_COLUMNS) {
            let columns = right.first(col / PANEL_COLUMNS, count);
            let (out, cols) = (&mut data[first * stride + col..], PANEL_COLUMNS.min(cols - col));
            let output = OutputTile { out, rows: end - first, cols, stride, accumulate };
            with_sums(output, |sums: &mut [TileRow; GROUP_ROWS]| {
                // SAFETY: the tokens prove the features, and the registers are configured.
                unsafe { multiply_group(rows, upper, columns, &mut sums[..end - first]) };
            });
        }
    }
    // SAFETY: releases the registers; their contents are not needed any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Adds the products of a group of rows, one for each row of `sums`, and 32 columns.
///
/// # Safety
/// The registers must be configured for `upper` and the other rows.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
unsafe fn multiply_group(
    rows: Blocks<RowBlock>,
    upper: usize,
    columns: &[ColumnBlock],
    sums: &mut [TileRow],
) {
    let mut products = [const { Products([[0; PANEL_COLUMNS]; GROUP_ROWS]) }; 2];
    for index in 0..=columns.len() {
        let [even, odd] = &mut products;
        let (next, last) = if index.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        if let Some(columns) = columns.get(index) {
            // SAFETY: the caller guarantees the configuration.
            unsafe { multiply_block(rows, (index, upper), sums.len(), columns, next) };
        }
        if index > 0 {
            add_block(last, rows, index - 1, &columns[index - 1], sums);
        }
    }
}

/// Computes the exact sums of a block, of unsigned columns.
///
/// # Safety
/// The registers must be configured for `upper` and `count - upper` rows.
unsafe fn multiply_block(
    rows: Blocks<RowBlock>,
    (block, upper): (usize, usize),
    count: usize,
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

/// Adds the sums of a block times their scales.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")]
fn add_block(
    products: &Products,
    rows: Blocks<RowBlock>,
    block: usize,
    columns: &ColumnBlock,
    sums: &mut [TileRow],
) {
    // SAFETY: 16 scales of each half.
    let scales: [__m512; PANEL_COLUMNS / LANES] = std::array::from_fn(|half| unsafe {
        _mm512_cvtph_ps(_mm256_load_si256(columns.scales.as_ptr().add(half * LANES).cast()))
    });
    for (row, (sums, products)) in sums.iter_mut().zip(&products.0).enumerate() {
        let row = &rows.blocks[row * rows.stride + block];
        let (row_scale, offset) = (_mm512_set1_ps(row.scale), _mm512_set1_epi32(row.offset));
        let halves = sums.chunks_exact_mut(LANES).zip(products.chunks_exact(LANES));
        for ((sums, products), scales) in halves.zip(scales) {
            // SAFETY: chunks of 16 elements.
            unsafe {
                let products = _mm512_add_epi32(_mm512_loadu_si512(products.as_ptr().cast()), offset);
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(products), _mm512_mul_ps(row_scale, scales));
                let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), scaled);
                _mm512_storeu_ps(sums.as_mut_ptr(), sum);
            }
        }
    }
}
