//! One head of self-attention in an encoder layer: forward and backward pass.
//!
//! q, k, v: queries, keys and values of an utterance; ~: rotated by position, queries also scaled
//! by 1/√d; p: probabilities, softmax(q̃ k̃ᵀ); o: results; W: width of all heads; d: width of one.
//! `attention.rs` runs the heads of all utterances in parallel.
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, product};

use super::rotary::Rotary;
use super::{ChunkWindow, HeadShape};

/// Queries whose scores are computed at a time.
pub(super) const QUERIES_PER_BLOCK: usize = 64;

/// The matrix that a row of q|k|v is read from.
#[derive(Debug, Clone, Copy)]
enum QkvPart {
    Query,
    Key,
    Value,
}

/// One head of one utterance.
pub(super) struct AttentionHead<'a, F> {
    /// `[T, 3W]`
    qkv: &'a [F],
    heads: HeadShape,
    /// The first column of the head.
    column: usize,
    rotary: &'a Rotary<F>,
    /// `1 / √d`
    scale: F,
}

impl<'a, F: Real> AttentionHead<'a, F> {
    pub(super) fn new(qkv: &'a [F], heads: HeadShape, head_index: usize, rotary: &'a Rotary<F>) -> Self {
        let scale = F::from_f64(1.0 / (heads.head_width() as f64).sqrt());
        AttentionHead { qkv, heads, column: head_index * heads.head_width(), rotary, scale }
    }

