//! Chooses, at run time, the copy of a vector function that fits the machine.
#![allow(unsafe_code)]
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::math;

/// What the machine can do, best first.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) enum Machine {
    Avx512,
    Avx2,
    Plain,
}

/// Looked up once: rows are short, and five questions a row would show.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn machine() -> Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        if !is_x86_feature_detected!("fma") {
            return Machine::Plain;
        }
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw");
        match wide {
            true => Machine::Avx512,
            false if is_x86_feature_detected!("avx2") => Machine::Avx2,
            false => Machine::Plain,
        }
    })
}

/// Calls the best copy of a function that the machine has: its AVX-512 version, or `math::NAME` compiled for AVX2 or
/// portably.
macro_rules! dispatched {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)? = $wide:path;)*) => {$(
        #[inline]
        pub(super) fn $name($($arg: $kind),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn v4($($arg: $kind),*) $(-> $out)? {
                    $wide($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn v3($($arg: $kind),*) $(-> $out)? {
                    math::$name::<true>($($arg),*)
                }
                match machine() {
                    // SAFETY: the machine has every feature that `v4` is compiled for, as `machine` checked.
                    Machine::Avx512 => return unsafe { v4($($arg),*) },
                    // SAFETY: the same for `v3`.
                    Machine::Avx2 => return unsafe { v3($($arg),*) },
                    Machine::Plain => {}
                }
            }
            math::$name::<false>($($arg),*)
        }
    )*};
}

