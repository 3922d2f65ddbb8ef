//! Self-attention with rotary positions, as one operation on ragged rows.
//!
//! ```text
//! q, k, v    rows of q|k|v, a head its own columns of each
//! s          q̃ k̃ᵀ / √d, of the keys that a query sees       ~: rotated by the place in the window
//! out        softmax(s) v
//! ```
//! Keys are seen through windows: one of the whole utterance, or one for each chunk, of the chunk
//! and those before it. Scores live for a block of queries at a time and are computed again by the
//! backward pass, so that memory grows with the rows alone.
//!
//! Positions are rotary (Su et al., arXiv 2104.09864): a score depends on the distance of key and
//! query alone, as with the relative positions of Transformer-XL, but there is neither a table of
//! distances to multiply with nor a parameter. Where there are chunks, places count from the start
//! of the window: what arrives in pieces needs no clock.
mod head;
mod rotary;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use head::AttentionHead;
use kernels::{Real, items_mut, par_for};
use rotary::Rotary;

use crate::layers::footprint::threads;
use crate::layers::operation::{Slices, apply1};
use crate::layers::ragged::Ragged;
use crate::{Error, Result};

/// Rows of a task that only copies.
const ROWS: usize = 64;

/// Frames that see each other: `chunk` of them and, of what was before, `left` chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks {
    pub chunk: usize,
    pub left: usize,
}

/// Attention of H heads over each utterance's own rows.
///
/// # Shapes
/// `qkv [Σ T_b, 3W]`, rows of q, k and v, each of W = H·d values; d is even. Returns `[Σ T_b, W]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not fit.
///
/// Cost: `O(Σ T_b · K · W)` time, K the keys that a query sees; nothing kept beside `qkv` and the
/// result; while it runs, 64 scores a key of each thread.
pub(crate) fn attention(
    qkv: &Tensor,
    ragged: &Arc<Ragged>,
    heads: usize,
    chunks: Option<Chunks>,
) -> Result<Tensor> {
    let (rows, all) = qkv.dims2()?;
    let fits = heads > 0 && all > 0 && all.is_multiple_of(6 * heads);
    if !fits || rows != ragged.rows() {
        let expected = format!("[{}, a multiple of 6 for each of {heads} heads]", ragged.rows());
        return Err(Error::shape("qkv", expected, format!("{:?}", qkv.dims())));
    }
    apply1(
        Attention { ragged: ragged.clone(), shape: HeadCount { count: heads, width: all / 3 }, chunks },
        qkv,
    )
}

/// Number of heads and width of all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadCount {
    pub count: usize,
    pub width: usize,
}

/// Most scores that live at a time, for so many heads of all utterances and rows of the longest.
pub(crate) fn scores(heads: usize, rows: usize, chunks: Option<Chunks>) -> usize {
    heads.min(threads()) * head::BLOCK * rows.min(places(rows, chunks))
}

struct Attention {
    ragged: Arc<Ragged>,
    shape: HeadCount,
    chunks: Option<Chunks>,
}

/// Queries, the keys that they see, and the place of the first key.
#[derive(Debug, Clone, PartialEq)]
struct ChunkWindow {
    queries: Range<usize>,
    keys: Range<usize>,
    place: usize,
}

/// Windows of the queries `first .. count`; those before are known as keys alone.
fn windows(count: usize, first: usize, chunks: Option<Chunks>) -> impl Iterator<Item = ChunkWindow> {
    let size = chunks.map_or(count - first, |chunks| chunks.chunk).max(1);
    (first..count).step_by(size).map(move |start| {
        let end = count.min(start + size);
        let reach = chunks.map_or(start, |chunks| chunks.left * chunks.chunk);
        let from = start.saturating_sub(reach);
        ChunkWindow { queries: start..end, keys: from..end, place: from + reach - start }
    })
}

/// Places that windows of at most so many rows have.
fn places(longest: usize, chunks: Option<Chunks>) -> usize {
    chunks.map_or(longest, |Chunks { chunk, left }| (left + 1) * chunk)
}

/// Rows of q|k|v of an utterance, the first `known` of them as keys alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionInput<'a, F> {
    pub qkv: &'a [F],
    /// A multiple of the chunk, and 0 without chunks.
    pub known: usize,
}

