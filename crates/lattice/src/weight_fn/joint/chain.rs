//! Arc weights of a lattice's joint network along a label string (chain).
//!
//! The numerator of the loss needs two scores at each site, a frame t and a label position u: B of
//! the blank (`blank`), and L of the chain's label after position u (`label_arcs`). P, Q: projected
//! context states and frames; c_u: context state after u labels; w0, w_y and c0, c_y: rows and
//! biases of the head for the blank and label y; gB, gL: adjoints of B and L; d: gradient; H: width
//! of h; U: labels of the chain.
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
/// Label positions of a task of backward for states and the head.
const POSITIONS_PER_TASK: usize = 4;
/// Gradient rows of a label position: of its state, of the blank and of its label.
const ROWS_PER_POSITION: usize = 3;

/// Class of the blank; labels have the classes 1 to V.
const BLANK: u32 = 0;

/// Returns the head's row of a class.
fn head_row<F: Real>(projections: &Projections<F>, class: u32) -> &[F] {
    let h = projections.hidden;
    &projections.head[class as usize * h..][..h]
}

/// Returns the score of a class for a hidden row.
fn score<F: Real>(projections: &Projections<F>, hidden: &[F], class: u32) -> F {
    dot(hidden, head_row(projections, class)) + projections.bias[class as usize]
}

/// Computes the scores of all V labels from one state; returns that of the blank.
pub(crate) fn forward_state<F: Real>(
    projections: &Projections<F>,
    frame: usize,
    state: usize,
    label_arcs: &mut [F],
) -> F {
    let mut hidden = projections.pool.acquire("task", projections.hidden);
    projections.hidden_row(frame, state, &mut hidden);
    for (label, out) in (1..).zip(label_arcs) {
        *out = score(projections, &hidden, label);
    }
    score(projections, &hidden, BLANK)
}

/// Computes B and L of all sites.
pub(crate) fn forward<F: Real>(
    projections: &Projections<F>,
    first_frame: usize,
    chain: LabelChain,
    arcs: ArcsMut<F>,
) {
    let positions = chain.states.len();
    let frames = (
        parts_mut(arcs.blank, FRAMES_PER_TASK * positions),
        parts_mut(arcs.labels, FRAMES_PER_TASK * positions),
    );
    par_for(frames, |task, (blank, label_arcs)| {
        let mut hidden = projections.pool.acquire("task", projections.hidden);
        let frames = blank.chunks_exact_mut(positions).zip(label_arcs.chunks_exact_mut(positions));
        for (frame, (blank, label_arcs)) in (first_frame + task * FRAMES_PER_TASK..).zip(frames) {
            for (u, &state) in chain.states.iter().enumerate() {
                projections.hidden_row(frame, state, &mut hidden);
                blank[u] = score(projections, &hidden, BLANK);
                label_arcs[u] =
                    chain.labels.get(u).map_or(F::NEG_INFINITY, |&label| score(projections, &hidden, label));
            }
        }
    });
}

/// gB and gL of a site.
#[derive(Clone, Copy)]
struct SiteAdjoint<F> {
    blank: F,
    label: F,
}

/// Computes `s = (gB w0 + gL w_y) (1 - h²)`, the gradient before tanh.
///
/// `label` is y, none at the last position.
fn site_slope<F: Real>(
    projections: &Projections<F>,
    hidden: &[F],
    adjoint: SiteAdjoint<F>,
    label: Option<u32>,
    out: &mut [F],
) {
    out.iter_mut().zip(head_row(projections, BLANK)).for_each(|(out, &w)| *out = adjoint.blank * w);
    if let Some(label) = label {
        add_scaled(out, adjoint.label, head_row(projections, label));
    }
    F::tanh_slope(out, hidden);
}

/// Memory of [`backward`] for a chain of `positions` positions.
pub(crate) fn scratch<F: Real>(hidden: usize, positions: usize) -> ScratchReq {
    ScratchReq::new::<F>(ROWS_PER_POSITION * positions * hidden)
}

/// Propagates adjoints of both scores to projections and head.
pub(crate) fn backward<F: Real>(
    projections: &Projections<F>,
    gradients: &mut ProjectionGradients<F>,
    first_frame: usize,
    chain: LabelChain,
    adjoints: Arcs<F>,
) {
    let (h, positions) = (projections.hidden, chain.states.len());
    let frames = adjoints.blank.len() / positions;
    let adjoint = |t: usize, u: usize| SiteAdjoint {
        blank: adjoints.blank[t * positions + u],
        label: adjoints.labels[t * positions + u],
    };
    let has_adjoint = |t: usize, u: usize| (adjoint(t, u).blank, adjoint(t, u).label) != (F::ZERO, F::ZERO);

    // dQ: gradient of the frames, in parallel over frames.
    let frame_rows = &mut gradients.frame_addends[first_frame * h..][..frames * h];
    par_for(
        (parts_mut(frame_rows, FRAMES_PER_TASK * h), range_parts(frames, FRAMES_PER_TASK)),
        |_, (out, task_frames)| {
            let mut buffer = projections.pool.acquire("task", 2 * h);
            let (hidden, slope) = buffer.split_at_mut(h);
            for (t, out) in task_frames.zip(out.chunks_exact_mut(h)) {
                for (u, &state) in chain.states.iter().enumerate().filter(|&(u, _)| has_adjoint(t, u)) {
                    projections.hidden_row(first_frame + t, state, hidden);
                    site_slope(projections, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                    add(out, slope);
                }
            }
        },
    );

    // dP, dw0 and dw_y of each position, in parallel over positions.
    let mut position_gradients = vec![F::ZERO; positions * ROWS_PER_POSITION * h];
    par_for(
        (
            parts_mut(&mut position_gradients, POSITIONS_PER_TASK * ROWS_PER_POSITION * h),
            parts(chain.states, POSITIONS_PER_TASK),
        ),
        |task, (task_gradients, states)| {
            let mut buffer = projections.pool.acquire("task", 2 * h);
            let (hidden, slope) = buffer.split_at_mut(h);
            let gradients = task_gradients.chunks_exact_mut(ROWS_PER_POSITION * h);
            for (u, (&state, rows)) in (task * POSITIONS_PER_TASK..).zip(states.iter().zip(gradients)) {
                let (context_row, head_rows) = rows.split_at_mut(h);
                let (blank_row, label_row) = head_rows.split_at_mut(h);
                for t in (0..frames).filter(|&t| has_adjoint(t, u)) {
                    projections.hidden_row(first_frame + t, state, hidden);
                    site_slope(projections, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                    add(context_row, slope);
                    add_scaled(blank_row, adjoint(t, u).blank, hidden);
                    add_scaled(label_row, adjoint(t, u).label, hidden);
                }
            }
        },
    );
    // Sums over positions, in order.
    let rows_by_position = position_gradients.chunks_exact(ROWS_PER_POSITION * h);
    for (u, (&state, rows)) in chain.states.iter().zip(rows_by_position).enumerate() {
        add(&mut gradients.state_addends[state * h..][..h], &rows[..h]);
        add(&mut gradients.head[..h], &rows[h..2 * h]);
        let sum = |values: &[F]| (0..frames).map(|t| values[t * positions + u].to_f64()).sum::<f64>();
        gradients.bias[0] += sum(adjoints.blank);
        if let Some(&label) = chain.labels.get(u) {
            add(&mut gradients.head[label as usize * h..][..h], &rows[2 * h..]);
            gradients.bias[label as usize] += sum(adjoints.labels);
        }
    }
}
