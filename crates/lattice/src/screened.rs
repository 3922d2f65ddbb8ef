//! Viterbi search over a lattice that scores only possibly best arcs.
//!
//! A session uses it if the CPU, the network and the budget allow it. It is a search with
//! screening: quantized estimates with an error bound exclude most arcs of a joint network. A run
//! is a range of successive target states, a panel up to `PANEL_COLUMNS` source states whose arcs
//! lead to the same run. States without a panel (*unpaneled*) are scored exactly. α is the weight
//! of the best path to each context state.
//!
//! ```text
//! for each frame:
//!     in parallel over tasks, for each utterance:  best arcs into the runs of states; blanks
//!     in parallel over utterances:                 the blank where it is no worse
//! ```
//! Weights and backpointers are those of [`FrameStep::viterbi`](crate::step::FrameStep::viterbi),
//! bit for bit. Other modules only use [`search`].
mod panels;
mod screening;

use std::ops::Range;

use kernels::{ArcScatter, BestArcs, PANEL_COLUMNS, PanelArcs, Real, items_mut, par_for, parts, parts_mut};

use crate::{
    LatticePath, RecognitionLattice, Result,
    execution::{BoundCall, CallBuffers},
    path_search::{PathSearch, search_groups, search_waves},
    plan::Plan,
    step::subtract_max,
    utterance_group::UtteranceGroup,
};
use panels::StateRun;
use screening::{ScreenedFrames, Screening};

/// Utterances of a chunk, which read each panel one after another.
const UTTERANCES_PER_CHUNK: usize = 2;
/// Largest number of panels of a task, unless one run has more.
const PANELS_PER_TASK: usize = 2;
/// Frames of a task that does not depend on `α`.
const FRAMES_PER_TASK: usize = 8;

/// Returns the search with screening; none if it does not apply or exceeds the budget of `plan`.
pub(crate) fn search<F: Real>(lattice: &RecognitionLattice<F>, plan: &Plan) -> Option<PathSearch<F>> {
    let screening_memory = screening::scratch(lattice, plan.utterances, plan.spare_bytes)?;
    Some(PathSearch { plan: plan.with_screening(screening_memory)?, run: best_paths })
}

/// Finds the best paths with screening where it applies.
///
/// Other frames use all arc weights.
fn best_paths<'a, F: Real>(
    call: &mut BoundCall<'a, F>,
    plan: &Plan,
    buffers: &mut CallBuffers<F>,
) -> Result<Vec<LatticePath>> {
    let utterances = plan.utterances.min(call.frames.utterances());
    let screening = call.weights.projections().and_then(|projections| {
        let sizes = call.lattice.weight_fn().joint_sizes()?;
        let panels = screening::panels::<F>(&sizes, &call.step, utterances)?;
        projections.defers_columns = true;
        Screening::new(projections, panels)
    });
    let search = |call: &mut BoundCall<'a, F>, group: &UtteranceGroup, buffers: &mut CallBuffers<F>| {
        if let Some(projections) = call.weights.projections() {
            let screened =
                screening.as_ref().and_then(|screening| ScreenedFrames::new(projections, screening));
            if let Some(screened) = screened {
                return search_group(screened, group, buffers);
            }
            projections.require_columns();
        }
        search_waves(call, group, buffers)
    };
    let paths = search_groups(call, plan, buffers, search);
    if let (Some(projections), Some(screening)) = (call.weights.projections(), screening)
        && !projections.has_columns()
    {
        projections.column_buffer = screening.into_buffer();
    }
    paths
}

