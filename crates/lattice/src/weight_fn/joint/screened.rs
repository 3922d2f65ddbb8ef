//! Best arcs of a frame of a joint network: states that lead to one run of states are panels of a [`Screen`].
//!
//! What the panels are is known from the context alone. States that fill no panel are scored as they always are, frames being columns.
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use kernels::{
    Lines, PANEL, Real, Screen, Spread, TanhAddends, TanhProducts, View, par_for, parts, parts_mut, transpose,
};

use super::{Joint, opened::Opened};

/// States of a panel that are worth one.
const ENOUGH: usize = 3 * PANEL / 4;
/// States that say where the middle is.
const SAMPLE: usize = 64;
/// States of a task.
const FEW: usize = 4;

/// The states of a context as panels.
pub struct Panels {
    /// Runs of states that arcs lead to, rising.
    pub runs: Vec<Run>,
    /// The states of each panel, rising; fewer in one that is not full.
    pub states: Vec<Vec<usize>>,
    /// States in no panel, by the runs they lead to and rising.
    pub rest: Vec<usize>,
    /// Where each state is, column after column and panel after panel, and then those in none.
    pub places: Vec<u32>,
}

/// A run and the states that lead there.
pub struct Run {
    /// Its first state.
    pub start: usize,
    /// Panels.
    pub panels: Range<usize>,
    /// States in none, by their places in the list of all such states.
    pub rest: Range<usize>,
}

impl Panels {
    /// Panels of a context by where the run of `vocabulary` states behind each of its states begins; none if few states would be
    /// in one, or if runs overlap.
    fn new(starts: &[u32], vocabulary: usize) -> Option<Self> {
        let mut order: Vec<usize> = (0..starts.len()).collect();
        order.sort_by_key(|&state| (starts[state], state));
        let (mut runs, mut states, mut rest): (Vec<Run>, Vec<_>, Vec<_>) = Default::default();
        for run in order.chunk_by(|&a, &b| starts[a] == starts[b]) {
            let start = starts[run[0]] as usize;
            if runs.last().is_some_and(|before| before.start + vocabulary > start) {
                return None;
            }
            let over = run.len() % PANEL;
            let (few, many) = run.split_at(if over < ENOUGH { over } else { 0 });
            let first = (states.len(), rest.len());
            rest.extend_from_slice(few);
            states.extend(many.chunks(PANEL).map(<[usize]>::to_vec));
            runs.push(Run { start, panels: first.0..states.len(), rest: first.1..rest.len() });
        }
        if 4 * rest.len() > starts.len() {
            return None;
        }
        let mut places = vec![0; starts.len()];
        for (panel, states) in states.iter().enumerate() {
            (panel * PANEL..).zip(states).for_each(|(place, &state)| places[state] = place as u32);
        }
        (states.len() * PANEL..).zip(&rest).for_each(|(place, &state)| places[state] = place as u32);
        Some(Self { runs, states, rest, places })
    }

    /// Places of all states, those of panels that are not full included.
    pub fn count(&self) -> usize {
        self.states.len() * PANEL + self.rest.len()
    }
}

/// Panels of a joint network.
pub struct Screening<F> {
    screen: Screen<F>,
    panels: Panels,
    /// Prepared contexts of each panel, *H x PANEL*.
    addends: Lines<F>,
    /// The arc before the first of each state.
    arcs: Vec<[u32; PANEL]>,
}

impl<F: Real> Screening<F> {
    /// Panels of all contexts, if they are of use here.
    pub fn new(opened: &Opened<F>, starts: &[u32]) -> Option<Self> {
        let (h, v) = (opened.hidden(), opened.joint.vocabulary);
        if !F::SCREENS || !Screen::<F>::suits(v) || opened.contexts.any_far() {
            return None;
        }
        let panels = Panels::new(starts, v)?;
        let (middle, spread) = spread(&opened.contexts.rows, h);
        let screen = Screen::new(&opened.head, &opened.bias, middle, spread)?;
        let mut addends = Lines::default();
        let columns = addends.room(panels.states.len() * PANEL * h, F::ONE);
        par_for((parts_mut(columns, PANEL * h), parts(&panels.states, 1)), |_, (panel, states)| {
            opened.pool.with(PANEL * h, |rows| {
                rows.fill(F::ONE);
                for (row, &state) in rows.chunks_exact_mut(h).zip(&states[0]) {
                    row.copy_from_slice(&opened.contexts.rows[state * h..][..h]);
                }
                transpose(panel, View::new(rows, PANEL, h));
            });
        });
        let before = |states: &Vec<usize>| {
            std::array::from_fn(|column| states.get(column).map_or(0, |state| (state * v) as u32))
        };
        let arcs = panels.states.iter().map(before).collect();
        Some(Self { screen, panels, addends, arcs })
    }
}

/// Bytes of the panels of a network, and of the search through them.
pub fn bytes<F: Real>(joint: &Joint<F>, utterances: usize) -> usize {
    let (c, h, v) = (joint.states, joint.hidden(), joint.vocabulary);
    if !F::SCREENS || !Screen::<F>::suits(v) {
        return 0;
    }
    // Panels are three quarters full at least; a quarter of the states may be in none.
    let places = c + c / 3 + PANEL;
    let panels = places * (h * size_of::<F>() + 16) + 64 * c;
    let rest = PANEL * (c / 4 + 1) * (1 + v) * size_of::<F>();
    let lane = rest + (c + places + h) * size_of::<F>();
    panels + Screen::<F>::bytes(h, v) + utterances * lane
}

