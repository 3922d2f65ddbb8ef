//! Tests of finite differences, array comparisons and random numbers.
use oracle::Error;
use oracle::compare::{assert_close, assert_near, difference};
use oracle::differences::central_difference;
use oracle::noise::{labels, normal};

#[test]
fn central_differences_match_a_known_gradient() {
    let point = [0.3, -1.2, 40.0];
    let gradient = central_difference(|x| Ok(x[0].exp() * x[1].sin() + x[2].ln()), &point).unwrap();
    let exact = [point[0].exp() * point[1].sin(), point[0].exp() * point[1].cos(), 1.0 / point[2]];
    for (a, b) in gradient.iter().zip(exact) {
        assert!((a - b).abs() < 1e-11, "{a} against {b}");
    }
}

#[test]
fn errors_of_the_function_are_returned() {
    let fail = |_: &[f64]| {
        Err(Error::Shape { argument: "x", expected: "nothing".into(), found: "something".into() })
    };
    assert!(central_difference(fail, &[0.0]).is_err());
}

#[test]
fn absolute_and_relative_differences_are_computed() {
    let largest = difference(&[1.0, 2.5], &[1.0, 2.0]).unwrap();
    assert_eq!((largest.absolute, largest.index), (0.5, 1));
    assert!((largest.relative_l2 - 0.5 / 5f64.sqrt()).abs() < 1e-15);
}

#[test]
fn nan_differs_infinitely_and_equal_infinities_do_not() {
    assert_eq!(difference(&[f64::NAN], &[1.0]).unwrap().absolute, f64::INFINITY);
    assert_eq!(difference(&[f64::NAN], &[f64::NAN]).unwrap().relative_l2, f64::INFINITY);
    assert_eq!(difference(&[f64::INFINITY], &[f64::INFINITY]).unwrap().absolute, 0.0);
    assert_eq!(difference(&[f64::INFINITY], &[3.0]).unwrap().absolute, f64::INFINITY);
    assert_eq!(difference(&[1.0], &[0.0]).unwrap().relative_l2, f64::INFINITY);
    assert!(difference(&[1.0], &[]).is_err());
}

#[test]
fn nan_and_infinities_must_be_expected() {
    assert_near("x", &[f64::NAN, f64::INFINITY, 1.0], &[f64::NAN, f64::INFINITY, 1.1], 0.05, 0.05);
    let fails = |found: f64, expected: f64| {
        std::panic::catch_unwind(|| assert_near("x", &[found], &[expected], 0.1, 0.1)).is_err()
    };
    assert!(fails(f64::NAN, 1.0) && fails(1.0, f64::NAN) && fails(f64::INFINITY, 1.0));
    assert!(fails(1.0, f64::INFINITY) && fails(f64::NEG_INFINITY, f64::INFINITY) && fails(1.0, 1.3));
}

#[test]
#[should_panic(expected = "off by")]
fn assert_close_panics_above_the_tolerance() {
    assert_close("x", &[1.0], &[1.1], 1e-3);
}

#[test]
fn values_depend_on_seed_and_purpose() {
    assert_eq!(normal(1, 2, 9, 1.0), normal(1, 2, 9, 1.0));
    assert_ne!(normal(1, 2, 9, 1.0), normal(1, 3, 9, 1.0));
    assert!(labels(5, 6, 500, 4, 2).iter().all(|&id| id < 4 && id != 2));
}

#[test]
fn normal_numbers_have_mean_0_and_variance_1() {
    let draws = normal(7, 0, 20_000, 1.0);
    let mean = draws.iter().sum::<f64>() / draws.len() as f64;
    let variance = draws.iter().map(|x| x * x).sum::<f64>() / draws.len() as f64;
    assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
}
