//! Cache-blocked loops of a matrix product around the micro-kernel (BLIS).
use std::ops::Range;

use crate::{
    Accumulate, AlignedVec, Real, View, ViewMut,
    buffers::CACHE_LINE,
    packed::{Operand, OperandSource, OutputTile, RightPanels},
    simd::SimdLevel,
};

/// Maximum steps of a block of the sum (KC).
///
/// A left micro-panel of as many steps stays in the first-level cache.
const MAX_STEPS: usize = 512;
/// Bytes of a block of left micro-panels (MC x KC): half of a second-level cache of 1 MiB.
const BLOCK_BYTES: usize = 512 << 10;
/// Multiple of the steps of a block, except the last.
const STEP_MULTIPLE: usize = 16;
/// Maximum left micro-panels for which the right operand is read without packing.
const MAX_UNPACKED_PANELS: usize = 2;

/// Returns the maximum packing memory of a thread in bytes.
///
/// It is below 0.5 MiB for `f32` and 1 MiB for `f64`. A thread allocates what its products need and
/// keeps it until it ends.
pub fn packing_bytes<F: Real>() -> usize {
    let [mr, nr] = F::tile_shape(SimdLevel::best());
    BLOCK_BYTES.next_multiple_of(mr * MAX_STEPS * size_of::<F>())
        + nr * MAX_STEPS * size_of::<F>()
        + CACHE_LINE
}

/// Returns the maximum packing memory of [`product_in`](super::product_in), in bytes.
///
/// The product has *m* rows and sums of *k* steps.
pub fn packing_bytes_for<F: Real>(m: usize, k: usize) -> usize {
    let [max_rows, nr] = F::tile_shape(SimdLevel::best());
    let panels = m.div_ceil(max_rows).min(BLOCK_BYTES.div_ceil(max_rows * MAX_STEPS * size_of::<F>()));
    (panels * max_rows + nr) * k.min(MAX_STEPS) * size_of::<F>() + CACHE_LINE
}

/// Column granularity of every micro-kernel.
///
/// For n columns (up to NR, or whole micro-panels) it loads at most n, rounded up to a multiple of
/// this, at each step.
pub(super) const COLUMN_GRANULARITY: usize = 16;

