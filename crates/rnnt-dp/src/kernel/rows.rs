//! Loops over rows. A row comes as two slices, excesses `x` and exponents `k`: that no slice overlaps another is then
//! plain to the compiler, which makes vector instructions of the loops.
use super::scaled::{self, Scaled};

#[inline(always)]
pub(super) fn weigh<const FUSED: bool>(
    emissions: &[f64],
    weights_x: &[f64],
    weights_k: &[f64],
    out_x: &mut [f64],
    out_k: &mut [f64],
) {
    let n = out_x.len();
    let (emissions, weights_x, weights_k) = (&emissions[..n], &weights_x[..n], &weights_k[..n]);
    let out_k = &mut out_k[..n];
    for i in 0..n {
        let weight = Scaled { excess: weights_x[i], exponent: weights_k[i] };
        let found = scaled::product::<FUSED>(scaled::exp::<FUSED>(emissions[i]), weight);
        (out_x[i], out_k[i]) = (found.excess, found.exponent);
    }
}

#[inline(always)]
pub(super) fn sum<const FUSED: bool>(
    a_x: &[f64],
    a_k: &[f64],
    b_x: &[f64],
    b_k: &[f64],
    out_x: &mut [f64],
    out_k: &mut [f64],
) {
    let n = out_x.len();
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    let out_k = &mut out_k[..n];
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        let found = scaled::normalise::<FUSED>(scaled::sum::<FUSED>(a, b));
        (out_x[i], out_k[i]) = (found.excess, found.exponent);
    }
}

#[inline(always)]
pub(super) fn add<const FUSED: bool>(
    term_x: &[f64],
    term_k: &[f64],
    total_x: &mut [f64],
    total_k: &mut [f64],
) {
    let n = total_x.len();
    let (term_x, term_k) = (&term_x[..n], &term_k[..n]);
    let total_k = &mut total_k[..n];
    for i in 0..n {
        let term = Scaled { excess: term_x[i], exponent: term_k[i] };
        let total = Scaled { excess: total_x[i], exponent: total_k[i] };
        let found = scaled::normalise::<FUSED>(scaled::sum::<FUSED>(total, term));
        (total_x[i], total_k[i]) = (found.excess, found.exponent);
    }
}

#[inline(always)]
pub(super) fn posterior<const FUSED: bool>(
    a_x: &[f64],
    a_k: &[f64],
    b_x: &[f64],
    b_k: &[f64],
    factor: f64,
    shift: f64,
    out: &mut [f64],
) {
    let n = out.len();
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        out[i] = scaled::value::<FUSED>(a, b, factor, shift);
    }
}
