//! What becomes of paths that come to the same.

/// How weights of several paths become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The largest.
    Max,
    /// `log Σ exp`
    Sum,
}

impl Merge {
    /// All in one; nothing weighs -inf, and what is NaN stays so.
    pub(crate) fn all(self, values: &mut [f64]) -> f64 {
        let larger = |top: f64, &x: &f64| if x > top || x.is_nan() { x } else { top };
        let top = values.iter().fold(f64::NEG_INFINITY, larger);
        if self == Self::Max || !top.is_finite() {
            return top;
        }
        values.iter_mut().for_each(|x| *x -= top);
        kernels::exp(values);
        top + values.iter().sum::<f64>().ln()
    }

    pub(crate) fn two(self, a: f64, b: f64) -> f64 {
        let (high, low) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
        match self {
            _ if high.is_nan() => high,
            _ if low == f64::NEG_INFINITY => high,
            Self::Max => high,
            Self::Sum => high + (low - high).exp().ln_1p(),
        }
    }
}

/// A string of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// 1 to V.
    pub labels: Vec<u32>,
    /// The best of its paths, or the sum over them, as was asked for.
    pub weight: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nan_stays_so_on_either_side() {
        let nan = f64::NAN;
        for merge in [Merge::Max, Merge::Sum] {
            for other in [1.0, f64::NEG_INFINITY, f64::INFINITY, nan] {
                assert!(
                    merge.two(nan, other).is_nan() && merge.two(other, nan).is_nan(),
                    "{merge:?} {other}"
                );
            }
        }
        assert_eq!(Merge::Max.two(1.0, f64::NEG_INFINITY), 1.0);
        assert_eq!(Merge::Sum.two(0.0, 0.0), 2f64.ln());
    }
}
