//! Linear layers over many rows: packed weights, results finished while they are in the cache.
//!
//! A task computes a block of the product in scratch memory of its thread, applies the activation
//! and writes the block: to rows, added to rows, or packed for the next product. Rows are divided
//! into bands and columns into strips; a strip of the weight stays in the second-level cache while
//! all bands use it.
use std::ops::Range;

use kernels::packed::{NumberFormat, Operand, PackedOperand, RightPart, RowBits, SumOrder, multiply};
use kernels::{
    Accumulate, AlignedVec, Parts, ScratchReq, Tiling, View, ViewMut, WorkerSlots, add, add_glu, add_pair,
    add_relu, add_silu, par_for, parts, tiles_mut,
};

use super::weights::LinearWeight;
use crate::quantized_weights::quantize_weight;
use crate::{Error, Result};

/// Rows of a block of the product; see [`round_to_panels`].
const ROWS_PER_BLOCK: usize = 196;
/// Columns of a block for many rows.
const COLUMNS_PER_BLOCK: usize = 128;
/// Columns of a block for few rows.
const FEW_ROWS_COLUMNS: usize = 64;
/// Largest number of rows with [`FEW_ROWS_COLUMNS`].
const FEW_ROWS: usize = 64;
/// Columns of a block of a deep sum.
const DEEP_SUM_COLUMNS: usize = 256;
/// Smallest number of steps of a deep sum.
const DEEP_SUM_STEPS: usize = 2048;
/// Rows that a task packs; see [`round_to_panels`].
const ROWS_PER_PACKING: usize = 28;
/// Channels of a group of a gated layer: its values, then their gates.
const CHANNELS_PER_GATE_GROUP: usize = 32;

/// Scratch memory of the tasks, one buffer for each thread.
pub(super) type TaskScratch = WorkerSlots<AlignedVec<f32>>;

/// `y = x Wᵀ + b` with a packed weight.
#[derive(Debug)]
pub(super) struct PackedLinear {
    weight: PackedOperand,
    /// Zeros for a layer without bias.
    bias: Vec<f32>,
    /// Factor of the product; 1 if the weight includes it.
    factor: f32,
    /// Bits of rows in q8.
    row_bits: RowBits,
}

/// A block of a product, `[rows, columns]`.
struct Block<'a> {
    values: &'a mut [f32],
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Block<'_> {
    /// Iterates over the rows.
    fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.values.chunks_exact_mut(self.columns.len())
    }
}

impl PackedLinear {
    /// Packs a weight `[O, I]` and a bias `[O]`; no bias if it is empty.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sizes do not match, or the weight cannot be quantized.
    pub(super) fn new(
        name: &str,
        format: NumberFormat,
        weight: &[f32],
        inputs: usize,
        bias: Vec<f32>,
    ) -> Result<Self> {
        let outputs = weight.len() / inputs.max(1);
        if inputs == 0 || outputs == 0 || weight.len() != outputs * inputs {
            return Err(Error::shape(name, format!("rows of {inputs}"), format!("{} values", weight.len())));
        }
        let view = View::new(weight, outputs, inputs).transposed();
        let packed = match format {
            NumberFormat::Q8 => PackedOperand::from_quantized_rows(&quantize_weight(name, weight, inputs)?),
            format => PackedOperand::packed(format, Operand::Right, view),
        };
        Self::from_packed(name, packed, bias, 1.0)
    }

