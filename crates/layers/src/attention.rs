//! Multi-head self-attention with rotary positions, as one candle operation.
//!
//! ```text
//! q, k, v    queries, keys, values: a row q|k|v for each frame; a head has d columns of each
//! s          q̃ k̃ᵀ / √d, for the keys in the window of a query
//!            ~: rotated by the position in the window
//! out        softmax(s) v
//! ```
//! A window is the whole utterance, or a chunk and the chunks before it. Ragged rows are the rows
//! of all utterances without padding, T_b of utterance b. W is the width of all heads together.
//! Scores are computed for a block of queries at a time, and again in the backward pass, so that
//! memory grows with the rows only.
//!
//! Positions are rotary (Su et al., arXiv 2104.09864): a score depends on the distance of key and
//! query only, as with the relative positions of Transformer-XL, but without a table of distances
//! and without parameters. With chunks, positions count from the start of the window, so that
//! streaming does not depend on the position in the utterance.
mod head;
mod rotary;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use head::AttentionHead;
use kernels::{Real, items_mut, par_for};
use rotary::Rotary;

use crate::footprint::planned_threads;
use crate::operation::{SliceOperation, apply1};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Rows that a task of `HeadShape::merge_heads` copies.
const ROWS_PER_TASK: usize = 64;

/// The window of chunked attention: the chunk of the query, and the chunks before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSizes {
    /// Rows of a chunk.
    pub chunk_rows: usize,
    /// Chunks before the current one.
    pub left_chunks: usize,
}

/// Computes attention with several heads in each utterance.
///
/// # Shapes
/// `qkv [Σ T_b, 3W]`, rows of q, k and v, each of W = H·d values; d is even. Returns `[Σ T_b, W]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ T_b · K · W)` time, K the keys in a window; only `qkv` and the result are saved;
/// temporary memory is 64 scores for each key in each thread.
pub fn attention(
    qkv: &Tensor,
    ragged: &Arc<Ragged>,
    heads: usize,
    chunks: Option<ChunkSizes>,
) -> Result<Tensor> {
    let (rows, qkv_width) = qkv.dims2()?;
    // A head has q, k and v of the same, even width: a multiple of 3 · 2 values.
    let is_valid = heads > 0 && qkv_width > 0 && qkv_width.is_multiple_of(6 * heads);
    if !is_valid || rows != ragged.rows() {
        let expected = format!("[{}, a multiple of 6 for each of {heads} heads]", ragged.rows());
        return Err(Error::shape("qkv", expected, format!("{:?}", qkv.dims())));
    }
    let heads = HeadShape { count: heads, total_width: qkv_width / 3 };
    apply1(Attention { ragged: ragged.clone(), heads, chunks }, qkv)
}

/// The number of heads, and the width of all of them together.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    /// Number of heads.
    pub count: usize,
    /// Width W of all heads.
    pub total_width: usize,
}

/// Returns the largest number of scores in memory at a time.
///
/// `heads` is the number of heads of all utterances together, `rows` the length of the longest.
pub fn max_scores_in_memory(heads: usize, rows: usize, chunks: Option<ChunkSizes>) -> usize {
    heads.min(planned_threads()) * head::QUERIES_PER_BLOCK * rows.min(position_count(rows, chunks))
}

/// The values of one head in one utterance, all frames.
pub(crate) struct HeadValues<'a, F> {
    pub utterance: usize,
    pub head_index: usize,
    pub values: &'a mut [F],
}

/// The operation of [`attention`].
struct Attention {
    ragged: Arc<Ragged>,
    heads: HeadShape,
    chunks: Option<ChunkSizes>,
}

/// Queries, their keys, and the rotary position of the first key.
#[derive(Debug, Clone, PartialEq)]
struct ChunkWindow {
    queries: Range<usize>,
    keys: Range<usize>,
    first_position: usize,
}

/// Iterates over the windows of the queries `first_query .. rows` of an utterance.
///
/// Rows before `first_query` are keys only. With chunks, the position of the first key is above 0
/// where fewer than `left_chunks` chunks precede a window: queries have the same positions in all
/// windows.
fn windows(rows: usize, first_query: usize, chunks: Option<ChunkSizes>) -> impl Iterator<Item = ChunkWindow> {
    let chunk_rows = chunks.map_or(rows - first_query, |chunks| chunks.chunk_rows).max(1);
    (first_query..rows).step_by(chunk_rows).map(move |start| {
        let end = rows.min(start + chunk_rows);
        let left_rows = chunks.map_or(start, |chunks| chunks.left_chunks * chunks.chunk_rows);
        let first_key = start.saturating_sub(left_rows);
        let first_position = first_key + left_rows - start;
        ChunkWindow { queries: start..end, keys: first_key..end, first_position }
    })
}

/// Returns the number of rotary positions, for at most `longest` rows.
fn position_count(longest: usize, chunks: Option<ChunkSizes>) -> usize {
    chunks.map_or(longest, |chunks| (chunks.left_chunks + 1) * chunks.chunk_rows)
}

/// Queries, keys and values of an utterance, `[T, 3W]`.
///
/// The first `context_rows` rows are keys and values only: earlier chunks of a stream.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInput<'a, F> {
    /// Rows of queries, keys and values.
    pub qkv: &'a [F],
    /// A multiple of the rows of a chunk; with rotary positions, 0 without chunks.
    pub context_rows: usize,
}

