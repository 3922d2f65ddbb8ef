//! `PackedFastConformer`: fast inference with packed weights, in `f32` or bf16.
//!
//! Rows of all utterances follow each other without padding. Each module processes blocks of rows:
//! products are parallel over rows and columns, and their results are finished (bias, activation,
//! packing for the next product) while they are in the cache. The bits of a row depend only on its
//! utterance: they are the same for every number of threads, and alone or in a batch.
//!
//! Memory in addition to the weights, for T rows of width W in all utterances:
//!
//! | buffer | values |
//! |---|---|
//! | rows; queries, keys and values; results of attention or gated rows | `[T, W]`, `[T, 3W]`, `[T, W]` |
//! | keys of positions, for K distances of attention | `[K, W]` |
//! | packed rows of a block, flattened frames of a block | 512 rows |
//! | scratch memory of a task, for each thread | a tile of queries times its keys, and those keys |
//!
//! W: width of a row; F: inner width of a feed-forward module; H: heads; d: width of a head.
mod attention;
mod layer;
mod linear;
mod positions;
mod stream;
mod subsampling;
mod weights;
#[cfg(test)]
mod tests;

use std::ops::Range;

use attention::{AttentionRows, AttentionScratch};
use kernels::packed::{NumberFormat, Operand, PackedOperand};
use kernels::{AlignedVec, ScratchReq, WorkerSlots, alloc, items_mut, par_for, parts_mut};
use layer::{PackedAttention, PackedConvolution, PackedFeedForward, PackedLayer};
use linear::{TaskScratch, pack_rows};
use positions::{DistanceRange, SinusoidTable, Sinusoids};
use subsampling::{PackedSubsampling, SubsamplingScratch};
pub use stream::FastConformerStream;
pub use weights::ReadTensor;
use weights::WeightReader;

use super::FastConformerEncoderConfig;
use crate::layers::ragged::Ragged;
use crate::{Error, Result};

/// Rows of a block of all modules but attention, at most.
const ROWS_PER_BLOCK: usize = 512;
/// Rows that a task of the subsampling computes.
const ROWS_PER_SUBSAMPLING_TASK: usize = 8;
/// Rows that a task normalizes.
const ROWS_PER_NORM_TASK: usize = 32;

/// A FastConformer encoder with packed weights, for inference.
#[derive(Debug)]
pub struct PackedFastConformer {
    config: FastConformerEncoderConfig,
    input_width: usize,
    width: usize,
    format: NumberFormat,
    subsampling: PackedSubsampling,
    sinusoids: Sinusoids,
    layers: Vec<PackedLayer>,
}

/// Encoder rows of several utterances, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRows {
    /// `[Σ T_b, W]`
    pub rows: Vec<f32>,
    /// The number of rows of each utterance.
    pub lengths: Vec<usize>,
}

/// Memory that the modules share.
struct Workspace {
    /// Packed rows of a block, and those of the inner width of a feed-forward module.
    packed: PackedOperand,
    inner: PackedOperand,
    /// `[T, 3W]`
    qkv: Vec<f32>,
    /// Results of attention `[H, T, d]`, or gated rows `[T, W]`.
    results: Vec<f32>,
    tasks: TaskScratch,
    attention: WorkerSlots<AttentionScratch>,
}

