//! Rows of scaled numbers, several at a time: what lattices are summed with.
//!
//! What a scaled number is, is said in `number.rs`. The row functions are one portable source, compiled several times
//! and chosen at run time (`dispatch.rs`). Between rows and row-major memory, `diagonals.rs` and `avx512.rs` translate.
#[cfg(target_arch = "x86_64")]
mod avx512;
mod diagonals;
mod dispatch;
mod number;
mod rows;

use crate::simd::SimdLevel;

pub use diagonals::{Diagonals, gather};
pub use number::Scaled;

/// Numbers of an AVX-512 register. Rows are whole multiples of it, so that no loop has a slow end.
pub const LANES: usize = 8;

/// An emission that stands for -inf: adding up millions of it stays finite, and no log-probability comes near.
pub const LOG_ZERO: f64 = -1e290;

/// Scaled numbers, read.
#[derive(Debug, Clone, Copy)]
pub struct ScaledRow<'a> {
    /// x of each.
    pub mantissa: &'a [f64],
    /// k of each.
    pub exponent: &'a [f64],
}

/// Scaled numbers, written.
#[derive(Debug)]
pub struct ScaledRowMut<'a> {
    /// x of each.
    pub mantissa: &'a mut [f64],
    /// k of each.
    pub exponent: &'a mut [f64],
}

impl ScaledRow<'_> {
    /// One of the numbers.
    pub fn get(&self, i: usize) -> Scaled {
        Scaled { mantissa: self.mantissa[i], exponent: self.exponent[i] }
    }
}

impl<'a> ScaledRowMut<'a> {
    /// All of them, for a while.
    fn all(&mut self) -> ScaledRowMut<'_> {
        ScaledRowMut { mantissa: self.mantissa, exponent: self.exponent }
    }

    /// Some of the numbers.
    pub fn part(&mut self, from: usize, width: usize) -> ScaledRowMut<'_> {
        ScaledRowMut {
            mantissa: &mut self.mantissa[from..from + width],
            exponent: &mut self.exponent[from..from + width],
        }
    }

    /// Those before a place, and the others.
    pub fn split_at(self, at: usize) -> (ScaledRowMut<'a>, ScaledRowMut<'a>) {
        let (left, right) = self.mantissa.split_at_mut(at);
        let (lower, upper) = self.exponent.split_at_mut(at);
        (ScaledRowMut { mantissa: left, exponent: lower }, ScaledRowMut { mantissa: right, exponent: upper })
    }

    /// To be read.
    pub fn as_row(&self) -> ScaledRow<'_> {
        ScaledRow { mantissa: self.mantissa, exponent: self.exponent }
    }

    /// Writes one number.
    pub fn set(&mut self, i: usize, to: Scaled) {
        (self.mantissa[i], self.exponent[i]) = (to.mantissa, to.exponent);
    }

    /// Writes one number everywhere.
    pub fn fill(&mut self, with: Scaled) {
        self.mantissa.fill(with.mantissa);
        self.exponent.fill(with.exponent);
    }

    /// Copies all numbers of a row of the same length.
    pub fn copy_from(&mut self, row: ScaledRow<'_>) {
        self.mantissa.copy_from_slice(row.mantissa);
        self.exponent.copy_from_slice(row.exponent);
    }
}

/// `out = exp(emissions) · weights`, emissions at least [`LOG_ZERO`]
///
/// Here and below all rows are as long as the one that is written.
// Inlined, as all that follow: references that were copied on the way by wide registers are slow to be read one by one.
#[inline(always)]
pub fn weigh(emissions: &[f64], weights: ScaledRow<'_>, out: ScaledRowMut<'_>) {
    dispatch::weigh(SimdLevel::best(), emissions, weights, out);
}

/// `sum = a + b`, `out = exp(emissions) · sum`, of two arcs
#[inline(always)]
pub fn sum_and_weigh(
    emissions: (&[f64], &[f64]),
    a: ScaledRow<'_>,
    b: ScaledRow<'_>,
    sum: &mut ScaledRowMut<'_>,
    outs: [ScaledRowMut<'_>; 2],
) {
    dispatch::sum_and_weigh(SimdLevel::best(), emissions, [a, b], sum.all(), outs);
}

/// `out = exp(emissions) · (a, b)`, `sum` of both, of two arcs
#[inline(always)]
pub fn weigh_and_sum(
    emissions: (&[f64], &[f64]),
    a: ScaledRow<'_>,
    b: ScaledRow<'_>,
    outs: [ScaledRowMut<'_>; 2],
    sum: &mut ScaledRowMut<'_>,
) {
    dispatch::weigh_and_sum(SimdLevel::best(), emissions, [a, b], outs, sum.all());
}

/// `total += term`
#[inline(always)]
pub fn add(total: &mut ScaledRowMut<'_>, term: ScaledRow<'_>) {
    dispatch::add(SimdLevel::best(), term, total.all());
}

/// `out = a · b · factor · 2^-shift`
#[inline(always)]
pub fn posterior(a: ScaledRow<'_>, b: ScaledRow<'_>, factor: f64, shift: f64, out: &mut [f64]) {
    dispatch::posterior(SimdLevel::best(), [a, b], factor, shift, out);
}

/// `total + Σ_i a_i b_i`
pub fn dot(total: Scaled, a: ScaledRow<'_>, b: ScaledRow<'_>) -> Scaled {
    (0..a.mantissa.len()).fold(total, |total, i| {
        let product = number::product::<false>(a.get(i), b.get(i));
        number::normalise::<false>(number::sum::<false>(total, product))
    })
}
/// Where the sites of a diagonal are in a row-major matrix: at `first`, `first - back`, `first - 2 back`, ...
#[derive(Debug, Clone, Copy)]
pub struct Stride {
    /// Place of the first one.
    pub first: usize,
    /// From one to the next.
    pub back: usize,
}

impl Stride {
    /// Whether `sites` sites of `arcs` numbers are among the first `len` numbers.
    fn inside(self, arcs: usize, sites: usize, len: usize) -> bool {
        let reach = sites.saturating_sub(1).checked_mul(self.back);
        reach.is_some_and(|reach| reach <= self.first)
            && self.first.checked_add(arcs).is_some_and(|end| end <= len)
    }
}

/// The sites of diagonal d from the label `low` on.
pub fn stride(d: usize, low: usize, labels: usize, arcs: usize) -> Stride {
    Stride { first: ((d - low) * (labels + 1) + low) * arcs, back: labels * arcs }
}
