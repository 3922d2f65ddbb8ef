//! Recurrent steps of an LSTM layer for a group of utterances.
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
    BufferPool, MAX_GATE_ROWS, PackedRecurrentWeight, Parts, Real, Tiling, UNITS_PER_STRIP, View, acquire,
    for_each_sequential, lstm_cell_backward, lstm_cell_forward, par_for, tiles_mut, transpose,
};

use super::layout::RowGroup;

/// Gates of a unit: i, f, g, o.
pub(super) const GATES: usize = 4;
/// Units of a strip, for all utterances of a band.
const UNITS_PER_BAND: usize = UNITS_PER_STRIP * MAX_GATE_ROWS;

/// Packed rows of one group of utterances.
///
/// `gates` are *rows x 4H* in candle's order i, f, g, o; `cell` and `state` are *rows x H*.
pub(super) struct StepRows<'a, F> {
    /// The input's part before [`forward`], gates after it, and da after [`backward`].
    ///
    /// Steps in 8-bit blocks do not change them.
    pub gates: &'a mut [F],
    pub cell: &'a mut [F],
    /// h after [`forward`]; the gradient of the output in [`backward`].
    pub state: &'a mut [F],
}

/// States before the first frame, *utterances x H*.
#[derive(Clone, Copy)]
pub(super) struct InitialStates<'a, F> {
    pub h: &'a [F],
    pub c: &'a [F],
}

/// The tiles of a frame of a group.
#[derive(Clone, Copy)]
struct FrameTiling {
    hidden: usize,
    /// Utterances of a band.
    band_size: usize,
}

impl FrameTiling {
    fn new(group: &RowGroup, hidden: usize) -> Self {
        FrameTiling { hidden, band_size: group.band_size() }
    }

    /// Returns the number of bands of some utterances.
    fn band_count(self, utterances: usize) -> usize {
        utterances.div_ceil(self.band_size)
    }

    /// Returns the length of a transposed band.
    ///
    /// Each unit has `values_per_unit` numbers: 1 for h, 4 for da.
    fn transposed_len(self, values_per_unit: usize) -> usize {
        self.hidden.next_multiple_of(UNITS_PER_STRIP) * values_per_unit * self.band_size
    }

    /// Returns the tiles of rows with `planes` planes of units.
    fn row_tiles(self, planes: usize) -> Tiling {
        Tiling { rows: self.band_size, planes, columns: self.hidden, width: UNITS_PER_STRIP }
    }

    /// Returns the tiles of transposed bands.
    fn transposed_tiles(self, values_per_unit: usize) -> Tiling {
        Tiling {
            rows: 1,
            planes: 1,
            columns: self.transposed_len(values_per_unit),
            width: UNITS_PER_STRIP * values_per_unit * self.band_size,
        }
    }
}

