//! Tests of `tolerance_ratio`: the ratio of an error to its tolerance.
use golden::{Tolerance, tolerance_ratio};

#[test]
fn errors_are_divided_by_their_tolerances() {
    assert_eq!(tolerance_ratio(1.5, 1.0, 4.0, Tolerance::Absolute(0.25)), 2.0);
    assert_eq!(tolerance_ratio(2.5, 2.0, 4.0, Tolerance::Relative(0.25)), 1.0);
    assert_eq!(tolerance_ratio(1.5, 1.0, 4.0, Tolerance::RelativeToMax(0.25)), 0.5);
    assert_eq!(tolerance_ratio(1.0, 1.0, 1.0, Tolerance::Exact), 0.0);
    assert_eq!(tolerance_ratio(1.0 + 1e-15, 1.0, 1.0, Tolerance::Exact), f64::INFINITY);
    for tolerance in
        [Tolerance::Absolute(1.0), Tolerance::Relative(1.0), Tolerance::RelativeToMax(1.0), Tolerance::Exact]
    {
        assert_eq!(tolerance_ratio(f64::NAN, 1.0, 1.0, tolerance), f64::INFINITY);
        assert_eq!(tolerance_ratio(1.0, f64::NAN, 1.0, tolerance), f64::INFINITY);
    }
    assert_eq!(tolerance_ratio(1e-30, 0.0, 0.0, Tolerance::RelativeToMax(1e-5)), f64::INFINITY);
}
