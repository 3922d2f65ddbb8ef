//! The recurrent steps of one group of utterances: forward, and backward beside it.
//!
//! ```text
//! a[t] += h[t-1] W_hhᵀ      i, f, o = σ(..)   g = tanh(..)     a[t] holds x[t] W_ihᵀ + b already; h[-1] = 0, or what is carried
//! then the cell (`cell.rs`)
//! backward, t from the last frame down, given dh from above plus what frame t+1 left:
//!   the cell: da               dh[t-1] = da W_hh
//! ```
use kernels::{Accumulate, PackedRight, Real, View, ViewMut, product_packed, sigmoid, tanh};

use super::cell;
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

/// `recurrent` is W_hhᵀ, *H x 4H*, packed once for all steps and groups; `carried` h and c of each utterance of the group before the
/// first frame, which are 0 without.
pub(super) fn forward<F: Real>(
    group: &Group,
    h: usize,
    recurrent: &PackedRight<F>,
    carried: Option<[&[F]; 2]>,
    rows: &mut Rows<F>,
) {
    let Rows { gates, cell, tanh_cell, before, state } = rows;
    for t in 0..group.steps() {
        let at = group.at(t);
        let n = at.len();
        let gates = &mut gates[at.start * 4 * h..at.end * 4 * h];
        let first = carried.filter(|_| t == 0);
        if let Some([carried, _]) = first {
            before[..n * h].copy_from_slice(&carried[..n * h]);
        }
        if t > 0 || first.is_some() {
            let before = View::new(&before[at.start * h..at.end * h], n, h);
            product_packed(ViewMut::new(gates, n, 4 * h), before, recurrent, Accumulate::Add);
        }
        let (old, now) = cell.split_at_mut(at.start * h);
        let old = match first {
            Some([_, cell]) => Some(cell),
            None => (t > 0).then(|| &old[group.before(t).start * h..]),
        };
        let (now, tanh_now) = (&mut now[..n * h], &mut tanh_cell[at.start * h..at.end * h]);
        for (j, gates) in gates.chunks_exact_mut(4 * h).enumerate() {
            let (input_and_forget, rest) = gates.split_at_mut(2 * h);
            let (g, o) = rest.split_at_mut(h);
            sigmoid(input_and_forget);
            tanh(g);
            sigmoid(o);
            let (i, f) = input_and_forget.split_at(h);
            let old = old.map(|old| &old[j * h..][..h]);
            cell::forward([i, f, g], old, &mut now[j * h..][..h]);
        }
        tanh_now.copy_from_slice(now);
        tanh(tanh_now);
        let next = group.after(t);
        for (j, gates) in gates.chunks_exact(4 * h).enumerate() {
            let state = &mut state[(at.start + j) * h..][..h];
            cell::output(&gates[3 * h..], &tanh_now[j * h..][..h], state);
            if j < next.len() {
                before[(next.start + j) * h..][..h].copy_from_slice(state);
            }
        }
    }
}

/// Backward of [`forward`], with W_hh *4H x H*.
pub(super) fn backward<F: Real>(group: &Group, h: usize, recurrent: &PackedRight<F>, rows: &mut Rows<F>) {
    let Rows { gates, cell, tanh_cell, state: above, .. } = rows;
    let mut carry = vec![F::ZERO; group.size() * h]; // dc of the frame after
    for t in (0..group.steps()).rev() {
        let at = group.at(t);
        let earlier = group.before(t);
        for j in 0..at.len() {
            let row = at.start + j;
            let (i, rest) = gates[row * 4 * h..][..4 * h].split_at_mut(h);
            let (f, rest) = rest.split_at_mut(h);
            let (g, o) = rest.split_at_mut(h);
            let from_here = (&above[row * h..][..h], &tanh_cell[row * h..][..h]);
            let old = (t > 0).then(|| &cell[(earlier.start + j) * h..][..h]);
            cell::backward([i, f, g, o], from_here, old, &mut carry[j * h..][..h]);
        }
        if t > 0 {
            let da = View::new(&gates[at.start * 4 * h..at.end * 4 * h], at.len(), 4 * h);
            let below = &mut above[earlier.start * h..][..at.len() * h];
            product_packed(ViewMut::new(below, at.len(), h), da, recurrent, Accumulate::Add);
        }
    }
}
