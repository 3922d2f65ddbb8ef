//! Packing and products of whole micro-panel operands, and micro-kernel arguments.
//!
//! [`FullFormat`](super::FullFormat) consists of these functions; each SIMD level has its sizes.
use super::{Operand, OperandSource};
use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The right operand of a micro-kernel.
///
/// The columns of a micro-panel are contiguous at each step of the sum.
#[derive(Clone, Copy)]
pub struct RightPanels<'a, F> {
    /// Elements from the first column of the first step on.
    pub(crate) data: &'a [F],
    /// Elements from a step of the sum to the next one.
    pub(crate) step_stride: usize,
    /// Elements from a micro-panel to the next one.
    pub(crate) panel_stride: usize,
}

/// The output of a micro-kernel.
pub struct OutputTile<'a, F> {
    /// Elements from the first one of the tile on.
    pub(crate) out: &'a mut [F],
    /// Rows and columns of the tile inside the output; further sums are not written.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements from a row to the next one.
    pub(crate) stride: usize,
    pub(crate) accumulate: Accumulate,
}

impl<'a, F> RightPanels<'a, F> {
    /// Borrows a packed micro-panel of `columns` columns.
    pub fn packed(data: &'a [F], columns: usize) -> Self {
        Self { data, step_stride: columns, panel_stride: 0 }
    }
}

/// Returns the tile's rows MR (left) or columns NR (right).
pub(super) fn panel_width<F: Real>(level: SimdLevel, operand: Operand) -> usize {
    F::tile_shape(level)[if operand == Operand::Left { 0 } else { 1 }]
}

/// Returns the words of a packed operand.
///
/// `count` are the rows of a left operand or the columns of a right one.
pub(super) fn words<F: Real>(level: SimdLevel, operand: Operand, count: usize, depth: usize) -> usize {
    // Plans also evaluate sizes that do not fit the address space.
    count
        .checked_next_multiple_of(panel_width::<F>(level, operand))
        .unwrap_or(usize::MAX)
        .saturating_mul(depth)
}

/// Packs steps of an operand of `depth` steps, from `skip` on.
pub(super) fn pack<F: Real>(
    level: SimdLevel,
    view: View<F>,
    operand: Operand,
    out: &mut [F],
    skip: usize,
    depth: usize,
) {
    let source = OperandSource::new(view, operand);
    let (width, (len, steps)) = (panel_width::<F>(level, operand), source.sizes());
    for (first, out) in (0..len).step_by(width).zip(out.chunks_mut(width * depth)) {
        F::pack_panel(level, &source, (first, 0), width, &mut out[skip * width..][..steps * width]);
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
    left: &[F],
    right: &[F],
    depth: usize,
    accumulate: Accumulate,
) {
    let [mr, nr] = F::tile_shape(level);
    let ViewMut { data, rows, cols, stride } = out;
    let prefetch_len = (mr * depth).div_ceil(cols.div_ceil(nr).max(1));
    for first_row in (0..rows).step_by(2 * mr) {
        for col in (0..cols).step_by(nr) {
            let right = RightPanels::packed(&right[col * depth..][..nr * depth], nr);
            for row in (first_row..rows.min(first_row + 2 * mr)).step_by(mr) {
                let prefetch_start = (row + 2 * mr) * depth + col / nr * prefetch_len;
                let prefetch = left.get(prefetch_start..prefetch_start + prefetch_len).unwrap_or_default();
                let left = &left[row * depth..][..mr * depth];
                let (rows, cols) = (mr.min(rows - row), nr.min(cols - col));
                let out = &mut data[row * stride + col..];
                F::micro_kernel(
                    level,
                    mr,
                    left,
                    right,
                    OutputTile { out, rows, cols, stride, accumulate },
                    prefetch,
                );
            }
        }
    }
}