/// Some middle of prepared rows, as it is, and how far they are from it.
fn spread<F: Real>(rows: &[F], h: usize) -> (Vec<F>, Spread) {
    let raw = |row: &[F], raw: &mut Vec<F>| {
        raw.clear();
        raw.extend_from_slice(row);
        F::unprepare_tanh(raw);
    };
    let count = rows.len() / h;
    let (mut sums, mut row) = (vec![0.0; h], Vec::with_capacity(h));
    let sample: Vec<usize> = (0..count).step_by(count.div_ceil(SAMPLE).max(1)).collect();
    for &at in &sample {
        raw(&rows[at * h..][..h], &mut row);
        sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x.to_f64());
    }
    let middle: Vec<F> = sums.iter().map(|sum| F::from_f64(sum / sample.len() as f64)).collect();
    let spread = Mutex::new(Spread { most: 0.0, norm: 0.0 });
    par_for(parts(rows, PANEL * h), |_, rows| {
        let (mut most, mut norm, mut row) = (0f64, 0f64, Vec::with_capacity(h));
        for prepared in rows.chunks_exact(h) {
            raw(prepared, &mut row);
            let mut squares = F::ZERO;
            for (&x, &m) in row.iter().zip(&middle) {
                // No two tangents are further apart than their addends, nor than 2.
                let far = (x - m).to_f64().abs().min(2.0);
                most = most.max(far);
                squares += F::from_f64(far * far);
            }
            norm = norm.max(squares.to_f64().sqrt());
        }
        // Rounded up, for what `ln` and the sums are off by.
        let mut spread = spread.lock().unwrap_or_else(PoisonError::into_inner);
        *spread = Spread {
            most: spread.most.max(most * 1.001 + 1e-5),
            norm: spread.norm.max(norm * 1.001 + 1e-5 * (h as f64).sqrt()),
        };
    });
    (middle, spread.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// A joint network and its panels, at the frames that were entered last.
#[derive(Clone, Copy)]
pub struct Screened<'a, F: Real> {
    opened: &'a Opened<'a, F>,
    screening: &'a Screening<F>,
}

impl<'a, F: Real> Screened<'a, F> {
    /// If the frames can be screened.
    pub fn new(opened: &'a Opened<'a, F>, screening: &'a Screening<F>) -> Option<Self> {
        (!opened.frames.any_far()).then_some(Self { opened, screening })
    }

    pub fn panels(&self) -> &'a Panels {
        &self.screening.panels
    }

    /// H
    pub fn hidden(&self) -> usize {
        self.opened.hidden()
    }

    fn frame(&self, frame: usize) -> &'a [F] {
        &self.opened.frames.rows[frame * self.hidden()..][..self.hidden()]
    }

    /// What the screen wants to know of a frame.
    pub fn enter(&self, frame: usize, middle: &mut [F]) {
        self.screening.screen.enter(self.frame(frame), middle);
    }

    /// What comes before the arcs from each state of a panel.
    pub fn shifts(&self, panel: usize, alpha: &[F]) -> [F; PANEL] {
        let states = &self.panels().states[panel];
        std::array::from_fn(|at| states.get(at).map_or(F::NEG_INFINITY, |&state| alpha[state]))
    }

    /// Addends of a panel at a frame.
    pub fn addends(&self, panel: usize, frame: usize) -> TanhAddends<'a, F> {
        let size = PANEL * self.hidden();
        (&self.screening.addends[panel * size..][..size], self.frame(frame))
    }

    /// Number of the arc before the first of each state of a panel.
    pub fn arcs(&self, panel: usize) -> &'a [u32; PANEL] {
        &self.screening.arcs[panel]
    }

    pub fn screen(&self) -> &'a Screen<F> {
        &self.screening.screen
    }

    /// Weights of the arcs from the states in no panel in up to [`PANEL`] frames, *rest x PANEL x (1 + V)*.
    pub fn weigh_rest(&self, frames: &[usize], out: &mut [F]) {
        let (h, arcs, rest) = (self.hidden(), 1 + self.opened.joint.vocabulary, &self.panels().rest);
        let room = TanhProducts::<F>::room(h);
        par_for((parts_mut(out, FEW * PANEL * arcs), parts(rest, FEW)), |_, (out, states)| {
            self.opened.pool.with(room + PANEL * (h + arcs), |all| {
                let (panel, all) = all.split_at_mut(PANEL * h);
                let (room, tile) = all.split_at_mut(room);
                self.opened.panel_of_frames(frames, &mut room[..PANEL * h], panel);
                let mut products = TanhProducts::new(&self.opened.head_left, room);
                let mut out = out.chunks_exact_mut(PANEL * arcs);
                self.opened.score_frames((frames, Some(&*panel)), states, &mut products, tile, |_, tile| {
                    let out = out.next().expect("there is room for each state");
                    transpose(out, View::new(tile, arcs, PANEL));
                });
            });
        });
    }
}
