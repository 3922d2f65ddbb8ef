//! Clipping of the global gradient norm, in two forms.
//!
//! Optimizers divide every gradient by [`Clip::divisor`]. The forms are those of MLPerf's RNN-T:
//! for one process, and for a distributed run.

/// Term that [`Clip::Distributed`] adds to the norm.
const EPSILON: f64 = 1e-6;

/// The largest norm of all gradients together, and how it is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Clip {
    /// No limit.
    #[default]
    None,
    /// `g / (‖g‖ / limit)` where the norm is above the limit: to exactly the limit.
    Single(f64),
    /// `g · min(1, limit / (‖g‖ + 1e-6))`: just below the limit, also for norms within 1e-6 of it.
    Distributed(f64),
}

impl Clip {
    /// Returns the divisor of every gradient for a norm; at least 1.
    ///
    /// With a limit, NaN gives NaN; 0 gives 1.
    pub fn divisor(self, norm: f64) -> f64 {
        match self {
            Clip::None => 1.0,
            Clip::Single(limit) if norm > limit => norm / limit,
            Clip::Single(_) if norm.is_nan() => norm,
            Clip::Single(_) => 1.0,
            Clip::Distributed(limit) if (norm + EPSILON) > limit => (norm + EPSILON) / limit,
            Clip::Distributed(_) if norm.is_nan() => norm,
            Clip::Distributed(_) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_have_the_values_computed_by_hand() {
        for (clip, norm, expected) in [
            (Clip::None, 1e30, 1.0),
            (Clip::Single(1.0), 1.0, 1.0),
            (Clip::Single(1.0), 4.0, 4.0),
            (Clip::Single(0.5), 4.0, 8.0),
            (Clip::Single(5.0), 4.0, 1.0),
            (Clip::Distributed(1.0), 4.0, 4.000001),
            (Clip::Distributed(1.0), 1.0, 1.000001),
            (Clip::Distributed(1.0), 0.999, 1.0),
            (Clip::Distributed(2.0), 5.0, 2.5000005),
            (Clip::Single(1.0), 0.0, 1.0),
            (Clip::Distributed(1.0), 0.0, 1.0),
        ] {
            let divisor = clip.divisor(norm);
            assert!((divisor - expected).abs() < 1e-15 * expected, "{clip:?} of {norm}: {divisor}");
        }
        assert!(Clip::Single(1.0).divisor(f64::NAN).is_nan());
        assert!(Clip::Distributed(1.0).divisor(f64::NAN).is_nan());
    }
}
