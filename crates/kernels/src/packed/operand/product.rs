//! Products of packed operands, or of parts of them.
use super::{PART_MULTIPLE, PackedOperand, Words};
use crate::packed::bf16::{DEPTH, TILE_SIDE, TilePanels};
use crate::packed::q8::{self, Blocks, PANEL_COLUMNS};
use crate::packed::{Operand, OutputTile, RightPanels};
use crate::simd::{Bf16, Int8, SimdLevel};
use crate::{Accumulate, Real, ViewMut};

/// Steps of a block, whose operands stay in the caches.
const BLOCK_STEPS: usize = 512;

/// A part of a right operand; both starts are multiples of [`PART_MULTIPLE`].
#[derive(Clone, Copy, Debug)]
pub struct RightPart<'a> {
    /// The operand.
    pub operand: &'a PackedOperand,
    /// The first column of the part.
    pub first_column: usize,
    /// The first step of the part.
    pub first_step: usize,
}

/// The order in which the steps of a sum are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// Blocks of steps that fit into the caches, for deep sums.
    Blocked,
    /// One sum in the order of the steps: zeros in front do not change the bits (`f32`).
    Sequential,
}

/// Computes `out (=|+=) left[rows] · right` on the calling thread.
///
/// The rows of `out` are those of `left` from `first_row` on, its columns those of the part of
/// `right`; the sums have the steps of `left`.
///
/// # Panics
/// If formats differ, a start is not a multiple as documented, or a part does not exist.
pub fn multiply(
    out: ViewMut<f32>,
    (left, first_row): (&PackedOperand, usize),
    right: RightPart,
    order: SumOrder,
    accumulate: Accumulate,
) {
    let RightPart { operand, first_column, first_step } = right;
    let starts =
        [(first_row, left.row_multiple()), (first_column, PART_MULTIPLE), (first_step, PART_MULTIPLE)];
    assert!(
        starts.iter().all(|(start, multiple)| start.is_multiple_of(*multiple)),
        "product of parts: starts {starts:?}"
    );
    assert!(
        first_row + out.rows <= left.len
            && first_column + out.cols <= operand.len
            && first_step + left.depth <= operand.depth
            && (left.operand, operand.operand) == (Operand::Left, Operand::Right),
        "product of parts: {left:?} {right:?}"
    );
    if out.rows == 0 || out.cols == 0 {
        return;
    }
    if left.depth == 0 {
        if accumulate == Accumulate::Replace {
            out.data.chunks_mut(out.stride).take(out.rows).for_each(|row| row[..out.cols].fill(0.0));
        }
        return;
    }
    match (&left.words, &operand.words) {
        (Words::F32(rows), Words::F32(columns)) => {
            let rows = &rows[first_row * left.depth..];
            let columns = &columns[first_column * operand.depth..];
            let product = F32Product {
                level: SimdLevel::best(),
                left: rows,
                mr: left.panel_width,
                depth: left.depth,
                right: columns,
                nr: operand.panel_width,
                first_step,
                right_depth: operand.depth,
            };
            let block_steps = if order == SumOrder::Blocked { BLOCK_STEPS } else { left.depth };
            product.compute(out, block_steps, accumulate);
        }
        (Words::Bf16(rows), Words::Bf16(columns)) => {
            let (left_stride, right_stride) = (left.panel_words(), operand.panel_words());
            let left_tiles =
                TilePanels { tiles: &rows[first_row / TILE_SIDE * left_stride..], panel_stride: left_stride };
            let first_tile = first_column / TILE_SIDE * right_stride + first_step / DEPTH;
            let right_tiles = TilePanels { tiles: &columns[first_tile..], panel_stride: right_stride };
            let operands = (left_tiles, right_tiles);
            f32::bf16_product(Bf16::best(), out, operands, (left_stride, order), accumulate);
        }
        (Words::Q8Rows(rows, bits), Words::Q8Columns(columns)) => {
            let (count, stride) = (left.depth.div_ceil(q8::BLOCK_STEPS), operand.panel_words());
            let left_stride = left.panel_words();
            let left = Blocks { blocks: &rows[first_row * left_stride..], stride: left_stride };
            let first = first_column / PANEL_COLUMNS * stride + first_step / q8::BLOCK_STEPS;
            let right = Blocks { blocks: &columns[first..], stride };
            q8::product(Int8::best(), out, *bits, left, right, count, accumulate);
        }
        _ => panic!("product of parts: operands of different formats"),
    }
}

/// A product of `f32` operands.
struct F32Product<'a> {
    level: SimdLevel,
    left: &'a [f32],
    mr: usize,
    /// Steps of a left micro-panel.
    depth: usize,
    right: &'a [f32],
    nr: usize,
    first_step: usize,
    /// Steps of a right micro-panel.
    right_depth: usize,
}

impl F32Product<'_> {
    /// Computes the product by blocks of steps.
    ///
    /// ```text
    /// for blocks of steps P:
    ///   for columns j of NR, several NR for few rows:
    ///     for rows i of MR:  micro-kernel: out[i, j] (=|+=) left[i, P] · right[P, j]
    /// ```
    fn compute(&self, out: ViewMut<f32>, block_steps: usize, accumulate: Accumulate) {
        let &Self { level, mr, nr, depth, right_depth, .. } = self;
        let ViewMut { data, rows, cols, stride } = out;
        // Blocks of nearly equal size, by the depth only.
        let block_steps = depth.div_ceil(depth.div_ceil(block_steps));
        let max_cols = nr * f32::panels(level, mr);
        for step in (0..depth).step_by(block_steps) {
            let steps = block_steps.min(depth - step);
            let accumulate = if step == 0 { accumulate } else { Accumulate::Add };
            let mut col = 0;
            while col < cols {
                let count = if cols - col < max_cols { nr.min(cols - col) } else { max_cols };
                let right = &self.right[col * right_depth + (self.first_step + step) * nr..];
                let panel_stride = if count > nr { nr * right_depth } else { 0 };
                let right_len = (count.div_ceil(nr) - 1) * panel_stride + steps * nr;
                let right = RightPanels { data: &right[..right_len], step_stride: nr, panel_stride };
                for row in (0..rows).step_by(mr) {
                    let left = &self.left[row * depth + step * mr..][..steps * mr];
                    let out = &mut data[row * stride + col..];
                    let output =
                        OutputTile { out, rows: mr.min(rows - row), cols: count, stride, accumulate };
                    f32::micro_kernel(level, mr, left, right, output, &[]);
                }
                col += count;
            }
        }
    }
}
