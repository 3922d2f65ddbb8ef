//! Forward and backward pass of one direction of an LSTM layer.
//!
//! "Rows" are frames of all utterances, packed without padding (`layout.rs`). D: width of the
//! input; H: width of the states; t: frame; x: input; h: states; a: gates (i, f, g, o) before their
//! nonlinearity; `d` in front of a name: the loss's gradient.
//!
//! ```text
//! forward    pack x                        blocks of rows
//!            a = x W_ihᵀ + b               blocks of rows
//!            steps                         a task for each group, or for each frame and strip
//! backward   pack dh                       blocks of rows
//!            steps: da                     as in the forward pass
//!            dx = da W_ih                  blocks of rows and columns
//!            dW_ih = daᵀ x, db = Σ da      blocks of its rows
//!            dW_hh = daᵀ h[t-1]            blocks of its rows
//! ```
//! The tape has the activations that the backward pass needs and that are not tensors of the graph:
//! gates and cell states. x and h are read from the graph again. A group is some utterances, a
//! strip 16 units of the layer (`steps.rs`). Buffers come from a pool, if there is one.
use kernels::{
    Accumulate, Affine, BufferPool, PackedRecurrentWeight, PooledBuffer, Real, View, acquire, items_mut,
    par_for, parts_mut,
};

use super::layout::{LayerSizes, ROWS_PER_BLOCK, TapeLayout};
use super::steps::{self, StepRows};

/// The weights W_ih `[4H, D]`, W_hh `[4H, H]` and b `[4H]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectionWeights<'a, F> {
    pub input: &'a [F],
    pub recurrent: &'a [F],
    pub bias: &'a [F],
}

/// The shapes of a direction, and the pool of its buffers.
#[derive(Clone, Copy)]
pub(super) struct DirectionContext<'a, F> {
    pub layout: &'a TapeLayout,
    pub sizes: LayerSizes,
    pub pool: Option<&'a BufferPool<F>>,
}

impl<F: Real> DirectionContext<'_, F> {
    /// Acquires a buffer of packed rows with any contents.
    fn acquire_rows(self, role: &'static str, width: usize) -> PooledBuffer<F> {
        acquire(self.pool, role, self.layout.rows() * width)
    }
}

/// Packed rows that are saved for the backward pass.
#[derive(Debug)]
pub(super) struct Tape<F> {
    /// Gates after their nonlinearity, 4H.
    gates: PooledBuffer<F>,
    /// Cell states, H.
    cell: PooledBuffer<F>,
}

/// Runs the forward pass of a direction; returns the tape and the packed states, *rows x H*.
///
/// `x(utterance, frame)` is the input at a frame.
pub(super) fn forward<'a, F: Real>(
    context: DirectionContext<F>,
    x: impl Fn(usize, usize) -> &'a [F] + Sync,
    weights: DirectionWeights<F>,
) -> (Tape<F>, PooledBuffer<F>) {
    let DirectionContext { layout, sizes: LayerSizes { input_width, hidden, .. }, pool } = context;
    let mut gates = context.acquire_rows("gates of frames", 4 * hidden);
    let packed_x = pack_rows(context, input_width, |row| Some(layout.frame(row)), x);
    Affine::new(View::new(weights.input, 4 * hidden, input_width).transposed(), Some(weights.bias))
        .with_pool(pool)
        .forward(&packed_x, &mut gates);
    drop(packed_x);
    let (mut cell, mut state) =
        (context.acquire_rows("cells", hidden), context.acquire_rows("states", hidden));
    let recurrent = PackedRecurrentWeight::for_forward(pool, weights.recurrent, hidden);
    let mut groups = split_by_group(layout, hidden, &mut gates, &mut cell, &mut state);
    par_for(items_mut(&mut groups), |group, rows| {
        let uses_strips = layout.uses_strips();
        steps::forward(&layout.groups[group], hidden, pool, &recurrent, None, rows, uses_strips);
    });
    (Tape { gates, cell }, state)
}

/// The gradients that a backward pass must compute.
#[derive(Debug, Clone, Copy)]
pub(super) struct GradientMask {
    pub input: bool,
    pub weights: bool,
}

/// The gradients of inputs and weights, if they are needed.
///
/// Inputs are packed; weights are W_ih, W_hh and b.
pub(super) struct DirectionGradients<F> {
    pub input: Option<PooledBuffer<F>>,
    pub weights: Option<[Vec<F>; 3]>,
}

