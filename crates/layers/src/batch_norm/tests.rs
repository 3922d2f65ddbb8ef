//! Tests of batch norms with constant statistics and with those of batches.
use super::*;
use crate::operation::tests::{check_gradients, test_values, values};

/// Returns a norm with irregular statistics; variances are positive.
fn norm(weight: &Tensor, bias: &Tensor, width: usize) -> BatchNorm {
    let (mean, variance) = (test_values(&[width], 0.3), test_values(&[width], 1.7));
    let variance = (variance.sqr().unwrap() + 0.1).unwrap();
    BatchNorm {
        name: "norm".into(),
        is_trained: false,
        weight: weight.clone(),
        bias: bias.clone(),
        mean: mean.as_tensor().clone(),
        variance,
    }
}

/// The larger number of rows needs several tasks.
#[test]
fn values_equal_the_formula_and_gradients_finite_differences() {
    for (rows, width) in [(4, 5), (0, 3), (150, 2)] {
        let arguments =
            [test_values(&[rows, width], 0.7), test_values(&[width], 1.9), test_values(&[width], 0.4)];
        let [x, w, b] = &arguments;
        let norm_of = |a: &[candle_core::Var]| norm(&a[1], &a[2], width).apply(&a[0]).unwrap();
        let y = values(&norm_of(&arguments));
        let [x, w, b] = [x, w, b].map(|v| values(v));
        let BatchNorm { mean, variance, .. } = norm(&arguments[1], &arguments[2], width);
        let [mean, variance] = [&mean, &variance].map(values);
        for (i, y) in y.iter().enumerate() {
            let c = i % width;
            let expected = (x[i] - mean[c]) / (variance[c] + 1e-5).sqrt() * w[c] + b[c];
            assert!((y - expected).abs() < 1e-13, "{y} {expected}");
        }
        check_gradients(norm_of, &arguments);
    }
}

#[test]
fn batch_statistics_equal_the_formulas_and_gradients_finite_differences() {
    for (rows, width) in [(4, 5), (1, 3), (150, 2)] {
        let arguments =
            [test_values(&[rows, width], 0.7), test_values(&[width], 1.9), test_values(&[width], 0.4)];
        let forward = |a: &[candle_core::Var]| {
            let norm = norm(&a[1], &a[2], width).with_batch_statistics(true);
            let mut pass = TrainingPass::new(1, 0, &[0]);
            let y = norm.forward(&a[0], Some(&mut pass)).unwrap();
            (y, pass.take_statistics())
        };
        let (y, statistics) = forward(&arguments);
        let [x, w, b] = [0, 1, 2].map(|i| values(&arguments[i]));
        let [BatchStatistics { norm, rows: found_rows, mean, variance }] = &statistics[..] else {
            panic!("{statistics:?}")
        };
        assert_eq!((norm.as_str(), *found_rows), ("norm", rows));
        for c in 0..width {
            let channel: Vec<f64> = x.iter().skip(c).step_by(width).copied().collect();
            let expected_mean = channel.iter().sum::<f64>() / rows as f64;
            let squares = channel.iter().map(|x| (x - expected_mean).powi(2));
            let expected_variance = squares.sum::<f64>() / rows as f64;
            assert!(
                (mean[c] - expected_mean).abs() < 1e-14 && (variance[c] - expected_variance).abs() < 1e-14
            );
            for (y, x) in values(&y).iter().skip(c).step_by(width).zip(channel) {
                let expected = (x - expected_mean) / (expected_variance + 1e-5).sqrt() * w[c] + b[c];
                assert!((y - expected).abs() < 1e-12, "{y} {expected}");
            }
        }
        // Differences of a constant are not relative to the large factor of a row alone.
        if rows > 1 {
            check_gradients(|a| forward(a).0, &arguments);
        }
    }
}

#[test]
fn stored_statistics_are_used_without_a_pass_and_for_frozen_parameters() {
    let (x, w, b) = (test_values(&[4, 3], 0.7), test_values(&[3], 1.9), test_values(&[3], 0.4));
    let trained = norm(&w, &b, 3).with_batch_statistics(true);
    let expected = values(&trained.apply(&x).unwrap());
    let frozen = norm(&w.detach(), &b.detach(), 3).with_batch_statistics(true);
    let mut pass = TrainingPass::new(1, 0, &[0]);
    assert_eq!(values(&trained.forward(&x, None).unwrap()), expected);
    assert_eq!(values(&frozen.forward(&x, Some(&mut pass)).unwrap()), expected);
    assert_eq!(values(&norm(&w, &b, 3).forward(&x, Some(&mut pass)).unwrap()), expected);
    assert!(pass.take_statistics().is_empty());
    let y = trained.forward(&x, Some(&mut pass)).unwrap();
    assert_ne!(values(&y), expected);
    let no_rows = x.narrow(0, 0, 0).unwrap();
    assert_eq!(trained.forward(&no_rows, Some(&mut pass)).unwrap().dims(), [0, 3]);
    assert_eq!(pass.take_statistics().len(), 1);
}

#[test]
fn negative_variances_and_other_shapes_are_rejected() {
    let (x, w) = (test_values(&[2, 3], 1.0), test_values(&[3], 1.0));
    let mut negative = norm(&w, &w, 3);
    negative.variance = w.neg().unwrap().abs().unwrap().neg().unwrap();
    let error = negative.apply(&x).unwrap_err().to_string();
    assert!(error.starts_with("running_var: expected values of at least 0, found -"), "{error}");
    let error = norm(&w, &w, 4).apply(&x).unwrap_err().to_string();
    assert!(error.starts_with("running_mean: expected [3], found [4]"), "{error}");
}
