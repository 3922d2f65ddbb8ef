//! Formats of packed matrices for BLIS-style products, `f32`/`f64` or bf16.
//!
//! The same rows and weights take part in many products, so they are packed once. Vector functions
//! use the results while they are still in the cache.
//!
//! A left operand *m x k* is stored in micro-panels of a few rows, a right one *k x n* in
//! micro-panels of a few columns, each step by step (step: index of the sum over k). The sizes and
//! the number type depend on the format ([`OperandFormat`]): [`FullFormat`] keeps the type of the
//! rows, [`bf16`] rounds.
pub mod bf16;
mod full;
pub(crate) mod micro;
#[cfg(target_arch = "x86_64")]
pub(crate) mod micro_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod micro_avx512;
mod operand;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack_avx512;
mod panels;
mod q8;
#[cfg(target_arch = "x86_64")]
mod tile_config;

pub use full::FullFormat;
pub use operand::{
    NumberFormat, OperandTileMut, OperandTilesMut, PART_MULTIPLE, PackedOperand, RightPart, SumOrder,
    multiply,
};
pub(crate) use panels::{OutputTile, RightPanels};
pub use q8::RowBits;
pub use q8::matrix::QuantizedMatrix;

use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The position of an operand in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// *m x k*: m rows, each with k steps.
    Left,
    /// *k x n*: n columns, each with k steps.
    Right,
}

/// The layout of packed operands, and their product.
///
/// `depth` counts the steps of the sum. MR and NR are the rows and columns of the tile of results
/// that a micro-kernel computes.
pub trait OperandFormat<F: Real>: 'static {
    /// Element of a packed operand.
    type Word: Copy + Send + Sync + std::fmt::Debug + 'static;
    /// The zero element.
    const ZERO: Self::Word;
    /// Whether steps of a micro-panel are contiguous.
    ///
    /// Then any range of steps may be packed separately.
    const STEPWISE: bool;

    /// Returns MR for a left operand or NR for a right one.
    ///
    /// They are the rows or columns of a micro-panel, in bf16 of two micro-panels.
    fn panel_width(operand: Operand) -> usize;

    /// Returns the rows that a task should multiply at once.
    ///
    /// Packed rows may be split at multiples of it.
    fn preferred_rows() -> usize;

    /// Returns the words of a packed operand.
    ///
    /// `len` are the rows of a left operand or the columns of a right one. The result is also the
    /// offset of row or column `len`, if it is a multiple of [`panel_width`](Self::panel_width).
    fn words(operand: Operand, len: usize, depth: usize) -> usize;

    /// Packs steps of an operand, from step `skip` on.
    ///
    /// `depth` is the total number of steps.
    ///
    /// Unless the format is [`STEPWISE`](Self::STEPWISE), the number of packed steps is a multiple
    /// of [`preferred_rows`](Self::preferred_rows), except at the end. Padding is filled with 0.
    fn pack(view: View<F>, operand: Operand, out: &mut [Self::Word], skip: usize, depth: usize);

    /// Computes `out (=|+=) left · right`.
    fn multiply(
        out: ViewMut<F>,
        left: &[Self::Word],
        right: &[Self::Word],
        depth: usize,
        accumulate: Accumulate,
    );
}

/// A row-major matrix, and the orientation in which an operand reads it.
#[derive(Clone, Copy, Debug)]
pub struct OperandSource<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    stride: usize,
    /// True if steps of the sum are rows, false for columns.
    steps_are_rows: bool,
}

impl<'a, F> OperandSource<'a, F> {
    pub(crate) fn new(view: View<'a, F>, operand: Operand) -> Self {
        let View { data, rows, cols, stride, transposed } = view;
        Self { data, rows, cols, stride, steps_are_rows: (operand == Operand::Right) != transposed }
    }

    /// Returns the rows (left operand) or columns (right), and the steps.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        if self.steps_are_rows { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// Writes `out = matrixᵀ`.
///
/// # Shapes
/// `matrix` *m x n*, `out` *n x m*, row-major.
///
/// # Panics
/// If the lengths do not match.
pub fn transpose<F: Real>(out: &mut [F], matrix: View<F>) {
    let (rows, cols) = matrix.shape();
    assert_eq!(out.len(), rows * cols, "transpose: {rows} x {cols}");
    if !out.is_empty() {
        // A single micro-panel that contains all rows.
        F::pack_panel(SimdLevel::best(), &OperandSource::new(matrix, Operand::Left), (0, 0), rows, out);
    }
}

#[cfg(test)]
pub(crate) mod check {
    use super::*;