    /// Packs a weight that was read, multiplied by a factor; the bias includes it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) fn from_weight(
        name: &str,
        format: NumberFormat,
        weight: LinearWeight,
        inputs: usize,
        (factor, bias): (f32, Vec<f32>),
    ) -> Result<Self> {
        match weight {
            LinearWeight::Values(mut values) => {
                values.iter_mut().for_each(|value| *value *= factor);
                Self::new(name, format, &values, inputs, bias)
            }
            // Blocks have the scales of the file.
            LinearWeight::Quantized(matrix) => {
                Self::from_packed(name, PackedOperand::from_quantized_rows(&matrix), bias, factor)
            }
        }
    }

    fn from_packed(name: &str, weight: PackedOperand, mut bias: Vec<f32>, factor: f32) -> Result<Self> {
        let outputs = weight.len();
        if bias.is_empty() {
            bias = vec![0.0; outputs];
        }
        if bias.len() != outputs {
            let count = format!("{} values", bias.len());
            return Err(Error::shape(name, format!("a bias of {outputs} values"), count));
        }
        Ok(PackedLinear { weight, bias, factor, row_bits: RowBits::Sixteen })
    }

    /// Returns the number of outputs.
    pub(super) fn outputs(&self) -> usize {
        self.weight.len()
    }

    /// Returns this layer with other bits of rows in q8 than 16.
    pub(super) fn with_row_bits(self, row_bits: RowBits) -> Self {
        PackedLinear { row_bits, ..self }
    }

    /// Returns the number format of the weight and of packed rows.
    pub(super) fn format(&self) -> NumberFormat {
        self.weight.format()
    }

    /// Returns the number of inputs.
    pub(super) fn inputs(&self) -> usize {
        self.weight.depth()
    }

    /// Packs `count` rows that `fill(rows, values)` computes, for this layer.
    pub(super) fn pack_rows(
        &self,
        out: &mut PackedOperand,
        count: usize,
        scratch: &TaskScratch,
        fill: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        self.resize_rows(out, count);
        let (width, band) = (self.inputs(), round_to_panels(out, ROWS_PER_PACKING));
        par_for(out.tiles_mut(band, width), |index, mut tile| {
            let rows = index * band..count.min((index + 1) * band);
            let mut buffer = scratch.lock();
            let values = buffer.ensure_len(rows.len() * width, 0.0);
            fill(rows.clone(), values);
            tile.pack(View::new(values, rows.len(), width));
        });
    }

    /// Sets the size of packed rows, and their bits in q8.
    fn resize_rows(&self, rows: &mut PackedOperand, count: usize) {
        rows.set_row_bits(self.row_bits);
        rows.resize(count, self.inputs());
    }

    /// Returns an empty operand for the rows of this layer.
    pub(super) fn empty_rows(&self) -> PackedOperand {
        PackedOperand::new(self.format(), Operand::Left)
    }

    /// Returns the memory of packed rows.
    pub(super) fn row_requirement(&self, rows: usize) -> ScratchReq {
        PackedOperand::row_requirement(self.format(), self.row_bits, rows, self.inputs())
    }

    /// Packs rows for this layer.
    pub(super) fn pack_slice(&self, out: &mut PackedOperand, rows: &[f32]) {
        let width = self.inputs();
        self.resize_rows(out, rows.len() / width);
        let band = round_to_panels(out, ROWS_PER_PACKING);
        par_for((out.tiles_mut(band, width), parts(rows, band * width)), |_, (mut tile, rows)| {
            tile.pack(View::new(rows, rows.len() / width, width));
        });
    }

    /// Computes `out = x Wᵀ + b`.
    pub(super) fn forward(&self, x: &PackedOperand, out: &mut [f32], scratch: &TaskScratch) {
        let shape = BlockShape::new(x);
        let tiles = tiles_mut(out, shape.tiling(self.outputs(), 1));
        self.for_each_block(x, shape, tiles, scratch, |mut block, mut out| {
            let bias = &self.bias[block.columns.clone()];
            for (row, values) in block.rows_mut().enumerate() {
                let out = out.row(row, 0);
                out.copy_from_slice(values);
                add(out, bias);
            }
        });
    }

    /// Computes `out += x Wᵀ + b`.
    pub(super) fn forward_add(&self, x: &PackedOperand, out: &mut [f32], scratch: &TaskScratch) {
        let shape = BlockShape::new(x);
        let tiles = tiles_mut(out, shape.tiling(self.outputs(), 1));
        self.for_each_block(x, shape, tiles, scratch, |mut block, mut out| {
            let bias = &self.bias[block.columns.clone()];
            for (row, values) in block.rows_mut().enumerate() {
                add_pair(out.row(row, 0), values, bias);
            }
        });
    }

    /// Computes `out = silu(x Wᵀ + b)`, packed for the next layer.
    pub(super) fn forward_silu(
        &self,
        x: &PackedOperand,
        next: &Self,
        out: &mut PackedOperand,
        scratch: &TaskScratch,
    ) {
        let shape = BlockShape::new(x);
        next.resize_rows(out, x.len());
        self.for_each_block(
            x,
            shape,
            out.tiles_mut(shape.rows, shape.columns),
            scratch,
            |mut block, mut out| {
                let bias = &self.bias[block.columns.clone()];
                block.rows_mut().for_each(|row| add_silu(row, bias));
                out.pack(View::new(block.values, block.rows.len(), block.columns.len()));
            },
        );
    }

    /// Computes `out = a ∘ σ(g)` of `[a g] = x Wᵀ + b`, with a weight from [`interleave_gates`].
    pub(super) fn forward_glu(&self, x: &PackedOperand, out: &mut [f32], scratch: &TaskScratch) {
        let shape = BlockShape::new(x);
        let tiles = tiles_mut(out, shape.tiling(self.outputs(), 2));
        self.for_each_block(x, shape, tiles, scratch, |mut block, mut out| {
            const GROUP: usize = 2 * CHANNELS_PER_GATE_GROUP;
            let bias = &self.bias[block.columns.clone()];
            for (row, values) in block.rows_mut().enumerate() {
                let outputs = out.row(row, 0).chunks_mut(CHANNELS_PER_GATE_GROUP);
                for (out, (group, bias)) in outputs.zip(values.chunks(GROUP).zip(bias.chunks(GROUP))) {
                    add_glu(out, group, bias);
                }
            }
        });
    }

    /// Computes `out = max(x Wᵀ + b, 0)` on the calling thread.
    pub(super) fn forward_relu_in_task(&self, x: &PackedOperand, out: &mut [f32]) {
        let part = RightPart { operand: &self.weight, first_column: 0, first_step: 0 };
        let view = ViewMut::new(out, x.len(), self.outputs());
        multiply(view, (x, 0), part, SumOrder::Blocked, Accumulate::Replace);
        self.scale(out);
        out.chunks_exact_mut(self.outputs()).for_each(|row| add_relu(row, &self.bias));
    }

    fn scale(&self, values: &mut [f32]) {
        if self.factor != 1.0 {
            values.iter_mut().for_each(|value| *value *= self.factor);
        }
    }

    /// Calls `finish` with each block of `x Wᵀ` and the corresponding part.
    ///
    /// Parts are in the order of [`tiles_mut`]: all bands of a strip, then those of the next one.
    fn for_each_block<P: Parts>(
        &self,
        x: &PackedOperand,
        shape: BlockShape,
        parts: P,
        scratch: &TaskScratch,
        finish: impl Fn(Block, P::Part) + Sync,
    ) {
        let bands = x.len().div_ceil(shape.rows);
        par_for(parts, |task, part| {
            let (first_row, first_column) = (task % bands * shape.rows, task / bands * shape.columns);
            let rows = first_row..x.len().min(first_row + shape.rows);
            let columns = first_column..self.outputs().min(first_column + shape.columns);
            let mut buffer = scratch.lock();
            let values = buffer.ensure_len(rows.len() * columns.len(), 0.0);
            let right = RightPart { operand: &self.weight, first_column, first_step: 0 };
            let view = ViewMut::new(values, rows.len(), columns.len());
            multiply(view, (x, first_row), right, SumOrder::Blocked, Accumulate::Replace);
            self.scale(values);
            finish(Block { values, rows, columns }, part);
        });
    }
}

