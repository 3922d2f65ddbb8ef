//! The two widths in which features are computed.

use realfft::FftNum;

/// `f32` or `f64`.
pub(crate) trait FftFloat: FftNum + PartialOrd {
    /// Rounded to this width.
    fn of(x: f64) -> Self;
    /// Exact.
    fn wide(self) -> f64;
    /// A setting of a recipe: for f64 the decimal number that was written, which f32 could not hold.
    fn setting(x: f32) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
}

impl FftFloat for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn setting(x: f32) -> Self {
        x
    }

    fn ln(self) -> Self {
        self.ln()
    }
}

impl FftFloat for f64 {
    fn of(x: f64) -> Self {
        x
    }

    fn wide(self) -> f64 {
        self
    }

    fn setting(x: f32) -> Self {
        written(x)
    }

    fn ln(self) -> Self {
        self.ln()
    }
}

/// The decimal number of at most seven places that became an f32 between 0 and 1: 0.03 for 0.029999999.
pub(crate) fn written(x: f32) -> f64 {
    const PLACES: f64 = 1e7;
    (f64::from(x) * PLACES).round() / PLACES
}
