//! Whole frames of a joint network: forward beside backward.
//!
//! ```text
//! forward     h[p] = tanh(P[p] + Q_t)                (b, l)[p] = h[p] Wᵀ + c
//! backward    dh = (gb, gl) W      u = dh (1 - h²)   dQ_t = Σ_p u      dP[p] += Σ_t u      dW += Σ (gb, gl)ᵀ h      dc += Σ (gb, gl)
//! ```
//! Forward computes `h` as panels of products (steps of the sum x states), backward as rows. A task of backward is a block of states
//! and a run of frames with sums of its own, which are added in one order at the end: the bits do not depend on the threads.
use std::ops::Range;

use kernels::{
    Accumulate, PANEL_COLUMNS, PackedRight, Real, ScratchReq, TanhProducts, View, ViewMut, add, items_mut,
    par_for, parts, parts_mut, product, product_packed, transpose,
};

use super::projections::{JointSizes, Projections};
use crate::{Arcs, ArcsMut, weight_fn::Workload};

/// Tasks that forward is split into, at least and about.
pub const MIN_TASKS: usize = 32;
/// States of a block of backward, at most.
const MAX_BLOCK_STATES: usize = 32;
/// Rows, states x frames, of one product of backward.
const ROWS_PER_PRODUCT: usize = 128;

/// How forward and backward are split into tasks, by shape only.
struct TaskSplit {
    /// States that forward computes as panels; the remaining ones have frames as columns where that is less work.
    whole: usize,
    /// Frames of a task of forward.
    few: usize,
    /// Panels of a task of forward.
    panels: usize,
    /// Runs of frames of backward.
    runs: usize,
    /// Blocks of states of backward.
    blocks: usize,
    /// States of a block, as even as can be.
    block: usize,
    /// Frames whose products backward does at once.
    together: usize,
}

impl TaskSplit {
    fn new(states: usize, frames: usize) -> Self {
        let rest = states % PANEL_COLUMNS;
        let whole = if rest * frames.div_ceil(PANEL_COLUMNS) < frames { states - rest } else { states };
        let (panels, blocks) = (whole.div_ceil(PANEL_COLUMNS).max(1), states.div_ceil(MAX_BLOCK_STATES));
        let pieces = MIN_TASKS.div_ceil(frames.max(1)).min(panels);
        Self {
            whole,
            few: frames.div_ceil(MIN_TASKS).max(1),
            panels: panels.div_ceil(pieces),
            runs: MIN_TASKS.div_ceil(blocks),
            blocks,
            block: states.div_ceil(blocks),
            together: (ROWS_PER_PRODUCT / states.div_ceil(blocks)).max(1),
        }
    }
}

/// Memory of the tasks of [`forward`], and of [`backward`] if there are gradients.
pub fn scratch<F: Real>(sizes: &JointSizes, workload: Workload) -> ScratchReq {
    let JointSizes { states: c, hidden: h, vocabulary: v, .. } = *sizes;
    let Workload { wave, gradients, .. } = workload;
    let split = TaskSplit::new(c, wave);
    // For waves of any length: n frames, each in enough runs of panels for so many tasks.
    let forward =
        (2 * MIN_TASKS).min(wave.saturating_mul(c.div_ceil(PANEL_COLUMNS))).max(wave.div_ceil(PANEL_COLUMNS));
    let of_forward =
        ScratchReq::aligned::<F>(TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (h + 1 + v));
    if !gradients {
        return of_forward.times(forward);
    }
    let tasks = split.runs * split.blocks;
    let of_backward = ScratchReq::aligned::<F>(split.together * split.block * (2 * h + 1 + v));
    // Each run has sums of all contexts, and each block sums of the frames of all runs.
    let contexts = ScratchReq::new::<F>(split.runs * c * h);
    let frames = ScratchReq::new::<F>(split.blocks * (wave + split.runs) * h);
    ScratchReq::all_of([
        ScratchReq::new::<F>((1 + v) * (h + 2)).and(of_backward.or(of_forward)).times(tasks),
        of_forward.times(forward.saturating_sub(tasks)),
        contexts,
        frames,
    ])
}

