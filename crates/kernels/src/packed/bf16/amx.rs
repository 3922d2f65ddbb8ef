//! bf16 matrix products with AMX, the tile registers of recent Intel CPUs.
//!
//! Four registers hold 32 x 32 sums, two the left rows and two the right columns. The instructions
//! are inline assembly because Rust has no stable intrinsics for them.
#![allow(unsafe_code)]
use std::arch::asm;

use super::{BLOCK_SIDE, TILE_SIDE, Tile, write_block};
use crate::{Accumulate, ViewMut, packed::OutputTile, simd::Amx};

/// Configuration of the registers: palette 1, eight tiles of 16 rows and 64 bytes.
#[repr(C, align(64))]
struct TileConfig([u8; 64]);

const TILE_CONFIG: TileConfig = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        shapes[16 + 2 * tile] = 64;
        shapes[48 + tile] = TILE_SIDE as u8;
        tile += 1;
    }
    TileConfig(shapes)
};

/// Computes `out (=|+=) left · right` over an inner dimension of `depth` tiles.
///
/// ```text
/// for rows I of 32, for columns J of 32:
///   out[I, J] (=|+=) left[I] · right[J]      through a temporary block if it is smaller
/// ```
/// No called function uses the tile registers. After a panic they stay configured, and the next
/// call configures them again.
pub(super) fn product(
    _token: Amx,
    out: ViewMut<f32>,
    left: &[Tile],
    right: &[Tile],
    depth: usize,
    accumulate: Accumulate,
) {
    let ViewMut { data, rows, cols, stride } = out;
    // SAFETY: the token proves that the registers are there; the shapes are legal.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &TILE_CONFIG, options(nostack, readonly)) };
    for row in (0..rows).step_by(BLOCK_SIDE) {
        let left = &left[row / TILE_SIDE * depth..][..2 * depth];
        for col in (0..cols).step_by(BLOCK_SIDE) {
            let right = &right[col / TILE_SIDE * depth..][..2 * depth];
            let to = &mut data[row * stride + col..];
            if rows - row >= BLOCK_SIDE && cols - col >= BLOCK_SIDE {
                assert!(to.len() >= (BLOCK_SIDE - 1) * stride + BLOCK_SIDE);
                // SAFETY: `to` has 32 rows of 32 elements at this stride.
                unsafe { multiply_block(left, right, depth, to.as_mut_ptr(), stride, accumulate) };
            } else {
                let mut sums = [0.0; BLOCK_SIDE * BLOCK_SIDE];
                // SAFETY: the array has 32 rows of 32 elements.
                unsafe {
                    multiply_block(left, right, depth, sums.as_mut_ptr(), BLOCK_SIDE, Accumulate::Replace)
                };
                write_block(
                    &sums,
                    OutputTile { out: to, rows: rows - row, cols: cols - col, stride, accumulate },
                );
            }
        }
    }
    // SAFETY: releases the registers; their contents are not needed any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Computes 32 x 32 sums over two micro-panels of `depth` tiles on either side.
///
/// # Safety
/// The tile registers must be configured as above, and `out` must have 32 rows of 32 elements,
/// `stride` apart.
unsafe fn multiply_block(
    left: &[Tile],
    right: &[Tile],
    depth: usize,
    out: *mut f32,
    stride: usize,
    accumulate: Accumulate,
) {
    assert!(depth > 0 && left.len() == 2 * depth && right.len() == 2 * depth);
    let bytes = stride * size_of::<f32>();
    // SAFETY: the loop reads `depth` tiles of each micro-panel, and writes memory that the caller
    // guarantees.
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
            row = in(reg) 64usize,
            l0 = inout(reg) left.as_ptr() => _,
            l1 = inout(reg) left[depth..].as_ptr() => _,
            r0 = inout(reg) right.as_ptr() => _,
            r1 = inout(reg) right[depth..].as_ptr() => _,
            steps = inout(reg) depth => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
