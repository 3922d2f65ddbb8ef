//! Recurrent steps of an LSTM for a group of utterances, both passes.
//!
//! ```text
//! frame t, a task for each strip of 16 units and up to 8 utterances:
//!   a[t] += h[t-1] W_hhᵀ      then the cell      a[t] is x[t] W_ihᵀ + b before; h[-1] 0 or given
//! backward, t from the last frame down:
//!   dh[t] += da[t+1] W_hh     then the cell: da  dh[t] is the gradient of the output before
//! ```
//! a: gates i, f, g, o before their nonlinearity; h: states; `d` in front of a name: the loss's
//! gradient. A band is up to 8 utterances. Factors of the next frame's products (h, or da) are
//! stored transposed, a row for each unit and a column for each utterance of a band. The tasks of a
//! frame are distributed over threads if a layer is wide, and run one after another if groups are
//! tasks: the sums are the same.
use kernels::{
    BufferPool, MAX_GATE_ROWS, PackedGates, Parts, Real, Tiling, UNITS_PER_STRIP, View, acquire,
    for_each_sequential, lstm_cell_backward, lstm_cell_forward, par_for, tiles_mut, transpose,
};

use super::layout::RowGroup;

/// Packed rows of one group.
///
/// `gates` are *rows x 4H* in candle's order i, f, g, o; `cell` and `state` are *rows x H*.
pub(super) struct StepRows<'a, F> {
    /// The input's part before [`forward`], gates after it, and da after [`backward`].
    pub gates: &'a mut [F],
    pub cell: &'a mut [F],
    /// h after [`forward`]; the gradient of the output in [`backward`].
    pub state: &'a mut [F],
}

/// The tiles of a frame of a group.
#[derive(Clone, Copy)]
struct FrameTiling {
    hidden: usize,
    /// Utterances of a band.
    band: usize,
}

impl FrameTiling {
    fn new(group: &RowGroup, hidden: usize) -> Self {
        FrameTiling { hidden, band: group.band() }
    }

    /// Returns the number of bands of some utterances.
    fn bands(self, utterances: usize) -> usize {
        utterances.div_ceil(self.band)
    }

    /// Returns the length of a transposed band.
    ///
    /// Each unit has `each` numbers: 1 for h, 4 for da.
    fn transposed_len(self, each: usize) -> usize {
        self.hidden.next_multiple_of(UNITS_PER_STRIP) * each * self.band
    }

    /// Returns the tiles of rows with `planes` planes of units.
    fn row_tiles(self, planes: usize) -> Tiling {
        Tiling { rows: self.band, planes, columns: self.hidden, width: UNITS_PER_STRIP }
    }

    /// Returns the tiles of transposed bands.
    fn band_tiles(self, each: usize) -> Tiling {
        Tiling {
            rows: 1,
            planes: 1,
            columns: self.transposed_len(each),
            width: UNITS_PER_STRIP * each * self.band,
        }
    }
}

/// Runs the forward steps of a group.
///
/// `recurrent` is W_hh, packed once for all steps and groups; `initial` has h and c of each
/// utterance of the group before the first frame, which are 0 by default. `is_shared` is true if
/// threads share a frame. Overwrites gates, cells and states in `rows`.
pub(super) fn forward<F: Real>(
    group: &RowGroup,
    h: usize,
    pool: Option<&BufferPool<F>>,
    recurrent: &PackedGates<F>,
    initial: Option<[&[F]; 2]>,
    rows: &mut StepRows<F>,
    is_shared: bool,
) {
    let StepRows { gates, cell, state } = rows;
    let tiling = FrameTiling::new(group, h);
    let len = tiling.transposed_len(1);
    let all = tiling.bands(group.size()) * len;
    let [mut last, mut next] = [(); 2].map(|()| acquire(pool, "transposed states", all));
    last.clear();
    if let Some([initial, _]) = initial {
        let last = last.resize(all);
        for (b, row) in initial.chunks_exact(h).enumerate() {
            let (band, j) = (b / tiling.band * len, b % tiling.band);
            row.iter().enumerate().for_each(|(k, &value)| last[band + k * tiling.band + j] = value);
        }
    }
    for t in 0..group.steps() {
        let frame = group.frame_rows(t);
        let bands = tiling.bands(frame.len());
        let (old, new) = cell.split_at_mut(frame.start * h);
        let old = match initial {
            Some([_, cell]) if t == 0 => cell,
            _ => &old[group.previous_rows(t).start * h..],
        };
        let tiles = (
            tiles_mut(&mut gates[frame.start * 4 * h..frame.end * 4 * h], tiling.row_tiles(4)),
            tiles_mut(&mut new[..frame.len() * h], tiling.row_tiles(1)),
            tiles_mut(&mut state[frame.start * h..frame.end * h], tiling.row_tiles(1)),
            tiles_mut(&mut next.resize(all)[..bands * len], tiling.band_tiles(1)),
        );
        let states = &last[..];
        for_each_task(is_shared, tiles, |task, (mut gates, mut cell, mut state, mut next)| {
            let (strip, band, n) = (task / bands, task % bands, gates.rows());
            let (mut a, mut c) =
                ([F::ZERO; 4 * UNITS_PER_STRIP * MAX_GATE_ROWS], [F::ZERO; UNITS_PER_STRIP * MAX_GATE_ROWS]);
            let (mut s, width) = (c, gates.row(0, 0).len());
            for (j, gate) in (0..n).flat_map(|j| (0..4).map(move |gate| (j, gate))) {
                copy(&mut a[(4 * j + gate) * UNITS_PER_STRIP..], gates.row(j, gate));
            }
            if !states.is_empty() {
                let states = &states[band * len..][..len];
                recurrent.multiply(strip, (states, tiling.band), n, &mut a);
            }
            if !old.is_empty() {
                let from = |j: usize| &old[(band * tiling.band + j) * h + strip * UNITS_PER_STRIP..][..width];
                (0..n).for_each(|j| copy(&mut c[j * UNITS_PER_STRIP..], from(j)));
            }
            lstm_cell_forward(
                &mut a[..4 * UNITS_PER_STRIP * n],
                &mut c[..UNITS_PER_STRIP * n],
                &mut s[..UNITS_PER_STRIP * n],
            );
            for j in 0..n {
                for gate in 0..4 {
                    gates.row(j, gate).copy_from_slice(&a[(4 * j + gate) * UNITS_PER_STRIP..][..width]);
                }
                cell.row(j, 0).copy_from_slice(&c[j * UNITS_PER_STRIP..][..width]);
                state.row(j, 0).copy_from_slice(&s[j * UNITS_PER_STRIP..][..width]);
            }
            transpose(next.row(0, 0), View::new(&s, tiling.band, UNITS_PER_STRIP));
        });
        std::mem::swap(&mut last, &mut next);
    }
}