/// Writes the backpointers of a group; returns its path weights.
fn search_group<F: Real>(
    screened: ScreenedFrames<F>,
    group: &UtteranceGroup,
    buffers: &mut CallBuffers<F>,
) -> Vec<f64> {
    let state_count = screened.panels().columns.len();
    let mut offsets = vec![0.0; group.len()];
    let (alphas, mut best_arcs) = buffers.backpointers.alphas_and_pointers();
    let alphas_and_offsets = alphas.chunks_exact_mut(state_count).zip(&mut offsets).enumerate();
    let utterance = |(index, (alpha, offset))| {
        let frames = group.frame_range(index);
        let best_arcs =
            best_arcs.split_off_mut(..frames.len() * state_count).expect("each frame has backpointers");
        ScreenedUtterance { frames, alpha, best_arcs, offset }
    };
    let mut utterances: Vec<_> = alphas_and_offsets.map(utterance).collect();
    let mut chunks: Vec<_> = utterances.chunks_mut(UTTERANCES_PER_CHUNK).collect();
    par_for(items_mut(&mut chunks), |_, utterances| search_chunk(screened, utterances));
    buffers.backpointers.path_weights(state_count, &offsets)
}

/// An utterance and its search state.
struct ScreenedUtterance<'a, F> {
    /// Packed frames of the utterance.
    frames: Range<usize>,
    /// `α` with maximum 0, *C*.
    alpha: &'a mut [F],
    /// Backpointers, *N x C*.
    best_arcs: &'a mut [u32],
    /// Sum of the maxima that were subtracted from `α`.
    offset: &'a mut f64,
}

/// Scratch memory of an utterance.
struct UtteranceScratch<F> {
    /// `α'` from labels only, *C*.
    next: Vec<F>,
    /// Weights of blanks, by column.
    blank: Vec<F>,
    /// Arcs of states without a panel, *states x PANEL_COLUMNS x (1 + V)*.
    unpaneled: Vec<F>,
    /// Center (mean) of all context states at these frames, *PANEL_COLUMNS x H*.
    centers: Vec<F>,
}

/// Successive runs of target states, which one task processes.
struct PanelTask<'a> {
    runs: &'a [StateRun],
    /// First target state of the task.
    first_state: usize,
    /// Number of target states.
    states: usize,
}

/// Values of one frame of an utterance, or of one task.
struct FrameSlice<'a, F> {
    /// Packed frame.
    frame: usize,
    /// Center (mean) of all context states, *H*.
    center: &'a [F],
    /// `α` before the frame, *C*.
    alpha: &'a [F],
    /// Arcs of states without a panel, from this frame on.
    unpaneled: &'a [F],
    /// `α` after the frame.
    next: &'a mut [F],
    /// Backpointers of the frame.
    best_arcs: &'a mut [u32],
    /// Weights of blanks, by column of panels.
    blank: &'a mut [[F; PANEL_COLUMNS]],
}

/// Searches all frames of some utterances.
fn search_chunk<F: Real>(screened: ScreenedFrames<F>, utterances: &mut [ScreenedUtterance<F>]) {
    let panels = screened.panels();
    let state_count = panels.columns.len();
    let mut scratch: Vec<UtteranceScratch<F>> =
        utterances.iter().map(|_| UtteranceScratch::new(screened, state_count)).collect();
    let tasks = PanelTask::split_all(&panels.runs, state_count);
    let longest = utterances.iter().map(|utterance| utterance.frames.len()).max().unwrap_or(0);
    for t in 0..longest {
        // Values of the next frames that do not depend on `α`.
        if t % PANEL_COLUMNS == 0 {
            let active =
                utterances.iter().zip(&mut scratch).filter(|(utterance, _)| t < utterance.frames.len());
            for (utterance, scratch) in active {
                scratch.compute_frames(screened, utterance.frames.clone().skip(t));
            }
        }
        // Best label arcs, in parallel over tasks.
        let active =
            utterances.iter_mut().zip(&mut scratch).filter(|(utterance, _)| t < utterance.frames.len());
        let mut whole_frames: Vec<FrameSlice<F>> =
            active.map(|(utterance, scratch)| FrameSlice::new(screened, utterance, scratch, t)).collect();
        let active_count = whole_frames.len();
        let mut slices = Vec::with_capacity(tasks.len() * active_count);
        for task in &tasks {
            slices.extend(whole_frames.iter_mut().map(|slice| slice.split_off(task)));
        }
        par_for((parts(&tasks, 1), parts_mut(&mut slices, active_count)), |_, (task, slices)| {
            task[0].best_arcs(screened, slices);
        });
        // Blanks, in parallel over utterances.
        let mut pairs: Vec<_> = utterances.iter_mut().zip(&mut scratch).collect();
        par_for(items_mut(&mut pairs), |_, (utterance, scratch)| {
            if t < utterance.frames.len() {
                utterance.finish_frame(scratch, screened, t);
            }
        });
    }
}

