//! A kernel over whole strips of packed operands, and the way through a product with it.
use super::{Operand, Source};
use crate::{Accumulate, Real, View, ViewMut};

/// What a kernel is: its sides, and functions over whole strips.
#[derive(Clone, Copy)]
pub struct Kernel<F> {
    /// M, N
    pub(super) sides: [usize; 2],
    /// Packs a strip of so many rows or columns, from the given one on.
    pub(super) pack: fn(&Source<F>, from: usize, side: usize, out: &mut [F]),
    /// M x N sums of a strip on either side over as many steps as they have, into a place that may be smaller.
    pub(super) block: Block<F>,
}

/// `(left, right, place, ahead)`; what is ahead will be needed soon.
type Block<F> = fn(&[F], &[F], Place<F>, &[F]);

/// Where sums go.
pub struct Place<'a, F> {
    pub(super) out: &'a mut [F],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
    pub(super) how: Accumulate,
}

impl<F: Real> Kernel<F> {
    pub(super) fn side(&self, operand: Operand) -> usize {
        self.sides[if operand == Operand::Left { 0 } else { 1 }]
    }

    pub(super) fn words(&self, operand: Operand, side: usize, depth: usize) -> usize {
        // Planning asks for sizes that nobody could hold.
        side.checked_next_multiple_of(self.side(operand)).unwrap_or(usize::MAX).saturating_mul(depth)
    }

    pub(super) fn pack_view(
        &self,
        view: View<F>,
        operand: Operand,
        out: &mut [F],
        skip: usize,
        depth: usize,
    ) {
        let source = Source::new(view, operand);
        let (width, (sides, steps)) = (self.side(operand), source.sizes());
        for (from, out) in (0..sides).step_by(width).zip(out.chunks_mut(width * depth)) {
            (self.pack)(&source, from, width, &mut out[skip * width..][..steps * width]);
        }
    }

    pub(super) fn multiply(&self, out: ViewMut<F>, left: &[F], right: &[F], depth: usize, how: Accumulate) {
        let [m, n] = self.sides;
        let ViewMut { data, rows, cols, stride } = out;
        // A strip of the right side serves two of the left before the next one comes, and meanwhile the left's next two
        // are called for, in as many parts.
        let part = (m * depth).div_ceil(cols.div_ceil(n).max(1));
        for top in (0..rows).step_by(2 * m) {
            for col in (0..cols).step_by(n) {
                let right = &right[col * depth..][..n * depth];
                for row in (top..rows.min(top + 2 * m)).step_by(m) {
                    let next = (row + 2 * m) * depth + col / n * part;
                    let ahead = left.get(next..next + part).unwrap_or_default();
                    let left = &left[row * depth..][..m * depth];
                    let (rows, cols) = (m.min(rows - row), n.min(cols - col));
                    let out = &mut data[row * stride + col..];
                    (self.block)(left, right, Place { out, rows, cols, stride, how }, ahead);
                }
            }
        }
    }
}
