//! Hidden rows of a joint network: addends that are prepared once, so that each tangent costs a product and a quotient.
//!
//! ```text
//! h[t,p] = tanh(P[p] + Q_t)
//! ```
//! Forward takes them as panels, steps of the sum x columns: the states of one frame, or the frames of one state. A few addends may
//! be too large to be prepared; tangents with them are made of the sums themselves.
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use kernels::{PANEL, Real, TanhAddends, TanhProducts, View, par_for, parts, parts_mut, transpose};

use super::opened::Opened;

/// Addends of hidden rows as the tangent takes them, *n x H*.
pub struct Addends<F> {
    /// Prepared rows.
    pub rows: Vec<F>,
    /// Rows with addends that cannot be prepared, as they are.
    far: BTreeMap<usize, Vec<F>>,
}

impl<F: Real> Addends<F> {
    /// Prepares rows in their place.
    pub fn new(mut rows: Vec<F>, h: usize) -> Self {
        let far = Mutex::new(BTreeMap::new());
        par_for(parts_mut(&mut rows, ROWS * h), |at, rows| {
            for (row, values) in (at * ROWS..).zip(rows.chunks_exact(h)) {
                if is_far(values) {
                    far.lock().unwrap_or_else(PoisonError::into_inner).insert(row, values.to_vec());
                }
            }
            F::prepare_tanh(rows);
        });
        Self { rows, far: far.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The first row with a value that is NaN or infinite.
    pub fn outside(&self) -> Option<(usize, f64)> {
        let wrong = |row: &Vec<F>| row.iter().map(|x| x.to_f64()).find(|x| !x.is_finite());
        self.far.iter().find_map(|(&at, row)| wrong(row).map(|value| (at, value)))
    }

    /// Whether some row cannot be prepared.
    pub fn any_far(&self) -> bool {
        !self.far.is_empty()
    }

    fn is_far(&self, row: usize) -> bool {
        !self.far.is_empty() && self.far.contains_key(&row)
    }
}

/// Rows of a task.
const ROWS: usize = 16;

fn is_far<F: Real>(row: &[F]) -> bool {
    let most = F::from_f64(F::PREPARED);
    // NaN is far, too.
    let far = |x: F| if (x <= most) & (-x <= most) { F::ZERO } else { F::ONE };
    // Side by side, as the machine has them.
    let mut lanes = [F::ZERO; 16];
    let (whole, rest) = row.as_chunks::<16>();
    whole.iter().for_each(|row| lanes.iter_mut().zip(row).for_each(|(lane, &x)| *lane += far(x)));
    lanes.into_iter().chain(rest.iter().map(|&x| far(x))).any(|far| far > F::ZERO)
}

/// Prepared contexts as columns, panels of *H x PANEL*, in a buffer.
pub fn panels<F: Real>(contexts: &[F], h: usize, mut out: Vec<F>) -> Vec<F> {
    out.resize((contexts.len() / h.max(1)).next_multiple_of(PANEL) * h, F::ONE);
    par_for((parts_mut(&mut out, PANEL * h), parts(contexts, PANEL * h)), |_, (panel, contexts)| {
        if contexts.len() == PANEL * h {
            return transpose(panel, View::new(contexts, PANEL, h));
        }
        // What is behind the last context are numbers as good as any.
        panel.fill(F::ONE);
        for (column, row) in contexts.chunks_exact(h).enumerate() {
            panel.chunks_exact_mut(PANEL).zip(row).for_each(|(step, &value)| step[column] = value);
        }
    });
    out
}

impl<F: Real> Opened<'_, F> {
    /// `h` of one site.
    pub fn hidden_row(&self, frame: usize, state: usize, out: &mut [F]) {
        let h = self.hidden();
        let (contexts, frames) = (&self.contexts, &self.frames);
        let (context, row) = (&contexts.rows[state * h..][..h], &frames.rows[frame * h..][..h]);
        if !contexts.is_far(state) && !frames.is_far(frame) {
            return F::tanh_pairs(out, context, row);
        }
        // What was prepared on the other side is still known as it was.
        let raw = |addends: &Addends<F>, at: usize, prepared: &[F]| match addends.far.get(&at) {
            Some(raw) => raw.clone(),
            None => {
                let mut raw = prepared.to_vec();
                F::unprepare_tanh(&mut raw);
                raw
            }
        };
        F::tanh_sum(out, &raw(contexts, state, context), &raw(frames, frame, row));
    }

    /// Whether a frame and a panel of states are all prepared.
    fn is_near(&self, frame: usize, panel: usize) -> bool {
        let mut states = self.states_of(panel);
        !self.frames.is_far(frame) && !states.any(|state| self.contexts.is_far(state))
    }

    fn states_of(&self, panel: usize) -> std::ops::Range<usize> {
        panel * PANEL..self.joint.states.min((panel + 1) * PANEL)
    }

    /// Addends of a panel of states at a frame.
    fn addends(&self, frame: usize, panel: usize) -> TanhAddends<'_, F> {
        let h = self.hidden();
        (&self.panels[panel * PANEL * h..][..PANEL * h], &self.frames.rows[frame * h..][..h])
    }