/// Computes the results of all queries, one utterance after another.
pub fn forward<F: Real>(
    utterances: &[AttentionInput<F>],
    heads: HeadShape,
    chunks: Option<ChunkSizes>,
) -> Vec<F> {
    let row_count = |utterance: &AttentionInput<F>| utterance.qkv.len() / (3 * heads.total_width);
    let query_counts: Vec<usize> =
        utterances.iter().map(|input| row_count(input) - input.context_rows).collect();
    let longest = utterances.iter().map(row_count).max().unwrap_or(0);
    let (ragged, rotary) =
        (Ragged::new(&query_counts), Rotary::new(position_count(longest, chunks), heads.head_width()));
    let mut by_heads = kernels::alloc(ragged.rows() * heads.total_width, F::ZERO);
    par_for(items_mut(&mut heads.split_by_head(&ragged, &mut by_heads, 1)), |_, out| {
        let input = &utterances[out.utterance];
        let head = AttentionHead::new(input.qkv, heads, out.head_index, &rotary);
        for window in windows(row_count(input), input.context_rows, chunks) {
            let [start, end] = [window.queries.start, window.queries.end]
                .map(|t| (t - input.context_rows) * heads.head_width());
            head.forward(&window, &mut out.values[start..end]);
        }
    });
    heads.merge_heads(&ragged, &by_heads, 1)
}

impl HeadShape {
    /// Returns the width d of one head.
    pub(crate) fn head_width(&self) -> usize {
        self.total_width / self.count
    }

    /// Divides a buffer into the contiguous values of each head and utterance.
    ///
    /// The buffer has a row of `matrices · W` values for each frame: 1 matrix of results, or 3 of
    /// q, k and v. It is ordered by utterance, head and frame until `merge_heads` reorders it.
    pub(crate) fn split_by_head<'a, F>(
        &self,
        ragged: &Ragged,
        buffer: &'a mut [F],
        matrices: usize,
    ) -> Vec<HeadValues<'a, F>> {
        let utterances = ragged.split_mut(buffer, matrices * self.total_width).into_iter().enumerate();
        let split_utterance = |(utterance, values): (usize, &'a mut [F])| {
            let head_len = (values.len() / self.count).max(1);
            let heads = values.chunks_mut(head_len).enumerate();
            heads.map(move |(head_index, values)| HeadValues { utterance, head_index, values })
        };
        utterances.flat_map(split_utterance).collect()
    }

    /// Reorders the values of [`Self::split_by_head`] to rows with all heads.
    pub(crate) fn merge_heads<F: Real>(&self, ragged: &Ragged, by_heads: &[F], matrices: usize) -> Vec<F> {
        let (row_width, head_width) = (matrices * self.total_width, self.head_width());
        let mut out = kernels::alloc(by_heads.len(), F::ZERO);
        par_for(items_mut(&mut ragged.blocks(&mut out, row_width, ROWS_PER_TASK)), |_, block| {
            let heads = ragged.utterance(by_heads, row_width, block.utterance);
            for (head_index, head) in heads.chunks_exact(heads.len() / self.count).enumerate() {
                let head_rows =
                    head[block.first_row * matrices * head_width..].chunks_exact(matrices * head_width);
                for (out_row, head_row) in block.rows.chunks_exact_mut(row_width).zip(head_rows) {
                    let matrix_rows = out_row.chunks_exact_mut(self.total_width);
                    for (matrix_row, values) in matrix_rows.zip(head_row.chunks_exact(head_width)) {
                        matrix_row[head_index * head_width..][..head_width].copy_from_slice(values);
                    }
                }
            }
        });
        out
    }
}

impl SliceOperation<1> for Attention {
    const NAME: &'static str = "attention";

    fn shape(&self) -> Shape {
        Shape::from((self.ragged.rows(), self.heads.total_width))
    }

    fn forward<F: Real>(&self, [qkv]: [&[F]; 1]) -> Vec<F> {
        let input = |b| {
            let qkv = self.ragged.utterance(qkv, 3 * self.heads.total_width, b);
            AttentionInput { qkv, context_rows: 0 }
        };
        let utterances: Vec<_> = (0..self.ragged.utterances()).map(input).collect();
        forward(&utterances, self.heads, self.chunks)
    }

    fn backward<F: Real>(&self, [qkv]: [&[F]; 1], out: &[F], d_out: &[F], _: bool) -> [Vec<F>; 1] {
        let Attention { ragged, heads, chunks } = self;
        let longest = ragged.lengths().into_iter().max().unwrap_or(0);
        let rotary = Rotary::new(position_count(longest, *chunks), heads.head_width());
        let mut by_heads = kernels::alloc(qkv.len(), F::ZERO);
        let mut head_gradients = heads.split_by_head(ragged, &mut by_heads, 3);
        par_for(items_mut(&mut head_gradients), |_, gradient| {
            let b = gradient.utterance;
            let qkv = ragged.utterance(qkv, 3 * heads.total_width, b);
            let head = AttentionHead::new(qkv, *heads, gradient.head_index, &rotary);
            let [out, d_out] = [out, d_out].map(|rows| ragged.utterance(rows, heads.total_width, b));
            for window in windows(ragged.range(b).len(), 0, *chunks) {
                head.backward(&window, out, d_out, gradient.values);
            }
        });
        [heads.merge_heads(ragged, &by_heads, 3)]
    }
}

#[cfg(test)]
mod tests;
