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
mod stride;

use crate::features::Machine;

pub use diagonals::{Diagonals, gather};
pub use number::Scaled;
pub use stride::stride;

/// Numbers of an AVX-512 register. Rows are whole multiples of it, so that no loop has a slow end.
pub const LANES: usize = 8;

/// An emission that stands for -inf: adding up millions of it stays finite, and no log-probability comes near.
pub const NEVER: f64 = -1e290;

/// Scaled numbers, read.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// x of each.
    pub excess: &'a [f64],
    /// k of each.
    pub exponent: &'a [f64],
}

/// Scaled numbers, written.
#[derive(Debug)]
pub struct RowMut<'a> {
    /// x of each.
    pub excess: &'a mut [f64],
    /// k of each.
    pub exponent: &'a mut [f64],
}

impl Row<'_> {
    /// One of the numbers.
    pub fn get(&self, i: usize) -> Scaled {
        Scaled { excess: self.excess[i], exponent: self.exponent[i] }
    }
}

impl<'a> RowMut<'a> {
    /// All of them, for a while.
    fn all(&mut self) -> RowMut<'_> {
        RowMut { excess: self.excess, exponent: self.exponent }
    }

    /// Some of the numbers.
    pub fn part(&mut self, from: usize, width: usize) -> RowMut<'_> {
        RowMut {
            excess: &mut self.excess[from..from + width],
            exponent: &mut self.exponent[from..from + width],
        }
    }

    /// Those before a place, and the others.
    pub fn split_at(self, at: usize) -> (RowMut<'a>, RowMut<'a>) {
        let (left, right) = self.excess.split_at_mut(at);
        let (lower, upper) = self.exponent.split_at_mut(at);
        (RowMut { excess: left, exponent: lower }, RowMut { excess: right, exponent: upper })
    }

    /// To be read.
    pub fn as_row(&self) -> Row<'_> {
        Row { excess: self.excess, exponent: self.exponent }
    }

    /// Writes one number.
    pub fn set(&mut self, i: usize, to: Scaled) {
        (self.excess[i], self.exponent[i]) = (to.excess, to.exponent);
    }

    /// Writes one number everywhere.
    pub fn fill(&mut self, with: Scaled) {
        self.excess.fill(with.excess);
        self.exponent.fill(with.exponent);
    }

    /// Copies all numbers of a row of the same length.
    pub fn copy_from(&mut self, row: Row<'_>) {
        self.excess.copy_from_slice(row.excess);
        self.exponent.copy_from_slice(row.exponent);
    }
}

/// `out = exp(emissions) · weights`, emissions at least [`NEVER`]
///
/// Here and below all rows are as long as the one that is written.
// Inlined, as all that follow: references that were copied on the way by wide registers are slow to be read one by one.
#[inline(always)]
pub fn weigh(emissions: &[f64], weights: Row<'_>, out: RowMut<'_>) {
    dispatch::weigh(Machine::best(), emissions, weights, out);
}

/// `sum = a + b`, `out = exp(emissions) · sum`, of two arcs
#[inline(always)]
pub fn sum_and_weigh(
    emissions: (&[f64], &[f64]),
    a: Row<'_>,
    b: Row<'_>,
    sum: &mut RowMut<'_>,
    outs: [RowMut<'_>; 2],
) {
    dispatch::sum_and_weigh(Machine::best(), emissions, [a, b], sum.all(), outs);
}

/// `out = exp(emissions) · (a, b)`, `sum` of both, of two arcs
#[inline(always)]
pub fn weigh_and_sum(
    emissions: (&[f64], &[f64]),
    a: Row<'_>,
    b: Row<'_>,
    outs: [RowMut<'_>; 2],
    sum: &mut RowMut<'_>,
) {
    dispatch::weigh_and_sum(Machine::best(), emissions, [a, b], outs, sum.all());
}

/// `total += term`
#[inline(always)]
pub fn add(total: &mut RowMut<'_>, term: Row<'_>) {
    dispatch::add(Machine::best(), term, total.all());
}

/// `out = a · b · factor · 2^-shift`
#[inline(always)]
pub fn posterior(a: Row<'_>, b: Row<'_>, factor: f64, shift: f64, out: &mut [f64]) {
    dispatch::posterior(Machine::best(), [a, b], factor, shift, out);
}

/// `total + Σ_i a_i b_i`
pub fn dot(total: Scaled, a: Row<'_>, b: Row<'_>) -> Scaled {
    (0..a.excess.len()).fold(total, |total, i| {
        let product = number::product::<false>(a.get(i), b.get(i));
        number::normalise::<false>(number::sum::<false>(total, product))
    })
}
