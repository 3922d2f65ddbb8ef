//! bf16 matrix products with AMX, the tile registers of recent Intel CPUs.
//!
//! Four registers hold 32 x 32 sums, two the left rows and two the right columns. The instructions
//! are inline assembly because Rust has no stable intrinsics for them.
#![allow(unsafe_code)]
use std::arch::asm;

use super::{BLOCK_SIDE, TILE_SIDE, Tile, TilePanels, write_block};
use crate::packed::OutputTile;
use crate::packed::tile_config::{self, TileConfig};
use crate::{Accumulate, ViewMut, simd::Amx};

/// Eight tiles of 16 rows.
static TILE_CONFIG: TileConfig = TileConfig::new([(TILE_SIDE, TILE_ROW_BYTES); 8]);

/// Bytes of a row of a tile register.
const TILE_ROW_BYTES: usize = 64;

/// Computes `out (=|+=) left · right` over `step_tiles` tiles of the sum.
pub(super) fn product(
    token: Amx,
    out: ViewMut<f32>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
) {
    for_each_block(token, out, [left, right], step_tiles, accumulate, multiply_block);
}

/// Computes `out (=|+=) left · right` over `step_tiles` pairs of tiles, high and low.
pub(super) fn split_product(
    token: Amx,
    out: ViewMut<f32>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
) {
    for_each_block(token, out, [left, right], 2 * step_tiles, accumulate, multiply_split_block);
}

/// A kernel that computes a block from two micro-panels of each operand.
type BlockKernel = unsafe fn([&[Tile]; 2], [&[Tile]; 2], *mut f32, usize, Accumulate);

/// Calls the kernel for each block of 32 x 32.
///
/// ```text
/// for rows I of 32, for columns J of 32:
///   out[I, J] (=|+=) left[I] · right[J]      through a temporary block if it is smaller
/// ```
/// No called function uses the tile registers. After a panic they stay configured, and the next
/// call configures them again.
fn for_each_block(
    token: Amx,
    out: ViewMut<f32>,
    [left, right]: [TilePanels; 2],
    panel_tiles: usize,
    accumulate: Accumulate,
    kernel: BlockKernel,
) {
    let ViewMut { data, rows, cols, stride } = out;
    TILE_CONFIG.load(token);
    for row in (0..rows).step_by(BLOCK_SIDE) {
        let left = left.pair(row, panel_tiles);
        for col in (0..cols).step_by(BLOCK_SIDE) {
            let right = right.pair(col, panel_tiles);
            let to = &mut data[row * stride + col..];
            if rows - row >= BLOCK_SIDE && cols - col >= BLOCK_SIDE {
                assert!(to.len() >= (BLOCK_SIDE - 1) * stride + BLOCK_SIDE);
                // SAFETY: `to` has 32 rows of 32 elements at this stride.
                unsafe { kernel(left, right, to.as_mut_ptr(), stride, accumulate) };
            } else {
                let mut sums = [0.0; BLOCK_SIDE * BLOCK_SIDE];
                // SAFETY: the array has 32 rows of 32 elements.
                unsafe {
                    kernel(left, right, sums.as_mut_ptr(), BLOCK_SIDE, Accumulate::Replace);
                }
                write_block(
                    &sums,
                    OutputTile { out: to, rows: rows - row, cols: cols - col, stride, accumulate },
                );
            }
        }
    }
    tile_config::release(token);
}

