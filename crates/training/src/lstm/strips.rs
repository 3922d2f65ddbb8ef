//! The recurrent steps of one large group of utterances, a task a strip of units: forward, and backward beside it.
//!
//! ```text
//! frame t, a task a strip of 8 units, for all utterances that are longer than t:
//!   aᵀ[t] += W_hh hᵀ[t-1]      then the cell; all strips' hᵀ[t] is what the next frame begins with
//! backward, t from the last frame down:
//!   dhᵀ[t] += W_hhᵀ daᵀ[t+1]   then the cell; all strips' daᵀ[t] is what the frame before begins with
//! ```
//! Where a layer is wide and utterances are few, this gives every core its own part of the weight, which stays in its cache.
//! Rows of a frame are kept as units x utterances, one frame after another, so that a strip's are together. Every sum has the
//! order that it has in `steps.rs`: the bits are the same.
use kernels::{
    Accumulate, Lines, PackedLeft, Parts, Real, View, ViewMut, items_mut, par_for, parts, parts_mut,
    product_of_part, sigmoid, tanh, transpose,
};

use super::cell;
use super::layout::{Group, ROWS, UNITS};
use super::steps::Rows;

/// Utterances that the states of a unit have room for are a multiple of it: whole cache lines.
const LANES: usize = 16;
/// Units of a task that only moves.
const PIECE: usize = 16 * UNITS;

/// From the input's part, *rows x 4H*, and W_hh *4H x H*. States are *rows x H*, all else is what [`backward`] takes.
pub(super) fn forward<F: Real>(group: &Group, h: usize, recurrent: View<F>, input: &[F], rows: Rows<F>) {
    let Rows { gates, cell, tanh_cell, before, state } = rows;
    let weight = PackedLeft::new(recurrent, UNITS);
    let lanes = group.size().next_multiple_of(LANES);
    let (mut last, mut next) = (Lines::default(), Lines::default());
    for lines in [&mut last, &mut next] {
        lines.room(h * lanes, F::ZERO);
    }
    for t in 0..group.steps() {
        let (at, earlier) = (group.at(t), group.before(t));
        let (n, piece) = (at.len(), at.len() * UNITS);
        let frame = at.start * h..at.end * h;
        let (old, now) = cell.split_at_mut(frame.start);
        let old = old.get(earlier.start * h..).filter(|old| !old.is_empty());
        let last_view = View::with_stride(&last, h, n, lanes);
        let strips = (
            quarters(&mut gates[4 * frame.start..4 * frame.end], piece),
            parts_mut(&mut now[..n * h], piece),
            parts_mut(&mut tanh_cell[frame.clone()], piece),
            parts_mut(&mut before[frame], piece),
            parts_mut(next.room(h * lanes, F::ZERO), UNITS * lanes),
        );
        par_for(strips, |strip, ((i, f, g, o), cell, tanh_cell, state, next)| {
            for (gate, a) in [&mut *i, f, g, o].into_iter().enumerate() {
                let input = &input[4 * at.start * h + gate * h + strip * UNITS..];
                transpose(a, View::with_stride(input, n, UNITS, 4 * h));
                if t > 0 {
                    let part = (&weight, gate * h / UNITS + strip);
                    product_of_part(ViewMut::new(a, UNITS, n), part, last_view, Accumulate::Add);
                }
            }
            [&mut *i, f, o].into_iter().for_each(|gate| sigmoid(gate));
            tanh(g);
            for (k, cell) in cell.chunks_exact_mut(n).enumerate() {
                let old = old.map(|old| &old[(strip * UNITS + k) * earlier.len()..][..n]);
                cell::forward([&*i, f, g].map(|gate| &gate[k * n..][..n]), old, cell);
            }
            tanh_cell.copy_from_slice(cell);
            tanh(tanh_cell);
            cell::output(o, tanh_cell, state);
            copy_rows(state, n, next, lanes);
        });
        std::mem::swap(&mut last, &mut next);
    }
    to_rows(group, h, before, state);
    par_for(items_mut(&mut rows_of_frames(group, h, before)), |_, (t, first, before)| {
        match t.checked_sub(1) {
            Some(t) => before.copy_from_slice(&state[(group.at(t).start + *first) * h..][..before.len()]),
            None => before.fill(F::ZERO),
        }
    });
}