impl PackedFastConformer {
    /// Packs the weights that `read` returns by their names, `encoder.*`.
    ///
    /// Weights are read one at a time, so that the peak of the memory is that of the packed weights
    /// and one layer's largest weight.
    ///
    /// # Errors
    /// Those of `read`; [`Error::Shape`] for a weight of another size.
    pub fn new(
        config: &FastConformerEncoderConfig,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Self> {
        let mut reader = WeightReader::new(read, format, config.bias);
        let factor = if config.scale_input { (config.width as f64).sqrt() } else { 1.0 };
        let subsampling =
            PackedSubsampling::new(&config.subsampling, input_width, config.width, factor, &mut reader)?;
        let layer = |index| PackedLayer::new(config, index, &mut reader);
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        let sinusoids = Sinusoids::new(config.width);
        let (config, width) = (config.clone(), config.width);
        Ok(PackedFastConformer { config, input_width, width, format, subsampling, sinusoids, layers })
    }

    /// Returns the width D of input frames.
    pub fn input_width(&self) -> usize {
        self.input_width
    }

    /// Returns the width W of encoder rows.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Encodes utterances of frames `[T, D]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for a number of values that is not a multiple of D.
    pub fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        for (index, frames) in utterances.iter().enumerate() {
            if !frames.len().is_multiple_of(self.input_width) {
                let expected = format!("rows of {} values", self.input_width);
                let found = format!("{} values", frames.len());
                return Err(Error::shape(format!("utterance {index}"), expected, found));
            }
        }
        let frame_counts = utterances.iter().map(|frames| frames.len() / self.input_width);
        let lengths: Vec<usize> =
            frame_counts.map(|frames| self.subsampling.config.output_len(frames)).collect();
        let ragged = Ragged::new(&lengths);
        let mut rows = alloc(ragged.rows() * self.width, 0.0);
        if !rows.is_empty() {
            let mut workspace = Workspace::new(self, ragged.rows());
            self.subsample(utterances, &ragged, &mut rows, &mut workspace);
            let table = self.distances(&lengths).map(|range| self.position_table(range, &workspace.tasks));
            for layer in &self.layers {
                layer.feed_forward1.forward(&mut rows, &mut workspace);
                if let Some(table) = &table {
                    self.attend(layer, &mut rows, &ragged, table, &mut workspace);
                }
                layer.convolution.forward(&mut rows, &ragged, &mut workspace);
                layer.feed_forward2.forward(&mut rows, &mut workspace);
                layer.normalize(&mut rows, &workspace);
            }
        }
        Ok(EncodedRows { rows, lengths })
    }

    /// Returns the distances in attention of utterances of these lengths; none without layers.
    fn distances(&self, lengths: &[usize]) -> Option<DistanceRange> {
        let layer = self.layers.first()?;
        layer.attention.heads.distances(lengths.iter().map(|&rows| (0..rows, rows)))
    }

    /// Returns sinusoids of a range, unless all layers have the keys of these positions.
    fn position_table(&self, range: DistanceRange, scratch: &TaskScratch) -> SinusoidTable {
        if self.layers.iter().all(|layer| layer.attention.positions.has_keys(range)) {
            return SinusoidTable::empty(range);
        }
        self.sinusoids.table(range, self.format, scratch)
    }

    /// Computes the rows after the subsampling.
    ///
    /// ```text
    /// for blocks of 512 rows:
    ///   in parallel, for 8 rows of an utterance:  the convolutions, into flattened frames
    ///   rows = out(flattened frames)
    /// ```
    fn subsample(
        &self,
        utterances: &[&[f32]],
        ragged: &Ragged,
        rows: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let subsampling = &self.subsampling;
        let flat_width = subsampling.out.inputs();
        let mut scratch: WorkerSlots<SubsamplingScratch> = WorkerSlots::default();
        scratch.resize(rayon::current_num_threads());
        let total = ragged.rows();
        let block_rows = block_rows(total);
        let mut flat: AlignedVec<f32> = AlignedVec::default();
        for block in row_blocks(total) {
            let flat = flat.ensure_len(block_rows * flat_width, 0.0);
            let flat = &mut flat[..block.len() * flat_width];
            let mut tasks = Vec::new();
            let mut remaining = &mut *flat;
            for utterance in 0..utterances.len() {
                let range = ragged.range(utterance);
                let shared = range.start.max(block.start)..range.end.min(block.end);
                for start in shared.clone().step_by(ROWS_PER_SUBSAMPLING_TASK) {
                    let count = ROWS_PER_SUBSAMPLING_TASK.min(shared.end - start);
                    let (out, rest) = std::mem::take(&mut remaining).split_at_mut(count * flat_width);
                    remaining = rest;
                    let first = start - range.start;
                    tasks.push((utterance, first..first + count, out));
                }
            }
            par_for(items_mut(&mut tasks), |_, (utterance, results, out)| {
                subsampling.compute_rows(utterances[*utterance], results.clone(), out, &mut scratch.lock());
            });
            let flat = &*flat;
            pack_rows(&mut workspace.packed, block.len(), flat_width, &workspace.tasks, |rows, values| {
                values.copy_from_slice(&flat[rows.start * flat_width..rows.end * flat_width]);
            });
            let out = &mut rows[block.start * self.width..block.end * self.width];
            subsampling.out.forward(&workspace.packed, out, &workspace.tasks);
        }
    }

