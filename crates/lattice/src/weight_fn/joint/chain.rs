//! Sites along one string of labels: two scores each.
//!
//! ```text
//! forward     h = tanh(P[c_u] + Q_t)      B[t,u] = h · w0 + c0      L[t,u] = h · w_y + c_y,  y = y_{u+1}
//! backward    dh = gB w0 + gL w_y      u = dh (1 - h²)      dQ_t = Σ_u u      dP[c_u] += Σ_t u
//!             dw0 += Σ gB h      dw_y += Σ gL h
//! ```
//! Backward goes over frames for `dQ` and over positions for the rest, and makes `h` for each: no sums of parts.
use kernels::{Real, add, add_scaled, dot, par_for, parts, parts_mut, runs};

use super::opened::Opened;
use crate::{Arcs, ArcsMut, weight_fn::Chain};

/// Frames of a task.
const FRAMES: usize = 8;
/// Positions of a task.
const POSITIONS: usize = 4;

/// The head's row of a label; 0 is the blank.
fn head<'a, F: Real>(opened: &'a Opened<F>, label: u32) -> &'a [F] {
    let h = opened.hidden();
    &opened.head[label as usize * h..][..h]
}

/// Weights of the arcs from one state.
pub fn weigh_state<F: Real>(opened: &Opened<F>, frame: usize, state: usize, lexical: &mut [F]) -> F {
    opened.pool.with(opened.hidden(), |hidden| {
        opened.hidden_row(frame, state, hidden);
        for (label, out) in (1..).zip(lexical) {
            *out = dot(hidden, head(opened, label)) + opened.bias[label as usize];
        }
        dot(hidden, head(opened, 0)) + opened.bias[0]
    })
}

/// Both scores of all sites.
pub fn weigh<F: Real>(opened: &Opened<F>, first: usize, chain: Chain, arcs: ArcsMut<F>) {
    let positions = chain.states.len();
    let frames = (parts_mut(arcs.blank, FRAMES * positions), parts_mut(arcs.lexical, FRAMES * positions));
    par_for(frames, |at, (blank, lexical)| {
        opened.pool.with(opened.hidden(), |hidden| {
            let frames = blank.chunks_exact_mut(positions).zip(lexical.chunks_exact_mut(positions));
            for (frame, (blank, lexical)) in (first + at * FRAMES..).zip(frames) {
                for (u, &state) in chain.states.iter().enumerate() {
                    opened.hidden_row(frame, state, hidden);
                    blank[u] = dot(hidden, head(opened, 0)) + opened.bias[0];
                    lexical[u] = chain.labels.get(u).map_or(F::NEG_INFINITY, |&label| {
                        dot(hidden, head(opened, label)) + opened.bias[label as usize]
                    });
                }
            }
        });
    });
}

/// `u = (gB w0 + gL w_y) (1 - h²)`
fn site<F: Real>(
    opened: &Opened<F>,
    hidden: &[F],
    (blank, lexical): (F, F),
    label: Option<u32>,
    out: &mut [F],
) {
    out.iter_mut().zip(head(opened, 0)).for_each(|(out, &w)| *out = blank * w);
    if let Some(label) = label {
        add_scaled(out, lexical, head(opened, label));
    }
    F::tanh_slope(out, hidden);
}

/// Takes adjoints of both scores back.
pub fn pull<F: Real>(opened: &mut Opened<F>, first: usize, chain: Chain, adjoints: Arcs<F>) {
    opened.gradient();
    let mut gradient = opened.gradient.take().expect("there is room for gradients");
    let (h, positions) = (opened.hidden(), chain.states.len());
    let frames = adjoints.blank.len() / positions;
    let adjoint =
        |t: usize, u: usize| (adjoints.blank[t * positions + u], adjoints.lexical[t * positions + u]);
    let (this, none) = (&*opened, (F::ZERO, F::ZERO));

    let of_frames = &mut gradient.frames[first * h..][..frames * h];
    par_for((parts_mut(of_frames, FRAMES * h), runs(frames, FRAMES)), |_, (out, run)| {
        this.pool.with(2 * h, |room| {
            let (hidden, slope) = room.split_at_mut(h);
            for (t, out) in run.zip(out.chunks_exact_mut(h)) {
                for (u, &state) in chain.states.iter().enumerate().filter(|&(u, _)| adjoint(t, u) != none) {
                    this.hidden_row(first + t, state, hidden);
                    site(this, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                    add(out, slope);
                }
            }
        });
    });

    // Of each position: its context, the blank and its label.
    let mut rows = vec![F::ZERO; positions * 3 * h];
    par_for(
        (parts_mut(&mut rows, POSITIONS * 3 * h), parts(chain.states, POSITIONS)),
        |at, (out, states)| {
            this.pool.with(2 * h, |room| {
                let (hidden, slope) = room.split_at_mut(h);
                for (u, (&state, out)) in
                    (at * POSITIONS..).zip(states.iter().zip(out.chunks_exact_mut(3 * h)))
                {
                    let (context, heads) = out.split_at_mut(h);
                    let (of_blank, of_label) = heads.split_at_mut(h);
                    for t in (0..frames).filter(|&t| adjoint(t, u) != none) {
                        this.hidden_row(first + t, state, hidden);
                        site(this, hidden, adjoint(t, u), chain.labels.get(u).copied(), slope);
                        add(context, slope);
                        add_scaled(of_blank, adjoint(t, u).0, hidden);
                        add_scaled(of_label, adjoint(t, u).1, hidden);
                    }
                }
            });
        },
    );
    for (u, (&state, rows)) in chain.states.iter().zip(rows.chunks_exact(3 * h)).enumerate() {
        add(&mut gradient.contexts[state * h..][..h], &rows[..h]);
        add(&mut gradient.head[..h], &rows[h..2 * h]);
        let sum = |values: &[F]| (0..frames).map(|t| values[t * positions + u].to_f64()).sum::<f64>();
        gradient.bias[0] += sum(adjoints.blank);
        if let Some(&label) = chain.labels.get(u) {
            add(&mut gradient.head[label as usize * h..][..h], &rows[2 * h..]);
            gradient.bias[label as usize] += sum(adjoints.lexical);
        }
    }
    opened.gradient = Some(gradient);
}
