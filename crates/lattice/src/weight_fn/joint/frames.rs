//! Forward and backward of a lattice's joint network over whole frames.
//!
//! They compute all C (1 + V) arcs of a frame, for the denominator of the loss. P, Q: projected
//! context states and frames; W, bias: the head; (b, l): scores of blank and labels; gb, gl: their
//! adjoints; p: context state; t: frame; s: gradient before tanh; d: gradient; C context states, V
//! labels, H hidden units. A panel has `PANEL_COLUMNS` columns of a product: states of one frame,
//! or frames of one state.
//!
//! ```text
//! forward     h[p] = tanh(P[p] + Q_t)                (b, l)[p] = h[p] Wᵀ + bias
//! backward    dh = (gb, gl) W     s = dh (1 - h²)     dQ_t = Σ_p s    dP[p] += Σ_t s
//!             dW += Σ (gb, gl)ᵀ h    dbias += Σ (gb, gl)
//! ```
//! Forward computes `h` as panels of products (steps of the sum x states), backward as rows. A task
//! of backward is a block of states and a run of frames with separate sums, which are added in a
//! fixed order at the end: the bits do not depend on the number of threads.
use std::ops::Range;

use kernels::{
    Accumulate, PANEL_COLUMNS, PackedRight, Real, ScratchReq, TanhProducts, View, ViewMut, add, items_mut,
    par_for, parts, parts_mut, product, product_packed, transpose,
};

use super::projections::{JointSizes, Projections};
use crate::{Arcs, ArcsMut, weight_fn::Workload};

/// Approximate smallest number of tasks of one pass.
pub(crate) const MIN_TASKS: usize = 32;
/// Largest number of states of a block in backward.
const MAX_BLOCK_STATES: usize = 32;
/// Rows (states x frames) of one matrix product in backward.
const ROWS_PER_PRODUCT: usize = 128;

/// How forward and backward are split into tasks, by shape.
struct TaskSplit {
    /// States that forward computes as panels; the others have frames as columns if that is
    /// cheaper.
    column_states: usize,
    /// Frames of a task in forward.
    frames_per_task: usize,
    /// Panels of a task in forward.
    panels_per_task: usize,
    /// Number of runs of frames in backward.
    runs: usize,
    /// Number of blocks of states in backward.
    blocks: usize,
    /// States of a block.
    block_states: usize,
    /// Frames of one product in backward.
    frames_per_product: usize,
}

impl TaskSplit {
    fn new(states: usize, frames: usize) -> Self {
        // The last panel of states may be partly empty; its states are columns only if that needs
        // fewer products than panels of frames.
        let partial_panel_states = states % PANEL_COLUMNS;
        let column_states = if partial_panel_states * frames.div_ceil(PANEL_COLUMNS) < frames {
            states - partial_panel_states
        } else {
            states
        };
        let (panels, blocks) =
            (column_states.div_ceil(PANEL_COLUMNS).max(1), states.div_ceil(MAX_BLOCK_STATES));
        let tasks_per_frame = MIN_TASKS.div_ceil(frames.max(1)).min(panels);
        Self {
            column_states,
            frames_per_task: frames.div_ceil(MIN_TASKS).max(1),
            panels_per_task: panels.div_ceil(tasks_per_frame),
            runs: MIN_TASKS.div_ceil(blocks),
            blocks,
            block_states: states.div_ceil(blocks),
            frames_per_product: (ROWS_PER_PRODUCT / states.div_ceil(blocks)).max(1),
        }
    }
}

