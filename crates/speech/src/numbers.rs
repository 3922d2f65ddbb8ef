//! Numbers in messages.

use std::fmt::{Display, LowerExp};

/// A number in at most 12 characters, however large or small it is.
pub(crate) fn short(x: impl Display + LowerExp) -> String {
    let plain = x.to_string();
    if plain.len() <= 12 { plain } else { format!("{x:.4e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_longer_than_twelve_characters() {
        for x in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, -5e-324, -1.0 / 3e-200, 0.1 + 0.2, f64::NAN] {
            assert!(short(x).len() <= 12, "{}", short(x));
        }
        assert_eq!(
            (short(0.25), short(-3), short(f64::NEG_INFINITY)),
            ("0.25".into(), "-3".into(), "-inf".into())
        );
        assert_eq!((short(-1e300), short(f32::MAX)), ("-1.0000e300".into(), "3.4028e38".into()));
    }
}
