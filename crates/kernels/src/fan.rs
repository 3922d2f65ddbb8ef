//! Rows of weights that fan out from states to runs of successive states: a frame of a lattice over label contexts.
//!
//! ```text
//! row p of width V meets the states  d = starts[p] .. starts[p] + V        w = rows[p, i] + shifts[p]
//! max     out[d + i] = max(out[d + i], w)
//! sum     sums[d + i] += exp(w - max[d + i])
//! best    w > best[d + i]:  best[d + i] = w, from[d + i] = (first + p) V + i + 1      the first of equals stays
//! back    rows[p, i] = exp(w + next[d + i]), sums[p] = sum of that row
//! stay    w = alpha[q] + blank[places[q]] >= best[q]:  best[q] = w, from[q] = 0                the last arc, which ends where it begins
//! ```
//! Shifts of -inf are rows that nobody reaches: they add nothing, and `back` makes them 0.
use crate::Real;

/// Rows, what is added to each, and where each begins among the states.
#[derive(Debug, Clone, Copy)]
pub struct Fan<'a, F> {
    /// *C x V*
    pub rows: &'a [F],
    /// *C*
    pub shifts: &'a [F],
    /// *C*
    pub starts: &'a [u32],
    /// What the first row is called.
    pub first: usize,
}

impl<'a, F: Real> Fan<'a, F> {
    /// V
    pub(crate) fn width(&self) -> usize {
        width(self.rows, self.starts)
    }

    /// Number, row, shift and start of each row that somebody reaches.
    #[inline(always)]
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, &'a [F], F, usize)> + use<'a, F> {
        let Self { rows, shifts, starts, .. } = *self;
        let rows = rows.chunks_exact(self.width().max(1)).zip(shifts.iter().zip(starts));
        let each = rows.enumerate().map(|(at, (row, (&shift, &start)))| (at, row, shift, start as usize));
        each.filter(|&(_, _, shift, _)| shift != F::NEG_INFINITY)
    }
}

pub(crate) fn width<F>(rows: &[F], starts: &[u32]) -> usize {
    rows.len() / starts.len().max(1)
}

#[inline(always)]
pub(crate) fn max<F: Real>(out: &mut [F], fan: Fan<F>) {
    for (_, row, shift, start) in fan.each() {
        for (out, &w) in out[start..][..row.len()].iter_mut().zip(row) {
            let w = w + shift;
            *out = if w > *out { w } else { *out };
        }
    }
}

#[inline(always)]
pub(crate) fn sum<F: Real>(sums: &mut [F], max: &[F], fan: Fan<F>, exp: impl Fn(F) -> F) {
    for (_, row, shift, start) in fan.each() {
        let states = sums[start..][..row.len()].iter_mut().zip(&max[start..]);
        for ((sum, &max), &w) in states.zip(row) {
            *sum += exp(w + shift - max);
        }
    }
}

#[inline(always)]
pub(crate) fn best<F: Real>(best: &mut [F], from: &mut [u32], fan: Fan<F>) {
    for (at, row, shift, start) in fan.each() {
        let at = fan.first + at;
        let states = best[start..][..row.len()].iter_mut().zip(&mut from[start..]);
        for (i, ((best, from), &w)) in states.zip(row).enumerate() {
            let w = w + shift;
            if w > *best {
                (*best, *from) = (w, (at * row.len() + i + 1) as u32);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn back<F: Real>(
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

/// Returns the best of all.
///
/// # Panics
/// If there is not one of each for all states, or a place beyond `blank`.
#[inline(always)]
pub(crate) fn stay<F: Real>(best: &mut [F], from: &mut [u32], alpha: &[F], blank: &[F], places: &[u32]) -> F {
    let mut top = F::NEG_INFINITY;
    let states = best.iter_mut().zip(from).zip(alpha.iter().zip(places));
    for ((best, from), (&alpha, &place)) in states {
        let w = alpha + blank[place as usize];
        let label = *best > w;
        *best = if label { *best } else { w };
        *from = if label { *from } else { 0 };
        top = if *best > top { *best } else { top };
    }
    top
}