    /// Numbers between -2 and 2 that use all their digits.
    pub(crate) fn synthetic<F: Real>(count: usize, seed: u32) -> Vec<F> {
        let hash = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        (0..count as u32)
            .map(|i| F::from_f64((f64::from(hash(i)) / f64::from(u32::MAX) - 0.5) * 4.0))
            .collect()
    }

    /// Compares products with loops, for all transposes and many sizes.
    ///
    /// The sizes are around 1 to 3 tiles of MR x NR; the loops use operands after `rounded`.
    pub(crate) fn equals_plain_loops<F: Real, P>(
        tile_shape: [usize; 2],
        rounded: impl Fn(F) -> f64,
        pack: impl Fn(View<F>, Operand, usize, usize) -> P,
        multiply: impl Fn(ViewMut<F>, &P, &P, usize, Accumulate),
        tolerance: f64,
    ) {
        let around = |size: usize| [1, size - 1, size, size + 1, 2 * size, 2 * size + 1, 3 * size];
        let (rows, columns) = (around(tile_shape[0]), around(tile_shape[1]));
        let steps = [1, 3, 31, 32, 33, 64, 100];
        let shapes = (0..49).map(|i| (rows[i % 7], steps[(i + i / 7) % 7], columns[i / 7]));
        for (i, (m, k, n)) in shapes.enumerate() {
            // Bits of a case: both transposes, and addition. Some shapes have all cases, the
            // others one.
            for case in if i % 7 < 2 { 0..8 } else { i % 8..i % 8 + 1 } {
                let (transpose_a, transpose_b, add) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
                let (a, b): (Vec<F>, Vec<F>) = (synthetic(m * k, 1), synthetic(k * n, 2));
                let left = if transpose_a { View::new(&a, k, m).transposed() } else { View::new(&a, m, k) };
                let right = if transpose_b { View::new(&b, n, k).transposed() } else { View::new(&b, k, n) };
                let (left, right) = (pack(left, Operand::Left, m, k), pack(right, Operand::Right, n, k));
                // Columns outside the product must not change.
                let old = F::from_f64(7.0);
                let mut out = vec![old; m * (n + 3)];
                let accumulate = if add { Accumulate::Add } else { Accumulate::Replace };
                multiply(ViewMut::with_stride(&mut out, m, n, n + 3), &left, &right, k, accumulate);
                for (i, row) in out.chunks(n + 3).enumerate() {
                    for (j, actual) in row.iter().enumerate() {
                        let term = |l: usize| {
                            let a = a[if transpose_a { l * m + i } else { i * k + l }];
                            rounded(a) * rounded(b[if transpose_b { j * k + l } else { l * n + j }])
                        };
                        let sum = if j < n { (0..k).map(term).sum() } else { 0.0 };
                        let expected = sum + if add || j >= n { 7.0 } else { 0.0 };
                        let error = (actual.to_f64() - expected).abs();
                        assert!(
                            error < tolerance,
                            "{m}x{k}x{n}, case {case}, [{i},{j}]: {actual:?} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{check::synthetic, transpose};
    use crate::{Real, View};

    fn transposes_move_every_element<F: Real>() {
        for (rows, cols) in [(0, 3), (3, 0), (1, 1), (3, 5), (16, 40), (40, 7), (17, 33), (8, 100), (100, 8)]
        {
            let stride = cols + 2;
            let matrix: Vec<F> = synthetic(rows * stride, 1);
            let mut out = vec![F::ONE; rows * cols];
            transpose(&mut out, View::with_stride(&matrix, rows, cols, stride));
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                assert_eq!(out[j * rows + i].to_f64(), matrix[i * stride + j].to_f64(), "{rows} x {cols}");
            }
        }
    }

    #[test]
    fn transposes_move_every_element_in_either_type() {
        transposes_move_every_element::<f32>();
        transposes_move_every_element::<f64>();
    }
}
