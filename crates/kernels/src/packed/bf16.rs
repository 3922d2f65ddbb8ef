//! Matrix products with bf16 operands and `f32` sums: packing and dispatch.
//!
//! An operand is packed into [`Tile`]s of 1 KiB: 16 rows (left) or columns (right) by 32 steps of
//! the sum. Two steps that one instruction combines are adjacent in both operands:
//!
//! ```text
//! left   tile[i][d] = bf16(a[16 s + i, 32 t + d])           i < 16, d < 32
//! right  tile[p][j][e] = bf16(b[32 t + 2 p + e, 16 s + j])  p < 16, j < 16, e < 2
//! ```
//! a: left matrix; b: right matrix; s: micro-panel; t: tile of steps; p: pair of steps.
//!
//! The tiles of micro-panel s are followed by those of s + 1; the number of micro-panels is even,
//! and padding is 0. Products use AMX tiles or AVX-512 BF16 if available, AVX2 on numbers expanded
//! to `f32` otherwise, and plain loops elsewhere; they differ in the rounding of `f32` sums.
//! Denormal numbers are 0 everywhere.
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;
pub(crate) mod split;

pub use split::SplitBf16Format;

use super::{Operand, OperandFormat, OperandSource, OutputTile, SumOrder};
use crate::{Accumulate, Real, View, ViewMut, simd::Bf16};

/// Rows of a left tile, columns of a right one.
pub(crate) const TILE_SIDE: usize = 16;
/// Steps of the sum in a tile.
///
/// `depth` counts the steps of an operand, `step_tiles` its tiles of steps.
pub const DEPTH: usize = 32;
/// Rows and columns of the block that a kernel computes.
pub(crate) const BLOCK_SIDE: usize = 2 * TILE_SIDE;

/// 16 x 32 bf16 numbers, as bits.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Tile(pub [u16; TILE_SIDE * DEPTH]);

/// The format of operands rounded to bf16.
#[derive(Debug)]
pub struct Bf16Format;

impl<F: Real> OperandFormat<F> for Bf16Format {
    type Word = Tile;
    const ZERO: Tile = Tile([0; TILE_SIDE * DEPTH]);
    const STEPWISE: bool = false;

    fn panel_width(_operand: Operand) -> usize {
        BLOCK_SIDE
    }

    fn preferred_rows() -> usize {
        BLOCK_SIDE
    }

    fn words(_operand: Operand, len: usize, depth: usize) -> usize {
        (len.div_ceil(BLOCK_SIDE) * 2).saturating_mul(depth.div_ceil(DEPTH))
    }

    fn pack(view: View<F>, operand: Operand, out: &mut [Tile], skip: usize, depth: usize) {
        pack(Bf16::best(), view, operand, out, skip, depth);
    }

    fn multiply(out: ViewMut<F>, left: &[Tile], right: &[Tile], depth: usize, accumulate: Accumulate) {
        let step_tiles = depth.div_ceil(DEPTH);
        let [left, right] = [left, right].map(|tiles| TilePanels { tiles, panel_stride: step_tiles });
        F::bf16_product(Bf16::best(), out, (left, right), (step_tiles, SumOrder::Blocked), accumulate);
    }
}

/// Packs steps of an operand, from step `skip` on.
///
/// ```text
/// for micro-panels of 16 rows or columns, an even number of them:
///   for 32 of the steps:  one tile
/// ```
fn pack<F: Real>(level: Bf16, view: View<F>, operand: Operand, out: &mut [Tile], skip: usize, depth: usize) {
    let source = OperandSource::new(view, operand);
    let (len, steps) = source.sizes();
    debug_assert!(skip.is_multiple_of(DEPTH), "the steps of a tile are packed at once");
    let (skipped_tiles, tiles_per_panel) = (skip / DEPTH, depth.div_ceil(DEPTH));
    for panel in 0..2 * len.div_ceil(BLOCK_SIDE) {
        for step_tile in 0..steps.div_ceil(DEPTH) {
            let (first, first_step) = (panel * TILE_SIDE, step_tile * DEPTH);
            let position = if source.steps_are_rows { (first_step, first) } else { (first, first_step) };
            let tile = &mut out[panel * tiles_per_panel + skipped_tiles + step_tile];
            F::pack_tile(level, &source, position, operand, tile);
        }
    }
}