/// Runs the backward pass of a direction, which overwrites the tape's buffers.
///
/// `x`, `out` and `d_out` return rows of the input, of the output and of its gradient, by utterance
/// and frame.
pub(super) fn backward<'a, F: Real>(
    context: DirectionContext<F>,
    tape: Tape<F>,
    weights: DirectionWeights<F>,
    mask: GradientMask,
    x: &(dyn Fn(usize, usize) -> &'a [F] + Sync),
    out: &(dyn Fn(usize, usize) -> &'a [F] + Sync),
    d_out: &(dyn Fn(usize, usize) -> &'a [F] + Sync),
) -> DirectionGradients<F> {
    let DirectionContext { layout, sizes: LayerSizes { input_width, hidden, .. }, pool } = context;
    let Tape { gates: mut da, mut cell } = tape;
    let frame = |row: usize| Some(layout.frame(row));
    // The steps: da replaces the gates.
    {
        let mut d_out = pack_rows(context, hidden, frame, d_out);
        let recurrent = PackedRecurrentWeight::for_backward(pool, weights.recurrent, hidden);
        let mut groups = split_by_group(layout, hidden, &mut da, &mut cell, &mut d_out);
        par_for(items_mut(&mut groups), |group, rows| {
            steps::backward(&layout.groups[group], hidden, pool, &recurrent, rows, layout.uses_strips());
        });
    }
    drop(cell);
    // dx, before the gradients of the weights exist, as it needs more temporary memory.
    let input_gradient = mask.input.then(|| {
        let mut dx = context.acquire_rows("gradients of inputs", input_width);
        let weight = View::new(weights.input, 4 * hidden, input_width).transposed();
        Affine::new(weight, None).with_pool(pool).backward_rows(&da, &mut dx, Accumulate::Replace);
        dx
    });
    // dW_ih, db and dW_hh.
    let weight_gradients = mask.weights.then(|| {
        let gradients_of = |weight: &[F], rows: PooledBuffer<F>, width: usize| {
            let (mut d_weight, mut d_bias) = (kernels::zeros(weight.len()), vec![F::ZERO; 4 * hidden]);
            let layer = Affine::new(View::new(weight, 4 * hidden, width).transposed(), None).with_pool(pool);
            layer.backward_parameters(&[(&rows, &da)], &mut d_weight, &mut d_bias);
            (d_weight, d_bias)
        };
        let previous_frame = |row: usize| layout.previous_frame(row);
        // The bias is added once, with the input's part.
        let ((d_input, d_bias), (d_recurrent, _)) = rayon::join(
            || gradients_of(weights.input, pack_rows(context, input_width, frame, x), input_width),
            || gradients_of(weights.recurrent, pack_rows(context, hidden, previous_frame, out), hidden),
        );
        [d_input, d_recurrent, d_bias]
    });
    DirectionGradients { input: input_gradient, weights: weight_gradients }
}

/// Packs rows of a tensor; rows without a frame are 0.
///
/// `frame` returns the utterance and frame of a packed row, and `source` its values.
fn pack_rows<'a, F: Real>(
    context: DirectionContext<F>,
    width: usize,
    frame: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    source: impl Fn(usize, usize) -> &'a [F] + Sync,
) -> PooledBuffer<F> {
    let mut rows = context.acquire_rows("packed rows", width);
    for_each_row(&mut rows, width, |row, target| match frame(row) {
        Some((b, t)) => target.copy_from_slice(source(b, t)),
        None => target.fill(F::ZERO),
    });
    rows
}

/// Calls `write(index, row)` for every row, in blocks of [`ROWS_PER_BLOCK`].
pub(super) fn for_each_row<F: Send>(rows: &mut [F], width: usize, write: impl Fn(usize, &mut [F]) + Sync) {
    par_for(parts_mut(rows, (ROWS_PER_BLOCK * width).max(1)), |block, rows| {
        rows.chunks_exact_mut(width)
            .enumerate()
            .for_each(|(index, row)| write(block * ROWS_PER_BLOCK + index, row));
    });
}

/// Divides gates, cells and states into the rows of each utterance group.
pub(super) fn split_by_group<'a, F: Real>(
    layout: &TapeLayout,
    hidden: usize,
    gates: &'a mut [F],
    cell: &'a mut [F],
    state: &'a mut [F],
) -> Vec<StepRows<'a, F>> {
    let gates = layout.split_mut(gates, 4 * hidden).into_iter();
    let groups = gates.zip(layout.split_mut(cell, hidden)).zip(layout.split_mut(state, hidden));
    groups.map(|((gates, cell), state)| StepRows { gates, cell, state }).collect()
}
