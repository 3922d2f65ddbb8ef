//! Scaled numbers `(1 + x) · 2^k`: positive numbers without overflow or underflow.
//!
//! ```text
//! value            (1 + x) · 2^k            x the mantissa, k the exponent, an integer
//! exp e            k = round(e / ln 2), 1 + x = exp(e - k ln 2)
//! product          (1 + x)(1 + y) · 2^(k + l)           mantissa x + y + x y
//! sum, k >= l      (1 + x + (1 + y) 2^(l - k)) · 2^k    mantissa x + (2^(l - k) + y 2^(l - k))
//! ```
//!
//! A recursion over products and sums computes exponentials only of its inputs and logarithms only
//! of its result, and neither over- nor underflows. Each step rounds by about 1e-16 of the value,
//! for lattices of any length. Storing x rather than `1 + x` matters for probabilities
//! close to 1: a loss is `-k ln 2 - log(1 + x)`, and a loss of 1e-12 keeps all its digits, as in a
//! recursion over logarithms.
//!
//! Zero is `2^LOG_ZERO`: negligible next to any other number, and finite, which avoids `inf - inf`.
//!
//! All functions are branch-free, so that the compiler vectorizes loops. `FUSED` is true where the
//! code is compiled for fused multiply-add; elsewhere `mul_add` would be a library call.
use super::LOG_ZERO;

/// Adding and subtracting 1.5 · 2^52 rounds to the nearest integer.
///
/// After the addition, the integer is in the low bits of the sum.
const ROUNDING_OFFSET: f64 = 6_755_399_441_055_744.0;
const TWO_POW_52: f64 = 4_503_599_627_370_496.0;
const TWO_POW_46: f64 = 70_368_744_177_664.0;
/// Exponent bias of `f64`.
const BIAS: f64 = 1023.0;
/// Bits of the exponent of an `f64`.
const EXPONENT_BITS: u64 = 0x7ff << 52;
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1; // 33 bits: k times this is exact for |k| < 2^20
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Coefficients of `(exp(r) - 1 - r) / r²` for `|r| <= ln 2 / 2`, with error below 4e-17 / r.
///
/// They interpolate at ten Chebyshev nodes, close to the `1 / (j + 2)!` of the power series, which
/// would need two more terms.
const SERIES: [f64; 10] = [
    0.500_000_000_000_000_1,
    0.166_666_666_666_666_69,
    0.041_666_666_666_624_136,
    0.008_333_333_333_330_063,
    0.001_388_888_891_720_967,
    0.000_198_412_698_630_505_06,
    2.480_152_130_224_108_2e-5,
    2.755_726_846_483_162_7e-6,
    2.762_008_545_501_841_4e-7,
    2.510_038_319_586_702e-8,
];

/// The number `(1 + mantissa) · 2^exponent`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaled {
    /// Mantissa x; the factor is 1 + x.
    pub mantissa: f64,
    /// Exponent k, an integer.
    pub exponent: f64,
}

impl Scaled {
    /// 0
    pub const ZERO: Self = Self { mantissa: 0.0, exponent: LOG_ZERO };
    /// 1
    pub const ONE: Self = Self { mantissa: 0.0, exponent: 0.0 };

    /// Returns the logarithm; -inf for zero, also after multiplications.
    pub fn ln(self) -> f64 {
        if self.exponent < LOG_ZERO / 2.0 {
            return f64::NEG_INFINITY;
        }
        self.exponent * LN2_HIGH + (self.exponent * LN2_LOW + self.mantissa.ln_1p())
    }
}

/// Computes `a b + c`, rounded once if `FUSED`.
#[inline(always)]
fn fma<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Returns `2^k` for an integer `k <= 1023`; exactly 0 below `2^-1022`.
#[inline(always)]
fn power(k: f64) -> f64 {
    let k = if k > -BIAS { k } else { -BIAS };
    f64::from_bits((k + (ROUNDING_OFFSET + BIAS)).to_bits() << 52)
}

/// Returns `exp e` for finite e.
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(e: f64) -> Scaled {
    let k = fma::<FUSED>(e, std::f64::consts::LOG2_E, ROUNDING_OFFSET) - ROUNDING_OFFSET;
    let r = fma::<FUSED>(k, -LN2_LOW, fma::<FUSED>(k, -LN2_HIGH, e));
    // Beyond 2^46, k has all digits that matter and r is only rounding.
    let r = if e.abs() < TWO_POW_46 { r } else { 0.0 };
    let mut p = SERIES[9];
    p = fma::<FUSED>(p, r, SERIES[8]);
    p = fma::<FUSED>(p, r, SERIES[7]);
    p = fma::<FUSED>(p, r, SERIES[6]);
    p = fma::<FUSED>(p, r, SERIES[5]);
    p = fma::<FUSED>(p, r, SERIES[4]);
    p = fma::<FUSED>(p, r, SERIES[3]);
    p = fma::<FUSED>(p, r, SERIES[2]);
    p = fma::<FUSED>(p, r, SERIES[1]);
    p = fma::<FUSED>(p, r, SERIES[0]);
    Scaled { mantissa: fma::<FUSED>(p * r, r, r), exponent: k }
}

/// Returns `a · b`.
#[inline(always)]
pub(super) fn product<const FUSED: bool>(a: Scaled, b: Scaled) -> Scaled {
    let mantissa = fma::<FUSED>(a.mantissa, b.mantissa, a.mantissa) + b.mantissa;
    Scaled { mantissa, exponent: a.exponent + b.exponent }
}

/// Returns `a + b`.
#[inline(always)]
pub(super) fn sum<const FUSED: bool>(a: Scaled, b: Scaled) -> Scaled {
    let difference = a.exponent - b.exponent;
    let (large, small) = if difference > 0.0 { (a, b) } else { (b, a) };
    let scale = power(-difference.abs());
    Scaled { mantissa: large.mantissa + fma::<FUSED>(small.mantissa, scale, scale), exponent: large.exponent }
}

/// Returns the same number with `1 + x` in [3/4, 3/2): numbers close to 1 have a small mantissa.
#[inline(always)]
pub(super) fn normalize<const FUSED: bool>(a: Scaled) -> Scaled {
    let bits = fma::<FUSED>(a.mantissa, 4.0 / 3.0, 4.0 / 3.0).to_bits();
    // `1 + x` = 2^e · a number near 1: `scale` is 2^-e (2046 is twice the exponent bias).
    let scale = f64::from_bits((2046 << 52) - (bits & EXPONENT_BITS));
    let e = f64::from_bits((bits >> 52) | TWO_POW_52.to_bits()) - (TWO_POW_52 + BIAS);
    Scaled { mantissa: fma::<FUSED>(a.mantissa, scale, scale - 1.0), exponent: a.exponent + e }
}

/// Returns `a · b · factor · 2^-shift`; exactly 0 if the scale of `factor` is below `2^-1022`.
#[inline(always)]
pub(super) fn scaled_product<const FUSED: bool>(a: Scaled, b: Scaled, factor: f64, shift: f64) -> f64 {
    let scale = power(a.exponent + b.exponent - shift) * factor;
    let scale = fma::<FUSED>(a.mantissa, scale, scale);
    fma::<FUSED>(b.mantissa, scale, scale)
}
