//! Matrix products `out (=|+=) alpha · a · b` over borrowed row-major matrices.
//!
//! A product runs on the calling thread; callers run products in parallel tasks that own their
//! output. The bits of an element depend only on its row and its column, not on other rows and
//! columns, so rows may be multiplied together or separately.
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
pub use gates::{MAX_GATE_ROWS, PackedRecurrentWeight, UNITS_PER_STRIP};
pub use packed_left::PackedLeft;
pub use packed_right::{COLUMN_MULTIPLE, PackedRight};

use crate::{AlignedVec, Real, simd::SimdLevel};

/// A borrowed row-major matrix with a row stride, possibly transposed.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    pub(crate) data: &'a [F],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) transposed: bool,
}

impl<'a, F> View<'a, F> {
    /// Borrows a dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Borrows a *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a [F], rows: usize, cols: usize, stride: usize) -> Self {
        check_shape(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride, transposed: false }
    }

    /// Returns the transpose; no data is moved.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Returns rows and columns, after a transposition.
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
    /// Borrows a dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a mut [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Borrows a *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a mut [F], rows: usize, cols: usize, stride: usize) -> Self {
        check_shape(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }
}

/// Panics unless `len` elements contain a matrix.
fn check_shape(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "matrix view: stride {stride} is below {cols} columns");
    let needed =
        if rows == 0 || cols == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(cols) };
    assert!(
        len >= needed,
        "matrix view: {rows} x {cols} with stride {stride} needs {needed} elements, has {len}"
    );
}

/// Whether a product replaces the output or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// `out = alpha · a · b`
    Replace,
    /// `out += alpha · a · b`
    Add,
}

/// Computes `out (=|+=) alpha · a · b` on the calling thread.
///
/// # Shapes
/// `a` *m x k*, `b` *k x n*, `out` *m x n*; any of them may be empty.
///
/// # Panics
/// If the shapes do not match: a bug of the caller, never a user error.
pub fn product<F: Real>(out: ViewMut<F>, a: View<F>, b: View<F>, alpha: F, accumulate: Accumulate) {
    multiply(
        SimdLevel::best(),
        out,
        (LeftOperand::View(a), a.shape()),
        (RightOperand::View(b), b.shape()),
        alpha,
        accumulate,
    );
}

/// Computes a [`product`] with packing memory of the caller.
///
/// Packs into up to [`packing_bytes_for`] bytes of `packing` rather than thread-local memory. The
/// bits are the same.
///
/// # Panics
/// As [`product`].
pub fn product_in<F: Real>(
    packing: &mut AlignedVec<F>,
    out: ViewMut<F>,
    a: View<F>,
    b: View<F>,
    accumulate: Accumulate,
) {
    let (a, b) = ((LeftOperand::View(a), a.shape()), (RightOperand::View(b), b.shape()));
    multiply_in(packing, SimdLevel::best(), out, a, b, F::ONE, accumulate);
}

/// Computes a [`product`] with a packed right operand; the bits are the same.
///
/// # Shapes
/// `a` *m x k*, `b` *k x n*, `out` *m x n*; any of them may be empty.
///
/// # Panics
/// As [`product`].
pub fn product_packed<F: Real>(out: ViewMut<F>, a: View<F>, b: &PackedRight<F>, accumulate: Accumulate) {
    multiply(
        SimdLevel::best(),
        out,
        (LeftOperand::View(a), a.shape()),
        (b.columns(), b.shape()),
        F::ONE,
        accumulate,
    );
}

/// Computes a [`product`] of packed parts of both operands.
///
/// The bits are the same.
///
/// # Shapes
/// `part` of `a` *m x k*, columns of `b` from `first_column` on *k x n*, `out` *m x n*;
/// `first_column` must be a multiple of [`COLUMN_MULTIPLE`].
///
/// # Panics
/// As [`product`], and if the part or columns do not exist.
pub fn product_of_parts<F: Real>(
    out: ViewMut<F>,
    (a, part): (&PackedLeft<F>, usize),
    (b, first_column): (&PackedRight<F>, usize),
    accumulate: Accumulate,
) {
    assert!(first_column.is_multiple_of(COLUMN_MULTIPLE), "product: columns from {first_column} on");
    let ((rows, shape), k) = (a.part(part), b.rows);
    let panels = &b.panels[first_column * k..b.padded_cols() * k];
    let columns = (RightOperand::Packed(panels, k), (k, out.cols));
    multiply(SimdLevel::best(), out, (LeftOperand::Packed(rows), shape), columns, F::ONE, accumulate);
}

/// Computes a product with thread-local packing memory.
///
/// `a` and `b` are operands with their shapes.
fn multiply<F: Real>(
    level: SimdLevel,
    out: ViewMut<F>,
    a: (LeftOperand<F>, (usize, usize)),
    b: (RightOperand<F>, (usize, usize)),
    alpha: F,
    accumulate: Accumulate,
) {
    F::with_scratch(|packing| multiply_in(packing, level, out, a, b, alpha, accumulate));
}

/// Checks the shapes and computes a product; empty sums write 0.
fn multiply_in<F: Real>(
    packing: &mut AlignedVec<F>,
    level: SimdLevel,
    out: ViewMut<F>,
    (a, (m, k)): (LeftOperand<F>, (usize, usize)),
    (b, (b_rows, n)): (RightOperand<F>, (usize, usize)),
    alpha: F,
    accumulate: Accumulate,
) {
    assert!(
        k == b_rows && out.rows == m && out.cols == n,
        "product: shapes {m}x{k}, {b_rows}x{n}, {}x{}",
        out.rows,
        out.cols
    );
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if accumulate == Accumulate::Replace {
            out.data.chunks_mut(out.stride).take(m).for_each(|row| row[..n].fill(F::ZERO));
        }
        return;
    }
    blocked::product(level, out, a, (b, k), alpha, accumulate, packing);
}

#[cfg(test)]
mod tests;
