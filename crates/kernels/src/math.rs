//! Portable `f32` kernels: elementary functions, reductions, softmax, arc scatter.
//!
//! ```text
//! exp x   = 2^k · p(r)          k = round(x / ln 2), r = x - k ln 2, |r| <= ln 2 / 2
//! p(r)    = Σ_{j<=7} r^j / j!   error below 5.3e-9 relative, a twelfth of an f32 ULP
//! tanh x  = e / (e + 2)         e = exp(2x) - 1 = 2^k (p(r) - 1) + (2^k - 1)
//! ```
//! The compiler vectorizes the loops. The form of e has no cancellation near 0.
//!
//! `FUSED` is true where the code is compiled for fused multiply-add. Elsewhere `mul_add` would be
//! a library call, so the portable version multiplies and adds. Every function that `dispatch.rs`
//! calls takes `FUSED`, used or not, because the macro there passes it to all of them.

mod rows;

pub(super) use rows::{add_exp, add_glu, add_pair, add_relu, add_silu, layer_norm, silu, weighted_sum};

use crate::arc_scatter::{self, ArcScatter};

/// Accumulators of a reduction; one AVX-512 register of `f32`.
const LANES: usize = 16;

pub(super) const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512: k times this is exact for |k| < 2^14
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 · 2^23 rounds to the nearest integer.
///
/// After the addition, the integer is in the low bits of the sum.
const ROUNDING_OFFSET: f32 = 12_582_912.0;
/// Arguments of `exp` beyond these limits give 0 and +inf.
pub(super) const MIN_EXP_ARGUMENT: f32 = -86.6;
const MAX_EXP_ARGUMENT: f32 = 88.722_83;
/// See [`super::Real::FLUSH_THRESHOLD`]; 2^-100.
pub(super) const FLUSH_THRESHOLD: f32 = 7.888_609e-31;

/// Computes `a b + c`, rounded once if `FUSED`.
#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Returns `(2^(k - EXPONENT_SHIFT), p(r) - 1)`.
///
/// A shift of 1 avoids overflow of `2^k` for the largest x.
#[inline(always)]
fn exp_parts<const FUSED: bool, const EXPONENT_SHIFT: u32>(x: f32) -> (f32, f32) {
    let shifted = fma::<FUSED>(x, std::f32::consts::LOG2_E, ROUNDING_OFFSET);
    let k = shifted - ROUNDING_OFFSET;
    let r = fma::<FUSED>(k, -LN2_LOW, fma::<FUSED>(k, -LN2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    p = fma::<FUSED>(p, r, 1.0 / 720.0);
    p = fma::<FUSED>(p, r, 1.0 / 120.0);
    p = fma::<FUSED>(p, r, 1.0 / 24.0);
    p = fma::<FUSED>(p, r, 1.0 / 6.0);
    p = fma::<FUSED>(p, r, 0.5);
    p = fma::<FUSED>(p * r, r, r);
    // The low 8 bits of `shifted` are k; moved to the exponent field and biased they are 2^k.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add((127 - EXPONENT_SHIFT) << 23));
    (power, p)
}

/// Computes `exp x` of one number; NaN stays NaN.
#[inline(always)]
fn exp_one<const FUSED: bool>(x: f32) -> f32 {
    // e^88.7 is 2^127.99, whose 2^k overflows: take 2^(k-1) twice. The lower limit is 2^-125.
    let clamped = if x > MAX_EXP_ARGUMENT { MAX_EXP_ARGUMENT } else { x };
    let clamped = if clamped < MIN_EXP_ARGUMENT { MIN_EXP_ARGUMENT } else { clamped };
    let (power, p) = exp_parts::<FUSED, 1>(clamped);
    let half = fma::<FUSED>(power, p, power);
    let y = if x < MIN_EXP_ARGUMENT { 0.0 } else { half + half };
    let y = if x > MAX_EXP_ARGUMENT { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// Computes `tanh x` of one number; NaN stays NaN.
#[inline(always)]
fn tanh_one<const FUSED: bool>(x: f32) -> f32 {
    let a = x.abs();
    let a = if a < 10.0 { a } else { 10.0 }; // tanh(10) rounds to 1
    let (power, p) = exp_parts::<FUSED, 0>(a + a);
    let e = fma::<FUSED>(power, p, power - 1.0);
    let y = (e / (e + 2.0)).copysign(x);
    if x.is_nan() { x } else { y }
}

/// Computes `1 / (1 + exp(-x))` of one number.
#[inline(always)]
fn sigmoid_one<const FUSED: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp_one::<FUSED>(-x))
}

/// Computes `exp x` in place.
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = exp_one::<FUSED>(*x));
}

