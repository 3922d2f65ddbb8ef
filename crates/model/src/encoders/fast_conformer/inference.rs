//! `PackedFastConformer`: fast inference with packed weights, in `f32`, bf16 or q8.
//!
//! Rows of all utterances follow each other without padding. Each module processes blocks of rows:
//! products are parallel over rows and columns, and their results are finished (bias, activation,
//! packing for the next product) while they are in the cache. The bits of a row depend only on its
//! utterance: they are the same for every number of threads, and alone or in a batch.
//!
//! In q8, linear layers multiply 8-bit blocks. Rows have 8 bits in feed-forward modules and 16 in
//! attention, convolution modules and the projection of the subsampling: they have 30 % of the
//! multiplications, and rounding their rows in 8 bits would double the errors of the results.
//! Products of attention and convolutions of the subsampling are in bf16 if the processor has
//! instructions for it, otherwise in `f32`; norms, biases and depthwise convolutions are in `f32`.
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
mod modules;
mod positions;
mod stream;
mod subsampling;
#[cfg(test)]
mod tests;
mod weights;
mod workspace;

use kernels::packed::NumberFormat;
use kernels::{ScratchReq, alloc, items_mut, par_for};
use layer::PackedLayer;
use linear::TaskScratch;
use modules::{block_rows, row_blocks};
use positions::{DistanceInterval, SinusoidTable, Sinusoids};
pub use stream::FastConformerStream;
use subsampling::PackedSubsampling;
use weights::WeightReader;
use workspace::{Workspace, WorkspacePool};

use std::sync::Arc;

use super::FastConformerEncoderConfig;
use crate::Result;
use crate::encoders::inference_encoder::count_rows;
use crate::encoders::{EncodedRows, EncoderStream, InferenceEncoder, ReadTensor};
use layers::ragged::Ragged;

/// Rows that a task of the subsampling computes.
const ROWS_PER_SUBSAMPLING_TASK: usize = 8;

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
    workspaces: WorkspacePool,
}

