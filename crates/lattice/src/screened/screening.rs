//! Screening for lattice search: quantized estimates of joint network arcs.
//!
//! The search (`screened`) uses them to exclude arcs that cannot be the best. A [`QuantizedArgmax`]
//! (the *screen*) scores panels of up to `PANEL_COLUMNS` context states. The few states without a
//! panel are scored exactly, in products whose columns are frames. Estimates are made about the
//! center (mean) of the projected states P, the addends of tanh, which `joint/projections.rs`
//! stores in exponential form, `exp(2P)`. A run is a range of V successive target states. Sizes: C
//! context states, V labels, H hidden units.
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
/// Frames are searched one after another, each in parallel over its panels: with fewer panels a
/// frame has too few tasks.
const MIN_PANELS: usize = 16;
/// Number of states from which the center of all states is estimated.
const SAMPLED_STATES: usize = 64;
/// States without a panel that one task scores.
const STATES_PER_TASK: usize = 8;
/// Relative margin of deviations.
///
/// The relative and the absolute margin are larger than the rounding errors of `ln` and of the
/// sums.
const DEVIATION_FACTOR: f64 = 1.001;
/// Absolute margin of the deviation of one hidden unit.
const DEVIATION_MARGIN: f64 = 1e-5;
/// Upper bound of the difference of two tanh values.
const MAX_TANH_DIFFERENCE: f64 = 2.0;

/// Bytes of the lists of a panel and frame: a frame slice and the sources of a task.
const PANEL_LIST_BYTES: usize = 512;
/// Bytes of small allocations of the screen.
const SLACK_BYTES: usize = 4096;
/// Independent running maxima of [`max_of`].
const LANES: usize = 16;

/// The screen of a joint network, and its panels.
pub(super) struct Screening<F> {
    screen: QuantizedArgmax<F>,
    panels: StatePanels,
    /// States of each panel in exponential form, *H x PANEL_COLUMNS*.
    addends: AlignedVec<F>,
    /// Arc number before the first label arc of each state, `p V`.
    ///
    /// Label y then has the arc number `p V + y`, as in the backpointers.
    previous_arcs: Vec<[u32; PANEL_COLUMNS]>,
}

impl<F: Real> Screening<F> {
    /// Creates the screen of a joint network; none if the parameters do not allow it.
    ///
    /// It takes the network's buffer for columns, which [`into_buffer`](Self::into_buffer) returns.
    pub(super) fn new(projections: &mut Projections<F>, panels: StatePanels) -> Option<Self> {
        let (h, v) = (projections.hidden, projections.vocabulary);
        if projections.state_addends.has_overflow_rows() {
            return None;
        }
        let (center, deviation) = center_and_deviation(projections);
        let screen = QuantizedArgmax::new(&projections.head, &projections.bias, center, deviation)?;
        let mut addends = AlignedVec::from_vec(std::mem::take(&mut projections.column_buffer));
        let projections = &*projections;
        let columns = addends.ensure_len(panels.states.len() * PANEL_COLUMNS * h, F::ONE);
        par_for((parts_mut(columns, PANEL_COLUMNS * h), parts(&panels.states, 1)), |_, (panel, states)| {
            let mut rows = projections.pool.acquire("task", PANEL_COLUMNS * h);
            rows.fill(F::ONE);
            for (row, &state) in rows.chunks_exact_mut(h).zip(&states[0]) {
                row.copy_from_slice(&projections.state_addends.rows[state * h..][..h]);
            }
            transpose(panel, View::new(&rows, PANEL_COLUMNS, h));
        });
        let previous_arcs = |states: &Vec<usize>| {
            std::array::from_fn(|column| states.get(column).map_or(0, |state| (state * v) as u32))
        };
        let previous_arcs = panels.states.iter().map(previous_arcs).collect();
        Some(Self { screen, panels, addends, previous_arcs })
    }

    /// Returns the buffer of the columns.
    pub(super) fn into_buffer(self) -> Vec<F> {
        self.addends.into_vec()
    }
}

/// Returns the panels of a lattice, if screening pays off.
///
/// `utterances` are searched at once.
pub(super) fn panels<F: Real>(
    sizes: &JointSizes,
    step: &FrameStep,
    utterances: usize,
) -> Option<StatePanels> {
    let panels = StatePanels::new(step.runs()?, sizes.vocabulary)?;
    let panel_count = panels.states.len().saturating_mul(utterances);
    (QuantizedArgmax::<F>::is_profitable(sizes.hidden, sizes.vocabulary) && panel_count >= MIN_PANELS)
        .then_some(panels)
}