/// Returns whether the CPU has bf16 products.
///
/// Elsewhere, products with AVX2 take somewhat longer than those in `f32`; plain loops are slow.
pub fn is_native() -> bool {
    match Bf16::best() {
        Bf16::Portable => false,
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx2(_) => false,
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx512(_) => true,
        #[cfg(target_arch = "x86_64")]
        Bf16::Amx(..) => true,
    }
}

/// Packs a tile of an `f32` operand; see [`pack_tile`].
pub(crate) fn pack_tile_f32(
    level: Bf16,
    source: &OperandSource<f32>,
    position: (usize, usize),
    operand: Operand,
    tile: &mut Tile,
) {
    match level {
        Bf16::Portable => pack_tile(source, position, operand, tile),
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx2(_) => pack_tile(source, position, operand, tile),
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx512(token) => pack_avx512::pack_tile(token, source, position, operand, tile),
        #[cfg(target_arch = "x86_64")]
        Bf16::Amx(_, token) => pack_avx512::pack_tile(token, source, position, operand, tile),
    }
}

/// Micro-panels of an operand: tiles of steps, `panel_stride` tiles from one to the next.
#[derive(Clone, Copy, Debug)]
pub struct TilePanels<'a> {
    pub(crate) tiles: &'a [Tile],
    pub(crate) panel_stride: usize,
}

impl<'a> TilePanels<'a> {
    /// Returns the tiles of two micro-panels, from row or column `first`.
    fn pair(&self, first: usize, step_tiles: usize) -> [&'a [Tile]; 2] {
        [0, 1].map(|i| self.panel(first / TILE_SIDE + i, step_tiles))
    }

    /// Returns the tiles of a micro-panel.
    fn panel(&self, panel: usize, step_tiles: usize) -> &'a [Tile] {
        &self.tiles[panel * self.panel_stride..][..step_tiles]
    }
}

/// Computes `out (=|+=) left · right` over a number of tiles of the sum.
pub(crate) fn product_f32(
    level: Bf16,
    out: ViewMut<f32>,
    left: TilePanels,
    right: TilePanels,
    (step_tiles, order): (usize, SumOrder),
    accumulate: Accumulate,
) {
    match level {
        Bf16::Portable => product_plain(out, left, right, step_tiles, accumulate),
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx2(token) => {
            let block_tiles = block_tiles(step_tiles, order);
            avx2::product(token, out, [left, right], (step_tiles, block_tiles), accumulate);
        }
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx512(token) => {
            let block_tiles = block_tiles(step_tiles, order);
            avx512::product(token, out, [left, right], (step_tiles, block_tiles), accumulate);
        }
        #[cfg(target_arch = "x86_64")]
        Bf16::Amx(token, _) => amx::product(token, out, left, right, step_tiles, accumulate),
    }
}

/// Tiles of steps in a block, at most: two right micro-panels of it, those of AVX-512, fill half of
/// the first-level cache.
#[cfg(target_arch = "x86_64")]
const BLOCK_TILES: usize = 8;

/// Returns the tiles of a block of steps: blocks have nearly equal sizes, by the depth only.
#[cfg(target_arch = "x86_64")]
fn block_tiles(step_tiles: usize, order: SumOrder) -> usize {
    match order {
        SumOrder::Blocked => step_tiles.div_ceil(step_tiles.div_ceil(BLOCK_TILES).max(1)),
        SumOrder::Sequential => step_tiles,
    }
}

/// Packs a tile of an operand, from a row and column on.
pub(crate) fn pack_tile<F: Real>(
    source: &OperandSource<F>,
    (row, col): (usize, usize),
    operand: Operand,
    tile: &mut Tile,
) {
    let OperandSource { data, rows, cols, stride, steps_are_rows } = *source;
    let transposed = is_transposed(source, operand);
    let element = |r: usize, c: usize| if r < rows && c < cols { to_bf16(data[r * stride + c]) } else { 0 };
    for i in 0..TILE_SIDE {
        for p in 0..TILE_SIDE {
            let pair = match steps_are_rows {
                true => [element(row + 2 * i, col + p), element(row + 2 * i + 1, col + p)],
                false => [element(row + i, col + 2 * p), element(row + i, col + 2 * p + 1)],
            };
            let pair_index = if transposed { p * TILE_SIDE + i } else { i * TILE_SIDE + p };
            tile.0[2 * pair_index..][..2].copy_from_slice(&pair);
        }
    }
}

