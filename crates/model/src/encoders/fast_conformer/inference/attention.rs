//! Self-attention with relative positions for inference, by tiles of queries.
//!
//! ```text
//! s_ij = (q_i + u)·k_j + (q_i + v)·r_(i-j)      q, u and v are scaled by 1/√d
//! o_i  = Σ_j exp(s_ij - max) v_j / Σ_j exp(s_ij - max)      over the allowed keys j
//! ```
//! A task has a head and a group of queries of one utterance. It packs the keys and values that
//! the group may attend to, and computes a tile of queries at a time: the scores of the keys, plus
//! those of the positions, of which row i begins i columns earlier. No matrix of all queries and
//! keys exists. Sums over keys are in the order of the keys, so that the bits of a row depend only
//! on its allowed keys in `f32`.
use std::ops::Range;

use kernels::packed::{NumberFormat, Operand, PART_MULTIPLE, PackedOperand, RightPart, SumOrder, multiply};
use kernels::{Accumulate, AlignedVec, ScratchReq, View, ViewMut, WorkerSlots, add_exp, items_mut, par_for};

use super::positions::{DistanceInterval, PositionKeys};
use crate::encoders::fast_conformer::AttentionLimits;

/// Tiles of a group of queries that share packed keys, at least.
const MIN_TILES_PER_GROUP: usize = 8;
/// Largest number of packed keys for each query of a group.
///
/// A group of the minimal size may have more.
const KEYS_PER_QUERY: usize = 4;

/// Queries of a tile: whole micro-panels of the product.
pub(super) fn queries_per_tile(format: NumberFormat) -> usize {
    match format {
        NumberFormat::F32 => 28,
        NumberFormat::Bf16 | NumberFormat::Q8 => 32,
    }
}

/// Sizes of the heads, and the biases of queries.
#[derive(Debug)]
pub(super) struct HeadParameters {
    pub heads: usize,
    pub width: usize,
    /// Number format of scores and values.
    pub format: NumberFormat,
    pub limits: AttentionLimits,
    /// Factor of the queries, in addition to that of their weight.
    pub query_scale: f32,
    /// The scaled biases of queries for keys, u, and for positions, v; `[W]` each.
    pub query_biases: [Vec<f32>; 2],
}

/// Queries, keys and values of an utterance.
///
/// Row `i` of the queries has the position `first_query + i` among the keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionRows<'a> {
    /// Rows that begin with the queries, `[n, query_stride]`.
    pub queries: &'a [f32],
    pub query_stride: usize,
    pub first_query: usize,
    /// Rows that begin with keys and values, `[rows, key_stride]`.
    pub keys: &'a [f32],
    pub key_stride: usize,
    /// Number of keys.
    pub rows: usize,
}

impl AttentionRows<'_> {
    fn query_count(&self) -> usize {
        self.queries.len().div_ceil(self.query_stride)
    }
}

/// Scratch memory of a task.
#[derive(Debug)]
pub(super) struct AttentionScratch {
    keys: PackedOperand,
    values: PackedOperand,
    packed: PackedOperand,
    queries: AlignedVec<f32>,
    scores: AlignedVec<f32>,
    position_scores: AlignedVec<f32>,
}

impl Default for AttentionScratch {
    fn default() -> Self {
        let operand = |operand| PackedOperand::new(NumberFormat::F32, operand);
        AttentionScratch {
            keys: operand(Operand::Right),
            values: operand(Operand::Right),
            packed: operand(Operand::Left),
            queries: AlignedVec::default(),
            scores: AlignedVec::default(),
            position_scores: AlignedVec::default(),
        }
    }
}

impl AttentionScratch {
    fn set_format(&mut self, format: NumberFormat) {
        if self.keys.format() != format {
            self.keys = PackedOperand::new(format, Operand::Right);
            self.values = PackedOperand::new(format, Operand::Right);
            self.packed = PackedOperand::new(format, Operand::Left);
        }
    }
}

/// A head and a group of queries.
struct AttentionTask<'a> {
    utterance: usize,
    head: usize,
    /// Queries by their row.
    queries: Range<usize>,
    /// `[queries, d]`
    out: &'a mut [f32],
}

