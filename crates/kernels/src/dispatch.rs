//! Selects the AVX-512, AVX2 or portable version of each vector function.
//!
//! The selection happens at run time, by the instruction sets that `simd.rs` detected.
#![allow(unsafe_code)]
#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::{ArcScatter, lstm_cell, math, simd::SimdLevel};

/// Defines functions that call the AVX-512 version or `math::NAME`.
///
/// `math::NAME` is compiled twice: for AVX2 (`FUSED` is true), and for any CPU (false).
macro_rules! dispatched {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)? = $wide:path;)*) => {$(
        #[inline]
        pub(super) fn $name(level: SimdLevel, $($arg: $kind),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512_version($($arg: $kind),*) $(-> $out)? {
                    $wide($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2_version($($arg: $kind),*) $(-> $out)? {
                    math::$name::<true>($($arg),*)
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
            math::$name::<false>($($arg),*)
        }
    )*};
}

dispatched! {
    fn exp(values: &mut [f32]) = avx512::exp;
    fn tanh(values: &mut [f32]) = avx512::tanh;
    fn tanh_sum(out: &mut [f32], a: &[f32], b: &[f32]) = avx512::tanh_sum;
    fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) = avx512::tanh_pairs;
    fn tanh_panel(out: &mut [f32], panel: &[f32], row_addends: &[f32]) = avx512::tanh_panel;
    fn ln(values: &mut [f32]) = math::ln::<true>;
    fn scatter_max(out: &mut [f32], arcs: ArcScatter<f32>) = avx512::scatter_max;
    fn scatter_exp_sum(sums: &mut [f32], max: &[f32], arcs: ArcScatter<f32>) = avx512::scatter_exp_sum;
    fn scatter_argmax(best: &mut [f32], from: &mut [u32], arcs: ArcScatter<f32>) = avx512::scatter_argmax;
    fn merge_self_loops(best: &mut [f32], from: &mut [u32], alpha: &[f32], blank: &[f32], positions: &[u32]) -> f32
        = avx512::merge_self_loops;
    fn gather_exp(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) = avx512::gather_exp;
    fn sigmoid(values: &mut [f32]) = math::sigmoid::<true>;
    fn dot(a: &[f32], b: &[f32]) -> f32 = avx512::dot;
    fn add_scaled(out: &mut [f32], factor: f32, row: &[f32]) = math::add_scaled::<true>;
    fn add(out: &mut [f32], row: &[f32]) = math::add::<true>;
    fn add_rows(out: &mut [f32], rows: &[f32]) = avx512::add_rows;
    fn tile_statistics(tile: &mut [f32], width: usize, bias: Option<&[f32]>, statistics: &mut [(f32, f64)])
        = avx512::tile_statistics;
    fn row_statistics(row: &[f32]) -> (f32, f64) = avx512::row_statistics;
    fn row_softmax(out: &mut [f32], z: Option<&[f32]>, bias: Option<&[f32]>, max: f32, factor: f32)
        = avx512::row_softmax;
    fn silu(values: &mut [f32]) = avx512::silu;
    fn add_silu(values: &mut [f32], bias: &[f32]) = avx512::add_silu;
    fn add_relu(values: &mut [f32], bias: &[f32]) = avx512::add_relu;
    fn add_pair(out: &mut [f32], a: &[f32], b: &[f32]) = avx512::add_pair;
    fn add_glu(out: &mut [f32], group: &[f32], bias: &[f32]) = avx512::add_glu;
    fn add_exp(row: &mut [f32], addends: &[f32]) -> f32 = avx512::add_exp;
    fn layer_norm(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) = avx512::layer_norm;
    fn weighted_sum(out: &mut [f32], bias: &[f32], taps: &[(&[f32], &[f32])]) = avx512::weighted_sum;
    fn tanh_slope(gradient: &mut [f32], hidden: &[f32]) = math::tanh_slope::<true>;
}

/// Defines functions with an AVX-512 version and a portable one.
macro_rules! lstm_cell {
    ($($name:ident, $plain:path, ($($arg:ident: $kind:ty),*);)*) => {$(
        pub(super) fn $name(level: SimdLevel, $($arg: $kind),*) {
            match level {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the token proves the features.
                SimdLevel::Avx512(_) => unsafe { avx512::$name($($arg),*) },
                _ => $plain($($arg),*),
            }
        }
    )*};
}

// Other levels use the portable loops, whose exponentials are the dispatched functions above.
lstm_cell! {
    lstm_cell_forward, lstm_cell::forward, (gates: &mut [f32], cell: &mut [f32], state: &mut [f32]);
    lstm_cell_backward, lstm_cell::backward, (gates: &mut [f32], units: [&[f32]; 3], cell_gradient: &mut [f32]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with all exponents and signs, and special values.
    fn sweep() -> Vec<f32> {
        let steps = (0..=u32::MAX).step_by(65_537).map(f32::from_bits);
        steps.chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]).collect()
    }

    /// Returns the error in units of the last place of `exact`.
    fn ulps(actual: f32, exact: f64) -> f64 {
        let nearest = (exact as f32).abs();
        let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(actual) - exact).abs() / ulp
    }

    /// Checks that the error is at most `limit` ULP at all exponents.
    fn check(name: &str, exact: fn(f64) -> f64, limit: f64, apply: fn(SimdLevel, &mut [f32])) {
        let inputs = sweep();
        for level in SimdLevel::all() {
            let mut outputs = inputs.clone();
            apply(level, &mut outputs);
            for (&x, &y) in inputs.iter().zip(&outputs) {
                let expected = exact(f64::from(x));
                if x.is_nan() {
                    assert!(y.is_nan(), "{name} {level:?}: NaN became {y}");
                } else if expected > f64::from(f32::MAX) {
                    assert_eq!(y, f32::INFINITY, "{name} {level:?}: at {x}");
                } else if expected.abs() < 2.5e-38 {
                    assert!(
                        f64::from(y.abs()) <= 2.5e-38
                            && (x != f32::NEG_INFINITY || y.abs() == expected as f32)
                    );
                } else {
                    assert!(ulps(y, expected) <= limit, "{name} {level:?}: {x} gave {y}, exact {expected}");
                }
            }
        }
    }

    #[test]
    fn exp_is_accurate_over_all_exponents() {
        check("exp", f64::exp, 2.0, exp);
        for level in SimdLevel::all() {
            let mut special = [f32::NEG_INFINITY, 0.0, -0.0];
            exp(level, &mut special);
            assert_eq!(special, [0.0, 1.0, 1.0]);
        }
    }

    #[test]
    fn tanh_and_sigmoid_are_accurate_over_all_exponents() {
        check("tanh", f64::tanh, 4.0, tanh);
        let exact = |x: f64| 1.0 / (1.0 + (-x).exp());
        check("sigmoid", exact, 4.0, sigmoid);
    }

    #[test]
    fn sums_equal_plain_loops() {
        let values = |len: usize, factor: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * factor % 101) as f32 - 50.0) / 9.0).collect()
        };
        for level in SimdLevel::all() {
            for width in [0, 1, 7, 16, 31, 32, 100] {
                let (mut a, mut b) = (values(width, 7), values(width, 13));
                let mut out = vec![f32::NAN; width];
                tanh_sum(level, &mut out, &a, &b);
                for (y, (a, b)) in out.iter().zip(a.iter().zip(&b)) {
                    assert!(ulps(*y, f64::from(a + b).tanh()) <= 4.0, "{a} + {b}: {y}");
                }
                if width > 0 {
                    (a[width - 1], b[0]) = (f32::NAN, f32::INFINITY);
                    tanh_sum(level, &mut out, &a, &b);
                    assert!(out[width - 1].is_nan() && (width == 1 || out[0] == 1.0));
                }
                for rows in [0, 1, 5, 28] {
                    let all = values(rows * width, 17);
                    let mut actual = values(width, 3);
                    let mut expected = actual.clone();
                    for row in 0..rows {
                        (0..width).for_each(|i| expected[i] += all[row * width + i]);
                    }
                    add_rows(level, &mut actual, &all);
                    // The order is fixed, hence the bits are equal.
                    assert_eq!(actual, expected);
                }
            }
        }
    }

    #[test]
    fn tanh_of_prepared_addends_is_accurate() {
        let addend = |i: usize| ((i * 7919 % 4201) as f32 - 2100.0) / 100.0;
        for level in SimdLevel::all() {
            for (steps, width) in [(0, 3), (1, 1), (7, 5), (40, 32), (33, 40), (3, 0)] {
                let rows: Vec<f32> = (0..steps).map(|i| addend(i * 31 + 5)).collect();
                let panel: Vec<f32> = (0..steps * width).map(addend).collect();
                let prepare = |values: &[f32]| {
                    let mut values: Vec<f32> = values.iter().map(|x| x + x).collect();
                    exp(level, &mut values);
                    values
                };
                let (mut out, row_of) = (vec![f32::NAN; steps * width], |i: usize| rows[i / width]);
                tanh_panel(level, &mut out, &prepare(&panel), &prepare(&rows));
                let repeated_rows: Vec<f32> = (0..panel.len()).map(row_of).collect();
                let mut pairs = vec![f32::NAN; panel.len()];
                tanh_pairs(level, &mut pairs, &prepare(&panel), &prepare(&repeated_rows));
                assert_eq!(out, pairs, "{level:?} {steps} x {width}");
                for (i, &actual) in pairs.iter().enumerate() {
                    let exact = (f64::from(panel[i]) + f64::from(row_of(i))).tanh();
                    // Rounding of exp(2x), where addends up to 21 cancel.
                    let tolerance = 3e-7 + 1.2e-7 * f64::from(panel[i].abs()) * (1.0 - exact * exact);
                    assert!((f64::from(actual) - exact).abs() <= tolerance, "{level:?} {actual} {exact}");
                }
            }
        }
    }

    #[test]
    fn dot_products_equal_plain_loops() {
        for level in SimdLevel::all() {
            for len in [0, 1, 15, 16, 17, 64, 100, 513] {
                let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 16.0;
                let a: Vec<f32> = (0..len).map(value).collect();
                let b: Vec<f32> = (0..len).map(|i| value(i * 3 + 1)).collect();
                // Products and sums are multiples of 2^-8 that f32 represents exactly.
                let exact: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                assert_eq!(dot(level, &a, &b), exact, "{level:?} {len}");
                let mut out = b.clone();
                add_scaled(level, &mut out, 3.0, &a);
                assert!(out.iter().zip(a.iter().zip(&b)).all(|(o, (a, b))| *o == 3.0 * a + b));
            }
        }
    }

    #[test]
    fn ln_is_accurate_over_all_exponents() {
        for level in SimdLevel::all() {
            let mut actual = sweep();
            ln(level, &mut actual);
            for (x, y) in sweep().into_iter().zip(actual) {
                let expected = f64::from(x).ln();
                match x {
                    _ if expected.is_nan() => assert!(y.is_nan(), "{level:?}: {x} gave {y}"),
                    _ if x < f32::MIN_POSITIVE => assert_eq!(y, f32::NEG_INFINITY, "{level:?}: {x}"),
                    f32::INFINITY => assert_eq!(y, x),
                    _ => {
                        let near = (f64::from(y) - expected).abs() <= 2e-7;
                        assert!(near || ulps(y, expected) <= 3.0, "{level:?}: {x} gave {y}, {expected}");
                    }
                }
            }
        }
    }

    /// Rows of many widths, overlapping runs, -inf weights and shifts.
    ///
    /// p: row; i: label; q: state; w: arc weight, as in `arc_scatter.rs`.
    #[test]
    fn arc_functions_equal_plain_loops() {
        for level in SimdLevel::all() {
            for (width, states) in [(1, 3), (3, 7), (16, 5), (17, 4), (32, 40), (50, 9)] {
                let targets = 2 * width + 5;
                let number = |i: usize| ((i * 7919 % 1009) as f32 - 500.0) / 60.0;
                let value = |i: usize| if i % 11 == 3 { f32::NEG_INFINITY } else { number(i) };
                let rows: Vec<f32> = (0..states * width).map(value).collect();
                let shifts: Vec<f32> = (1..=states).map(|i| value(i * 4)).collect();
                let starts: Vec<u32> = (0..states).map(|p| (p * 5 % (targets - width + 1)) as u32).collect();
                let arcs = ArcScatter { rows: &rows, shifts: &shifts, starts: &starts, first_row: 3 };
                let weight = |p: usize, i: usize| rows[p * width + i] + shifts[p];

                let mut max = vec![-3.0f32; targets];
                let mut best = vec![(-3.0f32, 0u32); targets];
                let mut sums = vec![0.0f64; targets];
                for (p, i) in (0..states).flat_map(|p| (0..width).map(move |i| (p, i))) {
                    let (to, w) = (starts[p] as usize + i, weight(p, i));
                    if w > best[to].0 {
                        best[to] = (w, ((3 + p) * width + i + 1) as u32);
                    }
                }
                scatter_max(level, &mut max, arcs);
                assert_eq!(max, best.iter().map(|best| best.0).collect::<Vec<_>>());
                let (mut actual, mut from) = (vec![-3.0; targets], vec![0; targets]);
                scatter_argmax(level, &mut actual, &mut from, arcs);
                assert_eq!(actual.into_iter().zip(from).collect::<Vec<_>>(), best);

                let (alpha, blank): (Vec<f32>, Vec<f32>) =
                    (0..targets).map(|i| (value(i * 3 + 1), value(i))).unzip();
                let positions: Vec<u32> = (0..targets).map(|q| (q * 7 % targets) as u32).collect();
                let (mut actual, mut from) = (max.clone(), vec![9; targets]);
                let top = merge_self_loops(level, &mut actual, &mut from, &alpha, &blank, &positions);
                for q in 0..targets {
                    let w = alpha[q] + blank[positions[q] as usize];
                    let expected = if max[q] > w { (max[q], 9) } else { (w, 0) };
                    assert_eq!((actual[q], from[q]), expected, "{level:?} {width} {q}");
                }
                assert_eq!(top, actual.iter().copied().fold(f32::NEG_INFINITY, f32::max));

                for (p, i) in (0..states).flat_map(|p| (0..width).map(move |i| (p, i))) {
                    let to = starts[p] as usize + i;
                    sums[to] += f64::from(weight(p, i) - max[to]).exp();
                }
                let mut actual = vec![0.0f32; targets];
                scatter_exp_sum(level, &mut actual, &max, arcs);
                let is_close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 2e-6 * (b + 1e-3);
                assert!(actual.iter().zip(&sums).all(|(&a, &b)| is_close(a, b)), "{level:?} {width}");

                let next: Vec<f32> = (0..targets).map(|i| value(i + 6) / 4.0).collect();
                let (mut posteriors, mut sums) = (rows.clone(), vec![f32::NAN; states]);
                gather_exp(level, &mut posteriors, &shifts, &starts, &next, &mut sums);
                for p in 0..states {
                    let arc = |i: usize| rows[p * width + i] + next[starts[p] as usize + i] + shifts[p];
                    let expected = |i: usize| f64::from(arc(i)).exp();
                    let row = &posteriors[p * width..][..width];
                    assert!(row.iter().enumerate().all(|(i, &a)| is_close(a, expected(i))), "{level:?} {p}");
                    assert!(is_close(sums[p], (0..width).map(expected).sum()), "{level:?} {p}");
                }
            }
        }
    }

    #[test]
    fn row_reductions_equal_plain_loops() {
        SimdLevel::all().into_iter().for_each(check_rows);
    }

    fn check_rows(level: SimdLevel) {
        for len in [1, 15, 16, 17, 100, 257] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
            let bias: Vec<f32> = (0..len).map(|i| (i % 3) as f32).collect();
            for bias in [None, Some(bias.as_slice())] {
                let biased: Vec<f32> = (0..len).map(|i| row[i] + bias.map_or(0.0, |bias| bias[i])).collect();
                let max = biased.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exact: f64 = biased.iter().map(|&z| f64::from(z - max).exp()).sum();
                let (mut tile, mut actual) = ([row.as_slice(), &row].concat(), [(0.0, 0.0); 2]);
                tile_statistics(level, &mut tile, len, bias, &mut actual);
                assert!(actual[0] == actual[1] && tile[..len] == biased && tile[len..] == biased);
                assert!(actual[0].0 == max && (actual[0].1 - exact).abs() <= 3e-7 * exact);

                assert_eq!(row_statistics(level, &biased), actual[0]);

                let mut tiny = row.clone();
                row_softmax(level, &mut tiny, None, bias, max, 1e-30);
                assert!(tiny.iter().all(|g| *g == 0.0 || *g >= math::FLUSH_THRESHOLD));
                assert!(tiny.iter().any(|g| *g >= 9.9e-31));

                let (mut in_place, mut separate) = (row.clone(), vec![0.0; len]);
                row_softmax(level, &mut in_place, None, bias, max, -0.5);
                row_softmax(level, &mut separate, Some(&biased), None, max, -0.5);
                assert_eq!(in_place, separate);
                for (&z, &y) in biased.iter().zip(&in_place) {
                    assert!((f64::from(y) + 0.5 * f64::from(z - max).exp()).abs() < 1e-7);
                }
            }
        }
    }

    #[test]
    fn nan_propagates_and_masked_classes_are_ignored() {
        SimdLevel::all().into_iter().for_each(check_specials);
    }

    fn check_specials(level: SimdLevel) {
        let statistics = |row: &mut [f32]| {
            let mut actual = [(0.0, 0.0)];
            tile_statistics(level, row, 40, None, &mut actual);
            actual[0]
        };
        let masked = f32::NEG_INFINITY;
        let mut row = vec![0.0f32; 40];
        for bad in [f32::NAN, f32::INFINITY] {
            row[33] = bad;
            assert!(statistics(&mut row).1.is_nan());
            let mut mostly_masked = vec![masked; 40];
            mostly_masked[33] = bad;
            assert!(statistics(&mut mostly_masked).1.is_nan());
        }
        row[33] = masked;
        assert_eq!(statistics(&mut row), (0.0, 39.0));
        assert_eq!(statistics(&mut [masked; 40]), (masked, 0.0));
    }
}
