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

/// The sum of a and b, and that times either exponential.
#[inline(always)]
pub(super) fn sum_and_weigh<const FUSED: bool>(
    e: &[f64],
    f: &[f64],
    a_x: &[f64],
    a_k: &[f64],
    b_x: &[f64],
    b_k: &[f64],
    sum_x: &mut [f64],
    sum_k: &mut [f64],
    p_x: &mut [f64],
    p_k: &mut [f64],
    q_x: &mut [f64],
    q_k: &mut [f64],
) {
    let n = sum_x.len();
    let (e, f) = (&e[..n], &f[..n]);
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    let (sum_k, p_x, p_k) = (&mut sum_k[..n], &mut p_x[..n], &mut p_k[..n]);
    let (q_x, q_k) = (&mut q_x[..n], &mut q_k[..n]);
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        let sum = scaled::normalise::<FUSED>(scaled::sum::<FUSED>(a, b));
        (sum_x[i], sum_k[i]) = (sum.excess, sum.exponent);
        let p = scaled::product::<FUSED>(scaled::exp::<FUSED>(e[i]), sum);
        (p_x[i], p_k[i]) = (p.excess, p.exponent);
        let q = scaled::product::<FUSED>(scaled::exp::<FUSED>(f[i]), sum);
        (q_x[i], q_k[i]) = (q.excess, q.exponent);
    }
}

/// The exponentials times a and b, and the sum of both.
#[inline(always)]
pub(super) fn weigh_and_sum<const FUSED: bool>(
    e: &[f64],
    f: &[f64],
    a_x: &[f64],
    a_k: &[f64],
    b_x: &[f64],
    b_k: &[f64],
    p_x: &mut [f64],
    p_k: &mut [f64],
    q_x: &mut [f64],
    q_k: &mut [f64],
    sum_x: &mut [f64],
    sum_k: &mut [f64],
) {
    let n = sum_x.len();
    let (e, f) = (&e[..n], &f[..n]);
    let (a_x, a_k, b_x, b_k) = (&a_x[..n], &a_k[..n], &b_x[..n], &b_k[..n]);
    let (sum_k, p_x, p_k) = (&mut sum_k[..n], &mut p_x[..n], &mut p_k[..n]);
    let (q_x, q_k) = (&mut q_x[..n], &mut q_k[..n]);
    for i in 0..n {
        let a = Scaled { excess: a_x[i], exponent: a_k[i] };
        let b = Scaled { excess: b_x[i], exponent: b_k[i] };
        let p = scaled::product::<FUSED>(scaled::exp::<FUSED>(e[i]), a);
        (p_x[i], p_k[i]) = (p.excess, p.exponent);
        let q = scaled::product::<FUSED>(scaled::exp::<FUSED>(f[i]), b);
        (q_x[i], q_k[i]) = (q.excess, q.exponent);
        let sum = scaled::normalise::<FUSED>(scaled::sum::<FUSED>(p, q));
        (sum_x[i], sum_k[i]) = (sum.excess, sum.exponent);
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
