//! Vector mathematics for `f32`, written so that the compiler turns each loop into vector instructions.
//!
//! ```text
//! exp x   = 2^k · p(r)          k = round(x / ln 2), r = x - k ln 2, |r| <= ln 2 / 2
//! p(r)    = Σ_{j<=7} r^j / j!   truncation below 5.3e-9 relative, a twelfth of an f32 ULP
//! tanh x  = e / (e + 2)         e = exp(2x) - 1 = 2^k (p(r) - 1) + (2^k - 1): no cancellation near 0
//! ```
//!
//! `FUSED` says whether the copy is compiled for a machine with fused multiply-add; elsewhere `mul_add` would
//! be a library call, so the portable copy multiplies and adds.

/// Accumulators of a reduction; one AVX-512 register of `f32`.
const LANES: usize = 16;

const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512: k times this is exact for |k| < 2^14
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 · 2^23 rounds to the nearest integer, which stays in the low bits in between.
const ROUND: f32 = 12_582_912.0;
/// Arguments of `exp` beyond these give 0 and +inf.
const SMALLEST: f32 = -86.6;
const LARGEST: f32 = 88.722_83;

#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `(2^(k - DOWN), p(r) - 1)`
#[inline(always)]
fn reduce<const FUSED: bool, const DOWN: u32>(x: f32) -> (f32, f32) {
    let shifted = fma::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = fma::<FUSED>(k, -LN2_LOW, fma::<FUSED>(k, -LN2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    p = fma::<FUSED>(p, r, 1.0 / 720.0);
    p = fma::<FUSED>(p, r, 1.0 / 120.0);
    p = fma::<FUSED>(p, r, 1.0 / 24.0);
    p = fma::<FUSED>(p, r, 1.0 / 6.0);
    p = fma::<FUSED>(p, r, 0.5);
    p = fma::<FUSED>(p * r, r, r);
    // The low 8 bits of `shifted` are k; moved to the exponent field and biased they are 2^k.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add((127 - DOWN) << 23));
    (power, p)
}

#[inline(always)]
fn exp_one<const FUSED: bool>(x: f32) -> f32 {
    // e^88.7 is 2^127.99, whose 2^k would not fit: take 2^(k-1) twice. At the other end 2^-125 is the limit.
    let inside = if x > LARGEST { LARGEST } else { x };
    let inside = if inside < SMALLEST { SMALLEST } else { inside };
    let (power, p) = reduce::<FUSED, 1>(inside);
    let half = fma::<FUSED>(power, p, power);
    let y = if x < SMALLEST { 0.0 } else { half + half };
    let y = if x > LARGEST { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

#[inline(always)]
fn tanh_one<const FUSED: bool>(x: f32) -> f32 {
    let a = x.abs();
    let a = if a < 10.0 { a } else { 10.0 }; // tanh(10) rounds to 1
    let (power, p) = reduce::<FUSED, 0>(a + a);
    let e = fma::<FUSED>(power, p, power - 1.0);
    let y = (e / (e + 2.0)).copysign(x);
    if x.is_nan() { x } else { y }
}

#[inline(always)]
fn sigmoid_one<const FUSED: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp_one::<FUSED>(-x))
}

#[inline(always)]
pub(super) fn exp<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = exp_one::<FUSED>(*x));
}

#[inline(always)]
pub(super) fn tanh<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = tanh_one::<FUSED>(*x));
}

#[inline(always)]
pub(super) fn sigmoid<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = sigmoid_one::<FUSED>(*x));
}

#[inline(always)]
pub(super) fn add<const FUSED: bool>(out: &mut [f32], row: &[f32]) {
    out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
}

/// The largest element that is not NaN; -inf for an empty row.
#[inline(always)]
pub(super) fn row_max<const FUSED: bool>(row: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (m, &z) in best.iter_mut().zip(chunk) {
            *m = if z > *m { z } else { *m };
        }
    }
    let tail = chunks.remainder().iter();
    best.iter().chain(tail).fold(f32::NEG_INFINITY, |m, &z| if z > m { z } else { m })
}

/// `Σ exp(z - max)`, terms in `f32`, sum in `f64`.
#[inline(always)]
pub(super) fn row_exp_sum<const FUSED: bool>(row: &[f32], max: f32) -> f64 {
    let mut sums = [0.0f64; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (s, &z) in sums.iter_mut().zip(chunk) {
            *s += f64::from(exp_one::<FUSED>(z - max));
        }
    }
    let tail: f64 = chunks.remainder().iter().map(|&z| f64::from(exp_one::<FUSED>(z - max))).sum();
    sums.iter().sum::<f64>() + tail
}

/// `z = factor · exp(z - max)`.
#[inline(always)]
pub(super) fn row_exp_scale<const FUSED: bool>(row: &mut [f32], max: f32, factor: f32) {
    row.iter_mut().for_each(|z| *z = factor * exp_one::<FUSED>(*z - max));
}