/// The division of a product into blocks.
#[derive(Debug, Clone, Copy)]
struct BlockShape {
    rows: usize,
    columns: usize,
}

impl BlockShape {
    fn new(x: &PackedOperand) -> Self {
        BlockShape {
            rows: round_to_panels(x, ROWS_PER_BLOCK),
            columns: match x.len() {
                0..=FEW_ROWS => FEW_ROWS_COLUMNS,
                _ if x.depth() >= DEEP_SUM_STEPS => DEEP_SUM_COLUMNS,
                _ => COLUMNS_PER_BLOCK,
            },
        }
    }

    /// Returns the division of result rows with `outputs / divisor` columns.
    fn tiling(&self, outputs: usize, divisor: usize) -> Tiling {
        Tiling { rows: self.rows, planes: 1, columns: outputs / divisor, width: self.columns / divisor }
    }
}

/// Rounds a number of rows down to whole micro-panels, at least one.
fn round_to_panels(operand: &PackedOperand, count: usize) -> usize {
    let multiple = operand.row_multiple();
    (count / multiple * multiple).max(multiple)
}

/// Reorders the rows of a weight as [`interleave_gates`].
pub(super) fn interleave_gate_rows(weight: LinearWeight, inputs: usize) -> LinearWeight {
    match weight {
        LinearWeight::Values(values) => LinearWeight::Values(interleave_gates(&values, inputs)),
        LinearWeight::Quantized(matrix) => {
            let width = matrix.rows() / 2;
            let groups = (0..width).step_by(CHANNELS_PER_GATE_GROUP);
            let rows = groups.flat_map(|first| {
                let group = first..width.min(first + CHANNELS_PER_GATE_GROUP);
                group.clone().chain(width + group.start..width + group.end)
            });
            LinearWeight::Quantized(matrix.select_rows(rows))
        }
    }
}

/// Returns the scratch memory of a task, for rows of `width` values.
pub(super) fn task_requirement(width: usize) -> ScratchReq {
    let block = ScratchReq::aligned::<f32>(ROWS_PER_BLOCK * DEEP_SUM_COLUMNS);
    block.or(ScratchReq::aligned::<f32>(2 * ROWS_PER_PACKING * width))
}

/// Reorders the rows `[a g]` of a weight or bias `[2W, I]` for [`PackedLinear::forward_glu`].
///
/// 32 rows of a are followed by those of their gates.
pub(super) fn interleave_gates(values: &[f32], inputs: usize) -> Vec<f32> {
    let (a, gates) = values.split_at(values.len() / 2);
    let group = CHANNELS_PER_GATE_GROUP * inputs;
    a.chunks(group).zip(gates.chunks(group)).flat_map(|(a, gates)| a.iter().chain(gates)).copied().collect()
}
