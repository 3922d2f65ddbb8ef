//! Products of operands that were packed before, by kernels of our own: the same rows and weights meet in many products,
//! and what a kernel has just written is still near for the vector functions.
//!
//! A left operand *m x k* lies in strips of a few rows, a right one *k x n* in strips of a few columns; inside a
//! strip, what meets at one step of the sum lies together. How many, and in which numbers, is the kernel's affair
//! ([`OperandFormat`]): `full` keeps the type of the rows, `half` rounds to bf16.
mod full;
pub mod half;
pub(crate) mod micro;
#[cfg(target_arch = "x86_64")]
pub(crate) mod micro_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod micro_avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack_avx512;
mod panels;

pub use full::Full;
pub(crate) use panels::{OutputTile, Right};

use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The side of a product that an operand is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// *m x k*, side m.
    Left,
    /// *k x n*, side n.
    Right,
}

/// How operands are kept, and what multiplies them.
///
/// `side` counts rows of a left operand or columns of a right one, `depth` the steps of the sum.
pub trait OperandFormat<F: Real>: 'static {
    /// What packed operands are made of.
    type Word: Copy + Send + Sync + std::fmt::Debug + 'static;
    /// A word of zeros.
    const ZERO: Self::Word;
    /// Whether steps of the sum follow one another inside a micro-panel, so that it can be packed piece by piece.
    const STEPWISE: bool;

    /// MR of a left operand or NR of a right one: rows or columns of a micro-panel.
    fn side(operand: Operand) -> usize;

    /// Rows that a task should multiply at once. Packed rows can be taken apart at multiples of it, and as many steps of
    /// a sum can be packed for themselves.
    fn strip() -> usize;

    /// Words of an operand; also where its strip from row or column `side` on begins, at a multiple of the kernel's.
    fn words(operand: Operand, side: usize, depth: usize) -> usize;

    /// Packs an operand, or the steps from `skip` on of one that has `depth` in all, whole strips of them but at the end.
    /// What its last strip has no rows or columns for is 0.
    fn pack(view: View<F>, operand: Operand, out: &mut [Self::Word], skip: usize, depth: usize);

    /// `out (=|+=) left · right`
    fn multiply(out: ViewMut<F>, left: &[Self::Word], right: &[Self::Word], depth: usize, how: Accumulate);
}

/// A row-major matrix and how an operand reads it.
#[derive(Clone, Copy, Debug)]
pub struct OperandSource<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    stride: usize,
    /// Whether the steps of the sum are rows of the matrix rather than columns.
    across: bool,
}

impl<'a, F> OperandSource<'a, F> {
    pub(crate) fn new(view: View<'a, F>, operand: Operand) -> Self {
        let View { data, rows, cols, stride, transposed } = view;
        Self { data, rows, cols, stride, across: (operand == Operand::Right) != transposed }
    }

    /// Sides and steps.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        if self.across { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// `out = matrixᵀ`
///
/// # Shapes
/// `matrix` *m x n*, `out` *n x m*, row-major.
///
/// # Panics
/// If the lengths do not fit.
pub fn transpose<F: Real>(out: &mut [F], matrix: View<F>) {
    let (rows, cols) = matrix.shape();
    assert_eq!(out.len(), rows * cols, "transpose: {rows} x {cols}");
    if !out.is_empty() {
        // A micro-panel as wide as all rows.
        F::pack_panel(SimdLevel::best(), &OperandSource::new(matrix, Operand::Left), (0, 0), rows, out);
    }
}

#[cfg(test)]
pub(crate) mod check {
    use super::*;

    /// OperandFormat around 0 that use all their digits.
    pub fn made_up<F: Real>(count: usize, seed: u32) -> Vec<F> {
        let hash = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        (0..count as u32)
            .map(|i| F::from_f64((f64::from(hash(i)) / f64::from(u32::MAX) - 0.5) * 4.0))
            .collect()
    }

    /// Products over all transposes and sizes around one, two and three tiles of a kernel, against loops over operands
    /// that were `rounded`.
    pub fn equals_plain_loops<F: Real, P>(
        sides: [usize; 2],
        rounded: impl Fn(F) -> f64,
        pack: impl Fn(View<F>, Operand, usize, usize) -> P,
        multiply: impl Fn(ViewMut<F>, &P, &P, usize, Accumulate),
        bar: f64,
    ) {
        let around = |side: usize| [1, side - 1, side, side + 1, 2 * side, 2 * side + 1, 3 * side];
        let (m, n) = (around(sides[0]), around(sides[1]));
        let shapes = (0..49).map(|i| (m[i % 7], [1, 3, 31, 32, 33, 64, 100][(i + i / 7) % 7], n[i / 7]));
        for (i, (m, k, n)) in shapes.enumerate() {
            for case in if i % 7 < 2 { 0..8 } else { i % 8..i % 8 + 1 } {
                let (ta, tb, add) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
                let (a, b): (Vec<F>, Vec<F>) = (made_up(m * k, 1), made_up(k * n, 2));
                let left = if ta { View::new(&a, k, m).transposed() } else { View::new(&a, m, k) };
                let right = if tb { View::new(&b, n, k).transposed() } else { View::new(&b, k, n) };
                let (left, right) = (pack(left, Operand::Left, m, k), pack(right, Operand::Right, n, k));
                // Columns that are not the product's stay as they are.
                let old = F::from_f64(7.0);
                let mut out = vec![old; m * (n + 3)];
                let how = if add { Accumulate::Add } else { Accumulate::Replace };
                multiply(ViewMut::with_stride(&mut out, m, n, n + 3), &left, &right, k, how);
                for (i, row) in out.chunks(n + 3).enumerate() {
                    for (j, found) in row.iter().enumerate() {
                        let at = |l: usize| {
                            let a = a[if ta { l * m + i } else { i * k + l }];
                            rounded(a) * rounded(b[if tb { j * k + l } else { l * n + j }])
                        };
                        let sum = if j < n { (0..k).map(at).sum() } else { 0.0 };
                        let expected = sum + if add || j >= n { 7.0 } else { 0.0 };
                        let error = (found.to_f64() - expected).abs();
                        assert!(error < bar, "{m}x{k}x{n}, case {case}, [{i},{j}]: {found:?} {expected}");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{check::made_up, transpose};
    use crate::{Real, View};

    fn every_element_changes_places<F: Real>() {
        for (rows, cols) in [(0, 3), (3, 0), (1, 1), (3, 5), (16, 40), (40, 7), (17, 33), (8, 100), (100, 8)]
        {
            let stride = cols + 2;
            let matrix: Vec<F> = made_up(rows * stride, 1);
            let mut out = vec![F::ONE; rows * cols];
            transpose(&mut out, View::with_stride(&matrix, rows, cols, stride));
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                assert_eq!(out[j * rows + i].to_f64(), matrix[i * stride + j].to_f64(), "{rows} x {cols}");
            }
        }
    }

    #[test]
    fn every_element_changes_places_in_either_type() {
        every_element_changes_places::<f32>();
        every_element_changes_places::<f64>();
    }
}