/// Computes `ln x = e ln 2 + p(m - 1)` with `x = 2^e m`, `√½ <= m < √2`.
///
/// The polynomial is that of Cephes' `logf`.
#[inline(always)]
fn ln_one<const FUSED: bool>(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    const MANTISSA_BITS: u32 = 0x007f_ffff;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let e = ((bits as i32) >> 23) as f32;
    let m = f32::from_bits((bits & MANTISSA_BITS).wrapping_add(SQRT_HALF_BITS)) - 1.0;
    let mut p = LN_COEFFICIENTS[0];
    for coefficient in &LN_COEFFICIENTS[1..] {
        p = fma::<FUSED>(p, m, *coefficient);
    }
    let z = m * m;
    let tail = fma::<FUSED>(e, LN2_LOW, p * m * z);
    let y = fma::<FUSED>(e, LN2_HIGH, m + fma::<FUSED>(-0.5, z, tail));
    let y = if x < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// Coefficients of Cephes' `logf`, highest power first.
pub(super) const LN_COEFFICIENTS: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_7e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// Computes `ln x` in place.
#[inline(always)]
pub(super) fn ln<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = ln_one::<FUSED>(*x));
}

/// Updates the maximum of each destination state; see `arc_scatter.rs`.
#[inline(always)]
pub(super) fn scatter_max<const FUSED: bool>(out: &mut [f32], arcs: ArcScatter<f32>) {
    arc_scatter::scatter_max(out, arcs);
}

/// Adds exponentials to the sum of each destination state; see `arc_scatter.rs`.
#[inline(always)]
pub(super) fn scatter_exp_sum<const FUSED: bool>(sums: &mut [f32], max: &[f32], arcs: ArcScatter<f32>) {
    arc_scatter::scatter_exp_sum(sums, max, arcs, exp_one::<FUSED>);
}

/// Updates the best arc into each destination state; see `arc_scatter.rs`.
#[inline(always)]
pub(super) fn scatter_argmax<const FUSED: bool>(best: &mut [f32], from: &mut [u32], arcs: ArcScatter<f32>) {
    arc_scatter::scatter_argmax(best, from, arcs);
}

/// Merges the self-loop of each state; returns the largest result. See `arc_scatter.rs`.
#[inline(always)]
pub(super) fn merge_self_loops<const FUSED: bool>(
    best: &mut [f32],
    from: &mut [u32],
    alpha: &[f32],
    blank: &[f32],
    positions: &[u32],
) -> f32 {
    arc_scatter::merge_self_loops(best, from, alpha, blank, positions)
}

/// Overwrites arc weights by exponentials, and sums them by state; see `arc_scatter.rs`.
#[inline(always)]
pub(super) fn gather_exp<const FUSED: bool>(
    rows: &mut [f32],
    shifts: &[f32],
    starts: &[u32],
    next: &[f32],
    sums: &mut [f32],
) {
    arc_scatter::gather_exp(rows, shifts, starts, next, sums, exp_one::<FUSED>);
}

/// Computes `tanh x` in place.
#[inline(always)]
pub(super) fn tanh<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = tanh_one::<FUSED>(*x));
}

/// Computes `out = tanh(a + b)`.
#[inline(always)]
pub(super) fn tanh_sum<const FUSED: bool>(out: &mut [f32], a: &[f32], b: &[f32]) {
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = tanh_one::<FUSED>(a + b));
}

/// Computes `out = 1 - 2 / (1 + a b)`: `tanh(x + y)` of prepared addends.
///
/// `a = exp(2x)` and `b = exp(2y)`.
#[inline(always)]
pub(super) fn tanh_pairs<const FUSED: bool>(out: &mut [f32], a: &[f32], b: &[f32]) {
    let pair = |a: f32, b: f32| 1.0 - 2.0 / fma::<FUSED>(a, b, 1.0);
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (&a, &b))| *o = pair(a, b));
}

/// Computes [`tanh_pairs`] of a panel and an addend for each row.
///
/// The panel is *k x width*, `row_addends` *k*.
#[inline(always)]
pub(super) fn tanh_panel<const FUSED: bool>(out: &mut [f32], panel: &[f32], row_addends: &[f32]) {
    let width = (panel.len() / row_addends.len().max(1)).max(1);
    for ((out, a), &b) in out.chunks_exact_mut(width).zip(panel.chunks_exact(width)).zip(row_addends) {
        out.iter_mut().zip(a).for_each(|(o, &a)| *o = 1.0 - 2.0 / fma::<FUSED>(a, b, 1.0));
    }
}

/// Computes `1 / (1 + exp(-x))` in place.
#[inline(always)]
pub(super) fn sigmoid<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = sigmoid_one::<FUSED>(*x));
}

/// Computes `out += row`.
#[inline(always)]
pub(super) fn add<const FUSED: bool>(out: &mut [f32], row: &[f32]) {
    out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
}

/// Returns `Σ a b`, in lanes that are added in a fixed order.
#[inline(always)]
pub(super) fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<LANES>(), b[..a.len()].as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        (0..LANES).for_each(|i| sums[i] = fma::<FUSED>(a[i], b[i], sums[i]));
    }
    let tail = last_a.iter().zip(last_b).fold(0.0, |sum, (&a, &b)| fma::<FUSED>(a, b, sum));
    reduce_lanes(sums, |a, b| a + b) + tail
}