impl PackedFastConformer {
    /// Packs the weights that `read` returns by their names, `encoder.*`.
    ///
    /// Weights are read one at a time, so that the peak of the memory is that of the packed weights
    /// and one layer's largest weight.
    ///
    /// # Errors
    /// Those of `read`; [`crate::Error::Shape`] for a weight of another size.
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
        let workspaces = WorkspacePool::default();
        Ok(PackedFastConformer {
            config,
            input_width,
            width,
            format,
            subsampling,
            sinusoids,
            layers,
            workspaces,
        })
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
    /// [`crate::Error::Shape`] for a number of values that is not a multiple of D.
    pub fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        let frame_counts = count_rows(utterances, self.input_width)?.into_iter();
        let lengths: Vec<usize> =
            frame_counts.map(|frames| self.subsampling.config.output_len(frames)).collect();
        let ragged = Ragged::new(&lengths);
        let mut rows = alloc(ragged.rows() * self.width, 0.0);
        if !rows.is_empty() {
            let mut workspace = self.workspaces.acquire(self.format, ragged.rows(), self.width);
            self.subsample(utterances, &ragged, &mut rows, &mut workspace);
            let table = self.distances(&lengths).map(|range| self.position_table(range, &workspace.tasks));
            for layer in &self.layers {
                layer.feed_forward1.forward(&mut rows, &mut workspace);
                if let Some(table) = &table {
                    let positions = &layer.attention.positions;
                    let positions = positions.keys(&self.sinusoids, table, &workspace.tasks);
                    layer.attention.forward(&mut rows, &ragged, &positions, &mut workspace);
                }
                layer.convolution.forward(&mut rows, &ragged, &mut workspace);
                layer.feed_forward2.forward(&mut rows, &mut workspace);
                layer.normalize(&mut rows, &workspace);
            }
            self.workspaces.release(workspace);
        }
        Ok(EncodedRows { rows, lengths })
    }

    /// Returns the distances in attention of utterances of these lengths; none without layers.
    fn distances(&self, lengths: &[usize]) -> Option<DistanceInterval> {
        let layer = self.layers.first()?;
        layer.attention.heads.distances(lengths.iter().map(|&rows| (0..rows, rows)))
    }

    /// Returns the sinusoids of a range, if a layer needs them.
    fn position_table(&self, range: DistanceInterval, scratch: &TaskScratch) -> SinusoidTable {
        if self.layers.iter().all(|layer| layer.attention.positions.has_keys(range)) {
            return SinusoidTable::empty(range);
        }
        let Some(layer) = self.layers.first() else { return SinusoidTable::empty(range) };
        self.sinusoids.table(range, &layer.attention.positions.linear, scratch)
    }

    /// Computes the rows after the subsampling.
    ///
    /// ```text
    /// for blocks of 512 rows:
    ///   in parallel, for 8 rows of an utterance:  the convolutions, into flattened frames
    ///   rows = out(flattened frames)
    /// ```
    fn subsample(&self, utterances: &[&[f32]], ragged: &Ragged, rows: &mut [f32], workspace: &mut Workspace) {
        let subsampling = &self.subsampling;
        let flat_width = subsampling.out.inputs();
        let Workspace { flat, packed, tasks: task_scratch, subsampling: scratch, .. } = workspace;
        let total = ragged.rows();
        let block_rows = block_rows(total);
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
            subsampling.out.pack_slice(packed, flat);
            let out = &mut rows[block.start * self.width..block.end * self.width];
            subsampling.out.forward(packed, out, task_scratch);
        }
    }

    /// Returns the memory of [`Self::encode`] in addition to weights and results.
    ///
    /// `lengths` are the encoder rows of the utterances.
    pub fn requirement(&self, lengths: &[usize], threads: usize) -> ScratchReq {
        let (width, total) = (self.width, lengths.iter().sum::<usize>());
        let block = block_rows(total);
        let flat_width = self.subsampling.out.inputs();
        let rows = ScratchReq::new::<f32>(4 * total * width);
        let flat_rows = self.subsampling.out.row_requirement(block);
        let layer = self.layers.first();
        let blocks = layer.map_or(flat_rows, |layer| {
            let packed = flat_rows.or(layer.attention.qkv.row_requirement(block));
            packed.and(layer.feed_forward1.outer.row_requirement(block))
        });
        let attention = layer.map_or(ScratchReq::EMPTY, |layer| {
            let heads = &layer.attention.heads;
            let keys = lengths.iter().map(|&rows| heads.max_group_keys(rows)).max().unwrap_or(0);
            heads.requirement(keys)
        });
        let tasks = linear::task_requirement(flat_width.max(width));
        let subsampling = self.subsampling.requirement(ROWS_PER_SUBSAMPLING_TASK).times(threads);
        let subsampling = subsampling.and(ScratchReq::aligned::<f32>(block * flat_width));
        let positions = layer
            .zip(self.distances(lengths))
            .map_or(ScratchReq::EMPTY, |(layer, range)| layer.attention.positions.requirement(range));
        rows.and(blocks)
            .and(tasks.times(threads))
            .and(subsampling.or(attention.times(threads).and(positions)))
    }
}

impl InferenceEncoder for PackedFastConformer {
    fn input_width(&self) -> usize {
        self.input_width
    }

    fn width(&self) -> usize {
        self.width
    }

    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        PackedFastConformer::encode(self, utterances)
    }

    fn bytes(&self, input_rows: &[usize]) -> usize {
        let lengths = input_rows.iter().map(|&rows| self.subsampling.config.output_len(rows));
        let lengths: Vec<usize> = lengths.collect();
        let results = ScratchReq::new::<f32>(lengths.iter().sum::<usize>() * self.width);
        self.requirement(&lengths, rayon::current_num_threads()).and(results).bytes()
    }

    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>> {
        let stream = PackedFastConformer::stream(&self)?;
        Some(Arc::new(stream))
    }
}