/// Memory of the tasks of [`forward`] and [`backward`].
pub(crate) fn scratch<F: Real>(sizes: &JointSizes, workload: Workload) -> ScratchReq {
    let JointSizes { states: c, hidden: h, vocabulary: v, .. } = *sizes;
    let Workload { wave, gradients, .. } = workload;
    let split = TaskSplit::new(c, wave);
    // For waves of any length: n frames, each split into enough runs of panels for the number of
    // tasks.
    let forward_tasks =
        (2 * MIN_TASKS).min(wave.saturating_mul(c.div_ceil(PANEL_COLUMNS))).max(wave.div_ceil(PANEL_COLUMNS));
    let forward_task =
        ScratchReq::aligned::<F>(TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (h + 1 + v));
    if !gradients {
        return forward_task.times(forward_tasks);
    }
    let backward_tasks = split.runs * split.blocks;
    let backward_task =
        ScratchReq::aligned::<F>(split.frames_per_product * split.block_states * (2 * h + 1 + v));
    // Each run has sums of all states, and each block sums of the frames of all runs.
    let context_sums = ScratchReq::new::<F>(split.runs * c * h);
    let frame_sums = ScratchReq::new::<F>(split.blocks * (wave + split.runs) * h);
    ScratchReq::all_of([
        ScratchReq::new::<F>((1 + v) * (h + 2)).and(backward_task.or(forward_task)).times(backward_tasks),
        forward_task.times(forward_tasks.saturating_sub(backward_tasks)),
        context_sums,
        frame_sums,
    ])
}

/// Computes the weights of all arcs of some frames.
///
/// ```text
/// in parallel over tasks of frames, or over frames and runs of panels of states:
///     for each panel:  h, then (b, l)ᵀ = W hᵀ + c, then its transpose
/// in parallel over panels of frames:
///     for each remaining state:  the same, with frames as columns
/// ```
/// The bits of an arc do not depend on the other columns.
pub(crate) fn forward<F: Real>(projections: &Projections<F>, frames: &[usize], arcs: ArcsMut<F>) {
    let &Projections { hidden: h, states: c, vocabulary: v, .. } = projections;
    let (split, scratch_len) =
        (TaskSplit::new(c, frames.len()), TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (1 + v));
    let ArcsMut { blank, labels: label_arcs } = arcs;
    // Scores panels of some frames; `blank` and `label_arcs` begin with the first state of the
    // first panel, and the arcs of a frame start `c` states after those of the previous frame.
    let score_panels = |frames: &[usize], panels: Range<usize>, blank: &mut [F], label_arcs: &mut [F]| {
        let mut buffer = projections.pool.acquire("task", scratch_len);
        let (scratch, tile) = buffer.split_at_mut(TanhProducts::<F>::scratch_len(h));
        let mut products = TanhProducts::new(&projections.head_left, scratch);
        let first_panel = panels.start;
        projections.score_states(frames, panels, &mut products, tile, |frame_index, panel, tile| {
            let state_count = PANEL_COLUMNS.min(split.column_states - panel * PANEL_COLUMNS);
            let first_state = frame_index * c + (panel - first_panel) * PANEL_COLUMNS;
            let (blank_row, label_rows) = tile.split_at(PANEL_COLUMNS);
            blank[first_state..first_state + state_count].copy_from_slice(&blank_row[..state_count]);
            let label_arcs = &mut label_arcs[first_state * v..][..state_count * v];
            transpose(label_arcs, View::with_stride(label_rows, v, state_count, PANEL_COLUMNS));
        });
    };
    // Panels of states: a task has several frames, or several panels of one frame.
    let panel_count = split.column_states.div_ceil(PANEL_COLUMNS);
    let frame_tasks = (
        parts_mut(blank, split.frames_per_task * c),
        parts_mut(label_arcs, split.frames_per_task * c * v),
        parts(frames, split.frames_per_task),
    );
    par_for(frame_tasks, |_, (blank, label_arcs, frames)| {
        if frames.len() > 1 {
            return score_panels(frames, 0..panel_count, blank, label_arcs);
        }
        let (blank, label_arcs) =
            (&mut blank[..split.column_states], &mut label_arcs[..split.column_states * v]);
        let panel_tasks = (
            parts_mut(blank, split.panels_per_task * PANEL_COLUMNS),
            parts_mut(label_arcs, split.panels_per_task * PANEL_COLUMNS * v),
        );
        par_for(panel_tasks, |task, (blank, label_arcs)| {
            let first_panel = task * split.panels_per_task;
            score_panels(
                frames,
                first_panel..first_panel + blank.len().div_ceil(PANEL_COLUMNS),
                blank,
                label_arcs,
            );
        });
    });
    if split.column_states == c {
        return;
    }
    // Remaining states, with frames as columns.
    let remaining_states: Vec<usize> = (split.column_states..c).collect();
    let panel_tasks = (parts_mut(blank, PANEL_COLUMNS * c), parts_mut(label_arcs, PANEL_COLUMNS * c * v));
    par_for((panel_tasks, parts(frames, PANEL_COLUMNS)), |_, ((blank, label_arcs), frames)| {
        let mut buffer = projections.pool.acquire("task", scratch_len + PANEL_COLUMNS * h);
        let (panel, scratch) = buffer.split_at_mut(PANEL_COLUMNS * h);
        let (scratch, tile) = scratch.split_at_mut(TanhProducts::<F>::scratch_len(h));
        let has_no_overflow_row =
            projections.write_frame_panel(frames, &mut scratch[..PANEL_COLUMNS * h], panel);
        let mut products = TanhProducts::new(&projections.head_left, scratch);
        let panel = has_no_overflow_row.then_some(&*panel);
        projections.score_frames(frames, panel, &remaining_states, &mut products, tile, |state, tile| {
            let frame_arcs = blank.chunks_exact_mut(c).zip(label_arcs.chunks_exact_mut(c * v));
            for (frame_index, (blank, label_arcs)) in frame_arcs.enumerate() {
                blank[state] = tile[frame_index];
                let scores = tile[PANEL_COLUMNS + frame_index..].iter().step_by(PANEL_COLUMNS);
                label_arcs[state * v..][..v].iter_mut().zip(scores).for_each(|(l, &score)| *l = score);
            }
        });
    });
}

