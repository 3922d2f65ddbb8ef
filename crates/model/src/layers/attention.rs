//! Multi-head self-attention with rotary positions, as one candle operation.
//!
//! ```text
//! q, k, v    queries, keys, values: a row q|k|v for each frame; a head has d columns of each
//! s          q̃ k̃ᵀ / √d, for the keys in the window of a query
//!            ~: rotated by the position in the window
//! out        softmax(s) v
//! ```
//! A window is the whole utterance, or a chunk and the chunks before it. Ragged rows are the rows
//! of all utterances without padding. Scores are computed for a block of queries at a time, and
//! again in the backward pass, so that memory grows with the rows only.
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

use crate::layers::footprint::threads;
use crate::layers::operation::{SliceOperation, apply1};
use crate::layers::ragged::Ragged;
use crate::{Error, Result};

/// Rows that a task of `HeadCount::merge_heads` copies.
const ROWS_PER_TASK: usize = 64;

/// Chunked attention: a window is a chunk and the `left` chunks before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks {
    pub chunk: usize,
    pub left: usize,
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
pub(crate) fn attention(
    qkv: &Tensor,
    ragged: &Arc<Ragged>,
    heads: usize,
    chunks: Option<Chunks>,
) -> Result<Tensor> {
    let (rows, all) = qkv.dims2()?;
    let is_valid = heads > 0 && all > 0 && all.is_multiple_of(6 * heads);
    if !is_valid || rows != ragged.rows() {
        let expected = format!("[{}, a multiple of 6 for each of {heads} heads]", ragged.rows());
        return Err(Error::shape("qkv", expected, format!("{:?}", qkv.dims())));
    }
    apply1(
        Attention { ragged: ragged.clone(), shape: HeadCount { count: heads, width: all / 3 }, chunks },
        qkv,
    )
}

/// The number of heads, and the width of all of them together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadCount {
    pub count: usize,
    pub width: usize,
}

/// Returns the largest number of scores in memory at a time.
///
/// `heads` is the number of heads of all utterances together, `rows` the length of the longest.
pub(crate) fn scores(heads: usize, rows: usize, chunks: Option<Chunks>) -> usize {
    heads.min(threads()) * head::QUERIES_PER_BLOCK * rows.min(positions(rows, chunks))
}

struct Attention {
    ragged: Arc<Ragged>,
    shape: HeadCount,
    chunks: Option<Chunks>,
}

/// Queries, their keys, and the rotary position of the first key.
#[derive(Debug, Clone, PartialEq)]
struct ChunkWindow {
    queries: Range<usize>,
    keys: Range<usize>,
    position: usize,
}

/// Iterates over the windows of the queries `first .. count`.
///
/// Rows before `first` are keys only. With chunks, the position of the first key is above 0 where
/// fewer than `left` chunks precede a window: queries have the same positions in all windows.
fn windows(count: usize, first: usize, chunks: Option<Chunks>) -> impl Iterator<Item = ChunkWindow> {
    let size = chunks.map_or(count - first, |chunks| chunks.chunk).max(1);
    (first..count).step_by(size).map(move |start| {
        let end = count.min(start + size);
        let reach = chunks.map_or(start, |chunks| chunks.left * chunks.chunk);
        let from = start.saturating_sub(reach);
        ChunkWindow { queries: start..end, keys: from..end, position: from + reach - start }
    })
}

/// Returns the number of positions in windows of at most `longest` rows.
fn positions(longest: usize, chunks: Option<Chunks>) -> usize {
    chunks.map_or(longest, |Chunks { chunk, left }| (left + 1) * chunk)
}

/// Queries, keys and values of an utterance, `[T, 3W]`.
///
/// The first `context` rows are keys and values only: earlier chunks of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionInput<'a, F> {
    pub qkv: &'a [F],
    /// A multiple of the chunk, and 0 without chunks.
    pub context: usize,
}