/// Computes `out += factor · row`.
#[inline(always)]
pub(super) fn add_scaled<const FUSED: bool>(out: &mut [f32], factor: f32, row: &[f32]) {
    out.iter_mut().zip(row).for_each(|(o, &x)| *o = fma::<FUSED>(factor, x, *o));
}

/// Computes `out += Σ rows`, in the order of the rows.
#[inline(always)]
pub(super) fn add_rows<const FUSED: bool>(out: &mut [f32], rows: &[f32]) {
    rows.chunks_exact(out.len().max(1)).for_each(|row| add::<FUSED>(out, row));
}

/// Reduces the lanes of an accumulator by halving.
#[inline(always)]
fn reduce_lanes<T: Copy>(mut lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
    }
    lanes[0]
}

/// Returns the larger number, or the first if the second is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Returns the largest element that is not NaN; -inf for an empty row.
#[inline(always)]
fn row_max(row: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for z in &mut chunks {
        for i in 0..LANES {
            best[i] = larger(best[i], z[i]);
        }
    }
    chunks.remainder().iter().fold(reduce_lanes(best, larger), |m, &z| larger(m, z))
}

/// Adds the bias to a row; returns its [`row_max`].
#[inline(always)]
fn row_add_max(row: &mut [f32], bias: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (mut chunks, mut biases) = (row.chunks_exact_mut(LANES), bias.chunks_exact(LANES));
    for (z, b) in (&mut chunks).zip(&mut biases) {
        for i in 0..LANES {
            z[i] += b[i];
            best[i] = larger(best[i], z[i]);
        }
    }
    let mut max = reduce_lanes(best, larger);
    for (z, b) in chunks.into_remainder().iter_mut().zip(biases.remainder()) {
        *z += b;
        max = larger(max, *z);
    }
    max
}

/// Returns `Σ exp(z - max)`, with an `f64` sum; 0 for a row of -inf.
#[inline(always)]
fn row_exp_sum<const FUSED: bool>(row: &[f32], max: f32) -> f64 {
    if max == f32::NEG_INFINITY && !row.iter().any(|z| z.is_nan()) {
        return 0.0; // exp(-inf + inf) would be NaN for every masked class.
    }
    let mut sums = [0.0f64; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (s, &z) in sums.iter_mut().zip(chunk) {
            *s += f64::from(exp_one::<FUSED>(z - max));
        }
    }
    let tail: f64 = chunks.remainder().iter().map(|&z| f64::from(exp_one::<FUSED>(z - max))).sum();
    reduce_lanes(sums, |a, b| a + b) + tail
}

/// Adds the bias to rows of a tile and returns their statistics.
///
/// For each row these are `max` and `Σ exp(z - max)`: 0 for a row of -inf, NaN for a row with NaN
/// or +inf.
#[inline(always)]
pub(super) fn tile_statistics<const FUSED: bool>(
    tile: &mut [f32],
    width: usize,
    bias: Option<&[f32]>,
    statistics: &mut [(f32, f64)],
) {
    for (row, statistic) in tile.chunks_exact_mut(width).zip(statistics) {
        let max = match bias {
            Some(bias) => row_add_max(row, bias),
            None => row_max(row),
        };
        *statistic = (max, row_exp_sum::<FUSED>(row, max));
    }
}

/// Returns the statistics of a single row.
#[inline(always)]
pub(super) fn row_statistics<const FUSED: bool>(row: &[f32]) -> (f32, f64) {
    let max = row_max(row);
    (max, row_exp_sum::<FUSED>(row, max))
}

/// Computes `out = factor · exp(z - max)`, 0 below [`FLUSH_THRESHOLD`].
///
/// If `z` is `None`, the scores are read from `out`, and the bias, if any, is added to them.
#[inline(always)]
pub(super) fn row_softmax<const FUSED: bool>(
    out: &mut [f32],
    z: Option<&[f32]>,
    bias: Option<&[f32]>,
    max: f32,
    factor: f32,
) {
    let softmax = |z: f32| {
        let g = factor * exp_one::<FUSED>(z - max);
        if g.abs() < FLUSH_THRESHOLD { 0.0 } else { g }
    };
    match (z, bias) {
        (Some(z), _) => out.iter_mut().zip(z).for_each(|(o, z)| *o = softmax(*z)),
        (None, Some(bias)) => out.iter_mut().zip(bias).for_each(|(o, b)| *o = softmax(*o + b)),
        (None, None) => out.iter_mut().for_each(|o| *o = softmax(*o)),
    }
}

/// Computes `gradient *= 1 - hidden²`, the slope of tanh.
#[inline(always)]
pub(super) fn tanh_slope<const FUSED: bool>(gradient: &mut [f32], hidden: &[f32]) {
    gradient.iter_mut().zip(hidden).for_each(|(g, &h)| *g *= 1.0 - h * h);
}
