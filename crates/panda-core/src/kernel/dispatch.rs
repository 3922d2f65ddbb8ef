//! Chooses, at run time, the copy of a vector function that fits the machine.
#![allow(unsafe_code)]
use super::math;

/// Compiles `math::NAME` for AVX-512, for AVX2 and portably, and calls the best that the machine has.
macro_rules! dispatched {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)?;)*) => {$(
        #[inline]
        pub(super) fn $name($($arg: $kind),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn v4($($arg: $kind),*) $(-> $out)? {
                    math::$name::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn v3($($arg: $kind),*) $(-> $out)? {
                    math::$name::<true>($($arg),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("fma")
                {
                    // SAFETY: the machine has every feature that `v4` is compiled for, as just checked.
                    return unsafe { v4($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the machine has every feature that `v3` is compiled for, as just checked.
                    return unsafe { v3($($arg),*) };
                }
            }
            math::$name::<false>($($arg),*)
        }
    )*};
}

dispatched! {
    fn exp(values: &mut [f32]);
    fn tanh(values: &mut [f32]);
    fn sigmoid(values: &mut [f32]);
    fn add(out: &mut [f32], row: &[f32]);
    fn row_max(row: &[f32]) -> f32;
    fn row_exp_sum(row: &[f32], max: f32) -> f64;
    fn row_exp_scale(row: &mut [f32], max: f32, factor: f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of an f32 stepped over all exponents and signs, with specials.
    fn sweep() -> Vec<f32> {
        let steps = (0..=u32::MAX).step_by(65_537).map(f32::from_bits);
        steps.chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]).collect()
    }

    /// Distance in units of the last place: the spacing of `f32` at the exact answer.
    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = (exact as f32).abs();
        let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(found) - exact).abs() / ulp
    }

    fn check(name: &str, exact: fn(f64) -> f64, limit: f64, copies: [fn(&mut [f32]); 3]) {
        let inputs = sweep();
        for (copy, apply) in copies.iter().enumerate() {
            let mut outputs = inputs.clone();
            apply(&mut outputs);
            for (&x, &y) in inputs.iter().zip(&outputs) {
                let want = exact(f64::from(x));
                if x.is_nan() {
                    assert!(y.is_nan(), "{name} copy {copy}: NaN became {y}");
                } else if want > f64::from(f32::MAX) {
                    assert_eq!(y, f32::INFINITY, "{name} copy {copy}: at {x}");
                } else if want.abs() < 2.5e-38 {
                    assert!(
                        f64::from(y.abs()) <= 2.5e-38 && (x != f32::NEG_INFINITY || y.abs() == want as f32)
                    );
                } else {
                    assert!(ulps(y, want) <= limit, "{name} copy {copy}: {x} gave {y}, exact {want}");
                }
            }
        }
    }

    #[test]
    fn exp_is_right_over_all_exponents() {
        check("exp", f64::exp, 2.0, [exp, math::exp::<false>, math::exp::<true>]);
        let mut special = [f32::NEG_INFINITY, 0.0, -0.0];
        exp(&mut special);
        assert_eq!(special, [0.0, 1.0, 1.0]);
    }

    #[test]
    fn tanh_and_sigmoid_are_right_over_all_exponents() {
        check("tanh", f64::tanh, 4.0, [tanh, math::tanh::<false>, math::tanh::<true>]);
        let exact = |x: f64| 1.0 / (1.0 + (-x).exp());
        check("sigmoid", exact, 4.0, [sigmoid, math::sigmoid::<false>, math::sigmoid::<true>]);
    }

    #[test]
    fn rows_reduce_like_plain_loops() {
        for len in [0, 1, 15, 16, 17, 100, 257] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row_max(&row), max);
            let exact: f64 = row.iter().map(|&z| f64::from(z - max).exp()).sum();
            assert!((row_exp_sum(&row, max) - exact).abs() <= 3e-7 * exact);
            let mut scaled = row.clone();
            row_exp_scale(&mut scaled, max, -0.5);
            for (&z, &y) in row.iter().zip(&scaled) {
                assert!((f64::from(y) + 0.5 * f64::from(z - max).exp()).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn nan_reaches_the_sum_and_masks_do_not() {
        let mut row = vec![0.0f32; 40];
        row[33] = f32::NAN;
        assert_eq!(row_max(&row), 0.0);
        assert!(row_exp_sum(&row, 0.0).is_nan());
        row[33] = f32::NEG_INFINITY;
        assert_eq!(row_exp_sum(&row, 0.0), 39.0);
    }
}
