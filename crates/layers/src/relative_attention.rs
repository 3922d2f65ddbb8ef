//! Multi-head self-attention with relative positions, as one candle operation.
//!
//! ```text
//! q, k, v    queries, keys, values: a row q|k|v for each frame; a head has d columns of each
//! r          a row for each distance m of query and key, in the columns of each head
//! s_ij       ((q_i + u) k_j + (q_i + v) r_(i-j)) / √d, for the keys in the limits of query i
//! out        softmax(s) v
//! ```
//! u and v are parameters of each head, the biases of keys and of positions (Dai et al., arXiv
//! 1901.02860). Ragged rows are the rows of all utterances without padding, T_b of utterance b. W
//! is the width of all heads together. Scores are computed for a tile of queries at a time, and
//! again in the backward pass, so that memory grows with the rows only.
mod head;
mod positions;

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use head::{HeadGradients, RelativeHead};
use kernels::{Real, items_mut, par_for, parts_mut};
pub use positions::{DistanceRange, PositionRows};

use crate::attention::{AttentionInput, HeadShape, HeadValues};
use crate::attention_limits::AttentionLimits;
use crate::footprint::planned_threads;
use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Rows of the gradient of positions that a task sums.
const ROWS_PER_TASK: usize = 64;

/// Computes attention with several heads in each utterance.
///
/// # Shapes
/// `qkv [Σ T_b, 3W]`, rows of q, k and v, each of W = H·d values; `positions [n, W]` for the n
/// distances of [`DistanceRange::new`] with these limits and the longest utterance; `biases` 2W
/// values, u and v of all heads. Returns `[Σ T_b, W]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ T_b · (K + n) · W)` time, K the keys and n the distances of a tile of 64 queries;
/// only the arguments and the result are saved; temporary memory is 64 (K + n) scores in each
/// thread.
pub fn relative_attention(
    qkv: &Tensor,
    positions: &Tensor,
    biases: &Tensor,
    ragged: &Arc<Ragged>,
    heads: usize,
    limits: AttentionLimits,
) -> Result<Tensor> {
    let (rows, qkv_width) = qkv.dims2()?;
    let is_valid = heads > 0 && qkv_width > 0 && qkv_width.is_multiple_of(3 * heads);
    if !is_valid || rows != ragged.rows() {
        let expected = format!("[{}, a multiple of 3 for each of {heads} heads]", ragged.rows());
        return Err(Error::shape("qkv", expected, format!("{:?}", qkv.dims())));
    }
    let heads = HeadShape { count: heads, total_width: qkv_width / 3 };
    let distances = DistanceRange::new(limits, ragged.lengths().into_iter().max().unwrap_or(0));
    let expected = [distances.count(), heads.total_width];
    if positions.dims() != expected {
        return Err(Error::shape("positions", format!("{expected:?}"), format!("{:?}", positions.dims())));
    }
    if biases.elem_count() != 2 * heads.total_width {
        let expected = format!("{} values", 2 * heads.total_width);
        return Err(Error::shape("biases", expected, format!("{:?}", biases.dims())));
    }
    apply3(RelativeAttention { ragged: ragged.clone(), heads, limits, distances }, qkv, positions, biases)
}

/// Returns the largest number of scores in memory at a time.
///
/// `heads` is the number of heads of all utterances together, `rows` the length of the longest.
pub fn max_scores_in_memory(heads: usize, rows: usize, limits: AttentionLimits) -> usize {
    let distances = DistanceRange::new(limits, rows);
    let queries = head::QUERIES_PER_TILE.min(rows);
    let keys = rows.min(queries + distances.count());
    let tile_distances = distances.count().min(queries + keys);
    heads.min(planned_threads()) * queries * (keys + tile_distances)
}

/// The operation of [`relative_attention`].
struct RelativeAttention {
    ragged: Arc<Ragged>,
    heads: HeadShape,
    limits: AttentionLimits,
    /// The distances of the rows of positions.
    distances: DistanceRange,
}

/// Computes the results of all queries, one utterance after another.
///
/// The first `context_rows` rows of an utterance are keys and values only: earlier rows of a
/// stream, from the start of a chunk if the limits have chunks. `positions` must have the distances
/// of all queries and keys in the limits; `biases` are 2W values, as in [`relative_attention`].
pub(crate) fn forward<F: Real>(
    utterances: &[AttentionInput<F>],
    positions: PositionRows<F>,
    biases: &[F],
    heads: HeadShape,
    limits: AttentionLimits,
) -> Vec<F> {
    let row_count = |input: &AttentionInput<F>| input.qkv.len() / (3 * heads.total_width);
    let query_counts: Vec<usize> =
        utterances.iter().map(|input| row_count(input) - input.context_rows).collect();
    let ragged = Ragged::new(&query_counts);
    let mut by_heads = kernels::alloc(ragged.rows() * heads.total_width, F::ZERO);
    par_for(items_mut(&mut heads.split_by_head(&ragged, &mut by_heads, 1)), |_, out| {
        let input = &utterances[out.utterance];
        let head = RelativeHead::new(input.qkv, positions, biases, heads, out.head_index, limits);
        head.forward(input.context_rows, out.values);
    });
    heads.merge_heads(&ragged, &by_heads, 1)
}

