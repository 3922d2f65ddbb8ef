//! The loops around the micro-kernel (BLIS): blocks that fit the caches, packed where that pays.
use std::ops::Range;

use crate::{
    Accumulate, AlignedVec, Real, View, ViewMut,
    packed::{Operand, OperandSource, OutputTile, Right},
    simd::SimdLevel,
};

/// Steps of a block of the sum (KC): a left micro-panel of them stays in the first cache.
const STEPS: usize = 512;
/// Bytes of a block of left micro-panels (MC x KC): half of a second-level cache of 1 MiB.
const BLOCK_BYTES: usize = 512 << 10;
/// Left micro-panels up to which rows of the right side are read where they are: packing would cost more than it gives.
const IN_PLACE: usize = 2;

/// Bytes that a thread keeps for packing, at most: below 0.5 MiB for `f32`, 1 MiB for `f64`.
///
/// They are made by the first product that wants them, as large as it wants them, and stay until the thread ends.
pub fn packing_bytes<F: Real>() -> usize {
    let [mr, nr] = F::sides(SimdLevel::best());
    BLOCK_BYTES.next_multiple_of(mr * STEPS * size_of::<F>()) + nr * STEPS * size_of::<F>() + 64
}

/// Bytes that [`product_in`](super::product_in) packs into, at most, for *m* rows and sums of *k*.
pub fn packing_bytes_for<F: Real>(m: usize, k: usize) -> usize {
    let [most, nr] = F::sides(SimdLevel::best());
    let panels = m.div_ceil(most).min(BLOCK_BYTES.div_ceil(most * STEPS * size_of::<F>()));
    (panels * most + nr) * k.min(STEPS) * size_of::<F>() + 64
}

/// RightOperand whose registers are read whole by every micro-kernel.
pub(super) const WHOLE: usize = 16;