impl<'a, F: Real> FrameSlice<'a, F> {
    /// The whole frame.
    fn new(
        screened: ScreenedFrames<F>,
        utterance: &'a mut ScreenedUtterance<F>,
        scratch: &'a mut UtteranceScratch<F>,
        t: usize,
    ) -> Self {
        let (c, h, panels) = (utterance.alpha.len(), screened.hidden(), screened.panels());
        let arcs = scratch.unpaneled.len() / (PANEL_COLUMNS * panels.unpaneled.len()).max(1);
        Self {
            frame: utterance.frames.start + t,
            center: &scratch.centers[t % PANEL_COLUMNS * h..][..h],
            alpha: utterance.alpha,
            unpaneled: &scratch.unpaneled[t % PANEL_COLUMNS * arcs..],
            next: &mut scratch.next,
            best_arcs: &mut utterance.best_arcs[t * c..][..c],
            blank: &mut scratch.blank.as_chunks_mut().0[..panels.states.len()],
        }
    }

    /// Splits off the part of the next task.
    fn split_off(&mut self, task: &PanelTask) -> Self {
        let Self { frame, center, alpha, unpaneled, next, best_arcs, blank } = self;
        Self {
            frame: *frame,
            center,
            alpha,
            unpaneled,
            next: next.split_off_mut(..task.states).expect("tasks have disjoint states"),
            best_arcs: best_arcs.split_off_mut(..task.states).expect("tasks have disjoint states"),
            blank: blank.split_off_mut(..task.panels().len()).expect("tasks have disjoint panels"),
        }
    }
}

impl<'a> PanelTask<'a> {
    /// Splits all runs into tasks.
    fn split_all(mut runs: &'a [StateRun], states: usize) -> Vec<Self> {
        let mut tasks: Vec<Self> = Vec::new();
        let mut first_state = 0;
        while let [run, later_runs @ ..] = runs {
            let exceeds_task = |run_end: &StateRun| run_end.panels.end - run.panels.start > PANELS_PER_TASK;
            let run_count = 1 + later_runs.iter().position(exceeds_task).unwrap_or(later_runs.len());
            let task_runs;
            (task_runs, runs) = runs.split_at(run_count);
            let end = runs.first().map_or(states, |next| next.start);
            tasks.push(Self { runs: task_runs, first_state, states: end - first_state });
            first_state = end;
        }
        tasks
    }

    /// The panels of the runs.
    fn panels(&self) -> Range<usize> {
        let [first, .., last] = self.runs else { return self.runs[0].panels.clone() };
        first.panels.start..last.panels.end
    }

