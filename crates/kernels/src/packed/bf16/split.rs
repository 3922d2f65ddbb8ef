//! Matrix products of `f32` operands, each split into two bf16 numbers.
//!
//! ```text
//! x = high + low + error      high = bf16(x), low = bf16(x - high), |error| <= 2^-17 |x|
//! a b ≈ high_a high_b + high_a low_b + low_a high_b, without |low_a low_b| <= 2^-16 |a b|
//! ```
//! An operand has the layout of [`super`], with two tiles, high and low, in the place of each. With
//! AMX tiles, these three products are about twice as fast as one of `f32`.
#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::pack_avx512;
use super::{BLOCK_SIDE, DEPTH, TILE_SIDE, Tile, TilePanels, for_each_block, is_transposed, to_bf16};
use crate::{
    Accumulate, Real, View, ViewMut,
    packed::{Operand, OperandFormat, OperandSource},
    simd::Bf16,
};

/// Tiles in the place of one: high and low.
const PARTS: usize = 2;

/// The format of operands that are split into two bf16 numbers.
#[derive(Debug)]
pub struct SplitBf16Format;

impl<F: Real> OperandFormat<F> for SplitBf16Format {
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
        (PARTS * 2 * len.div_ceil(BLOCK_SIDE)).saturating_mul(depth.div_ceil(DEPTH))
    }

    fn pack(view: View<F>, operand: Operand, out: &mut [Tile], skip: usize, depth: usize) {
        pack(Bf16::best(), view, operand, out, skip, depth);
    }

    fn multiply(out: ViewMut<F>, left: &[Tile], right: &[Tile], depth: usize, accumulate: Accumulate) {
        let step_tiles = depth.div_ceil(DEPTH);
        let [left, right] = [left, right].map(|tiles| panels(tiles, step_tiles));
        F::split_bf16_product(Bf16::best(), out, (left, right), step_tiles, accumulate);
    }
}

/// Returns micro-panels of `step_tiles` pairs of tiles.
fn panels(tiles: &[Tile], step_tiles: usize) -> TilePanels<'_> {
    TilePanels { tiles, panel_stride: PARTS * step_tiles }
}

/// Packs steps of an operand, from step `skip` on.
fn pack<F: Real>(level: Bf16, view: View<F>, operand: Operand, out: &mut [Tile], skip: usize, depth: usize) {
    let source = OperandSource::new(view, operand);
    let (len, steps) = source.sizes();
    debug_assert!(skip.is_multiple_of(DEPTH), "the steps of a tile are packed at once");
    let (skipped_tiles, tiles_per_panel) = (skip / DEPTH, depth.div_ceil(DEPTH));
    for panel in 0..2 * len.div_ceil(BLOCK_SIDE) {
        for step_tile in 0..steps.div_ceil(DEPTH) {
            let (first, first_step) = (panel * TILE_SIDE, step_tile * DEPTH);
            let position = if source.steps_are_rows { (first_step, first) } else { (first, first_step) };
            let index = PARTS * (panel * tiles_per_panel + skipped_tiles + step_tile);
            let Some([high, low]) = out[index..].first_chunk_mut() else { return };
            F::pack_split_tile(level, &source, position, operand, [high, low]);
        }
    }
}

/// Packs both tiles of an `f32` operand; see [`pack_split_tile`].
pub(crate) fn pack_split_tile_f32(
    level: Bf16,
    source: &OperandSource<f32>,
    position: (usize, usize),
    operand: Operand,
    tiles: [&mut Tile; 2],
) {
    match level {
        Bf16::Portable => pack_split_tile(source, position, operand, tiles),
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx2(_) => pack_split_tile(source, position, operand, tiles),
        #[cfg(target_arch = "x86_64")]
        Bf16::Avx512(token) => pack_avx512::pack_split_tile(token, source, position, operand, tiles),
        #[cfg(target_arch = "x86_64")]
        Bf16::Amx(_, token) => pack_avx512::pack_split_tile(token, source, position, operand, tiles),
    }
}

/// Computes `out (=|+=) left · right` over `step_tiles` pairs of tiles of the sum.
pub(crate) fn product_f32(
    level: Bf16,
    out: ViewMut<f32>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Bf16::Amx(token, _) => amx::split_product(token, out, left, right, step_tiles, accumulate),
        _ => product_plain(out, left, right, step_tiles, accumulate),
    }
}