/// Computes 32 x 32 sums over two micro-panels of each operand.
///
/// # Safety
/// The tile registers must be configured as above, and `out` must have 32 rows of 32 elements,
/// `stride` apart.
unsafe fn multiply_block(
    left: [&[Tile]; 2],
    right: [&[Tile]; 2],
    out: *mut f32,
    stride: usize,
    accumulate: Accumulate,
) {
    let step_tiles = left[0].len();
    assert!(step_tiles > 0 && [left[1], right[0], right[1]].iter().all(|panel| panel.len() == step_tiles));
    let bytes = stride * size_of::<f32>();
    // tmm0 to tmm3 are the sums: left and right half of the upper 16 rows, then of the lower ones.
    // tmm4 and tmm5 are tiles of the two left micro-panels, tmm6 and tmm7 of the right ones; a tile
    // has 1024 bytes.
    // SAFETY: the loop reads `step_tiles` tiles of each micro-panel, and writes memory that the
    // caller guarantees.
    unsafe {
        asm!(
            "test {add:e}, {add:e}",
            "jz 3f",
            "tileloadd tmm0, [{out} + {bytes}*1]",
            "tileloadd tmm1, [{out} + {bytes}*1 + 64]",
            "tileloadd tmm2, [{below} + {bytes}*1]",
            "tileloadd tmm3, [{below} + {bytes}*1 + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{l0} + {row}*1]",
            "tileloadd tmm6, [{r0} + {row}*1]",
            "tileloadd tmm7, [{r1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{l1} + {row}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {l0}, 1024",
            "add {l1}, 1024",
            "add {r0}, 1024",
            "add {r1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {bytes}*1], tmm0",
            "tilestored [{out} + {bytes}*1 + 64], tmm1",
            "tilestored [{below} + {bytes}*1], tmm2",
            "tilestored [{below} + {bytes}*1 + 64], tmm3",
            add = in(reg) i32::from(accumulate == Accumulate::Add),
            out = in(reg) out,
            below = in(reg) out.add(TILE_SIDE * stride),
            bytes = in(reg) bytes,
            row = in(reg) TILE_ROW_BYTES,
            l0 = inout(reg) left[0].as_ptr() => _,
            l1 = inout(reg) left[1].as_ptr() => _,
            r0 = inout(reg) right[0].as_ptr() => _,
            r1 = inout(reg) right[1].as_ptr() => _,
            steps = inout(reg) step_tiles => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Computes 32 x 32 sums as [`multiply_block`], over pairs of tiles, high and low.
///
/// Each step adds low · high, high · high and high · low.
///
/// # Safety
/// As [`multiply_block`].
unsafe fn multiply_split_block(
    left: [&[Tile]; 2],
    right: [&[Tile]; 2],
    out: *mut f32,
    stride: usize,
    accumulate: Accumulate,
) {
    let panel_tiles = left[0].len();
    assert!(panel_tiles > 0 && panel_tiles.is_multiple_of(2));
    assert!([left[1], right[0], right[1]].iter().all(|panel| panel.len() == panel_tiles));
    let bytes = stride * size_of::<f32>();
    // Registers are those of `multiply_block`; a low tile is 1024 bytes after its high tile.
    // SAFETY: the loop reads `panel_tiles` tiles of each micro-panel, and writes memory that the
    // caller guarantees.
    unsafe {
        asm!(
            "test {add:e}, {add:e}",
            "jz 3f",
            "tileloadd tmm0, [{out} + {bytes}*1]",
            "tileloadd tmm1, [{out} + {bytes}*1 + 64]",
            "tileloadd tmm2, [{below} + {bytes}*1]",
            "tileloadd tmm3, [{below} + {bytes}*1 + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            // low · high
            "tileloadd tmm6, [{r0} + {row}*1]",
            "tileloadd tmm4, [{l0} + {row}*1 + 1024]",
            "tileloadd tmm7, [{r1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{l1} + {row}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // high · high
            "tileloadd tmm4, [{l0} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{l1} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // high · low
            "tileloadd tmm6, [{r0} + {row}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{r1} + {row}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {l0}, 2048",
            "add {l1}, 2048",
            "add {r0}, 2048",
            "add {r1}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {bytes}*1], tmm0",
            "tilestored [{out} + {bytes}*1 + 64], tmm1",
            "tilestored [{below} + {bytes}*1], tmm2",
            "tilestored [{below} + {bytes}*1 + 64], tmm3",
            add = in(reg) i32::from(accumulate == Accumulate::Add),
            out = in(reg) out,
            below = in(reg) out.add(TILE_SIDE * stride),
            bytes = in(reg) bytes,
            row = in(reg) TILE_ROW_BYTES,
            l0 = inout(reg) left[0].as_ptr() => _,
            l1 = inout(reg) left[1].as_ptr() => _,
            r0 = inout(reg) right[0].as_ptr() => _,
            r1 = inout(reg) right[1].as_ptr() => _,
            steps = inout(reg) panel_tiles / 2 => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