    /// Adds the attention module of a layer.
    fn attend(
        &self,
        layer: &PackedLayer,
        rows: &mut [f32],
        ragged: &Ragged,
        table: &SinusoidTable,
        workspace: &mut Workspace,
    ) {
        let (width, module) = (self.width, &layer.attention);
        let Workspace { packed, qkv, results, tasks, attention, .. } = workspace;
        let total = ragged.rows();
        for block in row_blocks(total) {
            let x = &rows[block.start * width..block.end * width];
            pack_rows(packed, block.len(), width, tasks, |rows, values| {
                module.norm.apply(&x[rows.start * width..rows.end * width], values);
            });
            module.qkv.forward(packed, &mut qkv[3 * block.start * width..3 * block.end * width], tasks);
        }
        let positions = module.positions.keys(&self.sinusoids, table, tasks);
        let utterances = ragged_attention_rows(qkv, ragged, width);
        module.heads.forward(&utterances, &positions, results, attention);
        for block in row_blocks(total) {
            let out = &mut rows[block.start * width..block.end * width];
            module.add_results(results, block, out, packed, tasks);
        }
    }

    /// Returns the memory of [`Self::encode`] in addition to weights and results.
    ///
    /// `lengths` are the encoder rows of the utterances.
    pub fn requirement(&self, lengths: &[usize], threads: usize) -> ScratchReq {
        let (width, total) = (self.width, lengths.iter().sum::<usize>());
        let block = block_rows(total);
        let flat_width = self.subsampling.out.inputs();
        let inner_width = self.layers.first().map_or(0, |layer| layer.feed_forward1.inner.outputs());
        let packed = |width| PackedOperand::requirement(self.format, Operand::Left, block, width);
        let rows = ScratchReq::new::<f32>(4 * total * width);
        let blocks = packed(flat_width.max(width)).and(packed(inner_width));
        let heads = self.layers.first().map(|layer| &layer.attention.heads);
        let attention = heads.map_or(ScratchReq::EMPTY, |heads| {
            let keys = lengths.iter().map(|&rows| heads.max_group_keys(rows)).max().unwrap_or(0);
            heads.requirement(keys)
        });
        let tasks = linear::task_requirement(flat_width.max(width));
        let subsampling = self.subsampling.requirement(ROWS_PER_SUBSAMPLING_TASK).times(threads);
        let subsampling = subsampling.and(ScratchReq::aligned::<f32>(block * flat_width));
        let positions = heads.zip(self.distances(lengths)).map_or(ScratchReq::EMPTY, |(heads, range)| {
            positions::requirement(range, heads.heads, width, self.format)
        });
        rows.and(blocks).and(tasks.times(threads)).and(subsampling.or(attention.times(threads).and(positions)))
    }
}

impl Workspace {
    fn new(encoder: &PackedFastConformer, rows: usize) -> Self {
        let threads = rayon::current_num_threads();
        let (mut tasks, mut attention) = (TaskScratch::default(), WorkerSlots::default());
        tasks.resize(threads);
        attention.resize(threads);
        let operand = || PackedOperand::new(encoder.format, Operand::Left);
        Workspace {
            packed: operand(),
            inner: operand(),
            qkv: alloc(3 * rows * encoder.width, 0.0),
            results: alloc(rows * encoder.width, 0.0),
            tasks,
            attention,
        }
    }
}

impl PackedFeedForward {
    /// Adds `½ (W₂ silu(W₁ norm(x)))` to each row x.
    fn forward(&self, rows: &mut [f32], workspace: &mut Workspace) {
        let width = self.outer.outputs();
        let Workspace { packed, inner, tasks, .. } = workspace;
        for block in row_blocks(rows.len() / width) {
            let x = &mut rows[block.start * width..block.end * width];
            let input = &*x;
            pack_rows(packed, block.len(), width, tasks, |rows, values| {
                self.norm.apply(&input[rows.start * width..rows.end * width], values);
            });
            self.inner.forward_silu(packed, inner, tasks);
            self.outer.forward_add(inner, x, tasks);
        }
    }
}

