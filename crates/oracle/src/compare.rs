//! How far two arrays are apart, in the two measures that the workspace states its bars in.

use crate::error::{Result, shape};

/// Distance between an array and what was expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Largest absolute difference; +inf if either side holds a NaN, or an infinity that the other does not.
    pub absolute: f64,
    /// Where that is.
    pub index: usize,
    /// `|found - expected|_2 / |expected|_2`; 0 when both are zero, +inf when only the expected one is.
    pub relative_l2: f64,
}

/// Compares two arrays of the same length.
///
/// Equal infinities are no difference; NaN is an infinite one, so that no bar can be passed by it.
///
/// # Errors
/// Different lengths.
pub fn gap(found: &[f64], expected: &[f64]) -> Result<Gap> {
    if found.len() != expected.len() {
        return Err(shape("found", format!("{} values", expected.len()), found.len()));
    }
    let mut gap = Gap { absolute: 0.0, index: 0, relative_l2: 0.0 };
    let (mut squares, mut total) = (0.0, 0.0);
    for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let difference = if a == b { 0.0 } else { (a - b).abs() };
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        if difference > gap.absolute {
            (gap.absolute, gap.index) = (difference, i);
        }
        squares += difference * difference;
        total += if b.is_finite() { b * b } else { 0.0 };
    }
    gap.relative_l2 = match (squares == 0.0, total == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => (squares / total).sqrt(),
    };
    Ok(gap)
}

/// Panics with a telling message unless every value is within `bar` of what was expected; for tests.
///
/// # Panics
/// Different lengths, NaN, or an absolute difference above `bar`.
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], bar: f64) {
    match gap(found, expected) {
        Err(error) => panic!("{what}: {error}"),
        Ok(gap) if gap.absolute > bar => panic!(
            "{what}: {:e} against {:e} at {} is off by {:e}, more than {bar:e}",
            found[gap.index], expected[gap.index], gap.index, gap.absolute
        ),
        Ok(_) => {}
    }
}

/// Panics with a telling message unless every value is within `relative |expected| + absolute` of what was expected, and is NaN or
/// infinite exactly where that is; for tests.
///
/// # Panics
/// Different lengths, or a value that is farther off.
#[track_caller]
pub fn assert_near(what: &str, found: &[f64], expected: &[f64], relative: f64, absolute: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        let near = b.is_finite() && (a - b).abs() <= relative * b.abs() + absolute;
        assert!(same || near, "{what}: {a:e} against {b:e} at {i}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_both_ways() {
        let found = gap(&[1.0, 2.5], &[1.0, 2.0]).unwrap();
        assert_eq!((found.absolute, found.index), (0.5, 1));
        assert!((found.relative_l2 - 0.5 / 5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn nan_passes_no_bar_and_equal_infinities_do() {
        assert_eq!(gap(&[f64::NAN], &[1.0]).unwrap().absolute, f64::INFINITY);
        assert_eq!(gap(&[f64::NAN], &[f64::NAN]).unwrap().relative_l2, f64::INFINITY);
        assert_eq!(gap(&[f64::INFINITY], &[f64::INFINITY]).unwrap().absolute, 0.0);
        assert_eq!(gap(&[f64::INFINITY], &[3.0]).unwrap().absolute, f64::INFINITY);
        assert_eq!(gap(&[1.0], &[0.0]).unwrap().relative_l2, f64::INFINITY);
        assert!(gap(&[1.0], &[]).is_err());
    }

    #[test]
    fn what_is_no_number_must_be_expected() {
        assert_near("x", &[f64::NAN, f64::INFINITY, 1.0], &[f64::NAN, f64::INFINITY, 1.1], 0.05, 0.05);
        let fails = |found: f64, expected: f64| {
            std::panic::catch_unwind(|| assert_near("x", &[found], &[expected], 0.1, 0.1)).is_err()
        };
        assert!(fails(f64::NAN, 1.0) && fails(1.0, f64::NAN) && fails(f64::INFINITY, 1.0));
        assert!(fails(1.0, f64::INFINITY) && fails(f64::NEG_INFINITY, f64::INFINITY) && fails(1.0, 1.3));
    }

    #[test]
    #[should_panic(expected = "off by")]
    fn assertion_fails_beyond_the_bar() {
        assert_close("x", &[1.0], &[1.1], 1e-3);
    }
}
