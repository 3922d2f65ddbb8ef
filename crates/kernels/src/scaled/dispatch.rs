//! Chooses, at run time, the copy of a row function that fits the machine.
#![allow(unsafe_code)]
use super::rows;

/// Compiles `rows::NAME` for AVX-512, for AVX2 and portably. `NAME` calls the best that the machine has.
macro_rules! dispatched {
    ($(fn $name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        #[inline]
        pub fn $name($($arg: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            {
                if has_v4() {
                    // SAFETY: the machine has every feature that the copy is compiled for, as just checked.
                    return unsafe { v4::$name($($arg),*) };
                }
                if has_v3() {
                    // SAFETY: as above.
                    return unsafe { v3::$name($($arg),*) };
                }
            }
            rows::$name::<false>($($arg),*)
        }
    )*

    #[cfg(target_arch = "x86_64")]
    mod v4 {
        use super::rows;
        $(
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
            pub fn $name($($arg: $kind),*) {
                rows::$name::<true>($($arg),*)
            }
        )*
    }

    #[cfg(target_arch = "x86_64")]
    mod v3 {
        use super::rows;
        $(
            #[target_feature(enable = "avx2,fma")]
            pub fn $name($($arg: $kind),*) {
                rows::$name::<true>($($arg),*)
            }
        )*
    }
    };
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn has_v4() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_v3() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

dispatched! {
    fn weigh(emissions: &[f64], weights_x: &[f64], weights_k: &[f64], out_x: &mut [f64], out_k: &mut [f64]);
    fn sum_and_weigh(
        e: &[f64], f: &[f64], a_x: &[f64], a_k: &[f64], b_x: &[f64], b_k: &[f64],
        sum_x: &mut [f64], sum_k: &mut [f64], p_x: &mut [f64], p_k: &mut [f64], q_x: &mut [f64], q_k: &mut [f64]
    );
    fn weigh_and_sum(
        e: &[f64], f: &[f64], a_x: &[f64], a_k: &[f64], b_x: &[f64], b_k: &[f64],
        p_x: &mut [f64], p_k: &mut [f64], q_x: &mut [f64], q_k: &mut [f64], sum_x: &mut [f64], sum_k: &mut [f64]
    );
    fn add(term_x: &[f64], term_k: &[f64], total_x: &mut [f64], total_k: &mut [f64]);
    fn posterior(
        a_x: &[f64], a_k: &[f64], b_x: &[f64], b_k: &[f64], factor: f64, shift: f64, out: &mut [f64]
    );
}

#[cfg(test)]
mod tests {
    use super::super::{LANES, NEVER, Scaled};
    use super::*;

    type Weigh = fn(&[f64], &[f64], &[f64], &mut [f64], &mut [f64]);
    type Sum = fn(&[f64], &[f64], &mut [f64], &mut [f64]);
    type Posterior = fn(&[f64], &[f64], &[f64], &[f64], f64, f64, &mut [f64]);

    /// The copies that this machine can run, best first.
    fn copies() -> Vec<(&'static str, Weigh, Sum, Posterior)> {
        let mut copies: Vec<(&'static str, Weigh, Sum, Posterior)> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if has_v4() {
                // SAFETY: here and below, the machine has the features, as just checked.
                let weigh: Weigh = |e, wx, wk, ox, ok| unsafe { v4::weigh(e, wx, wk, ox, ok) };
                // SAFETY: as above.
                let sum: Sum = |tx, tk, ox, ok| unsafe { v4::add(tx, tk, ox, ok) };
                // SAFETY: as above.
                let posterior: Posterior =
                    |ax, ak, bx, bk, f, s, o| unsafe { v4::posterior(ax, ak, bx, bk, f, s, o) };
                copies.push(("AVX-512", weigh, sum, posterior));
            }
            if has_v3() {
                // SAFETY: as above.
                let weigh: Weigh = |e, wx, wk, ox, ok| unsafe { v3::weigh(e, wx, wk, ox, ok) };
                // SAFETY: as above.
                let sum: Sum = |tx, tk, ox, ok| unsafe { v3::add(tx, tk, ox, ok) };
                // SAFETY: as above.
                let posterior: Posterior =
                    |ax, ak, bx, bk, f, s, o| unsafe { v3::posterior(ax, ak, bx, bk, f, s, o) };
                copies.push(("AVX2", weigh, sum, posterior));
            }
        }
        copies.push(("portable", rows::weigh::<false>, rows::add::<false>, rows::posterior::<false>));
        copies
    }

    fn close(name: &str, input: impl std::fmt::Debug, found: f64, want: f64, relative: f64) {
        let error = (found - want).abs();
        assert!(error <= relative * want.abs(), "{name} at {input:?}: {found:e}, exact {want:e}");
    }

    #[test]
    fn exponentials_are_right_over_all_exponents() {
        // Every exponent of f64, both signs, some mantissas.
        let all = (0..=u64::MAX >> 44).map(|bits| f64::from_bits(bits.wrapping_mul(0x9e37_79b9) << 44));
        let usual = (-80_000..80_000).map(|i| f64::from(i) * 0.009_3);
        let mut inputs: Vec<f64> = all.filter(|e| e.is_finite() && e.abs() < 1e280).chain(usual).collect();
        inputs.extend([0.0, -0.0, NEVER]);
        inputs.resize(inputs.len().next_multiple_of(LANES), 0.0);
        let n = inputs.len();
        for (name, weigh, ..) in copies() {
            let (mut x, mut k) = (vec![f64::NAN; n], vec![f64::NAN; n]);
            weigh(&inputs, &vec![0.0; n], &vec![0.0; n], &mut x, &mut k);
            for (i, &e) in inputs.iter().enumerate() {
                let found = Scaled { excess: x[i], exponent: k[i] };
                if e < NEVER / 2.0 {
                    assert_eq!(found.ln(), f64::NEG_INFINITY, "{name} at {e}");
                    continue;
                }
                assert!(k[i] == k[i].round() || k[i].abs() > 1e15, "{name} at {e}: exponent {}", k[i]);
                assert!((-0.31..0.43).contains(&x[i]), "{name} at {e}: excess {}", x[i]);
                if e.abs() < 0.34 {
                    // The excess keeps its digits near 1.
                    assert_eq!(k[i], 0.0);
                    close(name, e, x[i], e.exp_m1(), 4e-16);
                } else if e.abs() < 700.0 {
                    close(name, e, (1.0 + x[i]) * k[i].exp2(), e.exp(), 6e-16);
                } else {
                    close(name, e, found.ln(), e, 1e-14);
                }
            }
        }
    }

    #[test]
    fn sums_are_right_at_all_distances() {
        let mut inputs = Vec::new();
        for x in [0.0, -0.25, 0.49, 1e-18, -3e-12, 0.8, 2.7] {
            for y in [0.0, -0.2, 0.3, -1e-16, 1.9] {
                for apart in (-1100..=1100).chain([-1_000_000_000, 1_000_000_000]) {
                    for at in [0.0, -1e9] {
                        let near = Scaled { excess: x, exponent: at };
                        inputs.push((near, Scaled { excess: y, exponent: at + f64::from(apart) }));
                    }
                }
            }
        }
        inputs.push((Scaled::ZERO, Scaled { excess: 1e-17, exponent: 0.0 }));
        inputs.resize(inputs.len().next_multiple_of(LANES), inputs[0]);
        let column = |f: fn(&(Scaled, Scaled)) -> f64| inputs.iter().map(f).collect::<Vec<f64>>();
        let (ax, ak) = (column(|p| p.0.excess), column(|p| p.0.exponent));
        let (bx, bk) = (column(|p| p.1.excess), column(|p| p.1.exponent));
        for (name, _, sum, _) in copies() {
            for swapped in [false, true] {
                let (mut x, mut k) =
                    if swapped { (ax.clone(), ak.clone()) } else { (bx.clone(), bk.clone()) };
                let (term_x, term_k) = if swapped { (&bx, &bk) } else { (&ax, &ak) };
                sum(term_x, term_k, &mut x, &mut k);
                for (i, &(a, b)) in inputs.iter().enumerate() {
                    assert!((-0.25..0.5).contains(&x[i]), "{name} at {a:?} + {b:?}: excess {}", x[i]);
                    let (large, small) = if a.exponent > b.exponent { (a, b) } else { (b, a) };
                    let scale = (small.exponent - large.exponent).exp2();
                    let up = (k[i] - large.exponent).exp2();
                    if (-1074.0..=-1022.0).contains(&(small.exponent - large.exponent)) {
                        continue; // flushed to zero or not, it is nothing
                    }
                    if up == 1.0 {
                        // No digit of a small excess is lost to the 1 it belongs to.
                        let want = large.excess + (1.0 + small.excess) * scale;
                        let error = (x[i] - want).abs();
                        assert!(
                            error <= 3e-16 * (large.excess.abs() + 2.0 * scale) + f64::MIN_POSITIVE,
                            "{name} at {a:?} + {b:?}"
                        );
                    } else {
                        let want = 1.0 + large.excess + (1.0 + small.excess) * scale;
                        close(name, (a, b), (1.0 + x[i]) * up, want, 1e-15);
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
        for (name, .., posterior) in copies() {
            for (shift, factor) in [(0.0, -1.0), (-123_456.0, -0.7), (1e9, -1.5)] {
                let a: Vec<f64> = exponents.iter().map(|k| k + shift + 37.0).collect();
                let mut out = vec![f64::NAN; n];
                posterior(&vec![0.25; n], &a, &vec![-0.125; n], &vec![-37.0; n], factor, shift, &mut out);
                for (&k, &found) in exponents.iter().zip(&out) {
                    if k < -1022.0 {
                        assert_eq!(found, 0.0, "{name} at 2^{k}");
                    } else if k > -1000.0 {
                        close(name, k, found, 1.25 * 0.875 * factor * k.exp2(), 4e-16);
                    }
                }
            }
        }
    }
}
