//! The loops around the micro-kernel (BLIS): blocks that fit the caches, packed where that pays.
use std::ops::Range;

use crate::{
    Accumulate, Lines, PackedRight, Real, View, ViewMut,
    features::Machine,
    packed::{Operand, Place, Right, Source},
};

/// Steps of a block of the sum (KC).
const STEPS: usize = 256;
/// Bytes of a block of the right side (KC x NC): half of a second-level cache of 1 MiB.
const BLOCK_BYTES: usize = 512 << 10;
/// Groups of rows, of two micro-panels each, up to which a right side is read where it is.
const THIN: usize = 1;

/// Bytes that a thread keeps for packing after its first product in this type, at most.
///
/// They are made by the first product that wants them, as large as it wants them, and stay until the thread ends.
pub fn packing_bytes<F: Real>() -> usize {
    let [mr, _] = F::sides(Machine::best());
    (2 * mr * STEPS + block_columns::<F>() * STEPS) * size_of::<F>() + 64
}

/// Columns of a block of the right side (NC).
fn block_columns<F>() -> usize {
    BLOCK_BYTES / STEPS / size_of::<F>()
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(super) enum Columns<'a, F> {
    View(View<'a, F>),
    Packed(&'a PackedRight<F>),
}

/// `out (=|+=) alpha · a · b` where no side is empty.
///
/// ```text
/// for columns J of NC:
///   for steps P of KC:
///     pack b[P, J]                          unless it is packed, or few rows read it where it is
///     for rows I of 2 MR:
///       pack alpha · a[I, P]
///       for columns j of NR in J:
///         for rows i of MR in I:  micro-kernel: out[i, j] (=|+=) a[i, P] · b[P, j]
/// ```
/// MR is made smaller where rows would be left over, and several NR are taken at once where there are few rows. Each
/// element is summed in the same order whatever rows and columns are computed with it.
pub(super) fn product<F: Real>(
    machine: Machine,
    mut out: ViewMut<F>,
    a: View<F>,
    b: Columns<F>,
    alpha: F,
    how: Accumulate,
) {
    let [most, nr] = F::sides(machine);
    let ((m, k), n) = (a.shape(), out.cols);
    let mr = m.div_ceil(m.div_ceil(most));
    let steps = k.div_ceil(k.div_ceil(STEPS)).next_multiple_of(16).min(k);
    let (thin, block) = (m <= 2 * most * THIN, block_columns::<F>());
    let loops = Loops { machine, mr, nr, steps, a, alpha, how };
    F::with_scratch(|scratch| {
        let mut run = |columns, size, b| loops.run(&mut out, columns, size, b, scratch);
        match b {
            Columns::View(b) if thin && !b.transposed => {
                let whole = n / nr * nr;
                run(0..whole, n, Side::InPlace(b));
                run(whole..n, n, Side::Packing(b));
            }
            Columns::View(b) => run(0..n, block, Side::Packing(b)),
            Columns::Packed(b) => run(0..n, if thin { n } else { block }, Side::Packed(b)),
        }
    });
}

/// Where the loops take the right side from.
#[derive(Clone, Copy)]
enum Side<'a, F> {
    /// Whole micro-panels, side by side in rows.
    InPlace(View<'a, F>),
    /// Packed block by block.
    Packing(View<'a, F>),
    Packed(&'a PackedRight<F>),
}

/// What stays the same in all loops of a product.
struct Loops<'a, F> {
    machine: Machine,
    mr: usize,
    nr: usize,
    steps: usize,
    a: View<'a, F>,
    alpha: F,
    how: Accumulate,
}

impl<F: Real> Loops<'_, F> {
    /// The loops over J and P.
    fn run(
        &self,
        out: &mut ViewMut<F>,
        columns: Range<usize>,
        size: usize,
        b: Side<F>,
        scratch: &mut Lines<F>,
    ) {
        let Self { machine, mr, nr, steps, .. } = *self;
        let k = self.a.shape().1;
        let room = match b {
            Side::Packing(_) => size.min(columns.len()).next_multiple_of(nr),
            Side::InPlace(_) | Side::Packed(_) => 0,
        };
        let (left, packed) = scratch.room((2 * mr + room) * steps, F::ZERO).split_at_mut(2 * mr * steps);
        for first in columns.clone().step_by(size) {
            let count = size.min(columns.end - first);
            for step in (0..k).step_by(steps) {
                let depth = steps.min(k - step);
                let right = match b {
                    Side::InPlace(b) => {
                        Right { data: &b.data[step * b.stride + first..], step: b.stride, panel: nr }
                    }
                    Side::Packed(b) => {
                        Right { data: &b.panels[first * k + step * nr..], step: nr, panel: nr * k }
                    }
                    Side::Packing(b) => {
                        let source = Source::new(b, Operand::Right);
                        let panels = packed.chunks_exact_mut(nr * depth);
                        for (from, panel) in (first..first + count).step_by(nr).zip(panels) {
                            F::pack_panel(machine, &source, (from, step), nr, panel);
                        }
                        Right { data: packed, step: nr, panel: nr * depth }
                    }
                };
                self.block(out, first..first + count, step..step + depth, right, left);
            }
        }
    }

    /// The loops over I, j and i.
    fn block(
        &self,
        out: &mut ViewMut<F>,
        columns: Range<usize>,
        steps: Range<usize>,
        right: Right<F>,
        packed: &mut [F],
    ) {
        let Self { machine, mr, nr, a, alpha, .. } = *self;
        let (rows, depth, stride) = (out.rows, steps.len(), out.stride);
        let how = if steps.start == 0 { self.how } else { Accumulate::Add };
        let (source, wide) = (Source::new(a, Operand::Left), nr * F::panels(machine, mr));
        for top in (0..rows).step_by(2 * mr) {
            let group = top..rows.min(top + 2 * mr);
            let left = if mr == 1 && !a.transposed && alpha == F::ONE {
                // A row is a micro-panel as it is.
                None
            } else {
                for (row, panel) in group.clone().step_by(mr).zip(packed.chunks_exact_mut(mr * depth)) {
                    F::pack_panel(machine, &source, (row, steps.start), mr, panel);
                    if alpha != F::ONE {
                        panel.iter_mut().for_each(|a| *a *= alpha);
                    }
                }
                Some(&*packed)
            };
            let mut col = columns.start;
            while col < columns.end {
                let left_over = columns.end - col;
                let cols = if left_over < wide { left_over.min(nr) } else { wide };
                let at = (col - columns.start) / nr * right.panel;
                let right = Right { data: &right.data[at..], ..right };
                for row in group.clone().step_by(mr) {
                    let left = match left {
                        None => &a.data[row * a.stride + steps.start..][..depth],
                        Some(packed) => &packed[(row - top) * depth..][..mr * depth],
                    };
                    let place = Place {
                        out: &mut out.data[row * stride + col..],
                        rows: mr.min(rows - row),
                        cols,
                        stride,
                        how,
                    };
                    F::micro_kernel(machine, mr, left, right, place, &[]);
                }
                col += cols;
            }
        }
    }
}
