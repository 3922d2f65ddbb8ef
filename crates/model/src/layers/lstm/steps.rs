//! The recurrent steps of one group of utterances: forward, and backward beside it.
//!
//! ```text
//! frame t, a task a strip of 16 units for up to 8 utterances:
//!   a[t] += h[t-1] W_hhᵀ      then the cell      a[t] holds x[t] W_ihᵀ + b already; h[-1] = 0, or what is carried
//! backward, t from the last frame down:
//!   dh[t] += da[t+1] W_hh     then the cell: da  dh[t] holds what comes from above
//! ```
//! What the next frame's products begin with is kept as their rows lie: *[steps][utterances]*, a
//! band of utterances after another. The tasks of a frame are shared where a layer is wide, and
//! done one by one where groups are tasks: the sums are the same.
use kernels::{
    BufferPool, PackedGates, Parts, ROWS, Real, Tiling, UNITS, View, acquire, cell_backward, cell_forward,
    for_each_sequential, par_for, tiles_mut, transpose,
};

use super::layout::RowGroup;

/// Packed rows of one group; `gates` *rows x 4H* in candle's order i, f, g, o, the others *rows x
/// H*.
pub(super) struct StepRows<'a, F> {
    /// In: the input's part. Out of [`forward`]: after the nonlinearities. Out of [`backward`]: da.
    pub gates: &'a mut [F],
    pub cell: &'a mut [F],
    /// h; in [`backward`] what comes from above.
    pub state: &'a mut [F],
}

/// How a frame of a group is cut.
#[derive(Clone, Copy)]
struct StepFrame {
    hidden: usize,
    /// Utterances of a band.
    band: usize,
}

impl StepFrame {
    fn of(group: &RowGroup, hidden: usize) -> Self {
        StepFrame { hidden, band: group.band() }
    }

    /// Bands of so many utterances.
    fn bands(self, utterances: usize) -> usize {
        utterances.div_ceil(self.band)
    }

    /// Elements of a band of what products begin with, for so many numbers a unit.
    fn turned(self, each: usize) -> usize {
        self.hidden.next_multiple_of(UNITS) * each * self.band
    }

    /// Tiles of rows of some planes a unit.
    fn rows(self, planes: usize) -> Tiling {
        Tiling { rows: self.band, planes, columns: self.hidden, width: UNITS }
    }

    /// Tiles of what is kept band by band.
    fn bands_of(self, each: usize) -> Tiling {
        Tiling { rows: 1, planes: 1, columns: self.turned(each), width: UNITS * each * self.band }
    }
}

/// `recurrent` is W_hh, packed once for all steps and groups; `carried` h and c of each utterance
/// of the group before the first frame, which are 0 without. `shared` says whether threads share a
/// frame.
pub(super) fn forward<F: Real>(
    (group, h, pool): (&RowGroup, usize, Option<&BufferPool<F>>),
    recurrent: &PackedGates<F>,
    carried: Option<[&[F]; 2]>,
    rows: &mut StepRows<F>,
    shared: bool,
) {
    let StepRows { gates, cell, state } = rows;
    let cut = StepFrame::of(group, h);
    let all = cut.bands(group.size()) * cut.turned(1);
    let [mut last, mut next] = [(); 2].map(|()| acquire(pool, "turned states", all));
    last.clear();
    if let Some([carried, _]) = carried {
        let last = last.resize(all);
        for (b, row) in carried.chunks_exact(h).enumerate() {
            let (band, j) = (b / cut.band * cut.turned(1), b % cut.band);
            row.iter().enumerate().for_each(|(k, &value)| last[band + k * cut.band + j] = value);
        }
    }
    for t in 0..group.steps() {
        let at = group.at(t);
        let bands = cut.bands(at.len());
        let (old, now) = cell.split_at_mut(at.start * h);
        let old = match carried {
            Some([_, cell]) if t == 0 => cell,
            _ => &old[group.before(t).start * h..],
        };
        let tiles = (
            tiles_mut(&mut gates[at.start * 4 * h..at.end * 4 * h], cut.rows(4)),
            tiles_mut(&mut now[..at.len() * h], cut.rows(1)),
            tiles_mut(&mut state[at.start * h..at.end * h], cut.rows(1)),
            tiles_mut(&mut next.resize(all)[..bands * cut.turned(1)], cut.bands_of(1)),
        );
        let turned = &last[..];
        each(shared, tiles, |task, (mut gates, mut cell, mut state, mut next)| {
            let (strip, band, n) = (task / bands, task % bands, gates.rows());
            let (mut a, mut c) = ([F::ZERO; 4 * UNITS * ROWS], [F::ZERO; UNITS * ROWS]);
            let (mut s, width) = (c, gates.row(0, 0).len());
            for (j, gate) in (0..n).flat_map(|j| (0..4).map(move |gate| (j, gate))) {
                copy(&mut a[(4 * j + gate) * UNITS..], gates.row(j, gate));
            }
            if !turned.is_empty() {
                let turned = &turned[band * cut.turned(1)..][..cut.turned(1)];
                recurrent.multiply(strip, (turned, cut.band), n, &mut a);
            }
            if !old.is_empty() {
                let from = |j: usize| &old[(band * cut.band + j) * h + strip * UNITS..][..width];
                (0..n).for_each(|j| copy(&mut c[j * UNITS..], from(j)));
            }
            cell_forward(&mut a[..4 * UNITS * n], &mut c[..UNITS * n], &mut s[..UNITS * n]);
            for j in 0..n {
                for gate in 0..4 {
                    gates.row(j, gate).copy_from_slice(&a[(4 * j + gate) * UNITS..][..width]);
                }
                cell.row(j, 0).copy_from_slice(&c[j * UNITS..][..width]);
                state.row(j, 0).copy_from_slice(&s[j * UNITS..][..width]);
            }
            transpose(next.row(0, 0), View::new(&s, cut.band, UNITS));
        });
        std::mem::swap(&mut last, &mut next);
    }
}