    /// Scores of some panels of states at some frames, *(1 + V) x PANEL* each on top of the biases, given to `take` with the frame's
    /// place among these and the panel.
    pub fn score_states(
        &self,
        frames: &[usize],
        panels: std::ops::Range<usize>,
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut take: impl FnMut(usize, usize, &[F]),
    ) {
        let site = |number: usize| (number / panels.len(), panels.start + number % panels.len());
        let addends = |number: usize| {
            let (at, panel) = site(number);
            let &frame = frames.get(at)?;
            self.is_near(frame, panel).then(|| self.addends(frame, panel))
        };
        for number in 0..frames.len() * panels.len() {
            let (at, panel) = site(number);
            self.begin(tile);
            match addends(number) {
                Some(this) => products.next(tile, this, addends(number + 1)),
                None => {
                    let sites = self.states_of(panel).map(|state| (frames[at], state));
                    self.score_sites(sites, products, tile);
                }
            }
            take(at, panel, tile);
        }
    }

    /// Biases in all columns.
    fn begin(&self, tile: &mut [F]) {
        tile.chunks_exact_mut(PANEL).zip(&self.bias).for_each(|(row, &bias)| row.fill(bias));
    }

    /// Some frames as a panel; whether all of them are prepared. `rows` *PANEL x H* is room.
    pub fn panel_of_frames(&self, frames: &[usize], rows: &mut [F], panel: &mut [F]) -> bool {
        let h = self.hidden();
        for (row, &frame) in rows.chunks_exact_mut(h).zip(frames) {
            row.copy_from_slice(&self.frames.rows[frame * h..][..h]);
        }
        // What is behind the last frame are numbers as good as any.
        rows[frames.len() * h..].fill(F::ONE);
        transpose(panel, View::new(rows, PANEL, h));
        !frames.iter().any(|&frame| self.frames.is_far(frame))
    }

    /// Scores of some states, one after the other, at a panel of frames, as
    /// [`score_states`](Self::score_states).
    pub fn score_frames(
        &self,
        (frames, panel): (&[usize], Option<&[F]>),
        states: &[usize],
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut take: impl FnMut(usize, &[F]),
    ) {
        let h = self.hidden();
        let addends = |at: usize| {
            let state = *states.get(at).filter(|&&state| !self.contexts.is_far(state))?;
            panel.map(|panel| (panel, &self.contexts.rows[state * h..][..h]))
        };
        for (at, &state) in states.iter().enumerate() {
            self.begin(tile);
            match addends(at) {
                Some(this) => products.next(tile, this, addends(at + 1)),
                None => self.score_sites(frames.iter().map(|&frame| (frame, state)), products, tile),
            }
            take(state, tile);
        }
    }

    /// Scores of any sites, frame and state, a column each.
    fn score_sites(
        &self,
        sites: impl Iterator<Item = (usize, usize)>,
        products: &mut TanhProducts<F>,
        tile: &mut [F],
    ) {
        let mut row = vec![F::ZERO; self.hidden()];
        products.with(tile, |hidden| {
            for (column, (frame, state)) in sites.enumerate() {
                self.hidden_row(frame, state, &mut row);
                hidden.chunks_exact_mut(PANEL).zip(&row).for_each(|(step, &value)| step[column] = value);
            }
        });
    }
}
