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
        let (high, low) = if a > b { (a, b) } else { (b, a) };
        match self {
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