/// Sums of the tasks of backward.
pub(crate) struct TaskSums<F> {
    tasks: Vec<TaskSum<F>>,
    /// Blocks of states.
    blocks: usize,
    /// States of a block.
    block_states: usize,
}

impl<F> Default for TaskSums<F> {
    fn default() -> Self {
        Self { tasks: Vec::new(), blocks: 0, block_states: 0 }
    }
}

/// Sums of one task: a block of states in a run of frames.
#[derive(Default)]
struct TaskSum<F> {
    /// Sums of the block's states, *states x H*.
    states: Vec<F>,
    /// *(1 + V) x H*
    head: Vec<F>,
    /// *1 + V*
    bias: Vec<f64>,
    /// Sums of the current frames, *n x H*.
    frames: Vec<F>,
}

impl<F: Real> TaskSums<F> {
    /// Adds the sums of states to `out`.
    pub(crate) fn add_states(&self, out: &mut [F]) {
        for (task, sums) in self.tasks.iter().enumerate() {
            let h = sums.head.len() / sums.bias.len();
            let start = task % self.blocks * self.block_states * h;
            add(&mut out[start..start + sums.states.len()], &sums.states);
        }
    }

    /// Adds the sums of the head.
    pub(crate) fn add_head(&self, head: &mut [F], bias: &mut [f64]) {
        for sums in &self.tasks {
            add(head, &sums.head);
            bias.iter_mut().zip(&sums.bias).for_each(|(total, sum)| *total += sum);
        }
    }
}