impl HeadParameters {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Returns the distances of all tiles of some utterances.
    ///
    /// Each has queries and a number of keys.
    pub(super) fn distances(
        &self,
        utterances: impl IntoIterator<Item = (Range<usize>, usize)>,
    ) -> Option<DistanceInterval> {
        let tile = queries_per_tile(self.format);
        let ranges = utterances.into_iter().flat_map(|(all_queries, rows)| {
            all_queries.clone().step_by(tile).map(move |start| {
                let queries = start..all_queries.end.min(start + tile);
                let keys = self.key_range(&queries, rows);
                DistanceInterval {
                    min: queries.start as i64 - (keys.end as i64 - 1),
                    max: (queries.end as i64 - 1) - keys.start as i64,
                }
            })
        });
        ranges.reduce(DistanceInterval::union)
    }

    /// Returns the keys of a range of queries.
    fn key_range(&self, queries: &Range<usize>, rows: usize) -> Range<usize> {
        self.limits.keys(queries.start, rows).start..self.limits.keys(queries.end - 1, rows).end
    }

    /// Returns the queries of a group in an utterance of `rows` keys.
    fn queries_per_group(&self, rows: usize) -> usize {
        let tile = queries_per_tile(self.format);
        let min = MIN_TILES_PER_GROUP * tile;
        if rows <= min {
            return min;
        }
        let last_keys = self.key_range(&(rows - min..rows), rows).len();
        min.max((last_keys / KEYS_PER_QUERY).next_multiple_of(tile))
    }

    /// Computes the results of all heads, `[H, Σ n, d]`.
    pub(super) fn forward(
        &self,
        utterances: &[AttentionRows],
        positions: &PositionKeys,
        out: &mut [f32],
        scratch: &WorkerSlots<AttentionScratch>,
    ) {
        let head_width = self.head_width();
        let mut tasks = Vec::new();
        let mut out = out;
        for head in 0..self.heads {
            for (utterance, rows) in utterances.iter().enumerate() {
                let (count, group) = (rows.query_count(), self.queries_per_group(rows.rows));
                for start in (0..count).step_by(group) {
                    let queries = start..count.min(start + group);
                    let (part, rest) = std::mem::take(&mut out).split_at_mut(queries.len() * head_width);
                    out = rest;
                    tasks.push(AttentionTask { utterance, head, queries, out: part });
                }
            }
        }
        par_for(items_mut(&mut tasks), |_, task| {
            let mut scratch = scratch.lock();
            scratch.set_format(self.format);
            self.attend(task, &utterances[task.utterance], positions, &mut scratch);
        });
    }