/// Backward of [`forward`], with W_hh packed for it and the cells that [`forward`] left.
pub(super) fn backward<F: Real>(
    (group, h, pool): (&RowGroup, usize, Option<&BufferPool<F>>),
    recurrent: &PackedGates<F>,
    rows: &mut StepRows<F>,
    shared: bool,
) {
    let StepRows { gates, cell, state: above } = rows;
    let (cell, above) = (&**cell, &**above);
    let cut = StepFrame::of(group, h);
    let bands = cut.bands(group.size());
    let [mut last, mut next] = [(); 2].map(|()| acquire(pool, "turned gates", bands * cut.turned(4)));
    last.clear();
    let mut carry = acquire(pool, "turned cells", bands * cut.turned(1)); // dc of the frame after
    carry.fill(F::ZERO);
    for t in (0..group.steps()).rev() {
        let (at, earlier, later) = (group.at(t), group.before(t), group.after(t).len());
        let bands = cut.bands(at.len());
        let tiles = (
            tiles_mut(&mut gates[at.start * 4 * h..at.end * 4 * h], cut.rows(4)),
            tiles_mut(&mut carry[..bands * cut.turned(1)], cut.bands_of(1)),
            tiles_mut(&mut next.resize(bands * cut.turned(4))[..], cut.bands_of(4)),
        );
        let turned = &last[..];
        each(shared, tiles, |task, (mut gates, mut carry, mut next)| {
            let (strip, band, n) = (task / bands, task % bands, gates.rows());
            let width = gates.row(0, 0).len();
            let (mut a, mut c) = ([F::ZERO; 4 * UNITS * ROWS], [F::ZERO; UNITS * ROWS]);
            let (mut old, mut dh) = (c, c);
            for j in 0..n {
                let unit = (band * cut.band + j) * h + strip * UNITS;
                (0..4).for_each(|gate| copy(&mut a[(4 * j + gate) * UNITS..], gates.row(j, gate)));
                copy(&mut c[j * UNITS..], &cell[at.start * h + unit..][..width]);
                copy(&mut dh[j * UNITS..], &above[at.start * h + unit..][..width]);
                if t > 0 {
                    copy(&mut old[j * UNITS..], &cell[earlier.start * h + unit..][..width]);
                }
            }
            let later = later.saturating_sub(band * cut.band).min(n);
            if later > 0 {
                let turned = &turned[band * cut.turned(4)..][..cut.turned(4)];
                recurrent.multiply(strip, (turned, cut.band), later, &mut dh);
            }
            let units = [&c, &old, &dh].map(|of| &of[..UNITS * n]);
            cell_backward(&mut a[..4 * UNITS * n], units, &mut carry.row(0, 0)[..UNITS * n]);
            for (j, gate) in (0..n).flat_map(|j| (0..4).map(move |gate| (j, gate))) {
                gates.row(j, gate).copy_from_slice(&a[(4 * j + gate) * UNITS..][..width]);
            }
            transpose(next.row(0, 0), View::new(&a, cut.band, 4 * UNITS));
        });
        std::mem::swap(&mut last, &mut next);
    }
}

/// The tasks of a frame, by all threads or by this one.
fn each<P: Parts>(shared: bool, parts: P, run: impl Fn(usize, P::Part) + Sync) {
    if shared { par_for(parts, run) } else { for_each_sequential(parts, run) }
}

/// Writes where `to` begins.
fn copy<F: Copy>(to: &mut [F], from: &[F]) {
    to[..from.len()].copy_from_slice(from);
}
