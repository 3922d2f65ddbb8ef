//! Numbers in messages.
use std::fmt::{self, Display, LowerExp};

/// A number in at most 12 characters: as it is if that is short enough, and else with five digits and an exponent.
///
/// ```
/// use kernels::Brief;
///
/// assert_eq!(Brief(0.25).to_string(), "0.25");
/// assert_eq!(Brief(-1e300).to_string(), "-1.0000e300");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Brief<T>(pub T);

impl<T: Display + LowerExp> Display for Brief<T> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        const MOST: usize = 12;
        let plain = self.0.to_string();
        if plain.len() <= MOST {
            return out.write_str(&plain);
        }
        // As `f32`, if it was one: no digits that nobody wrote.
        match plain.parse().map(|wide: f64| (wide, wide as f32)) {
            Ok((wide, narrow)) if f64::from(narrow) == wide && narrow.to_string().len() <= MOST => {
                write!(out, "{narrow}")
            }
            _ => write!(out, "{:.4e}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_takes_more_than_twelve_characters() {
        let mut x = 4.9e-324f64;
        while x < 1.7e308 {
            for x in [x, -x, x.round(), 1.0 / x] {
                assert!(Brief(x).to_string().len() <= 12, "{}", Brief(x));
            }
            x *= 3.7;
        }
        for (x, text) in [
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::MIN, "-1.7977e308"),
            (-f64::MIN_POSITIVE, "-2.2251e-308"),
            (f64::from(0.1f32), "0.1"),
            (1.0 / 3.0, "3.3333e-1"),
            (123_456_789.0, "123456789"),
        ] {
            assert_eq!(Brief(x).to_string(), text);
        }
        assert_eq!(
            (Brief(f32::MAX).to_string(), Brief(u64::MAX).to_string()),
            ("3.4028e38".into(), "1.8447e19".into())
        );
    }
}
