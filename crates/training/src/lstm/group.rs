//! One direction of an LSTM over one group of utterances: forward, and backward beside it.
//!
//! ```text
//! utterances of the group, longest first; frame t has the rows of those longer than t, one after another, no padding:
//!   z[t] = [ x[t] | h[t-1] | 1 ]                       h[-1] = 0
//!   a[t] = z[t] W          i, f, o = σ(a[..3H])        g = tanh(a[3H..])
//!   c[t] = f c[t-1] + i g  h[t] = o tanh(c[t])
//! backward, t from the last frame down, given dh from above plus what frame t+1 left:
//!   dc += dh o (1 - tanh²c)    da = [dc g i(1-i), dc c[t-1] f(1-f), dh tanh(c) o(1-o), dc i (1-g²)]
//!   dh[t-1] = da W_hᵀ          dc[t-1] = dc f
//! and at the end, over all rows at once:  dW = zᵀ da,  dx = da W_xᵀ
//! ```
//! The input part of `z W` is one product over all rows; only `h[t-1] W_h` is left to the time loop.
use std::ops::Range;

use kernels::{Accumulate, View, ViewMut, product, sigmoid, tanh};
use panda_core::Real;

/// Sizes that every task shares: frames of the padded tensor, input width D, state width H.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub frames: usize,
    pub input: usize,
    pub hidden: usize,
}

impl Sizes {
    /// Width of a packed row `[x | h | 1]`, which is the number of rows of the packed weight.
    pub fn row(&self) -> usize {
        self.input + self.hidden + 1
    }
}

/// Which utterances a task owns and where their frames lie in the packed order.
#[derive(Debug)]
pub(super) struct Layout {
    /// Batch index of each utterance, longest first.
    utterances: Vec<usize>,
    lengths: Vec<usize>,
    /// First packed row of each frame, and the total at the end.
    offsets: Vec<usize>,
    /// The second direction runs from each utterance's own end to its start.
    reverse: bool,
}

impl Layout {
    /// `utterances` must be ordered by falling length.
    pub fn new(utterances: Vec<usize>, lengths: &[usize], reverse: bool) -> Self {
        let lengths: Vec<usize> = utterances.iter().map(|&b| lengths[b]).collect();
        debug_assert!(lengths.is_sorted_by(|a, b| a >= b));
        let mut offsets = vec![0];
        for t in 0..lengths.first().copied().unwrap_or(0) {
            offsets.push(offsets[t] + lengths.partition_point(|&length| length > t));
        }
        Layout { utterances, lengths, offsets, reverse }
    }

    fn rows(&self) -> usize {
        *self.offsets.last().expect("offsets start with 0")
    }

    fn steps(&self) -> usize {
        self.offsets.len() - 1
    }

    fn at(&self, t: usize) -> Range<usize> {
        self.offsets[t]..self.offsets[t + 1]
    }

    /// Calls `visit(batch index, frame in the tensor, packed row)` for every frame of every utterance.
    pub fn for_each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for (j, (&b, &length)) in self.utterances.iter().zip(&self.lengths).enumerate() {
            for t in 0..length {
                visit(b, if self.reverse { length - 1 - t } else { t }, self.offsets[t] + j);
            }
        }
    }
}

/// What the backward pass needs of the forward pass.
#[derive(Debug)]
pub(super) struct Tape<F> {
    rows: usize,
    /// Rows `[x | h[t-1] | 1]`, *rows x (D+H+1)*.
    z: Vec<F>,
    /// Gates after their nonlinearity, in the order i, f, o, g, *rows x 4H*.
    gates: Vec<F>,
    /// Cell states and their tanh, *rows x H* each.
    cell: Vec<F>,
    tanh_cell: Vec<F>,
}