/// Backward of [`forward`], given what comes from above, *rows x H*; returns da, *rows x 4H*.
pub(super) fn backward<F: Real>(
    group: &Group,
    h: usize,
    recurrent: View<F>,
    gates: &mut [F],
    [cell, tanh_cell]: [&[F]; 2],
    above: &[F],
) -> Vec<F> {
    let weight = PackedLeft::new(recurrent.transposed(), UNITS);
    let mut dh = kernels::filled(group.rows() * h, F::ZERO);
    to_units(group, h, above, &mut dh);
    let lanes = group.size().next_multiple_of(LANES);
    let (mut last, mut next) = (Lines::default(), Lines::default());
    for lines in [&mut last, &mut next] {
        lines.room(4 * h * lanes, F::ZERO);
    }
    let mut carry = vec![F::ZERO; h * lanes]; // dc of the frame after
    for t in (0..group.steps()).rev() {
        let (at, earlier, later) = (group.at(t), group.before(t), group.after(t));
        let (n, piece) = (at.len(), at.len() * UNITS);
        let frame = at.start * h..at.end * h;
        let old = (t > 0).then(|| &cell[earlier.start * h..earlier.end * h]);
        let last_view = View::with_stride(&last, 4 * h, later.len(), lanes);
        let strips = (
            quarters(&mut gates[4 * frame.start..4 * frame.end], piece),
            parts_mut(&mut dh[frame.clone()], piece),
            parts(&tanh_cell[frame], piece),
            parts_mut(&mut carry, UNITS * lanes),
            quarters(next.room(4 * h * lanes, F::ZERO), UNITS * lanes),
        );
        par_for(strips, |strip, ((i, f, g, o), dh, tanh_cell, carry, next)| {
            if !later.is_empty() {
                let out = ViewMut::with_stride(dh, UNITS, later.len(), n);
                product_of_part(out, (&weight, strip), last_view, Accumulate::Add);
            }
            for (k, carry) in carry.chunks_exact_mut(lanes).enumerate() {
                let unit = k * n..(k + 1) * n;
                let old = old.map(|old| &old[(strip * UNITS + k) * earlier.len()..][..n]);
                let gates = [&mut *i, f, g, o].map(|gate| &mut gate[unit.clone()]);
                cell::backward(gates, (&dh[unit.clone()], &tanh_cell[unit]), old, carry);
            }
            let next: [&mut [F]; 4] = next.into();
            [i, f, g, o].into_iter().zip(next).for_each(|(da, next)| copy_rows(da, n, next, lanes));
        });
        std::mem::swap(&mut last, &mut next);
    }
    let mut da = kernels::filled(gates.len(), F::ZERO);
    to_rows(group, 4 * h, gates, &mut da);
    da
}

/// The four gates of strips, `piece` elements each.
fn quarters<F: Real>(
    gates: &mut [F],
    piece: usize,
) -> impl Parts<Part = (&mut [F], &mut [F], &mut [F], &mut [F])> {
    let (input_and_forget, rest) = gates.split_at_mut(gates.len() / 2);
    let (i, f) = input_and_forget.split_at_mut(rest.len() / 2);
    let (g, o) = rest.split_at_mut(rest.len() / 2);
    (parts_mut(i, piece), parts_mut(f, piece), parts_mut(g, piece), parts_mut(o, piece))
}

/// Copies rows of n elements to where they are `stride` apart.
fn copy_rows<F: Real>(from: &[F], n: usize, to: &mut [F], stride: usize) {
    to.chunks_exact_mut(stride)
        .zip(from.chunks_exact(n))
        .for_each(|(to, from)| to[..n].copy_from_slice(from));
}

/// Turns the frames of packed rows, *rows x width*, into *width x utterances* each.
fn to_units<F: Real>(group: &Group, width: usize, rows: &[F], units: &mut [F]) {
    par_for(items_mut(&mut units_of_frames(group, width, units)), |_, (t, first, out)| {
        let (from, n) = (&rows[group.at(*t).start * width + *first..], group.at(*t).len());
        transpose(out, View::with_stride(from, n, out.len() / n, width));
    });
}

/// The reverse of [`to_units`].
fn to_rows<F: Real>(group: &Group, width: usize, units: &[F], rows: &mut [F]) {
    par_for(items_mut(&mut rows_of_frames(group, width, rows)), |_, (t, first, out)| {
        let (from, n) = (&units[group.at(*t).start * width + *first..], group.at(*t).len());
        transpose(out, View::with_stride(from, width, out.len() / width, n));
    });
}

/// Part of a frame: the frame, the first row or unit, and the elements.
pub(super) type Part<'a, F> = (usize, usize, &'a mut [F]);

/// Tasks of some units of a frame each, *units x utterances*.
pub(super) fn units_of_frames<'a, F>(group: &Group, width: usize, units: &'a mut [F]) -> Vec<Part<'a, F>> {
    let frames = group.cut(units, width).into_iter().enumerate();
    let parts = |(t, frame): (usize, &'a mut [F])| {
        let parts = frame.chunks_mut(PIECE * group.at(t).len()).enumerate();
        parts.map(move |(part, units)| (t, part * PIECE, units))
    };
    frames.flat_map(parts).collect()
}

/// Tasks of some rows of a frame each.
pub(super) fn rows_of_frames<'a, F>(group: &Group, width: usize, rows: &'a mut [F]) -> Vec<Part<'a, F>> {
    let frames = group.cut(rows, width).into_iter().enumerate();
    let parts = |(t, frame): (usize, &'a mut [F])| {
        let parts = frame.chunks_mut(ROWS * width).enumerate();
        parts.map(move |(part, rows)| (t, part * ROWS, rows))
    };
    frames.flat_map(parts).collect()
}