/// Propagates adjoints of [`forward`] to frames and task sums.
///
/// ```text
/// in parallel over runs of frames and blocks of states:
///     for each product of frames:                         g = (gb, gl)
///         h;  dh = g W;  dW += gᵀ h;  dc += Σ g;  s = dh (1 - h²);  dP += Σ_t s;  dQ = Σ_p s
/// for each frame:  dQ = Σ_blocks dQ
/// ```
pub(crate) fn backward<F: Real>(
    projections: &Projections<F>,
    head: &PackedRight<F>,
    sums: &mut TaskSums<F>,
    frame_gradient: &mut [F],
    frames: &[usize],
    adjoints: Arcs<F>,
) {
    let &Projections { hidden: h, states: c, vocabulary: v, .. } = projections;
    let TaskSplit { runs, blocks, block_states, frames_per_product, .. } = TaskSplit::new(c, frames.len());
    let frames_per_run = frames.len().div_ceil(runs).max(1);
    (sums.blocks, sums.block_states) = (blocks, block_states);
    // The sums continue over the calls of backward, so they are created once.
    let tasks = &mut sums.tasks;
    if tasks.is_empty() {
        tasks.extend((0..runs * blocks).map(|task| TaskSum {
            states: vec![F::ZERO; (c - task % blocks * block_states).min(block_states) * h],
            head: vec![F::ZERO; (1 + v) * h],
            bias: vec![0.0; 1 + v],
            frames: Vec::new(),
        }));
    }
    par_for(items_mut(tasks), |task, task_sum| {
        let (run, first_state) = (task / blocks, task % blocks * block_states);
        let states = block_states.min(c - first_state);
        let run_frames =
            (run * frames_per_run).min(frames.len())..((run + 1) * frames_per_run).min(frames.len());
        task_sum.frames.clear();
        task_sum.frames.resize(run_frames.len() * h, F::ZERO);
        // Hidden rows, their gradients, and adjoints as rows, for the sites of one product.
        let product_frames = frames_per_product.min(run_frames.len().max(1));
        let mut buffer = projections.pool.acquire("task", product_frames * states * (2 * h + 1 + v));
        let (hidden, later_buffer) = buffer.split_at_mut(product_frames * states * h);
        let (hidden_gradient, site_adjoints) = later_buffer.split_at_mut(product_frames * states * h);
        for first_frame in run_frames.clone().step_by(product_frames) {
            let product_range = first_frame..(first_frame + product_frames).min(run_frames.end);
            let sites = product_range.len() * states;
            let (hidden, hidden_gradient) = (&mut hidden[..sites * h], &mut hidden_gradient[..sites * h]);
            let site_adjoints = &mut site_adjoints[..sites * (1 + v)];
            // h, and the adjoints (gb, gl) as rows.
            let frame_rows =
                hidden.chunks_exact_mut(states * h).zip(site_adjoints.chunks_exact_mut(states * (1 + v)));
            for (frame_index, (hidden, site_adjoints)) in product_range.clone().zip(frame_rows) {
                let state_rows = hidden.chunks_exact_mut(h).zip(site_adjoints.chunks_exact_mut(1 + v));
                for (state, (hidden, row)) in (first_state..).zip(state_rows) {
                    projections.hidden_row(frames[frame_index], state, hidden);
                    row[0] = adjoints.blank[frame_index * c + state];
                    row[1..].copy_from_slice(&adjoints.labels[(frame_index * c + state) * v..][..v]);
                }
            }
            // dh, dW and dbias.
            let g = View::new(site_adjoints, sites, 1 + v);
            product_packed(ViewMut::new(hidden_gradient, sites, h), g, head, Accumulate::Replace);
            let head_gradient = ViewMut::new(&mut task_sum.head, 1 + v, h);
            product(head_gradient, g.transposed(), View::new(hidden, sites, h), F::ONE, Accumulate::Add);
            for row in site_adjoints.chunks_exact(1 + v) {
                task_sum.bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g.to_f64());
            }
            // s, the gradient before tanh, summed over frames (dP) and over states (dQ).
            F::tanh_slope(hidden_gradient, hidden);
            for (frame_index, slope) in product_range.zip(hidden_gradient.chunks_exact(states * h)) {
                add(&mut task_sum.states, slope);
                F::add_rows(&mut task_sum.frames[(frame_index - run_frames.start) * h..][..h], slope);
            }
        }
    });
    // dQ: sums over blocks of states, in order.
    for (frame_index, &frame) in frames.iter().enumerate() {
        let (run, row) = (frame_index / frames_per_run, frame_index % frames_per_run);
        let out = &mut frame_gradient[frame * h..][..h];
        for task_sum in &sums.tasks[run * blocks..(run + 1) * blocks] {
            add(out, &task_sum.frames[row * h..][..h]);
        }
    }
}