/// Runs the forward steps of a group.
///
/// `recurrent` is W_hh, packed once for all steps and groups; `initial` has the states before the
/// first frame, which are 0 by default. `is_shared` is true if threads share a frame. Overwrites
/// gates, cells and states in `rows`.
pub(super) fn forward<F: Real>(
    group: &RowGroup,
    hidden: usize,
    pool: Option<&BufferPool<F>>,
    recurrent: &PackedRecurrentWeight<F>,
    initial: Option<InitialStates<F>>,
    rows: &mut StepRows<F>,
    is_shared: bool,
) {
    let StepRows { gates, cell, state } = rows;
    let tiling = FrameTiling::new(group, hidden);
    let band_len = tiling.transposed_len(1);
    let transposed_len = tiling.band_count(group.size()) * band_len;

    // h[t-1] and h[t], transposed; h[-1] is empty if it is 0.
    let [mut previous_h, mut new_h] = [(); 2].map(|()| acquire(pool, "transposed states", transposed_len));
    previous_h.clear();
    if let Some(InitialStates { h, .. }) = initial {
        let transposed = previous_h.resize(transposed_len);
        for (b, row) in h.chunks_exact(hidden).enumerate() {
            let (band_start, j) = (b / tiling.band_size * band_len, b % tiling.band_size);
            row.iter()
                .enumerate()
                .for_each(|(unit, &value)| transposed[band_start + unit * tiling.band_size + j] = value);
        }
    }

    for t in 0..group.steps() {
        // Divide the frame into tiles, one for each task.
        let frame = group.frame_rows(t);
        let bands = tiling.band_count(frame.len());
        let (earlier_cells, new_cells) = cell.split_at_mut(frame.start * hidden);
        let previous_cells = match initial {
            Some(InitialStates { c, .. }) if t == 0 => c,
            _ => &earlier_cells[group.previous_rows(t).start * hidden..],
        };
        let tiles = (
            tiles_mut(
                &mut gates[frame.start * GATES * hidden..frame.end * GATES * hidden],
                tiling.row_tiles(GATES),
            ),
            tiles_mut(&mut new_cells[..frame.len() * hidden], tiling.row_tiles(1)),
            tiles_mut(&mut state[frame.start * hidden..frame.end * hidden], tiling.row_tiles(1)),
            tiles_mut(&mut new_h.resize(transposed_len)[..bands * band_len], tiling.transposed_tiles(1)),
        );
        let previous_states = &previous_h[..];
        for_each_task(is_shared, tiles, |task, (mut gates, mut cell, mut state, mut transposed)| {
            let (strip, band, utterances) = (task / bands, task % bands, gates.rows());
            let strip_width = gates.row(0, 0).len();

            // Copy the tile into arrays whose sizes are constants: a, c and h of the band.
            let (mut a, mut c) = ([F::ZERO; GATES * UNITS_PER_BAND], [F::ZERO; UNITS_PER_BAND]);
            let mut h = c;
            for (j, gate) in (0..utterances).flat_map(|j| (0..GATES).map(move |gate| (j, gate))) {
                copy(&mut a[(GATES * j + gate) * UNITS_PER_STRIP..], gates.row(j, gate));
            }

            // a[t] += h[t-1] W_hhᵀ
            if !previous_states.is_empty() {
                let previous_states = &previous_states[band * band_len..][..band_len];
                recurrent.multiply(strip, (previous_states, tiling.band_size), utterances, &mut a);
            }

            // The cell, from c[t-1].
            if !previous_cells.is_empty() {
                let previous_cell = |j: usize| {
                    let unit = (band * tiling.band_size + j) * hidden + strip * UNITS_PER_STRIP;
                    &previous_cells[unit..][..strip_width]
                };
                (0..utterances).for_each(|j| copy(&mut c[j * UNITS_PER_STRIP..], previous_cell(j)));
            }
            lstm_cell_forward(
                &mut a[..GATES * UNITS_PER_STRIP * utterances],
                &mut c[..UNITS_PER_STRIP * utterances],
                &mut h[..UNITS_PER_STRIP * utterances],
            );

            // Store gates, cells and states, and the states transposed.
            for j in 0..utterances {
                for gate in 0..GATES {
                    gates
                        .row(j, gate)
                        .copy_from_slice(&a[(GATES * j + gate) * UNITS_PER_STRIP..][..strip_width]);
                }
                cell.row(j, 0).copy_from_slice(&c[j * UNITS_PER_STRIP..][..strip_width]);
                state.row(j, 0).copy_from_slice(&h[j * UNITS_PER_STRIP..][..strip_width]);
            }
            transpose(transposed.row(0, 0), View::new(&h, tiling.band_size, UNITS_PER_STRIP));
        });
        std::mem::swap(&mut previous_h, &mut new_h);
    }
}