/// Memory of screening in addition to a search over all arcs.
///
/// None if screening does not apply, or needs more than `available` bytes.
pub(super) fn scratch<F: Real>(
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
    let (panel_count, unpaneled_count) = (panels.states.len(), panels.unpaneled.len());
    let elements = ScratchReq::new::<F>;
    // States as columns, with 16 bytes of lists for each state; the screen.
    let columns = elements(h).and(ScratchReq::from_bytes(16)).times(PANEL_COLUMNS).times(panel_count);
    let screen = ScratchReq::from_bytes(QuantizedArgmax::<F>::bytes(h, v) + SLACK_BYTES);
    // Arcs of states without a panel and centers of some frames, blanks, α', frame slices and
    // sources of tasks.
    let unpaneled_scratch = elements(PANEL_COLUMNS * (1 + v) + 1).times(unpaneled_count);
    let panel_scratch =
        elements(PANEL_COLUMNS).and(ScratchReq::from_bytes(PANEL_LIST_BYTES)).times(panel_count);
    let state_scratch = elements(1).and(ScratchReq::from_bytes(16)).times(c);
    let utterance_scratch =
        ScratchReq::all_of([unpaneled_scratch, panel_scratch, state_scratch, elements(PANEL_COLUMNS * h)]);
    // Buffers of tasks, in addition to those of the search over all arcs, which scores waves
    // (ranges of frames of each utterance).
    let tasks = utterances.div_ceil(2).saturating_mul(unpaneled_count.div_ceil(STATES_PER_TASK));
    let tasks = tasks.max(panel_count).max(c.div_ceil(PANEL_COLUMNS));
    let wave_tasks = utterances.saturating_mul(c.div_ceil(PANEL_COLUMNS)).min(2 * frames::MIN_TASKS);
    let task_scratch =
        ScratchReq::aligned::<F>(TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (h + 1 + v));
    let total = ScratchReq::all_of([
        lists,
        columns,
        screen,
        utterance_scratch.times(utterances),
        task_scratch.times(tasks.saturating_sub(wave_tasks)),
    ]);
    (total.bytes() <= available).then_some(total)
}