/// The left operand of a product.
#[derive(Clone, Copy)]
pub(super) enum LeftOperand<'a, F> {
    View(View<'a, F>),
    /// Micro-panels of nearly equal size, each with all steps.
    Packed(&'a [F]),
}

/// The right operand of a product.
#[derive(Clone, Copy)]
pub(super) enum RightOperand<'a, F> {
    View(View<'a, F>),
    /// Micro-panels, and their number of steps.
    Packed(&'a [F], usize),
}

/// Computes `out (=|+=) alpha · a · b` for operands that are not empty.
///
/// ```text
/// for steps P of KC:
///   for rows I of MC:
///     pack alpha · a[I, P]                  unless it is packed
///     for columns j of NR:
///       pack b[P, j]                        unless it is packed, or a few rows read it in place
///       for rows i of MR in I:  micro-kernel: out[i, j] (=|+=) a[i, P] · b[P, j]
/// ```
/// KC, MC, MR and NR are the block sizes of BLIS: steps of the sum, rows that are packed at a
/// time, rows and columns of a micro-kernel's tile.
///
/// MR and MC are reduced to avoid remainders, and several NR are processed at once for few rows.
/// Each element is summed in the same order in any combination with other rows and columns.
pub(super) fn product<F: Real>(
    level: SimdLevel,
    out: ViewMut<F>,
    a: LeftOperand<F>,
    (b, k): (RightOperand<F>, usize),
    alpha: F,
    accumulate: Accumulate,
    scratch: &mut AlignedVec<F>,
) {
    let [max_rows, nr] = F::tile_shape(level);
    let (m, n) = (out.rows, out.cols);
    // Blocks of nearly equal size: left micro-panels, and steps of the sum.
    let panels = m.div_ceil(max_rows);
    let block_panels =
        panels.div_ceil(panels.div_ceil(BLOCK_BYTES.div_ceil(max_rows * MAX_STEPS * size_of::<F>())));
    let block_steps = k.div_ceil(k.div_ceil(MAX_STEPS)).next_multiple_of(STEP_MULTIPLE).min(k);
    let unpacked_columns = match b {
        RightOperand::View(b)
            if (panels <= MAX_UNPACKED_PANELS || matches!(a, LeftOperand::Packed(_))) && !b.transposed =>
        {
            // Kernels read beyond the last column. Where no elements follow a row, the columns of
            // the last, partial micro-panel are packed.
            let padded_columns = n.next_multiple_of(COLUMN_GRANULARITY);
            let is_padded = padded_columns <= b.stride && (k - 1) * b.stride + padded_columns <= b.data.len();
            if is_padded { n } else { n / nr * nr }
        }
        _ => 0,
    };
    let mr = m.div_ceil(panels);
    let left_len = if let LeftOperand::View(_) = a { block_panels * mr * block_steps } else { 0 };
    let mut blocked = BlockedProduct { level, mr, nr, panels, unpacked_columns, out, a, alpha, b, k };
    // The right operand comes first, so that it is aligned to cache lines.
    let (right, left) =
        scratch.ensure_len(nr * block_steps + left_len, F::ZERO).split_at_mut(nr * block_steps);
    for step in (0..k).step_by(block_steps) {
        let accumulate = if step == 0 { accumulate } else { Accumulate::Add };
        for first_panel in (0..panels).step_by(block_panels) {
            let block = first_panel..panels.min(first_panel + block_panels);
            blocked.multiply_block(block, step..k.min(step + block_steps), left, right, accumulate);
        }
    }
}

/// A product and its block sizes.
struct BlockedProduct<'a, F> {
    level: SimdLevel,
    /// Rows of the largest left micro-panel.
    mr: usize,
    /// Columns of a right micro-panel.
    nr: usize,
    /// Number of left micro-panels, of nearly equal size.
    panels: usize,
    /// Columns of the right operand that are read without packing.
    unpacked_columns: usize,
    out: ViewMut<'a, F>,
    a: LeftOperand<'a, F>,
    alpha: F,
    b: RightOperand<'a, F>,
    /// Steps of the sum.
    k: usize,
}

impl<'a, F: Real> BlockedProduct<'a, F> {
    /// Returns the first row and the row count of a left micro-panel.
    fn panel_rows(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.out.rows / self.panels;
        (first, (panel + 1) * self.out.rows / self.panels - first)
    }

    /// Runs the loops over j and i of [`product`].
    ///
    /// `block` are left micro-panels, `step_range` steps of the sum; `left` and `right` are memory
    /// for packed operands.
    fn multiply_block(
        &mut self,
        block: Range<usize>,
        step_range: Range<usize>,
        left: &mut [F],
        right: &mut [F],
        accumulate: Accumulate,
    ) {
        let Self { level, mr, alpha, .. } = *self;
        let depth = step_range.len();
        if let LeftOperand::View(a) = self.a {
            let source = OperandSource::new(a, Operand::Left);
            for (panel, left) in block.clone().zip(left.chunks_exact_mut(mr * depth)) {
                let (row, rows) = self.panel_rows(panel);
                let left = &mut left[..rows * depth];
                F::pack_panel(level, &source, (row, step_range.start), rows, left);
                if alpha != F::ONE {
                    left.iter_mut().for_each(|a| *a *= alpha);
                }
            }
        }
        let (n, stride) = (self.out.cols, self.out.stride);
        let mut col = 0;
        while col < n {
            let (cols, right) = self.right_panels(col, &step_range, right);
            for panel in block.clone() {
                let (row, rows) = self.panel_rows(panel);
                // A packed left operand is not in the cache: the following panel is prefetched.
                let (left, prefetch) = match self.a {
                    LeftOperand::View(_) => {
                        (&left[(panel - block.start) * mr * depth..][..rows * depth], &[][..])
                    }
                    LeftOperand::Packed(a) => {
                        let (left, rest) = a[row * self.k + step_range.start * rows..].split_at(rows * depth);
                        (left, &rest[..rest.len().min(rows * depth)])
                    }
                };
                let out = &mut self.out.data[row * stride + col..];
                let output = OutputTile { out, rows, cols, stride, accumulate };
                F::micro_kernel(level, rows, left, right, output, prefetch);
            }
            col += cols;
        }
    }

    /// Returns the columns that a kernel takes, and their micro-panels.
    ///
    /// They start at `col`: all micro-panels that the kernel covers if they exist, otherwise one.
    /// Columns are packed into `scratch` if necessary, one micro-panel at a time.
    fn right_panels<'r>(
        &self,
        col: usize,
        step_range: &Range<usize>,
        scratch: &'r mut [F],
    ) -> (usize, RightPanels<'r, F>)
    where
        'a: 'r,
    {
        let Self { level, mr, nr, unpacked_columns, .. } = *self;
        let (n, max_cols) = (self.out.cols, nr * F::panels(level, mr));
        match self.b {
            RightOperand::View(b) if col < unpacked_columns => {
                let data = &b.data[step_range.start * b.stride + col..];
                let cols =
                    if unpacked_columns - col < max_cols { nr.min(unpacked_columns - col) } else { max_cols };
                (cols, RightPanels { data, step_stride: b.stride, panel_stride: nr })
            }
            RightOperand::View(b) => {
                let panel = &mut scratch[..nr * step_range.len()];
                let source = OperandSource::new(b, Operand::Right);
                F::pack_panel(level, &source, (col, step_range.start), nr, panel);
                (nr.min(n - col), RightPanels::packed(panel, nr))
            }
            RightOperand::Packed(b, k) => {
                let data = &b[col * k + step_range.start * nr..];
                let cols = if n - col < max_cols { nr.min(n - col) } else { max_cols };
                (cols, RightPanels { data, step_stride: nr, panel_stride: nr * k })
            }
        }
    }
}