/// Runs the backward steps of a group.
///
/// `recurrent` is W_hh, packed for the backward pass; `rows` has the gates and cells of
/// [`forward`]. da overwrites the gates.
pub(super) fn backward<F: Real>(
    group: &RowGroup,
    hidden: usize,
    pool: Option<&BufferPool<F>>,
    recurrent: &PackedRecurrentWeight<F>,
    rows: &mut StepRows<F>,
    is_shared: bool,
) {
    let StepRows { gates, cell, state: d_out } = rows;
    let (cell, d_out) = (&**cell, &**d_out);
    let tiling = FrameTiling::new(group, hidden);
    let [cell_len, gates_len] = [1, GATES].map(|values_per_unit| tiling.transposed_len(values_per_unit));
    let bands = tiling.band_count(group.size());

    // da[t+1] and da[t], transposed; da after the last frame is empty, as it is 0.
    let [mut next_da, mut new_da] = [(); 2].map(|()| acquire(pool, "transposed gates", bands * gates_len));
    next_da.clear();
    // dc of the next frame.
    let mut cell_gradient = acquire(pool, "transposed cells", bands * cell_len);
    cell_gradient.fill(F::ZERO);

    for t in (0..group.steps()).rev() {
        // Divide the frame into tiles, one for each task.
        let (frame, previous) = (group.frame_rows(t), group.previous_rows(t));
        let next_utterances = group.next_rows(t).len();
        let bands = tiling.band_count(frame.len());
        let tiles = (
            tiles_mut(
                &mut gates[frame.start * GATES * hidden..frame.end * GATES * hidden],
                tiling.row_tiles(GATES),
            ),
            tiles_mut(&mut cell_gradient[..bands * cell_len], tiling.transposed_tiles(1)),
            tiles_mut(&mut new_da.resize(bands * gates_len)[..], tiling.transposed_tiles(GATES)),
        );
        let next_gates = &next_da[..];
        for_each_task(is_shared, tiles, |task, (mut gates, mut dc, mut transposed)| {
            let (strip, band, utterances) = (task / bands, task % bands, gates.rows());
            let strip_width = gates.row(0, 0).len();

            // Copy the tile into arrays whose sizes are constants: a, c, c[t-1] and dh of the band.
            let (mut a, mut c) = ([F::ZERO; GATES * UNITS_PER_BAND], [F::ZERO; UNITS_PER_BAND]);
            let (mut previous_c, mut dh) = (c, c);
            for j in 0..utterances {
                let unit = (band * tiling.band_size + j) * hidden + strip * UNITS_PER_STRIP;
                (0..GATES).for_each(|gate| {
                    copy(&mut a[(GATES * j + gate) * UNITS_PER_STRIP..], gates.row(j, gate))
                });
                copy(&mut c[j * UNITS_PER_STRIP..], &cell[frame.start * hidden + unit..][..strip_width]);
                copy(&mut dh[j * UNITS_PER_STRIP..], &d_out[frame.start * hidden + unit..][..strip_width]);
                if t > 0 {
                    let previous_cell = &cell[previous.start * hidden + unit..][..strip_width];
                    copy(&mut previous_c[j * UNITS_PER_STRIP..], previous_cell);
                }
            }

            // dh[t] += da[t+1] W_hh for utterances with a next frame, then the cell: da.
            let next_utterances = next_utterances.saturating_sub(band * tiling.band_size).min(utterances);
            if next_utterances > 0 {
                let next_gates = &next_gates[band * gates_len..][..gates_len];
                recurrent.multiply(strip, (next_gates, tiling.band_size), next_utterances, &mut dh);
            }
            let units = [&c, &previous_c, &dh].map(|values| &values[..UNITS_PER_STRIP * utterances]);
            lstm_cell_backward(
                &mut a[..GATES * UNITS_PER_STRIP * utterances],
                units,
                &mut dc.row(0, 0)[..UNITS_PER_STRIP * utterances],
            );

            // Store da, also transposed.
            for (j, gate) in (0..utterances).flat_map(|j| (0..GATES).map(move |gate| (j, gate))) {
                gates.row(j, gate).copy_from_slice(&a[(GATES * j + gate) * UNITS_PER_STRIP..][..strip_width]);
            }
            transpose(transposed.row(0, 0), View::new(&a, tiling.band_size, GATES * UNITS_PER_STRIP));
        });
        std::mem::swap(&mut next_da, &mut new_da);
    }
}

/// Runs the tasks of a frame, in parallel or not.
pub(super) fn for_each_task<P: Parts>(is_shared: bool, parts: P, run: impl Fn(usize, P::Part) + Sync) {
    if is_shared { par_for(parts, run) } else { for_each_sequential(parts, run) }
}

/// Copies `from` to the start of `to`.
fn copy<F: Copy>(to: &mut [F], from: &[F]) {
    to[..from.len()].copy_from_slice(from);
}
