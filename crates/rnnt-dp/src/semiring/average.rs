//! Means over paths.
use super::{Log, Semiring};

/// The mean over all paths of what their arcs are worth together, beside the log-sum of their probabilities: an
/// [`Expectation`](super::Expectation) (Eisner 2002) with means in place of sums, so that nothing underflows and values have signs.
#[derive(Debug, Clone, Copy)]
pub struct Average;

/// An element of [`Average`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// Log-sum of the paths' probabilities.
    pub log_prob: f64,
    /// Mean of their values, weighted with their probabilities.
    pub value: f64,
}

impl Semiring for Average {
    type Weight = Mean;
    const ZERO: Mean = Mean { log_prob: f64::NEG_INFINITY, value: 0.0 };
    const ONE: Mean = Mean { log_prob: 0.0, value: 0.0 };

    fn plus(a: Mean, b: Mean) -> Mean {
        let log_prob = Log::plus(a.log_prob, b.log_prob);
        match (a.log_prob == f64::NEG_INFINITY, b.log_prob == f64::NEG_INFINITY) {
            (true, _) => b,
            (_, true) => a,
            _ => Mean { log_prob, value: a.value + (b.value - a.value) * (b.log_prob - log_prob).exp() },
        }
    }

    fn times(a: Mean, b: Mean) -> Mean {
        match a.log_prob + b.log_prob {
            f64::NEG_INFINITY => Self::ZERO,
            log_prob => Mean { log_prob, value: a.value + b.value },
        }
    }
}