    /// Returns q, k or v of row t, from the head's column.
    fn row(&self, part: QkvPart, t: usize) -> &'a [F] {
        &self.qkv[(3 * t + part as usize) * self.heads.total_width + self.column..]
    }

    /// Returns a view of v, `[rows, d]`.
    fn value_view(&self, rows: &Range<usize>) -> View<'a, F> {
        let stride = 3 * self.heads.total_width;
        let values = self.row(QkvPart::Value, rows.start);
        View::with_stride(values, rows.len(), self.heads.head_width(), stride)
    }

    /// Rotates and scales queries or keys, from `first_position` on.
    fn rotate_rows(&self, part: QkvPart, rows: &Range<usize>, first_position: usize, factor: F) -> Vec<F> {
        let head_width = self.heads.head_width();
        let mut rotated = vec![F::ZERO; rows.len() * head_width];
        let positions = rows.clone().zip(first_position..);
        for ((t, position), out) in positions.zip(rotated.chunks_exact_mut(head_width)) {
            self.rotary.rotate(position, &self.row(part, t)[..head_width], factor, out);
        }
        rotated
    }

    /// Calls `process(queries, q̃, probabilities)` for each block of a window's queries.
    ///
    /// `keys` are rotated, `[keys, d]`; the probabilities are `[queries, keys]`.
    fn for_each_query_block(
        &self,
        window: &ChunkWindow,
        keys: &[F],
        mut process: impl FnMut(Range<usize>, &[F], &mut [F]),
    ) {
        let (head_width, key_count) = (self.heads.head_width(), window.keys.len());
        let keys = View::new(keys, key_count, head_width).transposed();
        let mut scores = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * key_count];
        for start in window.queries.clone().step_by(QUERIES_PER_BLOCK) {
            let queries = start..window.queries.end.min(start + QUERIES_PER_BLOCK);
            let position = window.first_position + start - window.keys.start;
            let q = self.rotate_rows(QkvPart::Query, &queries, position, self.scale);
            let scores = &mut scores[..queries.len() * key_count];
            let target = ViewMut::new(scores, queries.len(), key_count);
            product(target, View::new(&q, queries.len(), head_width), keys, F::ONE, Accumulate::Replace);
            for row in scores.chunks_exact_mut(key_count) {
                let (max, sum) = F::row_statistics(row);
                F::row_softmax(row, None, None, max, F::from_f64(1.0 / sum));
            }
            process(queries, &q, scores);
        }
    }

    /// Computes `out = softmax(q̃ k̃ᵀ) v`, `[queries, d]`.
    pub(super) fn forward(&self, window: &ChunkWindow, out: &mut [F]) {
        let (head_width, key_count) = (self.heads.head_width(), window.keys.len());
        let keys = self.rotate_rows(QkvPart::Key, &window.keys, window.first_position, F::ONE);
        let values = self.value_view(&window.keys);
        self.for_each_query_block(window, &keys, |queries, _, p| {
            let out =
                &mut out[(queries.start - window.queries.start) * head_width..][..queries.len() * head_width];
            let p = View::new(p, queries.len(), key_count);
            product(ViewMut::new(out, queries.len(), head_width), p, values, F::ONE, Accumulate::Replace);
        });
    }

    /// Adds a window's gradients of q|k|v of this head, `[T, 3d]`.
    ///
    /// `out` and `d_out` are the results of all heads and their gradients, `[T, W]`.
    ///
    /// ```text
    /// dv += pᵀ do      dp = do vᵀ      ds = p ∘ (dp - Σ do ∘ o)
    /// dq̃ = ds k̃       dk̃ += dsᵀ q̃
    /// ```
    pub(super) fn backward(&self, window: &ChunkWindow, out: &[F], d_out: &[F], gradient: &mut [F]) {
        let (total_width, head_width) = (self.heads.total_width, self.heads.head_width());
        let key_count = window.keys.len();
        let keys = self.rotate_rows(QkvPart::Key, &window.keys, window.first_position, F::ONE);
        let values = self.value_view(&window.keys);
        let mut d_keys = vec![F::ZERO; keys.len()];
        let mut d_scores = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * key_count];
        let mut d_queries = vec![F::ZERO; QUERIES_PER_BLOCK.min(window.queries.len()) * head_width];
        self.for_each_query_block(window, &keys, |queries, q, p| {
            let query_count = queries.len();
            let d_out_block = &d_out[queries.start * total_width + self.column..];
            let d_out_block = View::with_stride(d_out_block, query_count, head_width, total_width);
            let d_scores = &mut d_scores[..query_count * key_count];
            let d_queries = &mut d_queries[..query_count * head_width];

            // dv += pᵀ do
            let d_values = &mut gradient[3 * head_width * window.keys.start + 2 * head_width..];
            let d_values = ViewMut::with_stride(d_values, key_count, head_width, 3 * head_width);
            let p_transposed = View::new(p, query_count, key_count).transposed();
            product(d_values, p_transposed, d_out_block, F::ONE, Accumulate::Add);

            // ds = p ∘ (do vᵀ - Σ do ∘ o)
            let target = ViewMut::new(d_scores, query_count, key_count);
            product(target, d_out_block, values.transposed(), F::ONE, Accumulate::Replace);
            let score_rows = p.chunks_exact(key_count).zip(d_scores.chunks_exact_mut(key_count));
            for (t, (p, d_scores)) in queries.clone().zip(score_rows) {
                let [o, d_o] = [out, d_out].map(|rows| &rows[t * total_width + self.column..][..head_width]);
                let projection = kernels::dot(o, d_o);
                d_scores.iter_mut().zip(p).for_each(|(d, &p)| *d = p * (*d - projection));
            }

            // dq̃ = ds k̃, rotated back
            let d_scores = View::new(d_scores, query_count, key_count);
            let target = ViewMut::new(d_queries, query_count, head_width);
            product(target, d_scores, View::new(&keys, key_count, head_width), F::ONE, Accumulate::Replace);
            for (t, d_query) in queries.clone().zip(d_queries.chunks_exact(head_width)) {
                let position = window.first_position + t - window.keys.start;
                let query_gradient = &mut gradient[3 * head_width * t..][..head_width];
                self.rotary.add_transposed(position, d_query, self.scale, query_gradient);
            }

            // dk̃ += dsᵀ q̃
            let target = ViewMut::new(&mut d_keys, key_count, head_width);
            let q = View::new(q, query_count, head_width);
            product(target, d_scores.transposed(), q, F::ONE, Accumulate::Add);
        });
        // dk̃ of all queries of the window, rotated back
        for (index, (t, d_key)) in window.keys.clone().zip(d_keys.chunks_exact(head_width)).enumerate() {
            let key_gradient = &mut gradient[3 * head_width * t + head_width..][..head_width];
            self.rotary.add_transposed(window.first_position + index, d_key, F::ONE, key_gradient);
        }
    }
}