impl<F> Tape<F> {
    /// Number of packed rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Runs one direction; returns the tape and the outputs h, *rows x H*, packed.
pub(super) fn forward<F: Real>(layout: &Layout, sizes: Sizes, x: &[F], weight: &[F]) -> (Tape<F>, Vec<F>) {
    let Sizes { frames, input: d, hidden: h } = sizes;
    let (rows, width) = (layout.rows(), sizes.row());
    let mut z = vec![F::ZERO; rows * width];
    layout.for_each(|b, t, row| {
        let from = (b * frames + t) * d;
        z[row * width..][..d].copy_from_slice(&x[from..from + d]);
        z[row * width + d + h] = F::ONE;
    });
    let (w_x, w_rest) = weight.split_at(d * 4 * h);
    let (w_h, bias) = w_rest.split_at(h * 4 * h);
    let mut gates = vec![F::ZERO; rows * 4 * h];
    gates.chunks_exact_mut(4 * h).for_each(|row| row.copy_from_slice(bias));
    let (w_x, w_h) = (View::new(w_x, d, 4 * h), View::new(w_h, h, 4 * h));
    product(
        ViewMut::new(&mut gates, rows, 4 * h),
        View::with_stride(&z, rows, d, width),
        w_x,
        F::ONE,
        Accumulate::Add,
    );

    let mut cell = vec![F::ZERO; rows * h];
    let mut tanh_cell = vec![F::ZERO; rows * h];
    let mut out = vec![F::ZERO; rows * h];
    for t in 0..layout.steps() {
        let at = layout.at(t);
        let n = at.len();
        let gates = &mut gates[at.start * 4 * h..at.end * 4 * h];
        if t > 0 {
            let previous = View::with_stride(&z[at.start * width + d..], n, h, width);
            product(ViewMut::new(gates, n, 4 * h), previous, w_h, F::ONE, Accumulate::Add);
        }
        let (before, now) = cell.split_at_mut(at.start * h);
        let before = if t > 0 { &before[layout.offsets[t - 1] * h..] } else { before };
        let (now, tanh_now) = (&mut now[..n * h], &mut tanh_cell[at.start * h..at.end * h]);
        for (j, gates) in gates.chunks_exact_mut(4 * h).enumerate() {
            let (sigmoids, g) = gates.split_at_mut(3 * h);
            sigmoid(sigmoids);
            tanh(g);
            let now = &mut now[j * h..][..h];
            let (i, f) = (&sigmoids[..h], &sigmoids[h..2 * h]);
            if t > 0 {
                let before = &before[j * h..][..h];
                for k in 0..h {
                    now[k] = f[k] * before[k] + i[k] * g[k];
                }
            } else {
                for k in 0..h {
                    now[k] = i[k] * g[k];
                }
            }
        }
        tanh_now.copy_from_slice(now);
        tanh(tanh_now);
        let next = if t + 1 < layout.steps() { layout.at(t + 1) } else { 0..0 };
        for (j, gates) in gates.chunks_exact(4 * h).enumerate() {
            let (o, tanh_c) = (&gates[2 * h..3 * h], &tanh_now[j * h..][..h]);
            let out = &mut out[(at.start + j) * h..][..h];
            for k in 0..h {
                out[k] = o[k] * tanh_c[k];
            }
            if j < next.len() {
                z[(next.start + j) * width + d..][..h].copy_from_slice(out);
            }
        }
    }
    (Tape { rows, z, gates, cell, tanh_cell }, out)
}

/// Gradients of one task: of its packed inputs (if asked for), and of the packed weight.
#[derive(Debug)]
pub(super) struct Gradients<F> {
    pub input: Option<Vec<F>>,
    pub weight: Vec<F>,
}

/// Backward of [`forward`]: `above` holds dL/dh of every row, packed, and is consumed as scratch.
pub(super) fn backward<F: Real>(
    layout: &Layout,
    sizes: Sizes,
    tape: Tape<F>,
    mut above: Vec<F>,
    weight: &[F],
    input_wanted: bool,
) -> Gradients<F> {
    let Sizes { input: d, hidden: h, .. } = sizes;
    let (rows, width) = (layout.rows(), sizes.row());
    let Tape { z, mut gates, cell, tanh_cell, .. } = tape;
    // The product below meets this matrix at every step: transpose it once.
    let mut w_h = vec![F::ZERO; 4 * h * h];
    for (k, row) in weight[d * 4 * h..][..h * 4 * h].chunks_exact(4 * h).enumerate() {
        row.iter().enumerate().for_each(|(n, &w)| w_h[n * h + k] = w);
    }
    let w_h = View::new(&w_h, 4 * h, h);
    let mut carry = vec![F::ZERO; layout.utterances.len() * h]; // dc of the frame after
    for t in (0..layout.steps()).rev() {
        let at = layout.at(t);
        let earlier = if t > 0 { layout.at(t - 1) } else { 0..0 };
        for j in 0..at.len() {
            let row = at.start + j;
            let (i, rest) = gates[row * 4 * h..][..4 * h].split_at_mut(h);
            let (f, rest) = rest.split_at_mut(h);
            let (o, g) = rest.split_at_mut(h);
            let (dh, tanh_c) = (&above[row * h..][..h], &tanh_cell[row * h..][..h]);
            let carry = &mut carry[j * h..][..h];
            for k in 0..h {
                let dc = carry[k] + dh[k] * o[k] * (F::ONE - tanh_c[k] * tanh_c[k]);
                carry[k] = dc * f[k];
                o[k] = dh[k] * tanh_c[k] * o[k] * (F::ONE - o[k]);
                let (i_k, g_k) = (i[k], g[k]);
                i[k] = dc * g_k * i_k * (F::ONE - i_k);
                g[k] = dc * i_k * (F::ONE - g_k * g_k);
                f[k] = dc * (f[k] * (F::ONE - f[k]));
            }
            if t > 0 {
                let before = &cell[(earlier.start + j) * h..][..h];
                f.iter_mut().zip(before).for_each(|(f, &c)| *f *= c);
            } else {
                f.fill(F::ZERO);
            }
        }
        if t > 0 {
            let da = View::new(&gates[at.start * 4 * h..at.end * 4 * h], at.len(), 4 * h);
            let below = &mut above[earlier.start * h..][..at.len() * h];
            product(ViewMut::new(below, at.len(), h), da, w_h, F::ONE, Accumulate::Add);
        }
    }
    let da = View::new(&gates, rows, 4 * h);
    let mut weight_gradient = vec![F::ZERO; width * 4 * h];
    let z = View::new(&z, rows, width).transposed();
    product(ViewMut::new(&mut weight_gradient, width, 4 * h), z, da, F::ONE, Accumulate::Replace);
    let input = input_wanted.then(|| {
        let mut dx = vec![F::ZERO; rows * d];
        let w_x = View::new(&weight[..d * 4 * h], d, 4 * h).transposed();
        product(ViewMut::new(&mut dx, rows, d), da, w_x, F::ONE, Accumulate::Replace);
        dx
    });
    Gradients { input, weight: weight_gradient }
}