/// Computes the weights of all arcs of some frames.
///
/// ```text
/// par for each few frames, or each frame and run of panels of states:  for each panel:  h, then (b, l)ᵀ = W hᵀ + c, then its transpose
/// par for each panel of frames:  for each state that is left over:  the same, a frame a column
/// ```
/// The bits of an arc do not depend on what is a column beside it.
pub fn forward<F: Real>(projections: &Projections<F>, frames: &[usize], arcs: ArcsMut<F>) {
    let &Projections { hidden: h, states: c, vocabulary: v, .. } = projections;
    let (split, room) =
        (TaskSplit::new(c, frames.len()), TanhProducts::<F>::scratch_len(h) + PANEL_COLUMNS * (1 + v));
    let ArcsMut { blank, lexical } = arcs;
    // Panels of some frames; arcs of a frame begin `c` states behind those of the one before.
    let score = |frames: &[usize], panels: Range<usize>, blank: &mut [F], lexical: &mut [F]| {
        let mut buffer = projections.pool.acquire("task", room);
        let (room, tile) = buffer.split_at_mut(TanhProducts::<F>::scratch_len(h));
        let mut products = TanhProducts::new(&projections.head_left, room);
        let first = panels.start;
        projections.score_states(frames, panels, &mut products, tile, |at, panel, tile| {
            let states = PANEL_COLUMNS.min(split.whole - panel * PANEL_COLUMNS);
            let from = at * c + (panel - first) * PANEL_COLUMNS;
            let (of_blank, of_labels) = tile.split_at(PANEL_COLUMNS);
            blank[from..from + states].copy_from_slice(&of_blank[..states]);
            let lexical = &mut lexical[from * v..][..states * v];
            transpose(lexical, View::with_stride(of_labels, v, states, PANEL_COLUMNS));
        });
    };
    let all = split.whole.div_ceil(PANEL_COLUMNS);
    let of_frames =
        (parts_mut(blank, split.few * c), parts_mut(lexical, split.few * c * v), parts(frames, split.few));
    par_for(of_frames, |_, (blank, lexical, frames)| {
        if frames.len() > 1 {
            return score(frames, 0..all, blank, lexical);
        }
        let (blank, lexical) = (&mut blank[..split.whole], &mut lexical[..split.whole * v]);
        let of_panels = (
            parts_mut(blank, split.panels * PANEL_COLUMNS),
            parts_mut(lexical, split.panels * PANEL_COLUMNS * v),
        );
        par_for(of_panels, |run, (blank, lexical)| {
            let first = run * split.panels;
            score(frames, first..first + blank.len().div_ceil(PANEL_COLUMNS), blank, lexical);
        });
    });
    if split.whole == c {
        return;
    }
    let rest: Vec<usize> = (split.whole..c).collect();
    let of_panels = (parts_mut(blank, PANEL_COLUMNS * c), parts_mut(lexical, PANEL_COLUMNS * c * v));
    par_for((of_panels, parts(frames, PANEL_COLUMNS)), |_, ((blank, lexical), frames)| {
        let mut buffer = projections.pool.acquire("task", room + PANEL_COLUMNS * h);
        let (panel, room) = buffer.split_at_mut(PANEL_COLUMNS * h);
        let (room, tile) = room.split_at_mut(TanhProducts::<F>::scratch_len(h));
        let in_range = projections.panel_of_frames(frames, &mut room[..PANEL_COLUMNS * h], panel);
        let mut products = TanhProducts::new(&projections.head_left, room);
        let panel = (frames, in_range.then_some(&*panel));
        projections.score_frames(panel, &rest, &mut products, tile, |state, tile| {
            let of_frames = blank.chunks_exact_mut(c).zip(lexical.chunks_exact_mut(c * v));
            for (at, (blank, lexical)) in of_frames.enumerate() {
                blank[state] = tile[at];
                let scores = tile[PANEL_COLUMNS + at..].iter().step_by(PANEL_COLUMNS);
                lexical[state * v..][..v].iter_mut().zip(scores).for_each(|(l, &score)| *l = score);
            }
        });
    });
}

/// Sums of the tasks of backward.
pub struct TaskSums<F> {
    tasks: Vec<TaskSum<F>>,
    /// Blocks of states.
    blocks: usize,
    /// States of a block.
    block: usize,
}

impl<F> Default for TaskSums<F> {
    fn default() -> Self {
        Self { tasks: Vec::new(), blocks: 0, block: 0 }
    }
}

/// Sums of one task: a block of states in a run of frames.
#[derive(Default)]
struct TaskSum<F> {
    /// Those of the block, *states x H*.
    contexts: Vec<F>,
    /// *(1 + V) x H*
    head: Vec<F>,
    /// *1 + V*
    bias: Vec<f64>,
    /// Of the frames at hand, *n x H*.
    frames: Vec<F>,
}