    fn attend(
        &self,
        task: &mut AttentionTask,
        rows: &AttentionRows,
        positions: &PositionKeys,
        scratch: &mut AttentionScratch,
    ) {
        let (head_width, column) = (self.head_width(), task.head * self.head_width());
        let group = rows.first_query + task.queries.start..rows.first_query + task.queries.end;
        let group_keys = self.key_range(&group, rows.rows);
        let view = |offset: usize| {
            let start = group_keys.start * rows.key_stride + offset + column;
            View::with_stride(&rows.keys[start..], group_keys.len(), head_width, rows.key_stride)
        };
        scratch.keys.fill(view(0).transposed());
        scratch.values.fill(view(self.width));
        let tile = queries_per_tile(self.format);
        for (start, out) in task.queries.clone().step_by(tile).zip(task.out.chunks_mut(tile * head_width)) {
            let count = out.len() / head_width;
            let first = rows.first_query + start;
            let tile_keys = self.key_range(&(first..first + count), rows.rows);
            let queries = TileQueries {
                values: &rows.queries[start * rows.query_stride + column..],
                stride: rows.query_stride,
                scale: self.query_scale,
                first,
                count,
            };
            self.attend_tile(
                task.head,
                queries,
                (&group_keys, tile_keys),
                rows.rows,
                positions,
                scratch,
                out,
            );
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn attend_tile(
        &self,
        head: usize,
        queries: TileQueries,
        (group_keys, tile_keys): (&Range<usize>, Range<usize>),
        rows: usize,
        positions: &PositionKeys,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
    ) {
        let head_width = self.head_width();
        let AttentionScratch { keys, values, packed, queries: query_buffer, scores, position_scores } =
            scratch;
        let TileQueries { first, count, .. } = queries;
        // Columns of the scores begin at a multiple in the packed keys of the group.
        let first_column = (tile_keys.start - group_keys.start) / PART_MULTIPLE * PART_MULTIPLE;
        let first_key = group_keys.start + first_column;
        let columns = tile_keys.end - first_key;
        let biased = query_buffer.ensure_len(count * head_width, 0.0);

        // Scores of keys: (q + u)·k.
        let bias = |index: usize| &self.query_biases[index][head * head_width..][..head_width];
        queries.add_bias(bias(0), biased);
        packed.fill(View::new(biased, count, head_width));
        let scores = scores.ensure_len(count * columns, 0.0);
        let part = RightPart { operand: keys, first_column, first_step: 0 };
        let view = ViewMut::new(scores, count, columns);
        multiply(view, (packed, 0), part, SumOrder::Sequential, Accumulate::Replace);

        // Scores of positions: (q + v)·r, for the distances of the tile, the largest first.
        queries.add_bias(bias(1), biased);
        packed.fill(View::new(biased, count, head_width));
        let last_query = first + count - 1;
        let distance = |query: usize, key: usize| query as i64 - key as i64;
        let first_position =
            positions.column(distance(last_query, tile_keys.start)) / PART_MULTIPLE * PART_MULTIPLE;
        let end_position = positions.column(distance(first, tile_keys.end - 1)) + 1;
        let position_columns = end_position - first_position;
        let position_scores = position_scores.ensure_len(count * position_columns, 0.0);
        let part = RightPart { operand: &positions.heads[head], first_column: first_position, first_step: 0 };
        let view = ViewMut::new(position_scores, count, position_columns);
        multiply(view, (packed, 0), part, SumOrder::Sequential, Accumulate::Replace);

        // Numerators of the softmax over the keys of each query.
        let mut inverse_sums = [0.0; 64];
        let score_rows = scores.chunks_exact_mut(columns).zip(position_scores.chunks_exact(position_columns));
        for (index, (row, position_row)) in score_rows.enumerate() {
            let query = first + index;
            let keys = self.limits.keys(query, rows);
            let allowed = keys.start - first_key..keys.end - first_key;
            let position = positions.column(distance(query, keys.start)) - first_position;
            let sum = add_exp(&mut row[allowed.clone()], &position_row[position..][..allowed.len()]);
            inverse_sums[index] = 1.0 / sum;
            row[..allowed.start].fill(0.0);
            row[allowed.end..].fill(0.0);
        }

        // Weighted sums of the values.
        packed.fill(View::new(scores, count, columns));
        let part = RightPart { operand: values, first_column: 0, first_step: first_column };
        let view = ViewMut::new(out, count, head_width);
        let order = match self.format {
            NumberFormat::F32 => SumOrder::Sequential,
            NumberFormat::Bf16 | NumberFormat::Q8 => SumOrder::Blocked,
        };
        multiply(view, (packed, 0), part, order, Accumulate::Replace);
        for (row, inverse_sum) in out.chunks_exact_mut(head_width).zip(inverse_sums) {
            row.iter_mut().for_each(|value| *value *= inverse_sum);
        }
    }

    /// Returns the memory of a task for at most `keys` keys.
    pub(super) fn requirement(&self, keys: usize) -> ScratchReq {
        let (tile, head_width, format) = (queries_per_tile(self.format), self.head_width(), self.format);
        let operands = [
            PackedOperand::requirement(format, Operand::Right, keys, head_width),
            PackedOperand::requirement(format, Operand::Right, head_width, keys),
            PackedOperand::requirement(format, Operand::Left, tile, keys.max(head_width)),
        ];
        let scores = ScratchReq::aligned::<f32>(tile * (keys + PART_MULTIPLE));
        let position_scores = ScratchReq::aligned::<f32>(tile * (keys + tile + PART_MULTIPLE));
        let queries = ScratchReq::aligned::<f32>(tile * head_width);
        ScratchReq::all_of(operands).and(scores).and(position_scores).and(queries)
    }

    /// Returns the largest number of keys of a group in an utterance.
    pub(super) fn max_group_keys(&self, rows: usize) -> usize {
        let group = self.queries_per_group(rows);
        let key_count = |start: usize| self.key_range(&(start..rows.min(start + group)), rows).len();
        (0..rows).step_by(group).map(key_count).max().unwrap_or(0)
    }
}

/// The queries of a tile and head.
struct TileQueries<'a> {
    values: &'a [f32],
    stride: usize,
    scale: f32,
    /// The position of the first query.
    first: usize,
    count: usize,
}

impl TileQueries<'_> {
    fn add_bias(&self, bias: &[f32], out: &mut [f32]) {
        for (index, out) in out.chunks_exact_mut(bias.len()).enumerate() {
            let query = &self.values[index * self.stride..][..bias.len()];
            out.iter_mut()
                .zip(query.iter().zip(bias))
                .for_each(|(out, (q, bias))| *out = q * self.scale + bias);
        }
    }
}
