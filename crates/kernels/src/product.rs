//! Matrix products: `out (=|+=) alpha · a · b`, sequential, over borrowed row-major views.
//!
//! Parallelism lives above, in tasks that own their tiles; a product never spawns, so its bits depend on its
//! arguments alone. More than that: those of an element depend on its row and its column alone, so that rows may be
//! multiplied together or apart.
mod blocked;
pub(crate) mod gates;
#[cfg(target_arch = "x86_64")]
pub(crate) mod gates_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod gates_avx512;
mod packed_left;
mod packed_right;

use blocked::{LeftOperand, RightOperand};
pub use blocked::{packing_bytes, packing_bytes_for};
pub use gates::{PackedGates, ROWS, UNITS};
pub use packed_left::PackedLeft;
pub use packed_right::{COLUMNS, PackedRight};

use crate::{AlignedVec, Real, simd::SimdLevel};

/// A borrowed matrix: row-major with a row stride, or the transpose of such a one.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    pub(crate) data: &'a [F],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) transposed: bool,
}

impl<'a, F> View<'a, F> {
    /// A dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a [F], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride, transposed: false }
    }

    /// The same matrix with rows and columns exchanged; nothing is moved.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    pub(crate) fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// A mutable row-major matrix with a row stride.
#[derive(Debug)]
pub struct ViewMut<'a, F> {
    pub(crate) data: &'a mut [F],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

impl<'a, F> ViewMut<'a, F> {
    /// A dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a mut [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a mut [F], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "matrix view: stride {stride} is below {cols} columns");
    let needed =
        if rows == 0 || cols == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(cols) };
    assert!(
        len >= needed,
        "matrix view: {rows} x {cols} with stride {stride} needs {needed} elements, has {len}"
    );
}

/// What happens to the old contents of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// `out = alpha · a · b`
    Replace,
    /// `out += alpha · a · b`
    Add,
}

/// `out (=|+=) alpha · a · b`, one thread.
///
/// # Shapes
/// `a` *m x k*, `b` *k x n*, `out` *m x n*; any of them may be empty.
///
/// # Panics
/// If the shapes do not fit: that is a broken invariant of the caller, never user input.
pub fn product<F: Real>(out: ViewMut<F>, a: View<F>, b: View<F>, alpha: F, how: Accumulate) {
    multiply(
        SimdLevel::best(),
        out,
        (LeftOperand::View(a), a.shape()),
        (RightOperand::View(b), b.shape()),
        alpha,
        how,
    );
}

/// [`product`] that packs into memory of the caller's, [`packing_bytes_for`] bytes of it, in place of its thread's; the bits are
/// the same.
///
/// # Panics
/// As [`product`].
pub fn product_in<F: Real>(
    packing: &mut AlignedVec<F>,
    out: ViewMut<F>,
    a: View<F>,
    b: View<F>,
    how: Accumulate,
) {
    let (a, b) = ((LeftOperand::View(a), a.shape()), (RightOperand::View(b), b.shape()));
    multiply_in(packing, SimdLevel::best(), out, a, b, F::ONE, how);
}

/// [`product`] with a right side that was packed before; the bits are the same.
///
/// # Shapes
/// `a` *m x k*, `b` *k x n*, `out` *m x n*; any of them may be empty.
///
/// # Panics
/// As [`product`].
pub fn product_packed<F: Real>(out: ViewMut<F>, a: View<F>, b: &PackedRight<F>, how: Accumulate) {
    multiply(
        SimdLevel::best(),
        out,
        (LeftOperand::View(a), a.shape()),
        (b.columns(), b.shape()),
        F::ONE,
        how,
    );
}

/// [`product`] of one part of a left side and some columns of a right side that were both packed before; the bits are the same.
///
/// # Shapes
/// part `at` of `a` *m x k*, `out` *m x n*, *n* columns of `b` from `first` on, which is a multiple of [`COLUMNS`].
///
/// # Panics
/// As [`product`], and if there is no such part or column.
pub fn product_of_parts<F: Real>(
    out: ViewMut<F>,
    (a, at): (&PackedLeft<F>, usize),
    (b, first): (&PackedRight<F>, usize),
    how: Accumulate,
) {
    assert!(first.is_multiple_of(COLUMNS), "product: columns from {first} on");
    let ((part, shape), k) = (a.part(at), b.rows);
    let columns = (RightOperand::Packed(&b.panels[first * k..b.whole() * k], k), (k, out.cols));
    multiply(SimdLevel::best(), out, (LeftOperand::Packed(part), shape), columns, F::ONE, how);
}

fn multiply<F: Real>(
    machine: SimdLevel,
    out: ViewMut<F>,
    a: (LeftOperand<F>, (usize, usize)),
    b: (RightOperand<F>, (usize, usize)),
    alpha: F,
    how: Accumulate,
) {
    F::with_scratch(|packing| multiply_in(packing, machine, out, a, b, alpha, how));
}

fn multiply_in<F: Real>(
    packing: &mut AlignedVec<F>,
    machine: SimdLevel,
    out: ViewMut<F>,
    (a, (m, k)): (LeftOperand<F>, (usize, usize)),
    (b, (k2, n)): (RightOperand<F>, (usize, usize)),
    alpha: F,
    how: Accumulate,
) {
    assert!(
        k == k2 && out.rows == m && out.cols == n,
        "product: shapes {m}x{k}, {k2}x{n}, {}x{}",
        out.rows,
        out.cols
    );
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if how == Accumulate::Replace {
            out.data.chunks_mut(out.stride).take(m).for_each(|row| row[..n].fill(F::ZERO));
        }
        return;
    }
    blocked::product(machine, out, a, (b, k), alpha, how, packing);
}

#[cfg(test)]
mod tests;