/// The left side of a product.
#[derive(Clone, Copy)]
pub(super) enum LeftOperand<'a, F> {
    View(View<'a, F>),
    /// Micro-panels as even as can be, each with all steps.
    Packed(&'a [F]),
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(super) enum RightOperand<'a, F> {
    View(View<'a, F>),
    /// Micro-panels, and the steps that each has.
    Packed(&'a [F], usize),
}

/// `out (=|+=) alpha · a · b` where no side is empty.
///
/// ```text
/// for steps P of KC:
///   for rows I of MC:
///     pack alpha · a[I, P]                  unless it is packed
///     for columns j of NR:
///       pack b[P, j]                        unless it is packed, or few rows read it where it is
///       for rows i of MR in I:  micro-kernel: out[i, j] (=|+=) a[i, P] · b[P, j]
/// ```
/// MR and MC are made smaller where rows would be left over, and several NR are taken at once where there are few rows.
/// Each element is summed in the same order whatever rows and columns are computed with it.
pub(super) fn product<F: Real>(
    machine: SimdLevel,
    out: ViewMut<F>,
    a: LeftOperand<F>,
    (b, k): (RightOperand<F>, usize),
    alpha: F,
    how: Accumulate,
    scratch: &mut AlignedVec<F>,
) {
    let [most, nr] = F::sides(machine);
    let (m, n) = (out.rows, out.cols);
    let panels = m.div_ceil(most);
    let together = panels.div_ceil(panels.div_ceil(BLOCK_BYTES.div_ceil(most * STEPS * size_of::<F>())));
    let steps = k.div_ceil(k.div_ceil(STEPS)).next_multiple_of(16).min(k);
    let in_place = match b {
        RightOperand::View(b)
            if (panels <= IN_PLACE || matches!(a, LeftOperand::Packed(_))) && !b.transposed =>
        {
            // What is left over of whole micro-panels is packed, unless there is something to read behind each row.
            let whole = n.next_multiple_of(WHOLE);
            let padded = whole <= b.stride && (k - 1) * b.stride + whole <= b.data.len();
            if padded { n } else { n / nr * nr }
        }
        _ => 0,
    };
    let mr = m.div_ceil(panels);
    let room = if let LeftOperand::View(_) = a { together * mr * steps } else { 0 };
    let mut loops = Loops { machine, mr, nr, panels, in_place, out, a, alpha, b, k };
    // The right side first, as whole lines of the cache.
    let (right, left) = scratch.ensure_len(nr * steps + room, F::ZERO).split_at_mut(nr * steps);
    for step in (0..k).step_by(steps) {
        let how = if step == 0 { how } else { Accumulate::Add };
        for first in (0..panels).step_by(together) {
            let block = first..panels.min(first + together);
            loops.block(block, step..k.min(step + steps), (left, right), how);
        }
    }
}

/// A product and how it is cut.
struct Loops<'a, F> {
    machine: SimdLevel,
    /// LeftOperand of the largest left micro-panel.
    mr: usize,
    nr: usize,
    /// Left micro-panels, as even as can be.
    panels: usize,
    /// RightOperand that are read in place.
    in_place: usize,
    out: ViewMut<'a, F>,
    a: LeftOperand<'a, F>,
    alpha: F,
    b: RightOperand<'a, F>,
    /// Steps of the sum.
    k: usize,
}

impl<'a, F: Real> Loops<'a, F> {
    /// First row of a left micro-panel, and how many.
    fn rows(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.out.rows / self.panels;
        (first, (panel + 1) * self.out.rows / self.panels - first)
    }

    /// The loops over j and i for some left micro-panels.
    fn block(
        &mut self,
        block: Range<usize>,
        steps: Range<usize>,
        (left, right): (&mut [F], &mut [F]),
        how: Accumulate,
    ) {
        let Self { machine, mr, alpha, .. } = *self;
        let depth = steps.len();
        if let LeftOperand::View(a) = self.a {
            let source = OperandSource::new(a, Operand::Left);
            for (panel, left) in block.clone().zip(left.chunks_exact_mut(mr * depth)) {
                let (row, rows) = self.rows(panel);
                let left = &mut left[..rows * depth];
                F::pack_panel(machine, &source, (row, steps.start), rows, left);
                if alpha != F::ONE {
                    left.iter_mut().for_each(|a| *a *= alpha);
                }
            }
        }
        let (n, stride) = (self.out.cols, self.out.stride);
        let mut col = 0;
        while col < n {
            let (cols, right) = self.right(col, &steps, right);
            for panel in block.clone() {
                let (row, rows) = self.rows(panel);
                // A packed side comes from far: what follows is called for.
                let (left, ahead) = match self.a {
                    LeftOperand::View(_) => {
                        (&left[(panel - block.start) * mr * depth..][..rows * depth], &[][..])
                    }
                    LeftOperand::Packed(a) => {
                        let (left, rest) = a[row * self.k + steps.start * rows..].split_at(rows * depth);
                        (left, &rest[..rest.len().min(rows * depth)])
                    }
                };
                let out = &mut self.out.data[row * stride + col..];
                let place = OutputTile { out, rows, cols, stride, how };
                F::micro_kernel(machine, rows, left, right, place, ahead);
            }
            col += cols;
        }
    }

    /// RightOperand from one on, as many as the micro-kernel takes, and their number.
    fn right<'r>(&self, col: usize, steps: &Range<usize>, room: &'r mut [F]) -> (usize, Right<'r, F>)
    where
        'a: 'r,
    {
        let Self { machine, mr, nr, in_place, .. } = *self;
        let (n, wide) = (self.out.cols, nr * F::panels(machine, mr));
        match self.b {
            RightOperand::View(b) if col < in_place => {
                let data = &b.data[steps.start * b.stride + col..];
                let cols = if in_place - col < wide { nr.min(in_place - col) } else { wide };
                (cols, Right { data, step: b.stride, panel: nr })
            }
            RightOperand::View(b) => {
                let panel = &mut room[..nr * steps.len()];
                let source = OperandSource::new(b, Operand::Right);
                F::pack_panel(machine, &source, (col, steps.start), nr, panel);
                (nr.min(n - col), Right::packed(panel, nr))
            }
            RightOperand::Packed(b, k) => {
                let data = &b[col * k + steps.start * nr..];
                let cols = if n - col < wide { nr.min(n - col) } else { wide };
                (cols, Right { data, step: nr, panel: nr * k })
            }
        }
    }
}
