//! Best arcs of a frame of a joint network: states that lead to one run of states are panels of a [`Screen`].
//!
//! States that fill no panel are scored as they always are, frames being columns.
use std::sync::{Mutex, PoisonError};

use kernels::{
    AlignedVec, PANEL, Real, Screen, Spread, TanhAddends, TanhProducts, View, par_for, parts, parts_mut,
    transpose,
};

use super::{JointSizes, frames, opened::Opened};
use crate::panels::{Panels, Screens};

/// Panels of a frame of all utterances that are worth it: frame after frame, there is no more to do at once.
const WORTH: usize = 16;
/// States that say where the middle is.
const SAMPLE: usize = 64;
/// States of a task.
const FEW: usize = 8;

/// Panels of a joint network.
pub struct Screening<F> {
    screen: Screen<F>,
    panels: Panels,
    /// Prepared contexts of each panel, *H x PANEL*.
    addends: AlignedVec<F>,
    /// The arc before the first of each state.
    arcs: Vec<[u32; PANEL]>,
}

impl<F: Real> Screening<F> {
    /// The buffer of the columns.
    pub fn into_room(self) -> Vec<F> {
        self.addends.into_vec()
    }

    /// Panels of all contexts, if they are of use here.
    pub fn new(opened: &mut Opened<F>, panels: Panels, utterances: usize) -> Option<Self> {
        let (h, v) = (opened.hidden(), opened.joint.vocabulary);
        if !is_worth::<F>(&opened.joint.sizes(), panels.load(utterances)) || opened.contexts.any_far() {
            return None;
        }
        let (middle, spread) = spread(opened);
        let screen = Screen::new(&opened.head, &opened.bias, middle, spread)?;
        let mut addends = AlignedVec::from_vec(std::mem::take(&mut opened.room));
        let opened = &*opened;
        let columns = addends.ensure_len(panels.states.len() * PANEL * h, F::ONE);
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

/// Whether a network is faster with a screen.
pub fn is_worth<F: Real>(sizes: &JointSizes, screens: Screens) -> bool {
    let panels = screens.panels.saturating_mul(screens.utterances);
    Screen::<F>::suits(sizes.hidden, sizes.vocabulary) && panels >= WORTH
}

/// Bytes of the panels of a network, and of the search through them.
pub fn bytes<F: Real>(sizes: &JointSizes, screens: Screens) -> usize {
    if !is_worth::<F>(sizes, screens) {
        return 0;
    }
    let JointSizes { states: c, hidden: h, vocabulary: v, .. } = *sizes;
    let float = size_of::<F>();
    let Screens { utterances, panels, rest } = screens;
    // Columns and numbers of arcs; lists of states and runs; the screen.
    let columns = panels.saturating_mul(PANEL * (h * float + 16));
    let all = columns.saturating_add(Panels::bytes(c) + Screen::<F>::bytes(h, v) + 4096);
    // Arcs of the rest and middles of some frames, blanks, α', shares and sources of tasks.
    let of_rest = rest.saturating_mul((PANEL * (1 + v) + 1) * float);
    let of_panels = panels.saturating_mul(PANEL * float + 512);
    // Rooms of tasks, beyond those of waves.
    let tasks = utterances.div_ceil(2).saturating_mul(rest.div_ceil(FEW)).max(panels).max(c.div_ceil(PANEL));
    let rooms = tasks.saturating_sub(utterances.saturating_mul(c.div_ceil(PANEL)).min(2 * frames::TASKS));
    let room = (TanhProducts::<F>::room(h) + PANEL * (h + 1 + v) + 16) * float;
    let all = all.saturating_add(rooms.saturating_mul(room));
    let lane = of_rest.saturating_add(of_panels).saturating_add(PANEL * h * float + c * (float + 16));
    utterances.saturating_mul(lane).saturating_add(all)
}

/// Some middle of prepared rows, as it is, and how far they are from it.
fn spread<F: Real>(opened: &Opened<F>) -> (Vec<F>, Spread) {
    let (rows, h) = (&opened.contexts.rows, opened.hidden());
    let count = rows.len() / h;
    let sample: Vec<usize> = (0..count).step_by(count.div_ceil(SAMPLE).max(1)).collect();
    let (mut middle, mut row) = (vec![F::ZERO; h], vec![F::ZERO; h]);
    for &at in &sample {
        row.copy_from_slice(&rows[at * h..][..h]);
        F::unprepare_tanh(&mut row);
        kernels::add(&mut middle, &row);
    }
    let share = F::from_f64(1.0 / sample.len() as f64);
    middle.iter_mut().for_each(|m| *m *= share);
    let spread = Mutex::new(Spread { most: 0.0, norm: 0.0 });
    par_for(parts(rows, PANEL * h), |_, rows| {
        let (mut most, mut squares) = (F::ZERO, F::ZERO);
        opened.pool.with(h, |row| {
            for prepared in rows.chunks_exact(h) {
                row.copy_from_slice(prepared);
                F::unprepare_tanh(row);
                for (x, &m) in row.iter_mut().zip(&middle) {
                    // No two tangents are further apart than their addends, nor than 2.
                    let far = *x - m;
                    let far = if far < F::ZERO { -far } else { far };
                    *x = if far > F::from_f64(2.0) { F::from_f64(2.0) } else { far };
                }
                most = largest(row, most);
                let square = kernels::dot(row, row);
                squares = if square > squares { square } else { squares };
            }
        });
        let (most, norm) = (most.to_f64(), squares.to_f64().sqrt());
        // Rounded up, for what `ln` and the sums are off by.
        let mut spread = spread.lock().unwrap_or_else(PoisonError::into_inner);
        *spread = Spread {
            most: spread.most.max(most * 1.001 + 1e-5),
            norm: spread.norm.max(norm * 1.001 + 1e-5 * (h as f64).sqrt()),
        };
    });
    (middle, spread.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The largest of some values and another.
fn largest<F: Real>(values: &[F], other: F) -> F {
    let larger = |a: F, b: F| if a > b { a } else { b };
    // Side by side, as the machine has them.
    let mut lanes = [other; 16];
    let (whole, rest) = values.as_chunks::<16>();
    whole
        .iter()
        .for_each(|values| lanes.iter_mut().zip(values).for_each(|(lane, &x)| *lane = larger(x, *lane)));
    lanes.into_iter().chain(rest.iter().copied()).fold(other, larger)
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