/// Runs the backward steps of a group.
///
/// `recurrent` is W_hh, packed for the backward pass; `rows` has the gates and cells of
/// [`forward`]. da overwrites the gates.
pub(super) fn backward<F: Real>(
    group: &RowGroup,
    h: usize,
    pool: Option<&BufferPool<F>>,
    recurrent: &PackedGates<F>,
    rows: &mut StepRows<F>,
    is_shared: bool,
) {
    let StepRows { gates, cell, state: d_out } = rows;
    let (cell, d_out) = (&**cell, &**d_out);
    let tiling = FrameTiling::new(group, h);
    let [cell_len, gates_len] = [1, 4].map(|each| tiling.transposed_len(each));
    let bands = tiling.bands(group.size());
    let [mut last, mut next] = [(); 2].map(|()| acquire(pool, "transposed gates", bands * gates_len));
    last.clear();
    let mut carry = acquire(pool, "transposed cells", bands * cell_len); // dc of the next frame
    carry.fill(F::ZERO);
    for t in (0..group.steps()).rev() {
        let (frame, previous) = (group.frame_rows(t), group.previous_rows(t));
        let next_count = group.next_rows(t).len();
        let bands = tiling.bands(frame.len());
        let tiles = (
            tiles_mut(&mut gates[frame.start * 4 * h..frame.end * 4 * h], tiling.row_tiles(4)),
            tiles_mut(&mut carry[..bands * cell_len], tiling.band_tiles(1)),
            tiles_mut(&mut next.resize(bands * gates_len)[..], tiling.band_tiles(4)),
        );
        let next_gates = &last[..];
        for_each_task(is_shared, tiles, |task, (mut gates, mut carry, mut next)| {
            let (strip, band, n) = (task / bands, task % bands, gates.rows());
            let width = gates.row(0, 0).len();
            let (mut a, mut c) =
                ([F::ZERO; 4 * UNITS_PER_STRIP * MAX_GATE_ROWS], [F::ZERO; UNITS_PER_STRIP * MAX_GATE_ROWS]);
            let (mut old, mut dh) = (c, c);
            for j in 0..n {
                let unit = (band * tiling.band + j) * h + strip * UNITS_PER_STRIP;
                (0..4).for_each(|gate| copy(&mut a[(4 * j + gate) * UNITS_PER_STRIP..], gates.row(j, gate)));
                copy(&mut c[j * UNITS_PER_STRIP..], &cell[frame.start * h + unit..][..width]);
                copy(&mut dh[j * UNITS_PER_STRIP..], &d_out[frame.start * h + unit..][..width]);
                if t > 0 {
                    copy(&mut old[j * UNITS_PER_STRIP..], &cell[previous.start * h + unit..][..width]);
                }
            }
            let next_count = next_count.saturating_sub(band * tiling.band).min(n);
            if next_count > 0 {
                let next_gates = &next_gates[band * gates_len..][..gates_len];
                recurrent.multiply(strip, (next_gates, tiling.band), next_count, &mut dh);
            }
            let units = [&c, &old, &dh].map(|values| &values[..UNITS_PER_STRIP * n]);
            lstm_cell_backward(
                &mut a[..4 * UNITS_PER_STRIP * n],
                units,
                &mut carry.row(0, 0)[..UNITS_PER_STRIP * n],
            );
            for (j, gate) in (0..n).flat_map(|j| (0..4).map(move |gate| (j, gate))) {
                gates.row(j, gate).copy_from_slice(&a[(4 * j + gate) * UNITS_PER_STRIP..][..width]);
            }
            transpose(next.row(0, 0), View::new(&a, tiling.band, 4 * UNITS_PER_STRIP));
        });
        std::mem::swap(&mut last, &mut next);
    }
}

/// Runs the tasks of a frame, in parallel or not.
fn for_each_task<P: Parts>(is_shared: bool, parts: P, run: impl Fn(usize, P::Part) + Sync) {
    if is_shared { par_for(parts, run) } else { for_each_sequential(parts, run) }
}

/// Copies `from` to the start of `to`.
fn copy<F: Copy>(to: &mut [F], from: &[F]) {
    to[..from.len()].copy_from_slice(from);
}
