//! Packing and products of whole micro-panel operands, and micro-kernel arguments.
use super::{Operand, OperandSource};
use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The right side of a micro-kernel.
///
/// The columns of a micro-panel are contiguous at each step of the sum. Micro-panels are `panel`
/// elements apart and steps `step` elements apart.
#[derive(Clone, Copy)]
pub struct RightPanels<'a, F> {
    pub(crate) data: &'a [F],
    pub(crate) step: usize,
    pub(crate) panel: usize,
}

/// The output of a micro-kernel.
pub struct OutputTile<'a, F> {
    pub(crate) out: &'a mut [F],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) accumulate: Accumulate,
}

impl<'a, F> RightPanels<'a, F> {
    /// Borrows a packed micro-panel of `columns` columns.
    pub fn packed(data: &'a [F], columns: usize) -> Self {
        Self { data, step: columns, panel: 0 }
    }
}

/// Returns the tile's rows MR (left) or columns NR (right).
pub(super) fn side<F: Real>(level: SimdLevel, operand: Operand) -> usize {
    F::tile_shape(level)[if operand == Operand::Left { 0 } else { 1 }]
}

/// Returns the words of a packed operand.
pub(super) fn words<F: Real>(level: SimdLevel, operand: Operand, count: usize, depth: usize) -> usize {
    // Plans also evaluate sizes that do not fit the address space.
    count.checked_next_multiple_of(side::<F>(level, operand)).unwrap_or(usize::MAX).saturating_mul(depth)
}

/// Packs steps of an operand of `depth` steps, from `skip` on.
pub(super) fn pack<F: Real>(
    level: SimdLevel,
    (view, operand): (View<F>, Operand),
    out: &mut [F],
    (skip, depth): (usize, usize),
) {
    let source = OperandSource::new(view, operand);
    let (width, (sides, steps)) = (side::<F>(level, operand), source.sizes());
    for (from, out) in (0..sides).step_by(width).zip(out.chunks_mut(width * depth)) {
        F::pack_panel(level, &source, (from, 0), width, &mut out[skip * width..][..steps * width]);
    }
}

/// Computes `out (=|+=) left · right` of packed operands.
///
/// ```text
/// for rows I of 2 MR:
///   for columns j of NR:               the right micro-panel stays in the first-level cache
///     for rows i of MR in I:           the next two left micro-panels are prefetched meanwhile
///       micro-kernel: out[i, j] (=|+=) left[i] · right[j]
/// ```
pub(super) fn multiply<F: Real>(
    level: SimdLevel,
    out: ViewMut<F>,
    (left, right): (&[F], &[F]),
    depth: usize,
    accumulate: Accumulate,
) {
    let [m, n] = F::tile_shape(level);
    let ViewMut { data, rows, cols, stride } = out;
    let part = (m * depth).div_ceil(cols.div_ceil(n).max(1));
    for top in (0..rows).step_by(2 * m) {
        for col in (0..cols).step_by(n) {
            let right = RightPanels::packed(&right[col * depth..][..n * depth], n);
            for row in (top..rows.min(top + 2 * m)).step_by(m) {
                let next = (row + 2 * m) * depth + col / n * part;
                let prefetch = left.get(next..next + part).unwrap_or_default();
                let left = &left[row * depth..][..m * depth];
                let (rows, cols) = (m.min(rows - row), n.min(cols - col));
                let out = &mut data[row * stride + col..];
                F::micro_kernel(
                    level,
                    m,
                    left,
                    right,
                    OutputTile { out, rows, cols, stride, accumulate },
                    prefetch,
                );
            }
        }
    }
}