/// The results of the rows that are not known, utterance after utterance.
pub(crate) fn forward<F: Real>(
    utterances: &[AttentionInput<F>],
    shape: HeadCount,
    chunks: Option<Chunks>,
) -> Vec<F> {
    let count = |utterance: &AttentionInput<F>| utterance.qkv.len() / (3 * shape.width);
    let lengths: Vec<usize> = utterances.iter().map(|one| count(one) - one.known).collect();
    let longest = utterances.iter().map(count).max().unwrap_or(0);
    let (ragged, rotary) = (Ragged::new(&lengths), Rotary::new(places(longest, chunks), shape.each()));
    let mut by_heads = kernels::alloc(ragged.rows() * shape.width, F::ZERO);
    par_for(items_mut(&mut shape.tasks(&ragged, &mut by_heads, 1)), |_, (b, at, out)| {
        let AttentionInput { qkv, known } = utterances[*b];
        let head = AttentionHead::new(qkv, shape, *at, &rotary);
        for window in windows(count(&utterances[*b]), known, chunks) {
            let [from, to] = [window.queries.start, window.queries.end].map(|t| (t - known) * shape.each());
            head.forward(&window, &mut out[from..to]);
        }
    });
    shape.beside(&ragged, &by_heads, 1)
}

impl HeadCount {
    /// Width d of a head.
    fn each(&self) -> usize {
        self.width / self.count
    }

    /// A part of `rows`, `[d·parts]` a row, for each head of each utterance: its number, that of
    /// the head, and the part.
    fn tasks<'a, F>(
        &self,
        ragged: &Ragged,
        rows: &'a mut [F],
        parts: usize,
    ) -> Vec<(usize, usize, &'a mut [F])> {
        let width = parts * self.width;
        let utterances = ragged.cut(rows, width).into_iter().enumerate();
        let heads = |(b, rows): (usize, &'a mut [F])| {
            let each = (rows.len() / self.count).max(1);
            rows.chunks_mut(each).enumerate().map(move |(at, rows)| (b, at, rows))
        };
        utterances.flat_map(heads).collect()
    }

    /// From what [`Self::tasks`] cuts to rows with the heads beside each other.
    fn beside<F: Real>(&self, ragged: &Ragged, by_heads: &[F], parts: usize) -> Vec<F> {
        let (width, each) = (parts * self.width, self.each());
        let mut out = kernels::alloc(by_heads.len(), F::ZERO);
        par_for(items_mut(&mut ragged.blocks(&mut out, width, ROWS)), |_, block| {
            let rows = ragged.of(by_heads, width, block.utterance);
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

impl Slices<1> for Attention {
    const NAME: &'static str = "attention";

    fn shape(&self) -> Shape {
        Shape::from((self.ragged.rows(), self.shape.width))
    }

    fn forward<F: Real>(&self, [qkv]: [&[F]; 1]) -> Vec<F> {
        let utterance = |b| AttentionInput { qkv: self.ragged.of(qkv, 3 * self.shape.width, b), known: 0 };
        let utterances: Vec<_> = (0..self.ragged.utterances()).map(utterance).collect();
        forward(&utterances, self.shape, self.chunks)
    }

    fn backward<F: Real>(&self, [qkv]: [&[F]; 1], out: &[F], above: &[F], _: bool) -> [Vec<F>; 1] {
        let Attention { ragged, shape, chunks } = self;
        let longest = ragged.lengths().into_iter().max().unwrap_or(0);
        let rotary = Rotary::new(places(longest, *chunks), shape.each());
        let mut by_heads = kernels::alloc(qkv.len(), F::ZERO);
        par_for(items_mut(&mut shape.tasks(ragged, &mut by_heads, 3)), |_, (b, at, gradient)| {
            let head = AttentionHead::new(ragged.of(qkv, 3 * shape.width, *b), *shape, *at, &rotary);
            let [out, above] = [out, above].map(|rows| ragged.of(rows, shape.width, *b));
            for window in windows(ragged.range(*b).len(), 0, *chunks) {
                head.backward(&window, out, above, gradient);
            }
        });
        [shape.beside(ragged, &by_heads, 3)]
    }
}

#[cfg(test)]
mod tests;
