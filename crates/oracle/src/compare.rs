//! Largest and relative differences of two arrays, and assertions for tests.

use crate::error::{Result, shape_error};

/// Difference between an array and its expected values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Largest absolute difference.
    ///
    /// +inf if either array contains a NaN, or an infinity that the other does not.
    pub absolute: f64,
    /// Index of the largest difference.
    pub index: usize,
    /// `|found - expected|_2 / |expected|_2`.
    ///
    /// 0 when both norms are zero, +inf when only the expected one is.
    pub relative_l2: f64,
}

/// Compares two arrays of the same length.
///
/// Equal infinities differ by 0. A NaN differs from everything by +inf, so it exceeds every
/// tolerance.
///
/// # Errors
/// Different lengths.
pub fn difference(found: &[f64], expected: &[f64]) -> Result<Difference> {
    if found.len() != expected.len() {
        return Err(shape_error("found", format!("{} values", expected.len()), found.len()));
    }
    let mut largest = Difference { absolute: 0.0, index: 0, relative_l2: 0.0 };
    let (mut squared_difference, mut squared_norm) = (0.0, 0.0);
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let difference = if found == expected { 0.0 } else { (found - expected).abs() };
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        if difference > largest.absolute {
            (largest.absolute, largest.index) = (difference, i);
        }
        squared_difference += difference * difference;
        squared_norm += if expected.is_finite() { expected * expected } else { 0.0 };
    }
    largest.relative_l2 = match (squared_difference == 0.0, squared_norm == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => (squared_difference / squared_norm).sqrt(),
    };
    Ok(largest)
}

/// Panics unless every value is within `tolerance` of its expected value; for tests.
///
/// # Panics
/// Different lengths, NaN, or an absolute difference above `tolerance`.
#[track_caller]
pub fn assert_close(name: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    match difference(found, expected) {
        Err(error) => panic!("{name}: {error}"),
        Ok(largest) if largest.absolute > tolerance => panic!(
            "{name}: {:e} against {:e} at {} is off by {:e}, more than {tolerance:e}",
            found[largest.index], expected[largest.index], largest.index, largest.absolute
        ),
        Ok(_) => {}
    }
}

/// Panics unless every value is close to its expected value; for tests.
///
/// The tolerance is `relative |expected| + absolute`. A value must be NaN or infinite exactly where
/// the expected one is.
///
/// # Panics
/// Different lengths, or a difference above the tolerance.
#[track_caller]
pub fn assert_near(name: &str, found: &[f64], expected: &[f64], relative: f64, absolute: f64) {
    assert_eq!(found.len(), expected.len(), "{name}: number of values");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let is_equal = found == expected || (found.is_nan() && expected.is_nan());
        let is_near =
            expected.is_finite() && (found - expected).abs() <= relative * expected.abs() + absolute;
        assert!(is_equal || is_near, "{name}: {found:e} against {expected:e} at {i}");
    }
}
