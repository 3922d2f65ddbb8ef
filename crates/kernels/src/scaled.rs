//! Rows of scaled numbers, for lattice forward-backward without logarithms.
//!
//! [`Scaled`] explains the numbers. A row is an anti-diagonal of a transducer lattice. The row
//! functions are one portable source that is compiled for each instruction set and selected at run
//! time (`dispatch.rs`). `diagonals.rs` and `avx512.rs` copy between rows and row-major matrices.
#[cfg(target_arch = "x86_64")]
mod avx512;
mod diagonals;
mod dispatch;
mod number;
mod rows;

use crate::simd::SimdLevel;

pub use diagonals::{Diagonals, gather};
pub use number::Scaled;

/// `f64` numbers in an AVX-512 register; rows are padded to multiples of it.
pub const LANES: usize = 8;

/// The emission (log-probability of an arc) that represents -inf.
///
/// The sum of millions of them is still finite.
pub const LOG_ZERO: f64 = -1e290;

/// A row of scaled numbers.
#[derive(Debug, Clone, Copy)]
pub struct ScaledRow<'a> {
    /// Mantissas x of numbers `(1 + x) · 2^k`.
    pub mantissa: &'a [f64],
    /// Exponents k.
    pub exponent: &'a [f64],
}

/// A mutable row of scaled numbers.
#[derive(Debug)]
pub struct ScaledRowMut<'a> {
    /// Mantissas x.
    pub mantissa: &'a mut [f64],
    /// Exponents k.
    pub exponent: &'a mut [f64],
}

impl ScaledRow<'_> {
    /// Returns one number.
    pub fn get(&self, i: usize) -> Scaled {
        Scaled { mantissa: self.mantissa[i], exponent: self.exponent[i] }
    }
}

impl<'a> ScaledRowMut<'a> {
    /// Reborrows the row.
    fn reborrow(&mut self) -> ScaledRowMut<'_> {
        ScaledRowMut { mantissa: self.mantissa, exponent: self.exponent }
    }

    /// Borrows `width` numbers from index `start` on.
    pub fn slice(&mut self, start: usize, width: usize) -> ScaledRowMut<'_> {
        ScaledRowMut {
            mantissa: &mut self.mantissa[start..start + width],
            exponent: &mut self.exponent[start..start + width],
        }
    }

    /// Splits the row at an index.
    pub fn split_at(self, index: usize) -> (ScaledRowMut<'a>, ScaledRowMut<'a>) {
        let (mantissa, right_mantissa) = self.mantissa.split_at_mut(index);
        let (exponent, right_exponent) = self.exponent.split_at_mut(index);
        let right = ScaledRowMut { mantissa: right_mantissa, exponent: right_exponent };
        (ScaledRowMut { mantissa, exponent }, right)
    }

    /// Borrows the row for reading.
    pub fn as_row(&self) -> ScaledRow<'_> {
        ScaledRow { mantissa: self.mantissa, exponent: self.exponent }
    }

    /// Writes one number.
    pub fn set(&mut self, i: usize, number: Scaled) {
        (self.mantissa[i], self.exponent[i]) = (number.mantissa, number.exponent);
    }

    /// Writes one number to all places.
    pub fn fill(&mut self, number: Scaled) {
        self.mantissa.fill(number.mantissa);
        self.exponent.fill(number.exponent);
    }

    /// Copies a row of the same length.
    pub fn copy_from(&mut self, row: ScaledRow<'_>) {
        self.mantissa.copy_from_slice(row.mantissa);
        self.exponent.copy_from_slice(row.exponent);
    }
}

/// Computes `out = exp(emissions) · weights`, with emissions of at least [`LOG_ZERO`].
///
/// All rows have the length of the output, here and in the functions below.
// All of these are inlined: references copied through wide registers would be slow to read again.
#[inline(always)]
pub fn mul_exp(emissions: &[f64], weights: ScaledRow<'_>, out: ScaledRowMut<'_>) {
    dispatch::mul_exp(SimdLevel::best(), emissions, weights, out);
}

/// Computes `sum = a + b` and `out = exp(emissions) · sum` for two arcs.
#[inline(always)]
pub fn add_then_mul_exp(
    emissions: (&[f64], &[f64]),
    a: ScaledRow<'_>,
    b: ScaledRow<'_>,
    sum: &mut ScaledRowMut<'_>,
    outs: [ScaledRowMut<'_>; 2],
) {
    dispatch::add_then_mul_exp(SimdLevel::best(), emissions, [a, b], sum.reborrow(), outs);
}

/// Computes `out = exp(emissions) · (a, b)` and the `sum` of both, for two arcs.
#[inline(always)]
pub fn mul_exp_then_add(
    emissions: (&[f64], &[f64]),
    a: ScaledRow<'_>,
    b: ScaledRow<'_>,
    outs: [ScaledRowMut<'_>; 2],
    sum: &mut ScaledRowMut<'_>,
) {
    dispatch::mul_exp_then_add(SimdLevel::best(), emissions, [a, b], outs, sum.reborrow());
}

/// Computes `total += term`.
#[inline(always)]
pub fn add(total: &mut ScaledRowMut<'_>, term: ScaledRow<'_>) {
    dispatch::add(SimdLevel::best(), term, total.reborrow());
}

/// Computes `out = a · b · factor · 2^-shift` as plain `f64` numbers.
#[inline(always)]
pub fn posterior(a: ScaledRow<'_>, b: ScaledRow<'_>, factor: f64, shift: f64, out: &mut [f64]) {
    dispatch::posterior(SimdLevel::best(), [a, b], factor, shift, out);
}

/// Returns `total + Σ_i a_i b_i`.
pub fn dot(total: Scaled, a: ScaledRow<'_>, b: ScaledRow<'_>) -> Scaled {
    (0..a.mantissa.len()).fold(total, |total, i| {
        let product = number::product::<false>(a.get(i), b.get(i));
        number::normalize::<false>(number::sum::<false>(total, product))
    })
}

/// Positions of a diagonal's sites: `first`, `first - distance`, `first - 2 distance`, ...
///
/// A site is a lattice node (t, u); the matrix is row-major, *T x (U + 1)* with some arcs per site.
#[derive(Debug, Clone, Copy)]
pub struct DiagonalPositions {
    /// Index of the first site.
    pub first: usize,
    /// Distance between neighbors.
    pub distance: usize,
}

impl DiagonalPositions {
    /// Returns whether `sites` sites of `arcs` numbers lie within `len` numbers.
    fn is_within(self, arcs: usize, sites: usize, len: usize) -> bool {
        let distance_to_last = sites.saturating_sub(1).checked_mul(self.distance);
        distance_to_last.is_some_and(|distance| distance <= self.first)
            && self.first.checked_add(arcs).is_some_and(|end| end <= len)
    }
}

/// Returns the positions of the sites of diagonal `d`.
///
/// The diagonal has the sites (d - u, u), from label position u = `low` on.
pub fn diagonal_positions(d: usize, low: usize, labels: usize, arcs: usize) -> DiagonalPositions {
    DiagonalPositions { first: ((d - low) * (labels + 1) + low) * arcs, distance: labels * arcs }
}