impl<F: Real> TaskSums<F> {
    /// Adds the sums of contexts to `out`.
    pub fn add_contexts(&self, out: &mut [F]) {
        for (task, part) in self.tasks.iter().enumerate() {
            let h = part.head.len() / part.bias.len();
            let from = task % self.blocks * self.block * h;
            add(&mut out[from..from + part.contexts.len()], &part.contexts);
        }
    }

    /// Adds the sums of the head.
    pub fn add_head(&self, head: &mut [F], bias: &mut [f64]) {
        for part in &self.tasks {
            add(head, &part.head);
            bias.iter_mut().zip(&part.bias).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// Propagates adjoints of the results of [`forward`] to frames, and to sums of tasks.
///
/// ```text
/// par for each run of frames, par for each block of states:
///     for each few frames:  h;  dh = g W;  dW += gᵀ h;  dc += Σ g;  u = dh (1 - h²);  dP += Σ_t u;  dQ = Σ_p u
/// for each frame:  dQ = Σ_blocks dQ
/// ```
pub fn backward<F: Real>(
    projections: &Projections<F>,
    head: &PackedRight<F>,
    sums: &mut TaskSums<F>,
    frame_gradient: &mut [F],
    frames: &[usize],
    adjoints: Arcs<F>,
) {
    let &Projections { hidden: h, states: c, vocabulary: v, .. } = projections;
    let TaskSplit { runs, blocks, block, together, .. } = TaskSplit::new(c, frames.len());
    let each = frames.len().div_ceil(runs).max(1);
    (sums.blocks, sums.block) = (blocks, block);
    let tasks = &mut sums.tasks;
    if tasks.is_empty() {
        tasks.extend((0..runs * blocks).map(|task| TaskSum {
            contexts: vec![F::ZERO; (c - task % blocks * block).min(block) * h],
            head: vec![F::ZERO; (1 + v) * h],
            bias: vec![0.0; 1 + v],
            frames: Vec::new(),
        }));
    }
    par_for(items_mut(tasks), |task, part| {
        let (run, first) = (task / blocks, task % blocks * block);
        let states = block.min(c - first);
        let mine = (run * each).min(frames.len())..((run + 1) * each).min(frames.len());
        part.frames.clear();
        part.frames.resize(mine.len() * h, F::ZERO);
        let few = together.min(mine.len().max(1));
        let mut buffer = projections.pool.acquire("task", few * states * (2 * h + 1 + v));
        let (hidden, room) = buffer.split_at_mut(few * states * h);
        let (slope, scores) = room.split_at_mut(few * states * h);
        for from in mine.clone().step_by(few) {
            let some = from..(from + few).min(mine.end);
            let rows = some.len() * states;
            let (hidden, slope) = (&mut hidden[..rows * h], &mut slope[..rows * h]);
            let scores = &mut scores[..rows * (1 + v)];
            let of_frames =
                hidden.chunks_exact_mut(states * h).zip(scores.chunks_exact_mut(states * (1 + v)));
            for (at, (hidden, scores)) in some.clone().zip(of_frames) {
                let of_states = hidden.chunks_exact_mut(h).zip(scores.chunks_exact_mut(1 + v));
                for (state, (hidden, scores)) in (first..).zip(of_states) {
                    projections.hidden_row(frames[at], state, hidden);
                    scores[0] = adjoints.blank[at * c + state];
                    scores[1..].copy_from_slice(&adjoints.lexical[(at * c + state) * v..][..v]);
                }
            }
            let g = View::new(scores, rows, 1 + v);
            product_packed(ViewMut::new(slope, rows, h), g, head, Accumulate::Replace);
            let of_head = ViewMut::new(&mut part.head, 1 + v, h);
            product(of_head, g.transposed(), View::new(hidden, rows, h), F::ONE, Accumulate::Add);
            for row in scores.chunks_exact(1 + v) {
                part.bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g.to_f64());
            }
            F::tanh_slope(slope, hidden);
            for (at, slope) in some.zip(slope.chunks_exact(states * h)) {
                add(&mut part.contexts, slope);
                F::add_rows(&mut part.frames[(at - mine.start) * h..][..h], slope);
            }
        }
    });
    for (at, &frame) in frames.iter().enumerate() {
        let (run, place) = (at / each, at % each);
        let out = &mut frame_gradient[frame * h..][..h];
        for part in &sums.tasks[run * blocks..(run + 1) * blocks] {
            add(out, &part.frames[place * h..][..h]);
        }
    }
}
