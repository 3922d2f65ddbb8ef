//! Quantized estimates of the arcs of a joint network, for screening.
//!
//! A [`QuantizedArgmax`] scores panels of up to 32 context states. The few states without a panel
//! are scored exactly, in products whose columns are frames. The middle is the center of the
//! contexts, about which estimates are made. Sizes: C context states, V labels, H hidden units.
use std::sync::{Mutex, PoisonError};

use kernels::{
    AlignedVec, PANEL_COLUMNS, QuantizedArgmax, Real, ScratchReq, StateDeviation, TanhAddends, TanhProducts,
    View, par_for, parts, parts_mut, transpose,
};

use super::panels::StatePanels;
use crate::{
    RecognitionLattice,
    step::FrameStep,
    weight_fn::{
        Projections,
        joint::{frames, projections::JointSizes},
    },
};

/// Minimum number of panels per frame, over utterances, for screening.
///
/// Frames are searched one after another.
const MIN_PANELS: usize = 16;
/// Number of states from which the center of all contexts is estimated.
const SAMPLED_STATES: usize = 64;
const STATES_PER_TASK: usize = 8;

/// The screen of a joint network, and its panels.
pub struct Screening<F> {
    screen: QuantizedArgmax<F>,
    panels: StatePanels,
    /// Prepared contexts of each panel, *H x PANEL_COLUMNS*.
    addends: AlignedVec<F>,
    /// Number of the arc before the first arc of each state.
    arcs: Vec<[u32; PANEL_COLUMNS]>,
}

impl<F: Real> Screening<F> {
    /// Creates the screen of a joint network; none if the parameters do not allow it.
    ///
    /// It takes the network's buffer for columns, which [`into_buffer`](Self::into_buffer) returns.
    pub fn new(projections: &mut Projections<F>, panels: StatePanels) -> Option<Self> {
        let (h, v) = (projections.hidden, projections.vocabulary);
        if projections.contexts.has_out_of_range() {
            return None;
        }
        let (middle, spread) = spread(projections);
        let screen = QuantizedArgmax::new(&projections.head, &projections.bias, middle, spread)?;
        let mut addends = AlignedVec::from_vec(std::mem::take(&mut projections.column_buffer));
        let projections = &*projections;
        let columns = addends.ensure_len(panels.states.len() * PANEL_COLUMNS * h, F::ONE);
        par_for((parts_mut(columns, PANEL_COLUMNS * h), parts(&panels.states, 1)), |_, (panel, states)| {
            let mut rows = projections.pool.acquire("task", PANEL_COLUMNS * h);
            rows.fill(F::ONE);
            for (row, &state) in rows.chunks_exact_mut(h).zip(&states[0]) {
                row.copy_from_slice(&projections.contexts.rows[state * h..][..h]);
            }
            transpose(panel, View::new(&rows, PANEL_COLUMNS, h));
        });
        let previous_arcs = |states: &Vec<usize>| {
            std::array::from_fn(|column| states.get(column).map_or(0, |state| (state * v) as u32))
        };
        let arcs = panels.states.iter().map(previous_arcs).collect();
        Some(Self { screen, panels, addends, arcs })
    }

    /// Returns the buffer of the columns.
    pub fn into_buffer(self) -> Vec<F> {
        self.addends.into_vec()
    }
}

/// Returns the panels of a lattice, if screening pays off.
///
/// `utterances` are searched at once.
pub fn panels<F: Real>(sizes: &JointSizes, step: &FrameStep, utterances: usize) -> Option<StatePanels> {
    let panels = StatePanels::new(step.runs()?, sizes.vocabulary)?;
    let count = panels.states.len().saturating_mul(utterances);
    (QuantizedArgmax::<F>::is_profitable(sizes.hidden, sizes.vocabulary) && count >= MIN_PANELS)
        .then_some(panels)
}