impl PackedAttention {
    /// Adds `W_o` times the results of attention, `[H, T, d]`, of a block of rows.
    fn add_results(
        &self,
        results: &[f32],
        block: Range<usize>,
        out: &mut [f32],
        packed: &mut PackedOperand,
        tasks: &TaskScratch,
    ) {
        let width = self.out.outputs();
        let (head_width, total) = (width / self.heads.heads, results.len() / width);
        pack_rows(packed, block.len(), width, tasks, |rows, values| {
            for (row, values) in rows.zip(values.chunks_exact_mut(width)) {
                for (head, values) in values.chunks_exact_mut(head_width).enumerate() {
                    let start = (head * total + block.start + row) * head_width;
                    values.copy_from_slice(&results[start..][..head_width]);
                }
            }
        });
        self.out.forward_add(packed, out, tasks);
    }
}

impl PackedLayer {
    /// Applies the last norm of the layer to each row.
    fn normalize(&self, rows: &mut [f32], workspace: &Workspace) {
        let width = self.feed_forward1.outer.outputs();
        par_for(parts_mut(rows, ROWS_PER_NORM_TASK * width), |_, rows| {
            let mut buffer = workspace.tasks.lock();
            let normalized = buffer.ensure_len(rows.len(), 0.0);
            self.norm_out.apply(rows, normalized);
            rows.copy_from_slice(normalized);
        });
    }
}

impl PackedConvolution {
    /// Adds the convolution module to each row.
    fn forward(&self, rows: &mut [f32], ragged: &Ragged, workspace: &mut Workspace) {
        let width = self.out.outputs();
        let Workspace { packed, results: gated, tasks, .. } = workspace;
        for block in row_blocks(ragged.rows()) {
            let x = &rows[block.start * width..block.end * width];
            pack_rows(packed, block.len(), width, tasks, |rows, values| {
                self.norm.apply(&x[rows.start * width..rows.end * width], values);
            });
            self.gated.forward_glu(packed, &mut gated[block.start * width..block.end * width], tasks);
        }
        for block in row_blocks(ragged.rows()) {
            pack_rows(packed, block.len(), width, tasks, |rows, values| {
                self.convolve_rows(gated, ragged, block.start + rows.start..block.start + rows.end, values);
            });
            self.out.forward_add(packed, &mut rows[block.start * width..block.end * width], tasks);
        }
    }

    /// Computes the depthwise convolution of rows that may belong to several utterances.
    fn convolve_rows(&self, gated: &[f32], ragged: &Ragged, rows: Range<usize>, out: &mut [f32]) {
        let width = self.out.outputs();
        let mut out = out;
        for utterance in 0..ragged.utterances() {
            let range = ragged.range(utterance);
            let shared = range.start.max(rows.start)..range.end.min(rows.end);
            if !shared.is_empty() {
                let (part, rest) = out.split_at_mut(shared.len() * width);
                let x = ragged.utterance(gated, width, utterance);
                self.depthwise.apply(x, shared.start - range.start..shared.end - range.start, part);
                out = rest;
            }
        }
    }
}

/// Returns queries, keys and values of each utterance.
fn ragged_attention_rows<'a>(qkv: &'a [f32], ragged: &Ragged, width: usize) -> Vec<AttentionRows<'a>> {
    let utterances = (0..ragged.utterances()).filter(|&utterance| !ragged.range(utterance).is_empty());
    let rows = utterances.map(|utterance| {
        let rows = ragged.utterance(qkv, 3 * width, utterance);
        AttentionRows {
            queries: rows,
            query_stride: 3 * width,
            first_query: 0,
            keys: &rows[width..],
            key_stride: 3 * width,
            rows: ragged.range(utterance).len(),
        }
    });
    rows.collect()
}

/// Returns the rows of a block: blocks are as equal as possible.
fn block_rows(total: usize) -> usize {
    total.div_ceil(total.div_ceil(ROWS_PER_BLOCK).max(1)).max(1)
}

/// Divides rows into blocks.
fn row_blocks(total: usize) -> impl Iterator<Item = Range<usize>> {
    let size = block_rows(total);
    (0..total).step_by(size).map(move |start| start..total.min(start + size))
}
