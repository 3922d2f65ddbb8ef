//! Whole frames of a joint network: forward beside backward.
//!
//! ```text
//! forward     h[p] = tanh(P[p] + Q_t)                (b, l)[p] = h[p] Wᵀ + c
//! backward    dh = (gb, gl) W      u = dh (1 - h²)   dQ_t = Σ_p u      dP[p] += Σ_t u      dW += Σ (gb, gl)ᵀ h      dc += Σ (gb, gl)
//! ```
//! Addends are prepared once, so that each tangent costs a product and a quotient. Forward makes `h` as the product's panels
//! (steps of the sum x states), backward as rows. A task of backward is a block of states and a run of frames and owns sums of
//! its own, which are added in one order at the end: the bits do not depend on the threads.
use std::ops::Range;

use kernels::{
    Accumulate, PANEL, PackedRight, Real, TanhProducts, View, ViewMut, add, items_mut, par_for, parts,
    parts_mut, product, product_packed, transpose,
};

use super::{JointSizes, opened::Opened};
use crate::{Arcs, ArcsMut, weight_fn::Load};

/// Tasks that forward is cut into, at least and about.
pub const TASKS: usize = 32;
/// States of a block of backward, at most.
const BLOCK: usize = 32;
/// Rows, states x frames, whose products backward does at once.
const ROWS: usize = 128;

/// How forward and backward are cut, by shape alone.
struct Cut {
    /// States that forward computes as panels; a few that are left over have frames for columns where that is less work.
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

impl Cut {
    fn new(states: usize, frames: usize) -> Self {
        let rest = states % PANEL;
        let whole = if rest * frames.div_ceil(PANEL) < frames { states - rest } else { states };
        let (panels, blocks) = (whole.div_ceil(PANEL).max(1), states.div_ceil(BLOCK));
        let pieces = TASKS.div_ceil(frames.max(1)).min(panels);
        Self {
            whole,
            few: frames.div_ceil(TASKS).max(1),
            panels: panels.div_ceil(pieces),
            runs: TASKS.div_ceil(blocks),
            blocks,
            block: states.div_ceil(blocks),
            together: (ROWS / states.div_ceil(blocks)).max(1),
        }
    }
}

/// Elements of the rooms and parts of all tasks that there can be at once.
pub fn rooms<F: Real>(sizes: &JointSizes, load: Load) -> usize {
    let JointSizes { states: c, hidden: h, vocabulary: v, .. } = *sizes;
    let cut = Cut::new(c, load.wave);
    // However short a wave is: n frames, each in enough runs of panels to make so many tasks.
    let forward = (2 * TASKS).min(load.wave.saturating_mul(c.div_ceil(PANEL))).max(load.wave.div_ceil(PANEL));
    let room = TanhProducts::<F>::room(h) + PANEL * (h + 1 + v) + 16;
    if !load.gradients {
        return forward * room;
    }
    let rows = cut.together * cut.block * (2 * h + 1 + v) + 16;
    let tasks = cut.runs * cut.blocks;
    // Frames of a run, of which each block has sums.
    let frames = cut.blocks * (load.wave + cut.runs) * h;
    tasks * ((1 + v) * (h + 2) + rows.max(room))
        + cut.runs * c * h
        + forward.saturating_sub(tasks) * room
        + frames
}

/// Weights of all arcs of some frames.
///
/// ```text
/// par for each few frames, or each frame and run of panels of states:  for each panel:  h, then (b, l)ᵀ = W hᵀ + c, then its transpose
/// par for each panel of frames:  for each state that is left over:  the same, a frame a column
/// ```
/// The bits of an arc do not depend on what is a column beside it.
pub fn weigh<F: Real>(opened: &Opened<F>, frames: &[usize], arcs: ArcsMut<F>) {
    let (h, c, v) = (opened.hidden(), opened.joint.states, opened.joint.vocabulary);
    let (cut, room) = (Cut::new(c, frames.len()), TanhProducts::<F>::room(h) + PANEL * (1 + v));
    let ArcsMut { blank, lexical } = arcs;
    // Panels of some frames; arcs of a frame begin `c` states behind those of the one before.
    let score = |frames: &[usize], panels: Range<usize>, blank: &mut [F], lexical: &mut [F]| {
        opened.pool.with(room, |room| {
            let (room, tile) = room.split_at_mut(TanhProducts::<F>::room(h));
            let mut products = TanhProducts::new(&opened.head_left, room);
            let first = panels.start;
            opened.score_states(frames, panels, &mut products, tile, |at, panel, tile| {
                let states = PANEL.min(cut.whole - panel * PANEL);
                let from = at * c + (panel - first) * PANEL;
                let (of_blank, of_labels) = tile.split_at(PANEL);
                blank[from..from + states].copy_from_slice(&of_blank[..states]);
                let lexical = &mut lexical[from * v..][..states * v];
                transpose(lexical, View::with_stride(of_labels, v, states, PANEL));
            });
        });
    };
    let all = cut.whole.div_ceil(PANEL);
    let of_frames =
        (parts_mut(blank, cut.few * c), parts_mut(lexical, cut.few * c * v), parts(frames, cut.few));
    par_for(of_frames, |_, (blank, lexical, frames)| {
        if frames.len() > 1 {
            return score(frames, 0..all, blank, lexical);
        }
        let (blank, lexical) = (&mut blank[..cut.whole], &mut lexical[..cut.whole * v]);
        let of_panels = (parts_mut(blank, cut.panels * PANEL), parts_mut(lexical, cut.panels * PANEL * v));
        par_for(of_panels, |run, (blank, lexical)| {
            let first = run * cut.panels;
            score(frames, first..first + blank.len().div_ceil(PANEL), blank, lexical);
        });
    });
    if cut.whole == c {
        return;
    }
    let rest: Vec<usize> = (cut.whole..c).collect();
    let of_panels = (parts_mut(blank, PANEL * c), parts_mut(lexical, PANEL * c * v));
    par_for((of_panels, parts(frames, PANEL)), |_, ((blank, lexical), frames)| {
        opened.pool.with(room + PANEL * h, |all| {
            let (panel, room) = all.split_at_mut(PANEL * h);
            let (room, tile) = room.split_at_mut(TanhProducts::<F>::room(h));
            let near = opened.panel_of_frames(frames, &mut room[..PANEL * h], panel);
            let mut products = TanhProducts::new(&opened.head_left, room);
            let panel = (frames, near.then_some(&*panel));
            opened.score_frames(panel, &rest, &mut products, tile, |state, tile| {
                let of_frames = blank.chunks_exact_mut(c).zip(lexical.chunks_exact_mut(c * v));
                for (at, (blank, lexical)) in of_frames.enumerate() {
                    blank[state] = tile[at];
                    let scores = tile[PANEL + at..].iter().step_by(PANEL);
                    lexical[state * v..][..v].iter_mut().zip(scores).for_each(|(l, &score)| *l = score);
                }
            });
        });
    });
}

/// Sums of the tasks of backward.
pub struct Parts<F> {
    tasks: Vec<Part<F>>,
    /// Blocks of states.
    blocks: usize,
    /// States of a block.
    block: usize,
}

impl<F> Default for Parts<F> {
    fn default() -> Self {
        Self { tasks: Vec::new(), blocks: 0, block: 0 }
    }
}

/// Sums of one task: a block of states in a run of frames.
#[derive(Default)]
struct Part<F> {
    /// Those of the block, *states x H*.
    contexts: Vec<F>,
    /// *(1 + V) x H*
    head: Vec<F>,
    /// *1 + V*
    bias: Vec<f64>,
    /// Of the frames at hand, *n x H*.
    frames: Vec<F>,
}

impl<F: Real> Parts<F> {
    /// Adds what tasks know of contexts.
    pub fn add_contexts(&self, out: &mut [F]) {
        for (task, part) in self.tasks.iter().enumerate() {
            let h = part.head.len() / part.bias.len();
            let from = task % self.blocks * self.block * h;
            add(&mut out[from..from + part.contexts.len()], &part.contexts);
        }
    }