/// Estimates the center of the states, and their largest deviation from it.
///
/// The center is a mean of addends, not of their exponential form.
fn center_and_deviation<F: Real>(projections: &Projections<F>) -> (Vec<F>, StateDeviation) {
    let (rows, h) = (&projections.state_addends.rows, projections.hidden);
    let state_count = rows.len() / h;
    let sample: Vec<usize> = (0..state_count).step_by(state_count.div_ceil(SAMPLED_STATES).max(1)).collect();
    let (mut center, mut row) = (vec![F::ZERO; h], vec![F::ZERO; h]);
    for &state in &sample {
        row.copy_from_slice(&rows[state * h..][..h]);
        F::restore_tanh_addends(&mut row);
        kernels::add(&mut center, &row);
    }
    let sample_weight = F::from_f64(1.0 / sample.len() as f64);
    center.iter_mut().for_each(|mean| *mean *= sample_weight);
    // Largest distance of an element, and largest norm of the distances of a state.
    let max_difference = F::from_f64(MAX_TANH_DIFFERENCE);
    let deviation = Mutex::new(StateDeviation { max_abs: 0.0, max_norm: 0.0 });
    par_for(parts(rows, PANEL_COLUMNS * h), |_, rows| {
        let (mut max_distance, mut max_square_sum) = (F::ZERO, F::ZERO);
        let mut row = projections.pool.acquire("task", h);
        for exponential_form in rows.chunks_exact(h) {
            row.copy_from_slice(exponential_form);
            F::restore_tanh_addends(&mut row);
            for (x, &mean) in row.iter_mut().zip(&center) {
                // Two tanh values differ by at most the difference of their arguments, and by at
                // most the length of their range.
                let distance = *x - mean;
                let distance = if distance < F::ZERO { -distance } else { distance };
                *x = if distance > max_difference { max_difference } else { distance };
            }
            max_distance = max_of(&row, max_distance);
            let square_sum = kernels::dot(&row, &row);
            max_square_sum = if square_sum > max_square_sum { square_sum } else { max_square_sum };
        }
        let (max_distance, norm) = (max_distance.to_f64(), max_square_sum.to_f64().sqrt());
        let mut deviation = deviation.lock().unwrap_or_else(PoisonError::into_inner);
        *deviation = StateDeviation {
            max_abs: deviation.max_abs.max(max_distance * DEVIATION_FACTOR + DEVIATION_MARGIN),
            max_norm: deviation.max_norm.max(norm * DEVIATION_FACTOR + DEVIATION_MARGIN * (h as f64).sqrt()),
        };
    });
    (center, deviation.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the largest of `values` and `initial`.
fn max_of<F: Real>(values: &[F], initial: F) -> F {
    let larger = |a: F, b: F| if a > b { a } else { b };
    // In lanes, so that the loop vectorizes.
    let mut lanes = [initial; LANES];
    let (chunks, remainder) = values.as_chunks::<LANES>();
    chunks
        .iter()
        .for_each(|values| lanes.iter_mut().zip(values).for_each(|(lane, &x)| *lane = larger(x, *lane)));
    lanes.into_iter().chain(remainder.iter().copied()).fold(initial, larger)
}

/// A joint network, its screening, and its current frames.
#[derive(Clone, Copy)]
pub(super) struct ScreenedFrames<'a, F: Real> {
    projections: &'a Projections<F>,
    screening: &'a Screening<F>,
}

impl<'a, F: Real> ScreenedFrames<'a, F> {
    /// None if a frame has addends whose exponentials could overflow.
    pub(super) fn new(projections: &'a Projections<F>, screening: &'a Screening<F>) -> Option<Self> {
        (!projections.frame_addends.has_overflow_rows()).then_some(Self { projections, screening })
    }

    /// The panels of the context.
    pub(super) fn panels(&self) -> &'a StatePanels {
        &self.screening.panels
    }

    /// V, the number of labels.
    pub(super) fn vocabulary(&self) -> usize {
        self.projections.vocabulary
    }

    /// H, the width of the hidden layer.
    pub(super) fn hidden(&self) -> usize {
        self.projections.hidden
    }

    /// Row of a projected frame, *H*.
    fn frame_row(&self, frame: usize) -> &'a [F] {
        &self.projections.frame_addends.rows[frame * self.hidden()..][..self.hidden()]
    }

    /// Computes the center of all states at a frame.
    pub(super) fn center(&self, frame: usize, center: &mut [F]) {
        self.screening.screen.prepare_frame(self.frame_row(frame), center);
    }

    /// `α` of the states of a panel; -inf for unused columns.
    pub(super) fn shifts(&self, panel: usize, alpha: &[F]) -> [F; PANEL_COLUMNS] {
        let states = &self.panels().states[panel];
        std::array::from_fn(|column| states.get(column).map_or(F::NEG_INFINITY, |&state| alpha[state]))
    }

    /// Addends of a panel at a frame.
    pub(super) fn addends(&self, panel: usize, frame: usize) -> TanhAddends<'a, F> {
        let size = PANEL_COLUMNS * self.hidden();
        (&self.screening.addends[panel * size..][..size], self.frame_row(frame))
    }

    /// Returns the arc numbers before the first label arcs of a panel.
    pub(super) fn previous_arcs(&self, panel: usize) -> &'a [u32; PANEL_COLUMNS] {
        &self.screening.previous_arcs[panel]
    }

    /// The quantized estimates.
    pub(super) fn screen(&self) -> &'a QuantizedArgmax<F> {
        &self.screening.screen
    }

    /// Computes the arcs of states without a panel at some frames.
    ///
    /// There are at most `PANEL_COLUMNS` frames.
    ///
    /// `out` is *states x PANEL_COLUMNS x (1 + V)*.
    pub(super) fn forward_unpaneled(&self, frames: &[usize], out: &mut [F]) {
        let (h, arcs, unpaneled) = (self.hidden(), 1 + self.vocabulary(), &self.panels().unpaneled);
        let scratch_len = TanhProducts::<F>::scratch_len(h);
        par_for(
            (parts_mut(out, STATES_PER_TASK * PANEL_COLUMNS * arcs), parts(unpaneled, STATES_PER_TASK)),
            |_, (out, states)| {
                let mut buffer =
                    self.projections.pool.acquire("task", scratch_len + PANEL_COLUMNS * (h + arcs));
                let (panel, buffer) = buffer.split_at_mut(PANEL_COLUMNS * h);
                let (scratch, tile) = buffer.split_at_mut(scratch_len);
                self.projections.write_frame_panel(frames, &mut scratch[..PANEL_COLUMNS * h], panel);
                let mut products = TanhProducts::new(&self.projections.head_left, scratch);
                let mut out = out.chunks_exact_mut(PANEL_COLUMNS * arcs);
                self.projections.score_frames(
                    frames,
                    Some(&*panel),
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