/// Computes the results of all queries, one utterance after another.
pub(crate) fn forward<F: Real>(
    utterances: &[AttentionInput<F>],
    shape: HeadCount,
    chunks: Option<Chunks>,
) -> Vec<F> {
    let count = |utterance: &AttentionInput<F>| utterance.qkv.len() / (3 * shape.width);
    let lengths: Vec<usize> = utterances.iter().map(|input| count(input) - input.context).collect();
    let longest = utterances.iter().map(count).max().unwrap_or(0);
    let (ragged, rotary) =
        (Ragged::new(&lengths), Rotary::new(positions(longest, chunks), shape.head_width()));
    let mut by_heads = kernels::alloc(ragged.rows() * shape.width, F::ZERO);
    par_for(items_mut(&mut shape.tasks(&ragged, &mut by_heads, 1)), |_, (b, at, out)| {
        let AttentionInput { qkv, context } = utterances[*b];
        let head = AttentionHead::new(qkv, shape, *at, &rotary);
        for window in windows(count(&utterances[*b]), context, chunks) {
            let [from, to] =
                [window.queries.start, window.queries.end].map(|t| (t - context) * shape.head_width());
            head.forward(&window, &mut out[from..to]);
        }
    });
    shape.merge_heads(&ragged, &by_heads, 1)
}

impl HeadCount {
    /// Returns the width d of one head.
    fn head_width(&self) -> usize {
        self.width / self.count
    }

    /// Divides a buffer into one part for each head and utterance.
    ///
    /// The buffer has a row of `parts · W` values for each frame. The part of a head is contiguous:
    /// the buffer is ordered by utterance, head and frame until `merge_heads` reorders it.
    /// Returns the index of the utterance, that of the head, and the part.
    fn tasks<'a, F>(
        &self,
        ragged: &Ragged,
        rows: &'a mut [F],
        parts: usize,
    ) -> Vec<(usize, usize, &'a mut [F])> {
        let width = parts * self.width;
        let utterances = ragged.split_mut(rows, width).into_iter().enumerate();
        let heads = |(b, rows): (usize, &'a mut [F])| {
            let len = (rows.len() / self.count).max(1);
            rows.chunks_mut(len).enumerate().map(move |(at, rows)| (b, at, rows))
        };
        utterances.flat_map(heads).collect()
    }

    /// Reorders the parts of [`Self::tasks`] to rows with all heads.
    fn merge_heads<F: Real>(&self, ragged: &Ragged, by_heads: &[F], parts: usize) -> Vec<F> {
        let (width, each) = (parts * self.width, self.head_width());
        let mut out = kernels::alloc(by_heads.len(), F::ZERO);
        par_for(items_mut(&mut ragged.blocks(&mut out, width, ROWS_PER_TASK)), |_, block| {
            let rows = ragged.utterance(by_heads, width, block.utterance);
            for (at, head) in rows.chunks_exact(rows.len() / self.count).enumerate() {
                let head = &head[block.first * parts * each..];
                for (out, row) in block.rows.chunks_exact_mut(width).zip(head.chunks_exact(parts * each)) {
                    for (out, part) in out.chunks_exact_mut(self.width).zip(row.chunks_exact(each)) {
                        out[at * each..][..each].copy_from_slice(part);
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
        Shape::from((self.ragged.rows(), self.shape.width))
    }

    fn forward<F: Real>(&self, [qkv]: [&[F]; 1]) -> Vec<F> {
        let utterance = |b| {
            let qkv = self.ragged.utterance(qkv, 3 * self.shape.width, b);
            AttentionInput { qkv, context: 0 }
        };
        let utterances: Vec<_> = (0..self.ragged.utterances()).map(utterance).collect();
        forward(&utterances, self.shape, self.chunks)
    }

    fn backward<F: Real>(&self, [qkv]: [&[F]; 1], out: &[F], above: &[F], _: bool) -> [Vec<F>; 1] {
        let Attention { ragged, shape, chunks } = self;
        let longest = ragged.lengths().into_iter().max().unwrap_or(0);
        let rotary = Rotary::new(positions(longest, *chunks), shape.head_width());
        let mut by_heads = kernels::alloc(qkv.len(), F::ZERO);
        par_for(items_mut(&mut shape.tasks(ragged, &mut by_heads, 3)), |_, (b, at, gradient)| {
            let head = AttentionHead::new(ragged.utterance(qkv, 3 * shape.width, *b), *shape, *at, &rotary);
            let [out, above] = [out, above].map(|rows| ragged.utterance(rows, shape.width, *b));
            for window in windows(ragged.range(*b).len(), 0, *chunks) {
                head.backward(&window, out, above, gradient);
            }
        });
        [shape.merge_heads(ragged, &by_heads, 3)]
    }
}

#[cfg(test)]
mod tests;
