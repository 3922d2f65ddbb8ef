//! The recurrent steps of one group of utterances: forward, and backward beside it.
//!
//! ```text
//! a[t] += h[t-1] W_hhᵀ      i, f, o = σ(..)   g = tanh(..)     a[t] holds x[t] W_ihᵀ + b already; h[-1] = 0
//! c[t] = f c[t-1] + i g     h[t] = o tanh(c[t])
//! backward, t from the last frame down, given dh from above plus what frame t+1 left:
//!   dc += dh o (1 - tanh²c)    da = [dc g i(1-i), dc c[t-1] f(1-f), dc i (1-g²), dh tanh(c) o(1-o)]
//!   dh[t-1] = da W_hh          dc[t-1] = dc f
//! ```
use kernels::{Accumulate, PackedRight, Real, View, ViewMut, product_packed, sigmoid, tanh};

use super::layout::Group;

/// Packed rows of one group; `gates` *rows x 4H* in candle's order i, f, g, o, the others *rows x H*.
pub(super) struct Rows<'a, F> {
    /// In: the input's part. Out of [`forward`]: after the nonlinearities. Out of [`backward`]: da.
    pub gates: &'a mut [F],
    /// c and its tanh.
    pub cell: &'a mut [F],
    pub tanh_cell: &'a mut [F],
    /// h of the frame before, 0 at the start.
    pub before: &'a mut [F],
    /// h; in [`backward`] dh, which is used up.
    pub state: &'a mut [F],
}

/// `recurrent` is W_hhᵀ, *H x 4H*, packed once for all steps and groups.
pub(super) fn forward<F: Real>(group: &Group, h: usize, recurrent: &PackedRight<F>, rows: Rows<F>) {
    let Rows { gates, cell, tanh_cell, before, state } = rows;
    for t in 0..group.steps() {
        let at = group.at(t);
        let n = at.len();
        let gates = &mut gates[at.start * 4 * h..at.end * 4 * h];
        if t > 0 {
            let before = View::new(&before[at.start * h..at.end * h], n, h);
            product_packed(ViewMut::new(gates, n, 4 * h), before, recurrent, Accumulate::Add);
        }
        let (old, now) = cell.split_at_mut(at.start * h);
        let old = if t > 0 { &old[group.at(t - 1).start * h..] } else { old };
        let (now, tanh_now) = (&mut now[..n * h], &mut tanh_cell[at.start * h..at.end * h]);
        for (j, gates) in gates.chunks_exact_mut(4 * h).enumerate() {
            let (input_and_forget, rest) = gates.split_at_mut(2 * h);
            let (g, o) = rest.split_at_mut(h);
            sigmoid(input_and_forget);
            tanh(g);
            sigmoid(o);
            let now = &mut now[j * h..][..h];
            let (i, f) = input_and_forget.split_at(h);
            if t > 0 {
                let old = &old[j * h..][..h];
                for k in 0..h {
                    now[k] = f[k] * old[k] + i[k] * g[k];
                }
            } else {
                for k in 0..h {
                    now[k] = i[k] * g[k];
                }
            }
        }
        tanh_now.copy_from_slice(now);
        tanh(tanh_now);
        let next = if t + 1 < group.steps() { group.at(t + 1) } else { 0..0 };
        for (j, gates) in gates.chunks_exact(4 * h).enumerate() {
            let (o, tanh_c) = (&gates[3 * h..], &tanh_now[j * h..][..h]);
            let state = &mut state[(at.start + j) * h..][..h];
            for k in 0..h {
                state[k] = o[k] * tanh_c[k];
            }
            if j < next.len() {
                before[(next.start + j) * h..][..h].copy_from_slice(state);
            }
        }
    }
}

/// Backward of [`forward`], with W_hh *4H x H*.
pub(super) fn backward<F: Real>(group: &Group, h: usize, recurrent: &PackedRight<F>, rows: Rows<F>) {
    let Rows { gates, cell, tanh_cell, state: above, .. } = rows;
    let mut carry = vec![F::ZERO; group.size() * h]; // dc of the frame after
    for t in (0..group.steps()).rev() {
        let at = group.at(t);
        let earlier = if t > 0 { group.at(t - 1) } else { 0..0 };
        for j in 0..at.len() {
            let row = at.start + j;
            let (i, rest) = gates[row * 4 * h..][..4 * h].split_at_mut(h);
            let (f, rest) = rest.split_at_mut(h);
            let (g, o) = rest.split_at_mut(h);
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
                let old = &cell[(earlier.start + j) * h..][..h];
                f.iter_mut().zip(old).for_each(|(f, &c)| *f *= c);
            } else {
                f.fill(F::ZERO);
            }
        }
        if t > 0 {
            let da = View::new(&gates[at.start * 4 * h..at.end * 4 * h], at.len(), 4 * h);
            let below = &mut above[earlier.start * h..][..at.len() * h];
            product_packed(ViewMut::new(below, at.len(), h), da, recurrent, Accumulate::Add);
        }
    }
}
