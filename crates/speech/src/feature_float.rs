//! `FeatureFloat`: the types in which speech features are computed, f32 and f64.

use realfft::FftNum;

/// `f32` or `f64`.
pub(crate) trait FeatureFloat: FftNum + PartialOrd {
    /// Rounds to this type.
    fn cast(x: f64) -> Self;
    /// Converts exactly.
    fn to_f64(self) -> f64;
    /// Converts a setting of a recipe.
    ///
    /// For f64, this is the decimal number in the recipe, which f32 cannot represent.
    fn from_setting(x: f32) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
}

impl FeatureFloat for f32 {
    fn cast(x: f64) -> Self {
        x as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn from_setting(x: f32) -> Self {
        x
    }

    fn ln(self) -> Self {
        self.ln()
    }
}

impl FeatureFloat for f64 {
    fn cast(x: f64) -> Self {
        x
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn from_setting(x: f32) -> Self {
        exact_decimal(x)
    }

    fn ln(self) -> Self {
        self.ln()
    }
}

/// Returns the closest decimal number of at most seven places.
///
/// For values between 0 and 1: 0.03 for the f32 0.029999999.
pub(crate) fn exact_decimal(x: f32) -> f64 {
    const PLACES: f64 = 1e7;
    (f64::from(x) * PLACES).round() / PLACES
}