    /// Finds the best label arcs into the task's states; computes blanks.
    fn best_arcs<F: Real>(&self, screened: ScreenedFrames<F>, slices: &mut [FrameSlice<F>]) {
        let (panels, vocabulary) = (screened.panels(), screened.vocabulary());
        let column_arcs = PANEL_COLUMNS * (1 + vocabulary);
        // Panels of source states, and the best arcs into each run of target states.
        let mut sources = Vec::with_capacity(self.panels().len() * slices.len());
        let mut run_arcs = Vec::with_capacity(self.runs.len() * slices.len());
        for FrameSlice { frame, center, alpha, unpaneled, next, best_arcs, blank } in slices {
            next.fill(F::NEG_INFINITY);
            best_arcs.fill(0);
            let (mut next, mut best_arcs, mut blank) = (&mut **next, &mut **best_arcs, blank.iter_mut());
            let mut split_states = self.first_state;
            for run in self.runs {
                let (best_weights, best_arcs) = (
                    split_off_run(&mut next, run.start - split_states, vocabulary),
                    split_off_run(&mut best_arcs, run.start - split_states, vocabulary),
                );
                split_states = run.start + vocabulary;
                // The arcs from states without a panel are known.
                for (index, &state) in run.unpaneled.clone().zip(&panels.unpaneled[run.unpaneled.clone()]) {
                    let rows = &unpaneled[index * column_arcs + 1..][..vocabulary];
                    F::scatter_argmax(
                        best_weights,
                        best_arcs,
                        ArcScatter { rows, shifts: &[alpha[state]], starts: &[0], first_row: state },
                    );
                }
                sources.extend(run.panels.clone().zip(&mut blank).map(|(panel, blank)| PanelArcs {
                    addends: screened.addends(panel, *frame),
                    center,
                    shifts: screened.shifts(panel, alpha),
                    first_arcs: screened.previous_arcs(panel),
                    target: run_arcs.len(),
                    blank,
                }));
                run_arcs.push(BestArcs { weights: best_weights, arcs: best_arcs });
            }
        }
        // Scores the arcs from panels, unless their estimates exclude them.
        screened.screen().update(&mut sources, &mut run_arcs);
    }
}

/// Splits off `len` states, `skip` states later.
fn split_off_run<'a, T>(states: &mut &'a mut [T], skip: usize, len: usize) -> &'a mut [T] {
    states.split_off_mut(..skip).expect("runs are disjoint");
    states.split_off_mut(..len).expect("runs consist of states")
}

impl<F: Real> UtteranceScratch<F> {
    fn new(screened: ScreenedFrames<F>, states: usize) -> Self {
        let panels = screened.panels();
        Self {
            next: vec![F::ZERO; states],
            blank: vec![F::ZERO; panels.column_count()],
            unpaneled: vec![F::ZERO; panels.unpaneled.len() * PANEL_COLUMNS * (1 + screened.vocabulary())],
            centers: vec![F::ZERO; PANEL_COLUMNS * screened.hidden()],
        }
    }

    /// Computes all values independent of `α` for the next frames.
    fn compute_frames(&mut self, screened: ScreenedFrames<F>, frames: impl Iterator<Item = usize>) {
        let frames: Vec<usize> = frames.take(PANEL_COLUMNS).collect();
        screened.forward_unpaneled(&frames, &mut self.unpaneled);
        let h = screened.hidden();
        par_for(
            (parts_mut(&mut self.centers, FRAMES_PER_TASK * h), parts(&frames, FRAMES_PER_TASK)),
            |_, (centers, frames)| {
                centers
                    .chunks_exact_mut(h)
                    .zip(frames)
                    .for_each(|(center, &frame)| screened.center(frame, center));
            },
        );
    }
}

impl<F: Real> ScreenedUtterance<'_, F> {
    /// Adds the blanks of a frame and updates α.
    fn finish_frame(&mut self, scratch: &mut UtteranceScratch<F>, screened: ScreenedFrames<F>, t: usize) {
        let (panels, vocabulary) = (screened.panels(), screened.vocabulary());
        let UtteranceScratch { next, blank, unpaneled, .. } = scratch;
        // Weights of the blanks of states without a panel.
        let blank_weights = unpaneled
            .iter()
            .skip(t % PANEL_COLUMNS * (1 + vocabulary))
            .step_by(PANEL_COLUMNS * (1 + vocabulary));
        blank[panels.states.len() * PANEL_COLUMNS..]
            .iter_mut()
            .zip(blank_weights)
            .for_each(|(blank, &w)| *blank = w);
        let best_arcs = &mut self.best_arcs[t * next.len()..][..next.len()];
        let max = F::merge_self_loops(next, best_arcs, self.alpha, blank, &panels.columns);
        *self.offset += subtract_max(next, max).to_f64();
        self.alpha.copy_from_slice(next);
    }
}
