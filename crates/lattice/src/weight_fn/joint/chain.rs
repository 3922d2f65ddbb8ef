//! Arc weights of a lattice's joint network along a label string.
//!
//! It computes the scores of the blank and of the next label. Site: a frame t and a label position
//! u. P, Q: projected contexts and frames; c_u: context state after u labels; w0, w_y and c0, c_y:
//! rows and biases of the output layer for the blank and label y; B, L: scores of the blank and of
//! the next label; gB, gL: their adjoints; d: gradient.
//!
//! ```text
//! forward     h = tanh(P[c_u] + Q_t)   B[t,u] = h · w0 + c0   L[t,u] = h · w_y + c_y, y = y_{u+1}
//! backward    dh = gB w0 + gL w_y      s = dh (1 - h²)      dQ_t = Σ_u s      dP[c_u] += Σ_t s
//!             dw0 += Σ gB h      dw_y += Σ gL h
//! ```
//! Backward iterates over frames for `dQ` and over positions for the rest, and recomputes `h` for
//! each of them, so that no partial sums are stored.
use kernels::{Real, ScratchReq, add, add_scaled, dot, par_for, parts, parts_mut, range_parts};

use super::projections::{ProjectionGradients, Projections};
use crate::{Arcs, ArcsMut, weight_fn::LabelChain};

/// Frames of a task of forward, and of backward for frames.
const FRAMES_PER_TASK: usize = 8;
/// Label positions of a task of backward for contexts and the head.
const POSITIONS_PER_TASK: usize = 4;

/// Returns the head's row of a label; 0 is the blank.
fn head_row<F: Real>(projections: &Projections<F>, label: u32) -> &[F] {
    let h = projections.hidden;
    &projections.head[label as usize * h..][..h]
}

/// Computes the weights of the arcs from one state; returns the weight of the blank.
pub fn forward_state<F: Real>(
    projections: &Projections<F>,
    frame: usize,
    state: usize,
    lexical: &mut [F],
) -> F {
    let mut hidden = projections.pool.acquire("task", projections.hidden);
    projections.hidden_row(frame, state, &mut hidden);
    for (label, out) in (1..).zip(lexical) {
        *out = dot(&hidden, head_row(projections, label)) + projections.bias[label as usize];
    }
    dot(&hidden, head_row(projections, 0)) + projections.bias[0]
}

/// Computes both scores of all sites.
pub fn forward<F: Real>(
    projections: &Projections<F>,
    first_frame: usize,
    chain: LabelChain,
    arcs: ArcsMut<F>,
) {
    let positions = chain.states.len();
    let frames = (
        parts_mut(arcs.blank, FRAMES_PER_TASK * positions),
        parts_mut(arcs.lexical, FRAMES_PER_TASK * positions),
    );
    par_for(frames, |task, (blank, lexical)| {
        let mut hidden = projections.pool.acquire("task", projections.hidden);
        let frames = blank.chunks_exact_mut(positions).zip(lexical.chunks_exact_mut(positions));
        for (frame, (blank, lexical)) in (first_frame + task * FRAMES_PER_TASK..).zip(frames) {
            for (u, &state) in chain.states.iter().enumerate() {
                projections.hidden_row(frame, state, &mut hidden);
                blank[u] = dot(&hidden, head_row(projections, 0)) + projections.bias[0];
                lexical[u] = chain.labels.get(u).map_or(F::NEG_INFINITY, |&label| {
                    dot(&hidden, head_row(projections, label)) + projections.bias[label as usize]
                });
            }
        }
    });
}

/// Computes `s = (gB w0 + gL w_y) (1 - h²)`, the gradient before tanh.
fn site_slope<F: Real>(
    projections: &Projections<F>,
    hidden: &[F],
    (blank, lexical): (F, F),
    label: Option<u32>,
    out: &mut [F],
) {
    out.iter_mut().zip(head_row(projections, 0)).for_each(|(out, &w)| *out = blank * w);
    if let Some(label) = label {
        add_scaled(out, lexical, head_row(projections, label));
    }
    F::tanh_slope(out, hidden);
}

/// Memory of [`backward`] for a chain of `positions` positions.
pub fn scratch<F: Real>(hidden: usize, positions: usize) -> ScratchReq {
    ScratchReq::new::<F>(3 * positions * hidden)
}

/// Propagates adjoints of both scores to projections and head.
pub fn backward<F: Real>(
    projections: &Projections<F>,
    gradients: &mut ProjectionGradients<F>,
    first_frame: usize,
    chain: LabelChain,
    adjoints: Arcs<F>,
) {
    let (h, positions) = (projections.hidden, chain.states.len());
    let frames = adjoints.blank.len() / positions;
    let adjoint =
        |t: usize, u: usize| (adjoints.blank[t * positions + u], adjoints.lexical[t * positions + u]);
    let zero = (F::ZERO, F::ZERO);

    // Gradient of the frames.
    let frame_rows = &mut gradients.frames[first_frame * h..][..frames * h];
    par_for(
        (parts_mut(frame_rows, FRAMES_PER_TASK * h), range_parts(frames, FRAMES_PER_TASK)),
        |_, (out, task_frames)| {
            let mut rows = projections.pool.acquire("task", 2 * h);
            let (hidden, slope) = rows.split_at_mut(h);
            for (t, out) in task_frames.zip(out.chunks_exact_mut(h)) {
                for (u, &state) in chain.states.iter().enumerate().filter(|&(u, _)| adjoint(t, u) != zero) {
                    projections.hidden_row(first_frame + t, state, hidden);
                    site_slope(projections, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                    add(out, slope);
                }
            }
        },
    );

    // Three gradient rows of each position: of its context, of the blank and of its label.
    let mut rows = vec![F::ZERO; positions * 3 * h];
    par_for(
        (parts_mut(&mut rows, POSITIONS_PER_TASK * 3 * h), parts(chain.states, POSITIONS_PER_TASK)),
        |task, (out, states)| {
            let mut rows = projections.pool.acquire("task", 2 * h);
            let (hidden, slope) = rows.split_at_mut(h);
            for (u, (&state, out)) in
                (task * POSITIONS_PER_TASK..).zip(states.iter().zip(out.chunks_exact_mut(3 * h)))
            {
                let (context, head_gradients) = out.split_at_mut(h);
                let (blank_row, label_row) = head_gradients.split_at_mut(h);
                for t in (0..frames).filter(|&t| adjoint(t, u) != zero) {
                    projections.hidden_row(first_frame + t, state, hidden);
                    site_slope(projections, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                    add(context, slope);
                    add_scaled(blank_row, adjoint(t, u).0, hidden);
                    add_scaled(label_row, adjoint(t, u).1, hidden);
                }
            }
        },
    );
    // Sums over positions, in order.
    for (u, (&state, rows)) in chain.states.iter().zip(rows.chunks_exact(3 * h)).enumerate() {
        add(&mut gradients.contexts[state * h..][..h], &rows[..h]);
        add(&mut gradients.head[..h], &rows[h..2 * h]);
        let sum = |values: &[F]| (0..frames).map(|t| values[t * positions + u].to_f64()).sum::<f64>();
        gradients.bias[0] += sum(adjoints.blank);
        if let Some(&label) = chain.labels.get(u) {
            add(&mut gradients.head[label as usize * h..][..h], &rows[2 * h..]);
            gradients.bias[label as usize] += sum(adjoints.lexical);
        }
    }
}
