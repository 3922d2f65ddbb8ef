//! Selects the AVX-512, AVX2 or portable version of scaled-number row functions.
#![allow(unsafe_code)]
use super::{
    ScaledRow, ScaledRowMut,
    rows::{self, RowPair},
};
use crate::simd::SimdLevel;

/// Defines `NAME`, which calls `rows::NAME` compiled for AVX-512, for AVX2 or portably.
macro_rules! dispatched {
    ($(fn $name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        #[inline(always)]
        pub(super) fn $name(level: SimdLevel, $($arg: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512_version($($arg: $kind),*) {
                    rows::$name::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2_version($($arg: $kind),*) {
                    rows::$name::<true>($($arg),*)
                }
                match level {
                    // SAFETY: the token proves the features.
                    SimdLevel::Avx512(_) => return unsafe { avx512_version($($arg),*) },
                    // SAFETY: the same for AVX2.
                    SimdLevel::Avx2(_) => return unsafe { avx2_version($($arg),*) },
                    SimdLevel::Portable => {}
                }
            }
            let _ = level;
            rows::$name::<false>($($arg),*)
        }
    )*};
}

dispatched! {
    fn mul_exp(emissions: &[f64], weights: ScaledRow<'_>, out: ScaledRowMut<'_>);
    fn add_then_mul_exp(emissions: RowPair<'_>, terms: [ScaledRow<'_>; 2], sum: ScaledRowMut<'_>, out: [ScaledRowMut<'_>; 2]);
    fn mul_exp_then_add(emissions: RowPair<'_>, weights: [ScaledRow<'_>; 2], out: [ScaledRowMut<'_>; 2], sum: ScaledRowMut<'_>);
    fn add(term: ScaledRow<'_>, total: ScaledRowMut<'_>);
    fn posterior(factors: [ScaledRow<'_>; 2], factor: f64, shift: f64, out: &mut [f64]);
}

#[cfg(test)]
mod tests {
    use super::super::{LANES, LOG_ZERO, Scaled};
    use super::*;

    fn row<'a>(mantissa: &'a [f64], exponent: &'a [f64]) -> ScaledRow<'a> {
        ScaledRow { mantissa, exponent }
    }

    fn row_mut<'a>(mantissa: &'a mut [f64], exponent: &'a mut [f64]) -> ScaledRowMut<'a> {
        ScaledRowMut { mantissa, exponent }
    }

    fn close(
        name: impl std::fmt::Display,
        input: impl std::fmt::Debug,
        actual: f64,
        expected: f64,
        relative: f64,
    ) {
        let error = (actual - expected).abs();
        assert!(error <= relative * expected.abs(), "{name} at {input:?}: {actual:e}, exact {expected:e}");
    }

    #[test]
    fn exponentials_are_right_over_all_exponents() {
        // Every exponent of f64, both signs, some mantissas.
        let all = (0..=u64::MAX >> 44).map(|bits| f64::from_bits(bits.wrapping_mul(0x9e37_79b9) << 44));
        let usual = (-80_000..80_000).map(|i| f64::from(i) * 0.009_3);
        let mut inputs: Vec<f64> = all.filter(|e| e.is_finite() && e.abs() < 1e280).chain(usual).collect();
        inputs.extend([0.0, -0.0, LOG_ZERO]);
        inputs.resize(inputs.len().next_multiple_of(LANES), 0.0);
        let n = inputs.len();
        for level in SimdLevel::all() {
            let name = format!("{level:?}");
            let (mut x, mut k) = (vec![f64::NAN; n], vec![f64::NAN; n]);
            mul_exp(level, &inputs, row(&vec![0.0; n], &vec![0.0; n]), row_mut(&mut x, &mut k));
            for (i, &e) in inputs.iter().enumerate() {
                let actual = Scaled { mantissa: x[i], exponent: k[i] };
                if e < LOG_ZERO / 2.0 {
                    assert_eq!(actual.ln(), f64::NEG_INFINITY, "{name} at {e}");
                    continue;
                }
                assert!(k[i] == k[i].round() || k[i].abs() > 1e15, "{name} at {e}: exponent {}", k[i]);
                assert!((-0.31..0.43).contains(&x[i]), "{name} at {e}: mantissa {}", x[i]);
                if e.abs() < 0.34 {
                    // The mantissa keeps its digits near 1.
                    assert_eq!(k[i], 0.0);
                    close(&name, e, x[i], e.exp_m1(), 4e-16);
                } else if e.abs() < 700.0 {
                    close(&name, e, (1.0 + x[i]) * k[i].exp2(), e.exp(), 6e-16);
                } else {
                    close(&name, e, actual.ln(), e, 1e-14);
                }
            }
        }
    }

    #[test]
    fn sums_are_right_at_all_distances() {
        let mut inputs = Vec::new();
        for x in [0.0, -0.25, 0.49, 1e-18, -3e-12, 0.8, 2.7] {
            for y in [0.0, -0.2, 0.3, -1e-16, 1.9] {
                for difference in (-1100..=1100).chain([-1_000_000_000, 1_000_000_000]) {
                    for exponent in [0.0, -1e9] {
                        let first = Scaled { mantissa: x, exponent };
                        let second = Scaled { mantissa: y, exponent: exponent + f64::from(difference) };
                        inputs.push((first, second));
                    }
                }
            }
        }
        inputs.push((Scaled::ZERO, Scaled { mantissa: 1e-17, exponent: 0.0 }));
        inputs.resize(inputs.len().next_multiple_of(LANES), inputs[0]);
        // Mantissas and exponents of both numbers of each pair.
        let column = |f: fn(&(Scaled, Scaled)) -> f64| inputs.iter().map(f).collect::<Vec<f64>>();
        let (ax, ak) = (column(|p| p.0.mantissa), column(|p| p.0.exponent));
        let (bx, bk) = (column(|p| p.1.mantissa), column(|p| p.1.exponent));
        for level in SimdLevel::all() {
            let name = format!("{level:?}");
            for swapped in [false, true] {
                let (mut x, mut k) =
                    if swapped { (ax.clone(), ak.clone()) } else { (bx.clone(), bk.clone()) };
                let (term_x, term_k) = if swapped { (&bx, &bk) } else { (&ax, &ak) };
                add(level, row(term_x, term_k), row_mut(&mut x, &mut k));
                for (i, &(a, b)) in inputs.iter().enumerate() {
                    assert!((-0.25..0.5).contains(&x[i]), "{name} at {a:?} + {b:?}: mantissa {}", x[i]);
                    let (large, small) = if a.exponent > b.exponent { (a, b) } else { (b, a) };
                    let scale = (small.exponent - large.exponent).exp2();
                    let scale_gain = (k[i] - large.exponent).exp2();
                    if (-1074.0..=-1022.0).contains(&(small.exponent - large.exponent)) {
                        continue; // negligible, whether flushed to zero or not
                    }
                    if scale_gain == 1.0 {
                        // A small mantissa loses no digit when added to 1.
                        let expected = large.mantissa + (1.0 + small.mantissa) * scale;
                        let error = (x[i] - expected).abs();
                        assert!(
                            error <= 3e-16 * (large.mantissa.abs() + 2.0 * scale) + f64::MIN_POSITIVE,
                            "{name} at {a:?} + {b:?}"
                        );
                    } else {
                        let expected = 1.0 + large.mantissa + (1.0 + small.mantissa) * scale;
                        close(&name, (a, b), (1.0 + x[i]) * scale_gain, expected, 1e-15);
                    }
                }
            }
        }
    }

    #[test]
    fn posteriors_are_right_at_all_scales() {
        let exponents: Vec<f64> = (-1104..=3).map(f64::from).collect();
        let n = exponents.len() / LANES * LANES;
        let exponents = &exponents[exponents.len() - n..];
        for level in SimdLevel::all() {
            let name = format!("{level:?}");
            for (shift, factor) in [(0.0, -1.0), (-123_456.0, -0.7), (1e9, -1.5)] {
                let a: Vec<f64> = exponents.iter().map(|k| k + shift + 37.0).collect();
                let mut out = vec![f64::NAN; n];
                let (x, y, l) = (vec![0.25; n], vec![-0.125; n], vec![-37.0; n]);
                posterior(level, [row(&x, &a), row(&y, &l)], factor, shift, &mut out);
                for (&k, &actual) in exponents.iter().zip(&out) {
                    if k < -1022.0 {
                        assert_eq!(actual, 0.0, "{name} at 2^{k}");
                    } else if k > -1000.0 {
                        close(&name, k, actual, 1.25 * 0.875 * factor * k.exp2(), 4e-16);
                    }
                }
            }
        }
    }

    /// Scaled numbers of all sizes including 0, and emissions including [`LOG_ZERO`].
    fn synthetic(n: usize, salt: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let hash = |i: usize| (i + 77 * salt).wrapping_mul(0x9e37_79b9) >> 7;
        let unit = |i: usize| (hash(i) % 10_007) as f64 / 10_007.0;
        let zero = |i: usize| hash(i).is_multiple_of(11);
        let mantissa = (0..n).map(|i| if zero(i) { 0.0 } else { unit(i) * 0.7 - 0.24 }).collect();
        let exponent = (0..n).map(|i| if zero(i) { LOG_ZERO } else { (unit(3 * i) * 300.0).round() - 200.0 });
        let emissions = (0..n).map(|i| if hash(5 * i) % 13 == 0 { LOG_ZERO } else { -30.0 * unit(i + 9) });
        (mantissa, exponent.collect(), emissions.collect())
    }

    /// Compares fused kernels with their parts and with logarithms.
    ///
    /// a and b are rows with mantissas `ax`, `bx` and exponents `ak`, `bk`; e and f are the
    /// emissions of both arcs, p and q the products.
    #[test]
    fn fused_rows_equal_their_parts_and_logarithms() {
        for level in SimdLevel::all() {
            for n in [0, LANES, 2 * LANES, 3 * LANES, 25 * LANES] {
                let (ax, ak, e) = synthetic(n, 1);
                let (bx, bk, f) = synthetic(n, 2);
                let fresh = || (vec![f64::NAN; n], vec![f64::NAN; n]);
                let (a, b) = (row(&ax, &ak), row(&bx, &bk));
                let number =
                    |r: &(Vec<f64>, Vec<f64>), i: usize| Scaled { mantissa: r.0[i], exponent: r.1[i] };
                let parts = |emissions: &[f64], weights: ScaledRow| {
                    let mut out = fresh();
                    mul_exp(level, emissions, weights, row_mut(&mut out.0, &mut out.1));
                    out
                };

                let (mut sum, mut p, mut q) = (fresh(), fresh(), fresh());
                let out = [row_mut(&mut p.0, &mut p.1), row_mut(&mut q.0, &mut q.1)];
                add_then_mul_exp(level, (&e, &f), [a, b], row_mut(&mut sum.0, &mut sum.1), out);
                let mut expected = (ax.clone(), ak.clone());
                add(level, b, row_mut(&mut expected.0, &mut expected.1));
                assert_eq!(sum, expected, "{level:?}, {n}");
                assert_eq!(p, parts(&e, row(&sum.0, &sum.1)), "{level:?}, {n}");
                assert_eq!(q, parts(&f, row(&sum.0, &sum.1)), "{level:?}, {n}");
                for i in 0..n {
                    let exact = log_sum(a.get(i).ln(), b.get(i).ln());
                    is_log(level, number(&sum, i), exact);
                    is_log(level, number(&p, i), exact + log_of(e[i]));
                    is_log(level, number(&q, i), exact + log_of(f[i]));
                }

                let (mut sum, mut p, mut q) = (fresh(), fresh(), fresh());
                let out = [row_mut(&mut p.0, &mut p.1), row_mut(&mut q.0, &mut q.1)];
                mul_exp_then_add(level, (&e, &f), [a, b], out, row_mut(&mut sum.0, &mut sum.1));
                assert_eq!((&p, &q), (&parts(&e, a), &parts(&f, b)), "{level:?}, {n}");
                let mut expected = p.clone();
                add(level, row(&q.0, &q.1), row_mut(&mut expected.0, &mut expected.1));
                assert_eq!(sum, expected, "{level:?}, {n}");
                for i in 0..n {
                    let (p, q) = (a.get(i).ln() + log_of(e[i]), b.get(i).ln() + log_of(f[i]));
                    is_log(level, number(&sum, i), log_sum(p, q));
                }
            }
        }
    }

    fn log_of(emission: f64) -> f64 {
        if emission < LOG_ZERO / 2.0 { f64::NEG_INFINITY } else { emission }
    }

    fn log_sum(a: f64, b: f64) -> f64 {
        let (max, min) = (a.max(b), a.min(b));
        if max == f64::NEG_INFINITY { max } else { max + (min - max).exp().ln_1p() }
    }

    fn is_log(level: SimdLevel, actual: Scaled, exact: f64) {
        let actual = actual.ln();
        let close = (actual - exact).abs() <= 2e-14 * (1.0 + exact.abs());
        assert!(actual == exact || close, "{level:?}: {actual}, exact {exact}");
    }
}