/// Packs both parts of a tile, from a row and column on.
pub(crate) fn pack_split_tile<F: Real>(
    source: &OperandSource<F>,
    (row, col): (usize, usize),
    operand: Operand,
    [high, low]: [&mut Tile; 2],
) {
    let OperandSource { data, rows, cols, stride, steps_are_rows } = *source;
    let transposed = is_transposed(source, operand);
    let element = |r: usize, c: usize| {
        let value = if r < rows && c < cols { data[r * stride + c].to_f64() as f32 } else { 0.0 };
        let high = to_bf16(value);
        (high, to_bf16(value - from_bf16(high)))
    };
    for i in 0..TILE_SIDE {
        for p in 0..TILE_SIDE {
            let pair = match steps_are_rows {
                true => [element(row + 2 * i, col + p), element(row + 2 * i + 1, col + p)],
                false => [element(row + i, col + 2 * p), element(row + i, col + 2 * p + 1)],
            };
            let first = 2 * if transposed { p * TILE_SIDE + i } else { i * TILE_SIDE + p };
            high.0[first..][..2].copy_from_slice(&pair.map(|(high, _)| high));
            low.0[first..][..2].copy_from_slice(&pair.map(|(_, low)| low));
        }
    }
}

/// Portable product in plain loops.
///
/// The sum has `step_tiles` pairs of tiles.
pub(crate) fn product_plain<F: Real>(
    out: ViewMut<F>,
    left: TilePanels,
    right: TilePanels,
    step_tiles: usize,
    accumulate: Accumulate,
) {
    for_each_block(out, left, right, PARTS * step_tiles, accumulate, |left, right| {
        let mut block = [0.0; BLOCK_SIDE * BLOCK_SIDE];
        for (index, sum) in block.iter_mut().enumerate() {
            let (row, col) = (index / BLOCK_SIDE, index % BLOCK_SIDE);
            let (left, right) = (left[row / TILE_SIDE], right[col / TILE_SIDE]);
            for (left, right) in left.chunks_exact(PARTS).zip(right.chunks_exact(PARTS)) {
                for step in 0..DEPTH {
                    let [a, a_low] = [0, 1].map(|i| from_bf16(left[i].0[row % TILE_SIDE * DEPTH + step]));
                    let position = step / 2 * DEPTH + 2 * (col % TILE_SIDE) + step % 2;
                    let [b, b_low] = [0, 1].map(|i| from_bf16(right[i].0[position]));
                    *sum += a * b + (a * b_low + a_low * b);
                }
            }
        }
        block
    });
}

/// Returns the value of bf16 bits.
fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::{equals_plain_loops, synthetic};

    #[test]
    fn every_level_equals_products_of_unrounded_numbers() {
        for level in Bf16::all() {
            equals_plain_loops(
                [BLOCK_SIDE, BLOCK_SIDE],
                |value: f32| f64::from(value),
                |view, operand, len, depth| {
                    let count = <SplitBf16Format as OperandFormat<f32>>::words(operand, len, depth);
                    let mut out = vec![<SplitBf16Format as OperandFormat<f32>>::ZERO; count];
                    pack::<f32>(level, view, operand, &mut out, 0, depth);
                    out
                },
                |out, left: &Vec<Tile>, right, depth, accumulate| {
                    let step_tiles = depth.div_ceil(DEPTH);
                    let [left, right] = [left, right].map(|tiles| panels(tiles, step_tiles));
                    product_f32(level, out, left, right, step_tiles, accumulate)
                },
                // 100 products of at most 4, with errors of up to 2^-15 that mostly cancel.
                4e-4,
            );
        }
    }

    #[test]
    fn every_level_packs_the_same_bits_and_parts_have_16_bits() {
        let (rows, cols) = (50, 45);
        let mut data: Vec<f32> = synthetic(rows * cols, 3);
        data[100..104].copy_from_slice(&[f32::MIN_POSITIVE, -1e-40, -0.0, 0.0]);
        for level in Bf16::all() {
            for case in 0..4 {
                let (steps_are_rows, operand) = (case & 1 != 0, [Operand::Left, Operand::Right][case / 2]);
                let source = OperandSource { data: &data, rows, cols, stride: cols, steps_are_rows };
                for position in [(0, 0), (0, 32), (32, 0), (32, 32), (48, 40), (64, 0), (0, 64)] {
                    let [mut high, mut low, mut plain_high, mut plain_low] = [Tile([0; 512]); 4];
                    pack_split_tile_f32(level, &source, position, operand, [&mut high, &mut low]);
                    pack_split_tile(&source, position, operand, [&mut plain_high, &mut plain_low]);
                    assert!(high.0 == plain_high.0, "{level:?} {case} {position:?}");
                    assert!(low.0 == plain_low.0, "{level:?} {case} {position:?}");
                }
            }
        }
        for value in data {
            let high = from_bf16(to_bf16(value));
            let sum = f64::from(high) + f64::from(from_bf16(to_bf16(value - high)));
            assert!((sum - f64::from(value)).abs() <= f64::from(value).abs() / 131_072.0 + 1e-38, "{value}");
        }
    }
}
