//! Loops of forward-backward over one anti-diagonal of a lattice, in scaled numbers.
//!
//! ```text
//! number            (1 + x) · 2^k, mantissa x and exponent k, in place of its logarithm
//! mul_exp           out = exp(e) · w      e: emissions; w: weights
//! add               out = a + b
//! posterior         out = a · b · factor · 2^-shift
//! ```
//! A row is an anti-diagonal, stored as mantissas `x` and exponents `k`. `FUSED`: with fused
//! multiply-add. The loops are in functions of slices (`.._slices`), so that the compiler can
//! assume that the slices do not overlap, and vectorizes. A step with two arcs runs one loop after
//! another on the same row, which stays in the first-level cache.
use super::{
    ScaledRow, ScaledRowMut,
    number::{self, Scaled},
};

/// Emissions of two arcs.
pub(super) type RowPair<'a> = (&'a [f64], &'a [f64]);

/// Computes `out = exp(e) · w`.
#[inline(always)]
fn mul_exp_slices<const FUSED: bool>(
    e: &[f64],
    w_x: &[f64],
    w_k: &[f64],
    out_x: &mut [f64],
    out_k: &mut [f64],
) {
    let n = out_x.len();
    let (e, w_x, w_k, out_k) = (&e[..n], &w_x[..n], &w_k[..n], &mut out_k[..n]);
    for i in 0..n {
        let weight = Scaled { mantissa: w_x[i], exponent: w_k[i] };
        let result = number::product::<FUSED>(number::exp::<FUSED>(e[i]), weight);
        (out_x[i], out_k[i]) = (result.mantissa, result.exponent);
    }
}

/// Computes `out = a + b`.
#[inline(always)]
fn add_slices<const FUSED: bool>(
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
        let a = Scaled { mantissa: a_x[i], exponent: a_k[i] };
        let b = Scaled { mantissa: b_x[i], exponent: b_k[i] };
        let result = number::normalize::<FUSED>(number::sum::<FUSED>(a, b));
        (out_x[i], out_k[i]) = (result.mantissa, result.exponent);
    }
}

/// Computes `out = exp(emissions) · weights`.
#[inline(always)]
pub(super) fn mul_exp<const FUSED: bool>(emissions: &[f64], weights: ScaledRow<'_>, out: ScaledRowMut<'_>) {
    mul_exp_slices::<FUSED>(emissions, weights.mantissa, weights.exponent, out.mantissa, out.exponent);
}

/// Computes `out = a + b` of rows.
#[inline(always)]
fn add_rows<const FUSED: bool>([a, b]: [ScaledRow<'_>; 2], out: ScaledRowMut<'_>) {
    add_slices::<FUSED>(a.mantissa, a.exponent, b.mantissa, b.exponent, out.mantissa, out.exponent);
}

/// Computes `a + b`, and its products with both exponentials.
#[inline(always)]
pub(super) fn add_then_mul_exp<const FUSED: bool>(
    (first_emissions, second_emissions): RowPair<'_>,
    terms: [ScaledRow<'_>; 2],
    mut total: ScaledRowMut<'_>,
    [first_out, second_out]: [ScaledRowMut<'_>; 2],
) {
    add_rows::<FUSED>(terms, total.reborrow());
    mul_exp::<FUSED>(first_emissions, total.as_row(), first_out);
    mul_exp::<FUSED>(second_emissions, total.as_row(), second_out);
}

/// Computes the products of exponentials and weights, and their sum.
#[inline(always)]
pub(super) fn mul_exp_then_add<const FUSED: bool>(
    (first_emissions, second_emissions): RowPair<'_>,
    [a, b]: [ScaledRow<'_>; 2],
    [mut first_out, mut second_out]: [ScaledRowMut<'_>; 2],
    total: ScaledRowMut<'_>,
) {
    mul_exp::<FUSED>(first_emissions, a, first_out.reborrow());
    mul_exp::<FUSED>(second_emissions, b, second_out.reborrow());
    add_rows::<FUSED>([first_out.as_row(), second_out.as_row()], total);
}

/// Computes `total += term`.
#[inline(always)]
fn add_slices_in_place<const FUSED: bool>(
    term_x: &[f64],
    term_k: &[f64],
    total_x: &mut [f64],
    total_k: &mut [f64],
) {
    let n = total_x.len();
    let (term_x, term_k, total_k) = (&term_x[..n], &term_k[..n], &mut total_k[..n]);
    for i in 0..n {
        let term = Scaled { mantissa: term_x[i], exponent: term_k[i] };
        let total = Scaled { mantissa: total_x[i], exponent: total_k[i] };
        let result = number::normalize::<FUSED>(number::sum::<FUSED>(total, term));
        (total_x[i], total_k[i]) = (result.mantissa, result.exponent);
    }
}

#[inline(always)]
pub(super) fn add<const FUSED: bool>(term: ScaledRow<'_>, total: ScaledRowMut<'_>) {
    add_slices_in_place::<FUSED>(term.mantissa, term.exponent, total.mantissa, total.exponent);
}

/// Computes `out = a · b · factor · 2^-shift`.
#[inline(always)]
fn posterior_slices<const FUSED: bool>(
    [a_x, a_k, b_x, b_k]: [&[f64]; 4],
    factor: f64,
    shift: f64,
    out: &mut [f64],
) {
    let n = out.len();
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    for i in 0..n {
        let a = Scaled { mantissa: a_x[i], exponent: a_k[i] };
        let b = Scaled { mantissa: b_x[i], exponent: b_k[i] };
        out[i] = number::scaled_product::<FUSED>(a, b, factor, shift);
    }
}

#[inline(always)]
pub(super) fn posterior<const FUSED: bool>(
    [a, b]: [ScaledRow<'_>; 2],
    factor: f64,
    shift: f64,
    out: &mut [f64],
) {
    posterior_slices::<FUSED>([a.mantissa, a.exponent, b.mantissa, b.exponent], factor, shift, out);
}