/// Returns whether rows of the source become columns of tiles.
fn is_transposed<F>(source: &OperandSource<F>, operand: Operand) -> bool {
    source.steps_are_rows == (operand == Operand::Left)
}

/// Rounds to bf16, ties to even; denormal numbers become 0.
fn to_bf16<F: Real>(value: F) -> u16 {
    const SMALLEST_NORMAL: u32 = 0x0080_0000;
    const SMALLEST_NAN: u32 = 0x7f80_0001;
    const QUIET_NAN_BIT: u32 = 0x0040_0000;
    let bits = (value.to_f64() as f32).to_bits();
    let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
    let rounded = match magnitude {
        0..SMALLEST_NORMAL => 0,
        SMALLEST_NAN.. => magnitude | QUIET_NAN_BIT,
        // Adds just under half a unit of bf16, or half a unit if its last bit is odd.
        _ => magnitude + 0x7fff + (magnitude >> 16 & 1),
    };
    ((sign | rounded) >> 16) as u16
}

/// Returns whether the CPU has AMX tiles for bf16.
pub fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(Bf16::best(), Bf16::Amx(..));
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Portable product in plain loops, over `step_tiles` tiles of the sum.
pub(crate) fn product_plain<F: Real>(
    out: ViewMut<F>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
) {
    for_each_block(out, left, right, step_tiles, accumulate, |left, right| {
        let to_f32 = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        let mut block = [0.0; BLOCK_SIDE * BLOCK_SIDE];
        for (index, sum) in block.iter_mut().enumerate() {
            let (row, col) = (index / BLOCK_SIDE, index % BLOCK_SIDE);
            for step_tile in 0..step_tiles {
                let left_row = &left[row / TILE_SIDE][step_tile].0[row % TILE_SIDE * DEPTH..][..DEPTH];
                let right_pairs = &right[col / TILE_SIDE][step_tile].0[2 * (col % TILE_SIDE)..];
                for (pair, left) in left_row.chunks_exact(2).enumerate() {
                    let right = &right_pairs[pair * DEPTH..];
                    *sum += to_f32(left[0]) * to_f32(right[0]) + to_f32(left[1]) * to_f32(right[1]);
                }
            }
        }
        block
    });
}

/// Calls the kernel for each block and writes the results.
///
/// The sum has `step_tiles` tiles of steps.
///
/// ```text
/// for rows I of 32, for columns J of 32:  out[I, J] (=|+=) kernel(left[I], right[J])
/// ```
fn for_each_block<F: Real>(
    out: ViewMut<F>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
    kernel: impl Fn([&[Tile]; 2], [&[Tile]; 2]) -> [f32; BLOCK_SIDE * BLOCK_SIDE],
) {
    let ViewMut { data, rows, cols, stride } = out;
    for row in (0..rows).step_by(BLOCK_SIDE) {
        for col in (0..cols).step_by(BLOCK_SIDE) {
            let block = kernel(left.pair(row, step_tiles), right.pair(col, step_tiles));
            let out = &mut data[row * stride + col..];
            write_block(&block, OutputTile { out, rows: rows - row, cols: cols - col, stride, accumulate });
        }
    }
}

