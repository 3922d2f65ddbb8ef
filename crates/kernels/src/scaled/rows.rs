//! Loops over rows: excesses `x` and exponents `k` of scaled numbers.
//!
//! ```text
//! for each place i:  read what is needed there, compute, write
//! ```
//! The slices of a loop are arguments of one function: as such the compiler knows that none overlaps another, and makes
//! vector instructions of the loop. Kernels of two arcs are several loops over a row, which stays in the first cache.
use super::{
    Row, RowMut,
    number::{self, Scaled},
};

/// Emissions of two arcs.
pub(super) type Pair<'a> = (&'a [f64], &'a [f64]);

/// `out = exp(e) · w`
#[inline(always)]
fn products<const FUSED: bool>(e: &[f64], w_x: &[f64], w_k: &[f64], out_x: &mut [f64], out_k: &mut [f64]) {
    let n = out_x.len();
    let (e, w_x, w_k, out_k) = (&e[..n], &w_x[..n], &w_k[..n], &mut out_k[..n]);
    for i in 0..n {
        let weight = Scaled { excess: w_x[i], exponent: w_k[i] };
        let found = number::product::<FUSED>(number::exp::<FUSED>(e[i]), weight);
        (out_x[i], out_k[i]) = (found.excess, found.exponent);
    }
}

/// `out = a + b`
#[inline(always)]
fn sums<const FUSED: bool>(
    a_x: &[f64],
    a_k: &[f64],
    b_x: &[f64],
    b_k: &[f64],
    out_x: &mut [f64],
    out_k: &mut [f64],
) {
    let n = out_x.len();
    let (a_x, a_k, b_x, b_k, out_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n], &mut out_k[..n]);
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        let found = number::normalise::<FUSED>(number::sum::<FUSED>(a, b));
        (out_x[i], out_k[i]) = (found.excess, found.exponent);
    }
}

#[inline(always)]
pub(super) fn weigh<const FUSED: bool>(emissions: &[f64], weights: Row<'_>, out: RowMut<'_>) {
    products::<FUSED>(emissions, weights.excess, weights.exponent, out.excess, out.exponent);
}

#[inline(always)]
fn sum<const FUSED: bool>([a, b]: [Row<'_>; 2], out: RowMut<'_>) {
    sums::<FUSED>(a.excess, a.exponent, b.excess, b.exponent, out.excess, out.exponent);
}

/// The sum of a and b, and that times either exponential.
#[inline(always)]
pub(super) fn sum_and_weigh<const FUSED: bool>(
    (e, f): Pair<'_>,
    terms: [Row<'_>; 2],
    mut total: RowMut<'_>,
    [p, q]: [RowMut<'_>; 2],
) {
    sum::<FUSED>(terms, total.all());
    weigh::<FUSED>(e, total.as_row(), p);
    weigh::<FUSED>(f, total.as_row(), q);
}

/// The exponentials times a and b, and the sum of both.
#[inline(always)]
pub(super) fn weigh_and_sum<const FUSED: bool>(
    (e, f): Pair<'_>,
    [a, b]: [Row<'_>; 2],
    [mut p, mut q]: [RowMut<'_>; 2],
    total: RowMut<'_>,
) {
    weigh::<FUSED>(e, a, p.all());
    weigh::<FUSED>(f, b, q.all());
    sum::<FUSED>([p.as_row(), q.as_row()], total);
}

#[inline(always)]
fn sums_in_place<const FUSED: bool>(
    term_x: &[f64],
    term_k: &[f64],
    total_x: &mut [f64],
    total_k: &mut [f64],
) {
    let n = total_x.len();
    let (term_x, term_k, total_k) = (&term_x[..n], &term_k[..n], &mut total_k[..n]);
    for i in 0..n {
        let term = Scaled { excess: term_x[i], exponent: term_k[i] };
        let total = Scaled { excess: total_x[i], exponent: total_k[i] };
        let found = number::normalise::<FUSED>(number::sum::<FUSED>(total, term));
        (total_x[i], total_k[i]) = (found.excess, found.exponent);
    }
}

#[inline(always)]
pub(super) fn add<const FUSED: bool>(term: Row<'_>, total: RowMut<'_>) {
    sums_in_place::<FUSED>(term.excess, term.exponent, total.excess, total.exponent);
}

#[inline(always)]
fn values<const FUSED: bool>([a_x, a_k, b_x, b_k]: [&[f64]; 4], factor: f64, shift: f64, out: &mut [f64]) {
    let n = out.len();
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        out[i] = number::value::<FUSED>(a, b, factor, shift);
    }
}

#[inline(always)]
pub(super) fn posterior<const FUSED: bool>([a, b]: [Row<'_>; 2], factor: f64, shift: f64, out: &mut [f64]) {
    values::<FUSED>([a.excess, a.exponent, b.excess, b.exponent], factor, shift, out);
}
