//! Forward and backward pass of one head of self-attention (`attention.rs`).
//!
//! q, k, v: queries, keys and values of an utterance; ~: rotated by position, queries also scaled
//! by 1/√d; p: probabilities, softmax(q̃ k̃ᵀ); o: results; W: width of all heads; d: width of one.
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, product};

use super::rotary::Rotary;
use super::{ChunkWindow, HeadCount};

/// Queries whose scores are computed at a time.
pub(super) const QUERIES_PER_BLOCK: usize = 64;

#[derive(Debug, Clone, Copy)]
enum HeadPart {
    Query,
    Key,
    Value,
}

pub(super) struct AttentionHead<'a, F> {
    /// `[T, 3W]`
    qkv: &'a [F],
    heads: HeadCount,
    /// The first column of the head.
    column: usize,
    rotary: &'a Rotary<F>,
    /// `1 / √d`
    scale: F,
}

impl<'a, F: Real> AttentionHead<'a, F> {
    pub fn new(qkv: &'a [F], heads: HeadCount, at: usize, rotary: &'a Rotary<F>) -> Self {
        let scale = F::from_f64(1.0 / (heads.head_width() as f64).sqrt());
        AttentionHead { qkv, heads, column: at * heads.head_width(), rotary, scale }
    }

    /// Returns q, k or v of row t, from the head's column.
    fn row(&self, part: HeadPart, t: usize) -> &'a [F] {
        &self.qkv[(3 * t + part as usize) * self.heads.width + self.column..]
    }

    fn values(&self, rows: &Range<usize>) -> View<'a, F> {
        let (first, width) = (self.row(HeadPart::Value, rows.start), 3 * self.heads.width);
        View::with_stride(first, rows.len(), self.heads.head_width(), width)
    }

    /// Rotates and scales queries or keys, from `position` on.
    fn rotated(&self, part: HeadPart, rows: &Range<usize>, position: usize, factor: F) -> Vec<F> {
        let width = self.heads.head_width();
        let mut out = vec![F::ZERO; rows.len() * width];
        for ((t, position), out) in rows.clone().zip(position..).zip(out.chunks_exact_mut(width)) {
            self.rotary.rotate(position, &self.row(part, t)[..width], factor, out);
        }
        out
    }

    /// Calls `process(queries, q̃, probabilities)` for each block of a window's queries.
    ///
    /// `keys` are rotated, `[keys, d]`; the probabilities are `[queries, keys]`.
    fn blocks(
        &self,
        window: &ChunkWindow,
        keys: &[F],
        mut process: impl FnMut(Range<usize>, &[F], &mut [F]),
    ) {
        let (each, count) = (self.heads.head_width(), window.keys.len());
        let keys = View::new(keys, count, each).transposed();
        let mut scores = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * count];
        for start in window.queries.clone().step_by(QUERIES_PER_BLOCK) {
            let queries = start..window.queries.end.min(start + QUERIES_PER_BLOCK);
            let position = window.position + start - window.keys.start;
            let q = self.rotated(HeadPart::Query, &queries, position, self.scale);
            let scores = &mut scores[..queries.len() * count];
            let target = ViewMut::new(scores, queries.len(), count);
            product(target, View::new(&q, queries.len(), each), keys, F::ONE, Accumulate::Replace);
            for row in scores.chunks_exact_mut(count) {
                let (max, sum) = F::row_statistics(row);
                F::row_softmax(row, None, None, max, F::from_f64(1.0 / sum));
            }
            process(queries, &q, scores);
        }
    }

    /// Computes `out = softmax(q̃ k̃ᵀ) v`, `[queries, d]`.
    pub fn forward(&self, window: &ChunkWindow, out: &mut [F]) {
        let (each, count) = (self.heads.head_width(), window.keys.len());
        let keys = self.rotated(HeadPart::Key, &window.keys, window.position, F::ONE);
        let values = self.values(&window.keys);
        self.blocks(window, &keys, |queries, _, p| {
            let out = &mut out[(queries.start - window.queries.start) * each..][..queries.len() * each];
            let p = View::new(p, queries.len(), count);
            product(ViewMut::new(out, queries.len(), each), p, values, F::ONE, Accumulate::Replace);
        });
    }

    /// Adds a window's gradients of q|k|v of this head, `[T, 3d]`.
    ///
    /// `out` and `above` are the results of all heads and their gradients, `[T, W]`.
    ///
    /// ```text
    /// dv += pᵀ do      dp = do vᵀ      ds = p ∘ (dp - Σ do ∘ o)
    /// dq̃ = ds k̃       dk̃ += dsᵀ q̃
    /// ```
    pub fn backward(&self, window: &ChunkWindow, out: &[F], above: &[F], gradient: &mut [F]) {
        let (width, each, count) = (self.heads.width, self.heads.head_width(), window.keys.len());
        let keys = self.rotated(HeadPart::Key, &window.keys, window.position, F::ONE);
        let values = self.values(&window.keys);
        let mut d_keys = vec![F::ZERO; keys.len()];
        let mut d_scores = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * count];
        let mut d_queries = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * each];
        self.blocks(window, &keys, |queries, q, p| {
            let rows = queries.len();
            let above_block =
                View::with_stride(&above[queries.start * width + self.column..], rows, each, width);
            let d_scores = &mut d_scores[..rows * count];
            let d_queries = &mut d_queries[..rows * each];

            let d_values = &mut gradient[3 * each * window.keys.start + 2 * each..];
            let d_values = ViewMut::with_stride(d_values, count, each, 3 * each);
            product(d_values, View::new(p, rows, count).transposed(), above_block, F::ONE, Accumulate::Add);

            let target = ViewMut::new(d_scores, rows, count);
            product(target, above_block, values.transposed(), F::ONE, Accumulate::Replace);
            let pairs = p.chunks_exact(count).zip(d_scores.chunks_exact_mut(count));
            for (t, (p, d_scores)) in queries.clone().zip(pairs) {
                let [o, d_o] = [out, above].map(|rows| &rows[t * width + self.column..][..each]);
                let projection = kernels::dot(o, d_o);
                d_scores.iter_mut().zip(p).for_each(|(d, &p)| *d = p * (*d - projection));
            }

            let d_scores = View::new(d_scores, rows, count);
            let target = ViewMut::new(d_queries, rows, each);
            product(target, d_scores, View::new(&keys, count, each), F::ONE, Accumulate::Replace);
            for (t, row) in queries.clone().zip(d_queries.chunks_exact(each)) {
                let position = window.position + t - window.keys.start;
                self.rotary.add_transposed(position, row, self.scale, &mut gradient[3 * each * t..][..each]);
            }
            let target = ViewMut::new(&mut d_keys, count, each);
            product(target, d_scores.transposed(), View::new(q, rows, each), F::ONE, Accumulate::Add);
        });
        for (at, (t, row)) in window.keys.clone().zip(d_keys.chunks_exact(each)).enumerate() {
            let to = &mut gradient[3 * each * t + each..][..each];
            self.rotary.add_transposed(window.position + at, row, F::ONE, to);
        }
    }
}