/// Memory of screening in addition to a search over all arcs.
///
/// None if screening does not apply, or needs more than `available` bytes.
pub fn scratch<F: Real>(
    lattice: &RecognitionLattice<F>,
    utterances: usize,
    available: usize,
) -> Option<ScratchReq> {
    let sizes = lattice.weight_fn().joint_sizes()?;
    let JointSizes { states: c, hidden: h, vocabulary: v, .. } = sizes;
    let lists = StatePanels::scratch(c);
    // The lists are allocated before the panels are counted.
    if h == 0 || !QuantizedArgmax::<F>::is_profitable(h, v) || lists.bytes() > available {
        return None;
    }
    let step = FrameStep::new(lattice.context(), lattice.alignment());
    let panels = panels::<F>(&sizes, &step, utterances)?;
    let (count, rest) = (panels.states.len(), panels.rest.len());
    let elements = ScratchReq::new::<F>;
    // Columns and numbers of arcs; the screen.
    let columns = elements(h).and(ScratchReq::from_bytes(16)).times(PANEL_COLUMNS).times(count);
    let screen = ScratchReq::from_bytes(QuantizedArgmax::<F>::bytes(h, v) + 4096);
    // Arcs of the rest and middles of some frames, blanks, α', frame slices and sources of tasks.
    let rest_scratch = elements(PANEL_COLUMNS * (1 + v) + 1).times(rest);
    let panel_scratch = elements(PANEL_COLUMNS).and(ScratchReq::from_bytes(512)).times(count);
    let state_scratch = elements(1).and(ScratchReq::from_bytes(16)).times(c);
    let utterance =
        ScratchReq::all_of([rest_scratch, panel_scratch, state_scratch, elements(PANEL_COLUMNS * h)]);
    // Buffers of tasks, in addition to those of waves.
    let tasks = utterances.div_ceil(2).saturating_mul(rest.div_ceil(STATES_PER_TASK));
    let tasks = tasks.max(count).max(c.div_ceil(PANEL_COLUMNS));
    let wave_tasks = utterances.saturating_mul(c.div_ceil(PANEL_COLUMNS)).min(2 * frames::MIN_TASKS);
    let task = ScratchReq::aligned::<F>(TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (h + 1 + v));
    let all = ScratchReq::all_of([
        lists,
        columns,
        screen,
        utterance.times(utterances),
        task.times(tasks.saturating_sub(wave_tasks)),
    ]);
    (all.bytes() <= available).then_some(all)
}