/// Writes or adds the part of a block inside the output.
fn write_block<F: Real>(block: &[f32; BLOCK_SIDE * BLOCK_SIDE], output: OutputTile<F>) {
    let OutputTile { out, rows, cols, stride, accumulate } = output;
    for (row, sums) in block.chunks_exact(BLOCK_SIDE).enumerate().take(rows) {
        let out_row = &mut out[row * stride..][..cols.min(BLOCK_SIDE)];
        for (out, sum) in out_row.iter_mut().zip(sums) {
            let sum = F::from_f64(f64::from(*sum));
            *out = if accumulate == Accumulate::Add { *out + sum } else { sum };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::{equals_plain_loops, synthetic};

    #[test]
    fn every_level_equals_plain_loops() {
        for level in Bf16::all() {
            equals_plain_loops(
                [BLOCK_SIDE, BLOCK_SIDE],
                |value: f32| f64::from(f32::from_bits(u32::from(to_bf16(value)) << 16)),
                |view, operand, len, depth| {
                    let count = <Bf16Format as OperandFormat<f32>>::words(operand, len, depth);
                    let mut out = vec![<Bf16Format as OperandFormat<f32>>::ZERO; count];
                    pack::<f32>(level, view, operand, &mut out, 0, depth);
                    out
                },
                |out, left: &Vec<Tile>, right, depth, accumulate| {
                    let panel_stride = depth.div_ceil(DEPTH);
                    let left = TilePanels { tiles: left, panel_stride };
                    product_f32(
                        level,
                        out,
                        left,
                        TilePanels { tiles: right, panel_stride },
                        (panel_stride, SumOrder::Blocked),
                        accumulate,
                    )
                },
                1e-4,
            );
        }
    }

    #[test]
    fn sums_of_more_steps_than_a_block_are_complete() {
        let (rows, depth, cols) = (5, 600, 20);
        let values = |count: usize, seed| -> Vec<f32> {
            let rounded = |value: &f32| f32::from_bits(u32::from(to_bf16(value / 16.0)) << 16);
            synthetic::<f32>(count, seed).iter().map(rounded).collect()
        };
        let (a, b) = (values(rows * depth, 1), values(depth * cols, 2));
        for level in Bf16::all() {
            let packed = |view, operand, len| {
                let count = <Bf16Format as OperandFormat<f32>>::words(operand, len, depth);
                let mut out = vec![<Bf16Format as OperandFormat<f32>>::ZERO; count];
                pack::<f32>(level, view, operand, &mut out, 0, depth);
                out
            };
            let left = packed(View::new(&a, rows, depth), Operand::Left, rows);
            let right = packed(View::new(&b, depth, cols), Operand::Right, cols);
            let step_tiles = depth.div_ceil(DEPTH);
            for order in [SumOrder::Blocked, SumOrder::Sequential] {
                let mut out = vec![f32::NAN; rows * cols];
                let [left, right] =
                    [&left, &right].map(|tiles| TilePanels { tiles, panel_stride: step_tiles });
                let to = ViewMut::new(&mut out, rows, cols);
                product_f32(level, to, left, right, (step_tiles, order), Accumulate::Replace);
                for (index, &actual) in out.iter().enumerate() {
                    let term = |l: usize| {
                        f64::from(a[index / cols * depth + l]) * f64::from(b[l * cols + index % cols])
                    };
                    let expected: f64 = (0..depth).map(term).sum();
                    assert!((f64::from(actual) - expected).abs() < 1e-5, "{level:?} {index}: {actual}");
                }
            }
        }
    }

    #[test]
    fn every_level_packs_the_same_bits() {
        let (rows, cols) = (50, 45);
        let mut data: Vec<f32> = synthetic(rows * cols, 3);
        let special =
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e-40, -1e-40, -0.0, 0.0];
        data[100..][..special.len()].copy_from_slice(&special);
        // Halfway between two bf16 numbers; rounded to even.
        data[200] = f32::from_bits(0x3f80_8000);
        data[201] = f32::from_bits(0x3f81_8000);
        for level in Bf16::all() {
            for case in 0..4 {
                let (steps_are_rows, operand) = (case & 1 != 0, [Operand::Left, Operand::Right][case / 2]);
                let source = OperandSource { data: &data, rows, cols, stride: cols, steps_are_rows };
                for position in [(0, 0), (0, 32), (32, 0), (32, 32), (48, 40), (64, 0), (0, 64)] {
                    let [mut fast, mut plain] = [Tile([0; TILE_SIDE * DEPTH]); 2];
                    pack_tile_f32(level, &source, position, operand, &mut fast);
                    pack_tile(&source, position, operand, &mut plain);
                    assert_eq!(fast.0, plain.0, "{level:?} {case} {position:?}");
                }
            }
        }
        assert_eq!([to_bf16(data[200]), to_bf16(data[201])], [0x3f80, 0x3f82]);
        assert_eq!([to_bf16(f32::MAX), to_bf16(1e-40f32), to_bf16(-1e-40f32)], [0x7f80, 0, 0x8000]);
    }
}
