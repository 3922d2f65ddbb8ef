//! The way through a product of packed operands, and what a micro-kernel gets to see.
use super::{Operand, OperandSource};
use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The right side of a micro-kernel: the columns of a panel lie together, panels `panel` elements apart, and steps of the
/// sum `step` apart.
#[derive(Clone, Copy)]
pub struct Right<'a, F> {
    pub(crate) data: &'a [F],
    pub(crate) step: usize,
    pub(crate) panel: usize,
}

/// Where sums go.
pub struct OutputTile<'a, F> {
    pub(crate) out: &'a mut [F],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) how: Accumulate,
}

impl<'a, F> Right<'a, F> {
    /// A packed micro-panel of so many columns.
    pub fn packed(data: &'a [F], columns: usize) -> Self {
        Self { data, step: columns, panel: 0 }
    }
}

/// Sides of the micro-kernel: rows of a left micro-panel (MR), columns of a right one (NR).
pub(super) fn side<F: Real>(machine: SimdLevel, operand: Operand) -> usize {
    F::sides(machine)[if operand == Operand::Left { 0 } else { 1 }]
}

/// Words of a packed operand.
pub(super) fn words<F: Real>(machine: SimdLevel, operand: Operand, count: usize, depth: usize) -> usize {
    // Planning asks for sizes that nobody could hold.
    count.checked_next_multiple_of(side::<F>(machine, operand)).unwrap_or(usize::MAX).saturating_mul(depth)
}

/// Packs the steps from `skip` on of an operand of `depth` steps.
pub(super) fn pack<F: Real>(
    machine: SimdLevel,
    (view, operand): (View<F>, Operand),
    out: &mut [F],
    (skip, depth): (usize, usize),
) {
    let source = OperandSource::new(view, operand);
    let (width, (sides, steps)) = (side::<F>(machine, operand), source.sizes());
    for (from, out) in (0..sides).step_by(width).zip(out.chunks_mut(width * depth)) {
        F::pack_panel(machine, &source, (from, 0), width, &mut out[skip * width..][..steps * width]);
    }
}

/// `out (=|+=) left · right`, both packed.
///
/// ```text
/// for rows I of 2 MR:
///   for columns j of NR:               this right micro-panel stays in the first cache
///     for rows i of MR in I:           meanwhile the left's next two are called for, in as many parts
///       micro-kernel: out[i, j] (=|+=) left[i] · right[j]
/// ```
pub(super) fn multiply<F: Real>(
    machine: SimdLevel,
    out: ViewMut<F>,
    (left, right): (&[F], &[F]),
    depth: usize,
    how: Accumulate,
) {
    let [m, n] = F::sides(machine);
    let ViewMut { data, rows, cols, stride } = out;
    let part = (m * depth).div_ceil(cols.div_ceil(n).max(1));
    for top in (0..rows).step_by(2 * m) {
        for col in (0..cols).step_by(n) {
            let right = Right::packed(&right[col * depth..][..n * depth], n);
            for row in (top..rows.min(top + 2 * m)).step_by(m) {
                let next = (row + 2 * m) * depth + col / n * part;
                let ahead = left.get(next..next + part).unwrap_or_default();
                let left = &left[row * depth..][..m * depth];
                let (rows, cols) = (m.min(rows - row), n.min(cols - col));
                let out = &mut data[row * stride + col..];
                F::micro_kernel(machine, m, left, right, OutputTile { out, rows, cols, stride, how }, ahead);
            }
        }
    }
}