dispatched! {
    fn exp(values: &mut [f32]) = avx512::exp;
    fn tanh(values: &mut [f32]) = avx512::tanh;
    fn tanh_sum(out: &mut [f32], a: &[f32], b: &[f32]) = avx512::tanh_sum;
    fn sigmoid(values: &mut [f32]) = math::sigmoid::<true>;
    fn add(out: &mut [f32], row: &[f32]) = math::add::<true>;
    fn add_rows(out: &mut [f32], rows: &[f32]) = avx512::add_rows;
    fn tile_statistics(tile: &mut [f32], width: usize, bias: Option<&[f32]>, statistics: &mut [(f32, f64)])
        = avx512::tile_statistics;
    fn row_statistics(row: &[f32]) -> (f32, f64) = avx512::row_statistics;
    fn row_softmax(out: &mut [f32], z: Option<&[f32]>, bias: Option<&[f32]>, max: f32, factor: f32)
        = avx512::row_softmax;
    fn tanh_slope(gradient: &mut [f32], hidden: &[f32]) = math::tanh_slope::<true>;
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
    fn sums_are_those_of_plain_loops() {
        type TanhSum = fn(&mut [f32], &[f32], &[f32]);
        type AddRows = fn(&mut [f32], &[f32]);
        let copies: [(TanhSum, AddRows); 3] = [
            (tanh_sum, add_rows),
            (math::tanh_sum::<true>, math::add_rows::<true>),
            (math::tanh_sum::<false>, math::add_rows::<false>),
        ];
        let values = |len: usize, by: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * by % 101) as f32 - 50.0) / 9.0).collect()
        };
        for (tanh_sum, add_rows) in copies {
            for width in [0, 1, 7, 16, 31, 32, 100] {
                let (mut a, mut b) = (values(width, 7), values(width, 13));
                let mut out = vec![f32::NAN; width];
                tanh_sum(&mut out, &a, &b);
                for (y, (a, b)) in out.iter().zip(a.iter().zip(&b)) {
                    assert!(ulps(*y, f64::from(a + b).tanh()) <= 4.0, "{a} + {b}: {y}");
                }
                if width > 0 {
                    (a[width - 1], b[0]) = (f32::NAN, f32::INFINITY);
                    tanh_sum(&mut out, &a, &b);
                    assert!(out[width - 1].is_nan() && (width == 1 || out[0] == 1.0));
                }
                for rows in [0, 1, 5, 28] {
                    let all = values(rows * width, 17);
                    let mut found = values(width, 3);
                    let mut want = found.clone();
                    for row in 0..rows {
                        (0..width).for_each(|i| want[i] += all[row * width + i]);
                    }
                    add_rows(&mut found, &all);
                    // One order, hence the same bits.
                    assert_eq!(found, want);
                }
            }
        }
    }

    type TileStatistics = fn(&mut [f32], usize, Option<&[f32]>, &mut [(f32, f64)]);
    type RowStatistics = fn(&[f32]) -> (f32, f64);
    type RowSoftmax = fn(&mut [f32], Option<&[f32]>, Option<&[f32]>, f32, f32);

    #[test]
    fn rows_reduce_like_plain_loops() {
        let copies: [(TileStatistics, RowStatistics, RowSoftmax); 3] = [
            (tile_statistics, row_statistics, row_softmax),
            (math::tile_statistics::<true>, math::row_statistics::<true>, math::row_softmax::<true>),
            (math::tile_statistics::<false>, math::row_statistics::<false>, math::row_softmax::<false>),
        ];
        for (tile_statistics, row_statistics, row_softmax) in copies {
            check_rows(tile_statistics, row_statistics, row_softmax);
        }
    }

    fn check_rows(tile_statistics: TileStatistics, row_statistics: RowStatistics, row_softmax: RowSoftmax) {
        for len in [1, 15, 16, 17, 100, 257] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
            let bias: Vec<f32> = (0..len).map(|i| (i % 3) as f32).collect();
            for bias in [None, Some(bias.as_slice())] {
                let biased: Vec<f32> = (0..len).map(|i| row[i] + bias.map_or(0.0, |bias| bias[i])).collect();
                let max = biased.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exact: f64 = biased.iter().map(|&z| f64::from(z - max).exp()).sum();
                let (mut tile, mut found) = ([row.as_slice(), &row].concat(), [(0.0, 0.0); 2]);
                tile_statistics(&mut tile, len, bias, &mut found);
                assert!(found[0] == found[1] && tile[..len] == biased && tile[len..] == biased);
                assert!(found[0].0 == max && (found[0].1 - exact).abs() <= 3e-7 * exact);

                assert_eq!(row_statistics(&biased), found[0]);

                let mut tiny = row.clone();
                row_softmax(&mut tiny, None, bias, max, 1e-30);
                assert!(tiny.iter().all(|g| *g == 0.0 || *g >= math::TINY));
                assert!(tiny.iter().any(|g| *g >= 9.9e-31));

                let (mut here, mut elsewhere) = (row.clone(), vec![0.0; len]);
                row_softmax(&mut here, None, bias, max, -0.5);
                row_softmax(&mut elsewhere, Some(&biased), None, max, -0.5);
                assert_eq!(here, elsewhere);
                for (&z, &y) in biased.iter().zip(&here) {
                    assert!((f64::from(y) + 0.5 * f64::from(z - max).exp()).abs() < 1e-7);
                }
            }
        }
    }

    #[test]
    fn nan_reaches_the_sum_and_masks_do_not() {
        let copies: [TileStatistics; 3] =
            [tile_statistics, math::tile_statistics::<true>, math::tile_statistics::<false>];
        copies.into_iter().for_each(check_specials);
    }

    fn check_specials(tile_statistics: TileStatistics) {
        let statistics = |row: &mut [f32]| {
            let mut found = [(0.0, 0.0)];
            tile_statistics(row, 40, None, &mut found);
            found[0]
        };
        let masked = f32::NEG_INFINITY;
        let mut row = vec![0.0f32; 40];
        for bad in [f32::NAN, f32::INFINITY] {
            row[33] = bad;
            assert!(statistics(&mut row).1.is_nan());
            let mut alone = vec![masked; 40];
            alone[33] = bad;
            assert!(statistics(&mut alone).1.is_nan());
        }
        row[33] = masked;
        assert_eq!(statistics(&mut row), (0.0, 39.0));
        assert_eq!(statistics(&mut [masked; 40]), (masked, 0.0));
    }
}
