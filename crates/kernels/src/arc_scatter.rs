//! Max, sum of exponentials and argmax over a recognition lattice's label arcs.
//!
//! In one frame, a label arc leads from state p (a label context) to one of V consecutive states:
//!
//! ```text
//! row p of width V leads to states  d = starts[p] .. starts[p] + V      w = rows[p, i] + shifts[p]
//! scatter_max       out[d + i] = max(out[d + i], w)
//! scatter_exp_sum   sums[d + i] += exp(w - max[d + i])
//! scatter_argmax    if w > best[d + i]:  best[d + i] = w, from[d + i] = (first_row + p) V + i + 1
//! gather_exp        rows[p, i] = exp(w + next[d + i]), sums[p] = Σ_i rows[p, i]
//! merge_self_loops  w = alpha[q] + blank[positions[q]]; if w >= best[q]: best[q] = w, from[q] = 0
//! ```
//! i: label; w: arc weight; q: state; `from`: id of the best arc into a state (0: the blank's
//! self-loop); `positions[q]`: index of the state's blank weight. The first of equal arcs wins,
//! except for self-loops. A shift of -inf marks an unreachable state: its row is skipped, and
//! `gather_exp` sets it to 0.
use crate::Real;

/// Rows of arc weights, with shifts and first destination states.
#[derive(Debug, Clone, Copy)]
pub struct ArcScatter<'a, F> {
    /// Weights, *C x V*, a row for each of C states.
    pub rows: &'a [F],
    /// Added to the weights of a row, *C*; -inf for unreachable states.
    pub shifts: &'a [F],
    /// First destination state of each row, *C*.
    pub starts: &'a [u32],
    /// Index of the first row.
    pub first_row: usize,
}

impl<'a, F: Real> ArcScatter<'a, F> {
    /// Returns the row width V.
    pub(crate) fn width(&self) -> usize {
        width(self.rows, self.starts)
    }

    /// Iterates over index, row, shift and start of the reachable rows.
    #[inline(always)]
    pub(crate) fn reachable(&self) -> impl Iterator<Item = (usize, &'a [F], F, usize)> + use<'a, F> {
        let Self { rows, shifts, starts, .. } = *self;
        let rows = rows.chunks_exact(self.width().max(1)).zip(shifts.iter().zip(starts));
        let rows =
            rows.enumerate().map(|(index, (row, (&shift, &start)))| (index, row, shift, start as usize));
        rows.filter(|&(_, _, shift, _)| shift != F::NEG_INFINITY)
    }
}

/// Returns the row width V.
pub(crate) fn width<F>(rows: &[F], starts: &[u32]) -> usize {
    rows.len() / starts.len().max(1)
}

/// Updates the maximum of each destination state.
#[inline(always)]
pub(crate) fn scatter_max<F: Real>(out: &mut [F], arcs: ArcScatter<F>) {
    for (_, row, shift, start) in arcs.reachable() {
        for (out, &w) in out[start..][..row.len()].iter_mut().zip(row) {
            let w = w + shift;
            *out = if w > *out { w } else { *out };
        }
    }
}

/// Adds exponentials to the sum of each destination state.
#[inline(always)]
pub(crate) fn scatter_exp_sum<F: Real>(sums: &mut [F], max: &[F], arcs: ArcScatter<F>, exp: impl Fn(F) -> F) {
    for (_, row, shift, start) in arcs.reachable() {
        let states = sums[start..][..row.len()].iter_mut().zip(&max[start..]);
        for ((sum, &max), &w) in states.zip(row) {
            *sum += exp(w + shift - max);
        }
    }
}

/// Updates the best arc into each destination state.
#[inline(always)]
pub(crate) fn scatter_argmax<F: Real>(best: &mut [F], from: &mut [u32], arcs: ArcScatter<F>) {
    for (state, row, shift, start) in arcs.reachable() {
        let row_index = arcs.first_row + state;
        let states = best[start..][..row.len()].iter_mut().zip(&mut from[start..]);
        for (i, ((best, from), &w)) in states.zip(row).enumerate() {
            let w = w + shift;
            if w > *best {
                (*best, *from) = (w, (row_index * row.len() + i + 1) as u32);
            }
        }
    }
}

/// Overwrites arc weights by exponentials, and sums them by state.
#[inline(always)]
pub(crate) fn gather_exp<F: Real>(
    rows: &mut [F],
    shifts: &[F],
    starts: &[u32],
    next: &[F],
    sums: &mut [F],
    exp: impl Fn(F) -> F,
) {
    let width = width(rows, starts).max(1);
    let states = rows.chunks_exact_mut(width).zip(sums).zip(shifts.iter().zip(starts));
    for ((row, sum), (&shift, &start)) in states {
        *sum = F::ZERO;
        if shift == F::NEG_INFINITY {
            row.fill(F::ZERO);
            continue;
        }
        for (w, &next) in row.iter_mut().zip(&next[start as usize..][..width]) {
            *w = exp(*w + next + shift);
            *sum += *w;
        }
    }
}

/// Merges the self-loop of each state; returns the largest result.
///
/// # Panics
/// If a slice is shorter than the states, or a position is beyond `blank`.
#[inline(always)]
pub(crate) fn merge_self_loops<F: Real>(
    best: &mut [F],
    from: &mut [u32],
    alpha: &[F],
    blank: &[F],
    positions: &[u32],
) -> F {
    let mut top = F::NEG_INFINITY;
    let states = best.iter_mut().zip(from).zip(alpha.iter().zip(positions));
    for ((best, from), (&alpha, &position)) in states {
        let w = alpha + blank[position as usize];
        let keeps_label = *best > w;
        *best = if keeps_label { *best } else { w };
        *from = if keeps_label { *from } else { 0 };
        top = if *best > top { *best } else { top };
    }
    top
}