    /// Adds what tasks know of the head.
    pub fn add_head(&self, head: &mut [F], bias: &mut [f64]) {
        for part in &self.tasks {
            add(head, &part.head);
            bias.iter_mut().zip(&part.bias).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// Takes adjoints of [`weigh`]'s results back.
///
/// ```text
/// par for each run of frames, par for each block of states:
///     for each few frames:  h;  dh = g W;  dW += gᵀ h;  dc += Σ g;  u = dh (1 - h²);  dP += Σ_t u;  dQ = Σ_p u
/// for each frame:  dQ = Σ_blocks dQ
/// ```
pub fn pull<F: Real>(opened: &mut Opened<F>, frames: &[usize], adjoints: Arcs<F>) {
    let (h, c, v) = (opened.hidden(), opened.joint.states, opened.joint.vocabulary);
    opened.gradient();
    let mut gradient = opened.gradient.take().expect("there is room for gradients");
    let Cut { runs, blocks, block, together, .. } = Cut::new(c, frames.len());
    let each = frames.len().div_ceil(runs).max(1);
    (gradient.parts.blocks, gradient.parts.block) = (blocks, block);
    let tasks = &mut gradient.parts.tasks;
    if tasks.is_empty() {
        tasks.extend((0..runs * blocks).map(|task| Part {
            contexts: vec![F::ZERO; (c - task % blocks * block).min(block) * h],
            head: vec![F::ZERO; (1 + v) * h],
            bias: vec![0.0; 1 + v],
            frames: Vec::new(),
        }));
    }
    let packed =
        opened.head_right.take().unwrap_or_else(|| PackedRight::new(View::new(&opened.head, 1 + v, h)));
    let (this, head) = (&*opened, &packed);
    par_for(items_mut(tasks), |task, part| {
        let (run, first) = (task / blocks, task % blocks * block);
        let states = block.min(c - first);
        let mine = (run * each).min(frames.len())..((run + 1) * each).min(frames.len());
        part.frames.clear();
        part.frames.resize(mine.len() * h, F::ZERO);
        let few = together.min(mine.len().max(1));
        this.pool.with(few * states * (2 * h + 1 + v), |room| {
            let (hidden, room) = room.split_at_mut(few * states * h);
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
                        this.hidden_row(frames[at], state, hidden);
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
    });
    for (at, &frame) in frames.iter().enumerate() {
        let (run, place) = (at / each, at % each);
        let out = &mut gradient.frames[frame * h..][..h];
        for part in &gradient.parts.tasks[run * blocks..(run + 1) * blocks] {
            add(out, &part.frames[place * h..][..h]);
        }
    }
    (opened.gradient, opened.head_right) = (Some(gradient), Some(packed));
}
