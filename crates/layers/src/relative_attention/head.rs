//! One head of self-attention with relative positions: forward and backward pass.
//!
//! q, k, v, r: queries, keys and values of an utterance, and positions; u, w: biases of keys and of
//! positions; q̃, q̂: (q + u) / √d and (q + w) / √d; p: probabilities; o: results; W: width of all
//! heads; d: width of one; `d` in front of a name: the gradient of the loss.
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, product};

use super::positions::{DistanceRange, PositionRows};
use crate::attention::HeadShape;
use crate::attention_limits::AttentionLimits;

/// Queries whose scores are computed at a time.
pub(super) const QUERIES_PER_TILE: usize = 64;

/// The matrix that a row of q|k|v is read from.
#[derive(Debug, Clone, Copy)]
enum QkvPart {
    Query,
    Key,
    Value,
}

/// One head of one utterance.
pub(super) struct RelativeHead<'a, F> {
    /// `[T, 3W]`
    qkv: &'a [F],
    positions: PositionRows<'a, F>,
    /// u and w of this head, `[d]` each.
    biases: [&'a [F]; 2],
    heads: HeadShape,
    /// The first column of the head.
    column: usize,
    limits: AttentionLimits,
    /// Number of rows T.
    rows: usize,
    /// `1 / √d`
    scale: F,
}

/// Queries, and the keys and distances of all of them.
struct QueryTile {
    queries: Range<usize>,
    keys: Range<usize>,
    /// The distances in the limits.
    distances: DistanceRange,
}

/// Values of a tile.
struct TileValues<'b, F> {
    /// q̃ `[queries, d]`
    key_queries: &'b [F],
    /// q̂ `[queries, d]`
    position_queries: &'b [F],
    /// p `[queries, keys]`
    probabilities: &'b [F],
}

/// Buffers of the gradients of a tile.
#[derive(Default)]
struct GradientBuffers<F> {
    scores: Vec<F>,
    position_scores: Vec<F>,
    queries: Vec<F>,
}

/// The gradients of one head in one utterance.
///
/// A backward pass adds to them.
pub(super) struct HeadGradients<'b, F> {
    /// `[T, 3d]`
    pub qkv: &'b mut [F],
    /// `[n, d]`, for the n distances of the utterance.
    pub positions: &'b mut [F],
    pub distances: DistanceRange,
    /// u and w, `[2, d]`.
    pub biases: &'b mut [F],
}

/// Returns the first `len` values of a buffer, which grows if necessary.
fn buffer<F: Real>(buffer: &mut Vec<F>, len: usize) -> &mut [F] {
    kernels::ensure_len(buffer, len, F::ZERO);
    &mut buffer[..len]
}

impl<'a, F: Real> RelativeHead<'a, F> {
    pub(super) fn new(
        qkv: &'a [F],
        positions: PositionRows<'a, F>,
        biases: &'a [F],
        heads: HeadShape,
        head_index: usize,
        limits: AttentionLimits,
    ) -> Self {
        let head_width = heads.head_width();
        let column = head_index * head_width;
        let (key_bias, position_bias) = biases.split_at(heads.total_width);
        let biases = [key_bias, position_bias].map(|bias| &bias[column..][..head_width]);
        let rows = qkv.len() / (3 * heads.total_width);
        let scale = F::from_f64(1.0 / (head_width as f64).sqrt());
        RelativeHead { qkv, positions, biases, heads, column, limits, rows, scale }
    }

