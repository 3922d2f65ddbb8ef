//! One direction of a layer over the whole batch: forward, and backward beside it.
//!
//! ```text
//! forward    pack x                        blocks of rows
//!            a = x W_ihᵀ + b               blocks of rows
//!            steps                         a task a group, or each frame a task a strip of units
//! backward   pack dh                       blocks of rows
//!            steps: da                     as forward
//!            dx = da W_ih                  blocks of rows and columns
//!            dW_ih = daᵀ x, db = Σ da      blocks of its rows
//!            dW_hh = daᵀ h[t-1]            blocks of its rows
//! ```
//! x and h are the graph's own, and read again: the tape has only what cannot be had otherwise.
//! Buffers come from a pool, if there is one, and go back to it.
use kernels::{
    Accumulate, Affine, BufferPool, PackedGates, PooledBuffer, Real, View, acquire, items_mut, par_for,
    parts_mut,
};

use super::layout::{LayerSizes, ROWS, TapeLayout};
use super::steps::{self, StepRows};

/// W_ih *4H x D*, W_hh *4H x H* and b *4H*.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectionWeights<'a, F> {
    pub input: &'a [F],
    pub recurrent: &'a [F],
    pub bias: &'a [F],
}

/// A direction over a batch, and where its buffers lie between calls.
#[derive(Clone, Copy)]
pub(super) struct DirectionPlace<'a, F> {
    pub layout: &'a TapeLayout,
    pub sizes: LayerSizes,
    pub pool: Option<&'a BufferPool<F>>,
}

impl<F: Real> DirectionPlace<'_, F> {
    /// Packed rows, whatever is in them.
    fn rows(self, role: &'static str, width: usize) -> PooledBuffer<F> {
        acquire(self.pool, role, self.layout.rows() * width)
    }
}

/// What the backward pass needs of the forward pass, *rows x* the width of each.
#[derive(Debug)]
pub(super) struct Tape<F> {
    /// Gates after their nonlinearity, 4H.
    gates: PooledBuffer<F>,
    /// Cell states, H.
    cell: PooledBuffer<F>,
}

/// Runs a direction, whose input at a frame of the tensor is `x(utterance, frame)`; returns the
/// tape and the packed states, *rows x H*.
pub(super) fn forward<'a, F: Real>(
    place: DirectionPlace<F>,
    x: impl Fn(usize, usize) -> &'a [F] + Sync,
    weights: DirectionWeights<F>,
) -> (Tape<F>, PooledBuffer<F>) {
    let DirectionPlace { layout, sizes: LayerSizes { input: d, hidden: h, .. }, pool } = place;
    let mut gates = place.rows("gates of frames", 4 * h);
    let packed = pack(place, d, |row| Some(layout.frame(row)), x);
    Affine::new(View::new(weights.input, 4 * h, d).transposed(), Some(weights.bias))
        .with_pool(pool)
        .forward(&packed, &mut gates);
    drop(packed);
    let (mut cell, mut state) = (place.rows("cells", h), place.rows("states", h));
    let recurrent = PackedGates::forth(pool, weights.recurrent, h);
    let mut tasks = tasks(layout, h, [&mut gates, &mut cell, &mut state]);
    par_for(items_mut(&mut tasks), |at, rows| {
        steps::forward((&layout.groups[at], h, pool), &recurrent, None, rows, layout.shared());
    });
    (Tape { gates, cell }, state)
}

/// Which gradients are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub input: bool,
    pub weights: bool,
}

/// Gradients that were asked for: of the packed inputs, and of W_ih, W_hh and b.
pub(super) struct DirectionGradients<F> {
    pub input: Option<PooledBuffer<F>>,
    pub weights: Option<[Vec<F>; 3]>,
}

/// Backward of [`forward`], with rows of the input, of the output and of the gradient that comes
/// from above it.
pub(super) fn backward<'a, F: Real>(
    place: DirectionPlace<F>,
    tape: Tape<F>,
    weights: DirectionWeights<F>,
    wanted: Wanted,
    [x, out, above]: [&(dyn Fn(usize, usize) -> &'a [F] + Sync); 3],
) -> DirectionGradients<F> {
    let DirectionPlace { layout, sizes: LayerSizes { input: d, hidden: h, .. }, pool } = place;
    let Tape { gates: mut da, mut cell } = tape;
    let here = |row: usize| Some(layout.frame(row));
    {
        let mut above = pack(place, h, here, above);
        let recurrent = PackedGates::back(pool, weights.recurrent, h);
        let mut tasks = tasks(layout, h, [&mut da, &mut cell, &mut above]);
        par_for(items_mut(&mut tasks), |at, rows| {
            steps::backward((&layout.groups[at], h, pool), &recurrent, rows, layout.shared());
        });
    }
    drop(cell);
    // Before the gradients of the weights are there: it takes more memory on the way.
    let input = wanted.input.then(|| {
        let mut dx = place.rows("gradients of inputs", d);
        let layer = Affine::new(View::new(weights.input, 4 * h, d).transposed(), None).with_pool(pool);
        layer.backward_rows(&da, &mut dx, Accumulate::Replace);
        dx
    });
    let weights = wanted.weights.then(|| {
        let of = |weight: &[F], rows: PooledBuffer<F>, width: usize| {
            let (mut gradient, mut bias) = (kernels::zeros(weight.len()), vec![F::ZERO; 4 * h]);
            let layer = Affine::new(View::new(weight, 4 * h, width).transposed(), None).with_pool(pool);
            layer.backward_parameters(&[(&rows, &da)], &mut gradient, &mut bias);
            (gradient, bias)
        };
        let before = |row: usize| layout.frame_before(row);
        // The bias is added once, with the input's part.
        let ((input, bias), (recurrent, _)) = rayon::join(
            || of(weights.input, pack(place, d, here, x), d),
            || of(weights.recurrent, pack(place, h, before, out), h),
        );
        [input, recurrent, bias]
    });
    DirectionGradients { input, weights }
}

/// Packed rows from those of a tensor: for each the one of the utterance and frame that it comes
/// from, 0 where there is none.
fn pack<'a, F: Real>(
    place: DirectionPlace<F>,
    width: usize,
    from: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    of: impl Fn(usize, usize) -> &'a [F] + Sync,
) -> PooledBuffer<F> {
    let mut rows = place.rows("packed rows", width);
    each_row(&mut rows, width, |row, to| match from(row) {
        Some((b, t)) => to.copy_from_slice(of(b, t)),
        None => to.fill(F::ZERO),
    });
    rows
}

/// Calls `write(index, row)` for every row, in blocks of [`ROWS`].
pub(super) fn each_row<F: Send>(rows: &mut [F], width: usize, write: impl Fn(usize, &mut [F]) + Sync) {
    par_for(parts_mut(rows, (ROWS * width).max(1)), |block, rows| {
        rows.chunks_exact_mut(width).enumerate().for_each(|(at, row)| write(block * ROWS + at, row));
    });
}

/// The rows of each group, out of gates, c and states of all.
pub(super) fn tasks<'a, F: Real>(
    layout: &TapeLayout,
    h: usize,
    [gates, cell, state]: [&'a mut [F]; 3],
) -> Vec<StepRows<'a, F>> {
    let cut = layout.cut(gates, 4 * h).into_iter().zip(layout.cut(cell, h)).zip(layout.cut(state, h));
    cut.map(|((gates, cell), state)| StepRows { gates, cell, state }).collect()
}