impl SliceOperation<3> for RelativeAttention {
    const NAME: &'static str = "relative attention";

    fn shape(&self) -> Shape {
        Shape::from((self.ragged.rows(), self.heads.total_width))
    }

    fn forward<F: Real>(&self, [qkv, positions, biases]: [&[F]; 3]) -> Vec<F> {
        let input = |b| {
            let qkv = self.ragged.utterance(qkv, 3 * self.heads.total_width, b);
            AttentionInput { qkv, context_rows: 0 }
        };
        let utterances: Vec<_> = (0..self.ragged.utterances()).map(input).collect();
        let positions = PositionRows { rows: positions, distances: self.distances };
        forward(&utterances, positions, biases, self.heads, self.limits)
    }

    /// Computes the gradients; each head of each utterance is a task, with its own sums.
    fn backward<F: Real>(
        &self,
        [qkv, positions, biases]: [&[F]; 3],
        out: &[F],
        d_out: &[F],
        _: bool,
    ) -> [Vec<F>; 3] {
        let RelativeAttention { ragged, heads, limits, distances } = self;
        let (total_width, head_width) = (heads.total_width, heads.head_width());
        let positions = PositionRows { rows: positions, distances: *distances };

        // Gradients of q|k|v, positions and biases, of each head of each utterance.
        let utterance_distances: Vec<DistanceRange> =
            ragged.lengths().into_iter().map(|rows| DistanceRange::new(*limits, rows)).collect();
        let distance_counts = utterance_distances.iter().zip(ragged.lengths());
        let distance_counts: Vec<usize> =
            distance_counts.map(|(range, rows)| if rows == 0 { 0 } else { range.count() }).collect();
        let distance_rows = Ragged::new(&distance_counts);
        let mut qkv_by_heads = kernels::alloc(qkv.len(), F::ZERO);
        let mut positions_by_heads = kernels::alloc(distance_rows.rows() * total_width, F::ZERO);
        let mut qkv_parts = heads.split_by_head(ragged, &mut qkv_by_heads, 3);
        let mut position_parts = heads.split_by_head(&distance_rows, &mut positions_by_heads, 1);
        let mut bias_partials = kernels::alloc(qkv_parts.len() * 2 * head_width, F::ZERO);
        let task_parts = (
            items_mut(&mut qkv_parts),
            items_mut(&mut position_parts),
            parts_mut(&mut bias_partials, 2 * head_width),
        );
        par_for(task_parts, |_, (qkv_part, position_part, d_biases)| {
            let HeadValues { utterance, head_index, values } = qkv_part;
            let qkv = ragged.utterance(qkv, 3 * total_width, *utterance);
            let head = RelativeHead::new(qkv, positions, biases, *heads, *head_index, *limits);
            let [out, d_out] = [out, d_out].map(|rows| ragged.utterance(rows, total_width, *utterance));
            let gradients = HeadGradients {
                qkv: values,
                positions: position_part.values,
                distances: utterance_distances[*utterance],
                biases: d_biases,
            };
            head.backward(out, d_out, gradients);
        });

        // Sums over the utterances, in their order.
        let mut d_positions = kernels::alloc(distances.count() * total_width, F::ZERO);
        par_for(parts_mut(&mut d_positions, ROWS_PER_TASK * total_width), |task, rows| {
            for (index, row) in (task * ROWS_PER_TASK..).zip(rows.chunks_exact_mut(total_width)) {
                for (b, range) in utterance_distances.iter().enumerate() {
                    // Row 0 of an utterance has the distance `range.past`.
                    let Some(local) = (index + range.past).checked_sub(distances.past) else { continue };
                    let partial = distance_rows.utterance(&positions_by_heads, total_width, b);
                    if local >= distance_counts[b] {
                        continue;
                    }
                    let head_parts = partial.chunks_exact(partial.len() / heads.count);
                    for (row, part) in row.chunks_exact_mut(head_width).zip(head_parts) {
                        kernels::add(row, &part[local * head_width..][..head_width]);
                    }
                }
            }
        });
        // u of all heads, then v of all heads.
        let by_heads = sum_partials(&bias_partials, heads.count * 2 * head_width);
        let bias_of = |bias: usize| {
            by_heads
                .chunks_exact(2 * head_width)
                .flat_map(move |head| &head[bias * head_width..][..head_width])
        };
        let d_biases = bias_of(0).chain(bias_of(1)).copied().collect();
        [heads.merge_heads(ragged, &qkv_by_heads, 3), d_positions, d_biases]
    }
}

#[cfg(test)]
mod tests;