    /// Returns q, k or v of row t, from the head's column.
    fn row(&self, part: QkvPart, t: usize) -> &'a [F] {
        &self.qkv[(3 * t + part as usize) * self.heads.total_width + self.column..]
    }

    /// Returns a view of k or v, `[rows, d]`.
    fn view(&self, part: QkvPart, rows: &Range<usize>) -> View<'a, F> {
        let stride = 3 * self.heads.total_width;
        View::with_stride(self.row(part, rows.start), rows.len(), self.heads.head_width(), stride)
    }

    /// Returns a view of the positions of some distances, `[n, d]`.
    fn position_view(&self, distances: &DistanceRange) -> View<'a, F> {
        let width = self.heads.total_width;
        let first_row = self.positions.distances.past - distances.past;
        let rows = &self.positions.rows[first_row * width + self.column..];
        View::with_stride(rows, distances.count(), self.heads.head_width(), width)
    }

    /// Returns the tile of some queries.
    fn tile(&self, queries: Range<usize>) -> QueryTile {
        let last = queries.end - 1;
        // Neither end of the keys decreases with the query.
        let first_key = self.limits.keys(queries.start, self.rows).start;
        let end_key = self.limits.keys(last, self.rows).end;
        let DistanceRange { past, future } = self.positions.distances;
        let distances = DistanceRange {
            past: past.min(last - first_key),
            future: future.min((end_key - 1).saturating_sub(queries.start)),
        };
        QueryTile { queries, keys: first_key..end_key, distances }
    }

    /// Computes `(q + bias) / √d`, `[queries, d]`.
    fn scaled_queries(&self, queries: &Range<usize>, bias: &[F], out: &mut [F]) {
        for (t, out) in queries.clone().zip(out.chunks_exact_mut(bias.len())) {
            let query = self.row(QkvPart::Query, t);
            for (out, (&q, &bias)) in out.iter_mut().zip(query.iter().zip(bias)) {
                *out = (q + bias) * self.scale;
            }
        }
    }

    /// Calls `process` for each tile of the queries `first_query ..`.
    fn for_each_tile(&self, first_query: usize, mut process: impl FnMut(&QueryTile, TileValues<F>)) {
        let head_width = self.heads.head_width();
        let [mut key_queries, mut position_queries, mut scores, mut position_scores] =
            [const { Vec::new() }; 4];
        for start in (first_query..self.rows).step_by(QUERIES_PER_TILE) {
            let tile = self.tile(start..self.rows.min(start + QUERIES_PER_TILE));
            let (queries, keys, distances) = (tile.queries.len(), tile.keys.len(), tile.distances.count());
            let key_queries = buffer(&mut key_queries, queries * head_width);
            let position_queries = buffer(&mut position_queries, queries * head_width);
            self.scaled_queries(&tile.queries, self.biases[0], key_queries);
            self.scaled_queries(&tile.queries, self.biases[1], position_queries);

            let scores = buffer(&mut scores, queries * keys);
            let left = View::new(key_queries, queries, head_width);
            let right = self.view(QkvPart::Key, &tile.keys).transposed();
            product(ViewMut::new(scores, queries, keys), left, right, F::ONE, Accumulate::Replace);
            let position_scores = buffer(&mut position_scores, queries * distances);
            let left = View::new(position_queries, queries, head_width);
            let right = self.position_view(&tile.distances).transposed();
            let target = ViewMut::new(position_scores, queries, distances);
            product(target, left, right, F::ONE, Accumulate::Replace);

            let rows = scores.chunks_exact_mut(keys).zip(position_scores.chunks_exact(distances));
            for (query, (scores, position_scores)) in tile.queries.clone().zip(rows) {
                let (allowed, first_distance) = tile.allowed(query, self.limits.keys(query, self.rows));
                scores[..allowed.start].fill(F::ZERO);
                scores[allowed.end..].fill(F::ZERO);
                let scores = &mut scores[allowed];
                kernels::add(scores, &position_scores[first_distance..][..scores.len()]);
                let (max, sum) = F::row_statistics(scores);
                F::row_softmax(scores, None, None, max, F::from_f64(1.0 / sum));
            }
            process(&tile, TileValues { key_queries, position_queries, probabilities: scores });
        }
    }

    /// Computes `out = p v` of the queries `first_query ..`, `[queries, d]`.
    pub(super) fn forward(&self, first_query: usize, out: &mut [F]) {
        let head_width = self.heads.head_width();
        self.for_each_tile(first_query, |tile, TileValues { probabilities, .. }| {
            let (queries, keys) = (tile.queries.len(), tile.keys.len());
            let out = &mut out[(tile.queries.start - first_query) * head_width..][..queries * head_width];
            let p = View::new(probabilities, queries, keys);
            let values = self.view(QkvPart::Value, &tile.keys);
            product(ViewMut::new(out, queries, head_width), p, values, F::ONE, Accumulate::Replace);
        });
    }

    /// Adds the gradients of this head.
    ///
    /// `out` and `d_out` are the results of all heads and their gradients, `[T, W]`.
    ///
    /// ```text
    /// dv += pᵀ do      dp = do vᵀ      ds = p ∘ (dp - Σ do ∘ o)      dt: ds by distance
    /// dq̃ = ds k       dq̂ = dt r       dk += dsᵀ q̃                   dr += dtᵀ q̂
    /// dq = (dq̃ + dq̂) / √d            du += Σ dq̃ / √d               dw += Σ dq̂ / √d
    /// ```
    pub(super) fn backward(&self, out: &[F], d_out: &[F], gradients: HeadGradients<F>) {
        let HeadGradients { qkv: d_qkv, positions: d_positions, distances, biases: d_biases } = gradients;
        let (total_width, head_width) = (self.heads.total_width, self.heads.head_width());
        let qkv_stride = 3 * head_width;
        let (d_key_bias, d_position_bias) = d_biases.split_at_mut(head_width);
        let mut buffers = GradientBuffers::default();
        self.for_each_tile(0, |tile, TileValues { key_queries, position_queries, probabilities }| {
            let (queries, keys) = (tile.queries.len(), tile.keys.len());
            let distance_count = tile.distances.count();
            let d_out_tile = &d_out[tile.queries.start * total_width + self.column..];
            let d_out_tile = View::with_stride(d_out_tile, queries, head_width, total_width);
            let value_view = self.view(QkvPart::Value, &tile.keys);

            // dv += pᵀ do
            let d_values = &mut d_qkv[tile.keys.start * qkv_stride + 2 * head_width..];
            let d_values = ViewMut::with_stride(d_values, keys, head_width, qkv_stride);
            let p = View::new(probabilities, queries, keys);
            product(d_values, p.transposed(), d_out_tile, F::ONE, Accumulate::Add);

            // ds = p ∘ (do vᵀ - Σ do ∘ o), and the same by distance
            let d_scores = buffer(&mut buffers.scores, queries * keys);
            let target = ViewMut::new(d_scores, queries, keys);
            product(target, d_out_tile, value_view.transposed(), F::ONE, Accumulate::Replace);
            let d_position_scores = buffer(&mut buffers.position_scores, queries * distance_count);
            d_position_scores.fill(F::ZERO);
            let score_rows = probabilities.chunks_exact(keys).zip(d_scores.chunks_exact_mut(keys));
            let score_rows = score_rows.zip(d_position_scores.chunks_exact_mut(distance_count));
            for (query, ((p, d_scores), d_position_scores)) in tile.queries.clone().zip(score_rows) {
                let [o, d_o] =
                    [out, d_out].map(|rows| &rows[query * total_width + self.column..][..head_width]);
                let projection = kernels::dot(o, d_o);
                d_scores.iter_mut().zip(p).for_each(|(d, &p)| *d = p * (*d - projection));
                let (allowed, first_distance) = tile.allowed(query, self.limits.keys(query, self.rows));
                let target = &mut d_position_scores[first_distance..][..allowed.len()];
                target.copy_from_slice(&d_scores[allowed]);
            }
            let d_scores = View::new(d_scores, queries, keys);
            let d_position_scores = View::new(d_position_scores, queries, distance_count);

            // dk += dsᵀ q̃
            let d_keys = &mut d_qkv[tile.keys.start * qkv_stride + head_width..];
            let d_keys = ViewMut::with_stride(d_keys, keys, head_width, qkv_stride);
            let key_queries = View::new(key_queries, queries, head_width);
            product(d_keys, d_scores.transposed(), key_queries, F::ONE, Accumulate::Add);

            // dr += dtᵀ q̂
            let d_positions = &mut d_positions[(distances.past - tile.distances.past) * head_width..];
            let target = ViewMut::new(d_positions, distance_count, head_width);
            let position_queries = View::new(position_queries, queries, head_width);
            product(target, d_position_scores.transposed(), position_queries, F::ONE, Accumulate::Add);

            // dq̃ = ds k, dq̂ = dt r: gradients of queries and biases
            let d_queries = buffer(&mut buffers.queries, queries * head_width);
            for (d_scores, right, d_bias) in [
                (d_scores, self.view(QkvPart::Key, &tile.keys), &mut *d_key_bias),
                (d_position_scores, self.position_view(&tile.distances), &mut *d_position_bias),
            ] {
                let target = ViewMut::new(d_queries, queries, head_width);
                product(target, d_scores, right, self.scale, Accumulate::Replace);
                for (query, d_query) in tile.queries.clone().zip(d_queries.chunks_exact(head_width)) {
                    kernels::add(d_bias, d_query);
                    kernels::add(&mut d_qkv[query * qkv_stride..][..head_width], d_query);
                }
            }
        });
    }
}

impl QueryTile {
    /// Returns the allowed keys of a query, and the first distance.
    ///
    /// Keys are relative to those of the tile; the distance is a column of the position scores.
    fn allowed(&self, query: usize, keys: Range<usize>) -> (Range<usize>, usize) {
        // Column c has the distance `distances.past - c`.
        let first_distance = self.distances.past + keys.start - query;
        (keys.start - self.keys.start..keys.end - self.keys.start, first_distance)
    }
}