/// Estimates the middle and the spread of the contexts.
///
/// The middle is not prepared for tanh; the spread has the largest distances from it.
fn spread<F: Real>(projections: &Projections<F>) -> (Vec<F>, StateDeviation) {
    let (rows, h) = (&projections.contexts.rows, projections.hidden);
    let count = rows.len() / h;
    let sample: Vec<usize> = (0..count).step_by(count.div_ceil(SAMPLED_STATES).max(1)).collect();
    let (mut middle, mut row) = (vec![F::ZERO; h], vec![F::ZERO; h]);
    for &at in &sample {
        row.copy_from_slice(&rows[at * h..][..h]);
        F::restore_tanh_addends(&mut row);
        kernels::add(&mut middle, &row);
    }
    let weight = F::from_f64(1.0 / sample.len() as f64);
    middle.iter_mut().for_each(|m| *m *= weight);
    let spread = Mutex::new(StateDeviation { max_abs: 0.0, max_norm: 0.0 });
    par_for(parts(rows, PANEL_COLUMNS * h), |_, rows| {
        let (mut most, mut squares) = (F::ZERO, F::ZERO);
        let mut row = projections.pool.acquire("task", h);
        for prepared in rows.chunks_exact(h) {
            row.copy_from_slice(prepared);
            F::restore_tanh_addends(&mut row);
            for (x, &m) in row.iter_mut().zip(&middle) {
                // Two tanh values differ by at most the difference of their arguments, and by at
                // most 2.
                let distance = *x - m;
                let distance = if distance < F::ZERO { -distance } else { distance };
                *x = if distance > F::from_f64(2.0) { F::from_f64(2.0) } else { distance };
            }
            most = largest(&row, most);
            let square = kernels::dot(&row, &row);
            squares = if square > squares { square } else { squares };
        }
        let (most, norm) = (most.to_f64(), squares.to_f64().sqrt());
        // Rounded up by more than the errors of `ln` and of the sums.
        let mut spread = spread.lock().unwrap_or_else(PoisonError::into_inner);
        *spread = StateDeviation {
            max_abs: spread.max_abs.max(most * 1.001 + 1e-5),
            max_norm: spread.max_norm.max(norm * 1.001 + 1e-5 * (h as f64).sqrt()),
        };
    });
    (middle, spread.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the largest of `values` and `initial`.
fn largest<F: Real>(values: &[F], initial: F) -> F {
    let larger = |a: F, b: F| if a > b { a } else { b };
    // In lanes, so that the loop vectorizes.
    let mut lanes = [initial; 16];
    let (whole, rest) = values.as_chunks::<16>();
    whole
        .iter()
        .for_each(|values| lanes.iter_mut().zip(values).for_each(|(lane, &x)| *lane = larger(x, *lane)));
    lanes.into_iter().chain(rest.iter().copied()).fold(initial, larger)
}

/// A joint network, its screening, and its current frames.
#[derive(Clone, Copy)]
pub struct ScreenedFrames<'a, F: Real> {
    projections: &'a Projections<F>,
    screening: &'a Screening<F>,
}

impl<'a, F: Real> ScreenedFrames<'a, F> {
    /// None if a frame is out of the range of preparation.
    pub fn new(projections: &'a Projections<F>, screening: &'a Screening<F>) -> Option<Self> {
        (!projections.frames.has_out_of_range()).then_some(Self { projections, screening })
    }

    pub fn panels(&self) -> &'a StatePanels {
        &self.screening.panels
    }

    /// V
    pub fn vocabulary(&self) -> usize {
        self.projections.vocabulary
    }

    /// H
    pub fn hidden(&self) -> usize {
        self.projections.hidden
    }

    fn frame(&self, frame: usize) -> &'a [F] {
        &self.projections.frames.rows[frame * self.hidden()..][..self.hidden()]
    }

    /// Computes the center of all states at a frame.
    pub fn middle(&self, frame: usize, middle: &mut [F]) {
        self.screening.screen.prepare_frame(self.frame(frame), middle);
    }

    /// `α` of the states of a panel.
    pub fn shifts(&self, panel: usize, alpha: &[F]) -> [F; PANEL_COLUMNS] {
        let states = &self.panels().states[panel];
        std::array::from_fn(|at| states.get(at).map_or(F::NEG_INFINITY, |&state| alpha[state]))
    }

    /// Addends of a panel at a frame.
    pub fn addends(&self, panel: usize, frame: usize) -> TanhAddends<'a, F> {
        let size = PANEL_COLUMNS * self.hidden();
        (&self.screening.addends[panel * size..][..size], self.frame(frame))
    }

    /// Returns the arc number before the first arc of each state.
    pub fn arcs(&self, panel: usize) -> &'a [u32; PANEL_COLUMNS] {
        &self.screening.arcs[panel]
    }

    pub fn screen(&self) -> &'a QuantizedArgmax<F> {
        &self.screening.screen
    }

    /// Computes the arcs of states without a panel.
    ///
    /// There are at most [`PANEL_COLUMNS`] frames.
    ///
    /// `out` is *rest x PANEL_COLUMNS x (1 + V)*.
    pub fn forward_rest(&self, frames: &[usize], out: &mut [F]) {
        let (h, arcs, rest) = (self.hidden(), 1 + self.vocabulary(), &self.panels().rest);
        let scratch_len = TanhProducts::<F>::scratch_len(h);
        par_for(
            (parts_mut(out, STATES_PER_TASK * PANEL_COLUMNS * arcs), parts(rest, STATES_PER_TASK)),
            |_, (out, states)| {
                let mut all = self.projections.pool.acquire("task", scratch_len + PANEL_COLUMNS * (h + arcs));
                let (panel, all) = all.split_at_mut(PANEL_COLUMNS * h);
                let (scratch, tile) = all.split_at_mut(scratch_len);
                self.projections.panel_of_frames(frames, &mut scratch[..PANEL_COLUMNS * h], panel);
                let mut products = TanhProducts::new(&self.projections.head_left, scratch);
                let mut out = out.chunks_exact_mut(PANEL_COLUMNS * arcs);
                self.projections.score_frames(
                    (frames, Some(&*panel)),
                    states,
                    &mut products,
                    tile,
                    |_, tile| {
                        let out = out.next().expect("each state has a part of the output");
                        transpose(out, View::new(tile, arcs, PANEL_COLUMNS));
                    },
                );
            },
        );
    }
}
