//! One direction of a layer over the whole batch: forward, and backward beside it.
//!
//! ```text
//! forward    pack x                        blocks of rows
//!            a = x W_ihᵀ + b               blocks of rows
//!            steps                         a task a group, or each frame a task a strip of units
//! backward   pack dh                       blocks of rows
//!            steps: da                     as forward
//!            dW_ih = daᵀ x, db = Σ da      blocks of its rows
//!            dW_hh = daᵀ h[t-1]            blocks of its rows
//!            dx = da W_ih                  blocks of rows
//! ```
use kernels::{Accumulate, Affine, PackedRight, Real, View, items_mut, par_for, parts_mut};

use super::layout::{Layout, ROWS, Sizes};
use super::steps::{self, Rows};
use super::strips;

/// W_ih *4H x D*, W_hh *4H x H* and b *4H*, one after another in one slice.
pub(super) fn parts<F>(weights: &[F], sizes: Sizes) -> [&[F]; 3] {
    let Sizes { input, hidden, .. } = sizes;
    let (input_weight, rest) = weights.split_at(4 * hidden * input);
    let (recurrent, bias) = rest.split_at(4 * hidden * hidden);
    [input_weight, recurrent, bias]
}

/// What the backward pass needs of the forward pass, *rows x* the width of each.
#[derive(Debug)]
pub(super) struct Tape<F> {
    /// Inputs, D.
    x: Vec<F>,
    /// States of the frames before, H.
    before: Vec<F>,
    /// Gates after their nonlinearity, 4H.
    gates: Vec<F>,
    /// Cell states and their tanh, H each.
    cell: Vec<F>,
    tanh_cell: Vec<F>,
}

/// Runs a direction over x `[B, T, D]`; returns the tape and the packed states, *rows x H*.
pub(super) fn forward<F: Real>(layout: &Layout, sizes: Sizes, x: &[F], weights: &[F]) -> (Tape<F>, Vec<F>) {
    let Sizes { frames, input: d, hidden: h } = sizes;
    let [input_weight, recurrent, bias] = parts(weights, sizes);
    let rows = layout.rows();
    let zeros = |width: usize| kernels::filled(rows * width, F::ZERO);
    let mut packed = zeros(d);
    each_row(&mut packed, d, |row, packed| {
        let (b, t) = layout.frame(row);
        packed.copy_from_slice(&x[(b * frames + t) * d..][..d]);
    });
    let mut gates = zeros(4 * h);
    Affine::new(View::new(input_weight, 4 * h, d).transposed(), Some(bias)).forward(&packed, &mut gates);

    let recurrent = View::new(recurrent, 4 * h, h);
    let (mut cell, mut tanh_cell, mut before, mut state) = (zeros(h), zeros(h), zeros(h), zeros(h));
    if let Some(group) = layout.strips() {
        let a = std::mem::replace(&mut gates, zeros(4 * h));
        let [gates, cell, tanh_cell] = [&mut gates, &mut cell, &mut tanh_cell];
        let rows = Rows { gates, cell, tanh_cell, before: &mut before, state: &mut state };
        strips::forward(group, h, recurrent, &a, rows);
    } else {
        let packed = PackedRight::new(recurrent.transposed());
        let mut tasks = tasks(layout, h, [&mut gates, &mut cell, &mut tanh_cell, &mut before, &mut state]);
        par_for(items_mut(&mut tasks), |at, rows| steps::forward(&layout.groups[at], h, &packed, None, rows));
    }
    (Tape { x: packed, before, gates, cell, tanh_cell }, state)
}

/// Gradients of the packed inputs, if asked for, and of the weights, laid out as they are.
pub(super) struct Gradients<F> {
    pub input: Option<Vec<F>>,
    pub weights: Vec<F>,
}

/// Backward of [`forward`], with `fetch(utterance, frame, row)` to write what comes from above.
pub(super) fn backward<F: Real>(
    layout: &Layout,
    sizes: Sizes,
    tape: Tape<F>,
    weights: &[F],
    input_wanted: bool,
    fetch: impl Fn(usize, usize, &mut [F]) + Sync,
) -> Gradients<F> {
    let Sizes { input: d, hidden: h, .. } = sizes;
    let [input_weight, recurrent, _] = parts(weights, sizes);
    let Tape { x, mut before, mut gates, mut cell, mut tanh_cell } = tape;
    let mut above = kernels::filled(layout.rows() * h, F::ZERO);
    each_row(&mut above, h, |row, above| {
        let (b, t) = layout.frame(row);
        fetch(b, t, above);
    });
    let recurrent = View::new(recurrent, 4 * h, h);
    let da = if let Some(group) = layout.strips() {
        strips::backward(group, h, recurrent, &mut gates, [&cell, &tanh_cell], &above)
    } else {
        let packed = PackedRight::new(recurrent);
        let mut tasks = tasks(layout, h, [&mut gates, &mut cell, &mut tanh_cell, &mut before, &mut above]);
        par_for(items_mut(&mut tasks), |at, rows| steps::backward(&layout.groups[at], h, &packed, rows));
        gates
    };
    let mut gradient = kernels::zeros(weights.len());
    let (d_input, rest) = gradient.split_at_mut(4 * h * d);
    let (d_recurrent, d_bias) = rest.split_at_mut(4 * h * h);
    let input_layer = Affine::new(View::new(input_weight, 4 * h, d).transposed(), None);
    let recurrent_layer = Affine::new(recurrent.transposed(), None);
    let weights = || {
        // The bias is added once, with the input's part.
        let mut twice = vec![F::ZERO; 4 * h];
        rayon::join(
            || input_layer.backward_parameters(&[(&x, &da)], d_input, d_bias),
            || recurrent_layer.backward_parameters(&[(&before, &da)], d_recurrent, &mut twice),
        );
    };
    let input = || {
        input_wanted.then(|| {
            let mut dx = kernels::filled(layout.rows() * d, F::ZERO);
            input_layer.backward_rows(&da, &mut dx, Accumulate::Replace);
            dx
        })
    };
    let (input, _) = rayon::join(input, weights);
    Gradients { input, weights: gradient }
}

/// Calls `write(index, row)` for every row, in blocks of [`ROWS`].
pub(super) fn each_row<F: Send>(rows: &mut [F], width: usize, write: impl Fn(usize, &mut [F]) + Sync) {
    par_for(parts_mut(rows, (ROWS * width).max(1)), |block, rows| {
        rows.chunks_exact_mut(width).enumerate().for_each(|(at, row)| write(block * ROWS + at, row));
    });
}

/// The rows of each group, out of gates, c, tanh c, states before and states of all.
pub(super) fn tasks<'a, F: Real>(
    layout: &Layout,
    h: usize,
    [gates, cell, tanh_cell, before, state]: [&'a mut Vec<F>; 5],
) -> Vec<Rows<'a, F>> {
    let cut = layout.cut(gates, 4 * h).into_iter().zip(layout.cut(cell, h)).zip(layout.cut(tanh_cell, h));
    let cut = cut.zip(layout.cut(before, h)).zip(layout.cut(state, h));
    cut.map(|((((gates, cell), tanh_cell), before), state)| Rows { gates, cell, tanh_cell, before, state })
        .collect()
}
