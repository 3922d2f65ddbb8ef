//! Semirings: in what the weights of paths are multiplied along a path and added up over paths (Mohri 2002).

/// `⊕` adds up alternatives, `⊗` goes on along a path and distributes over `⊕`.
///
/// A lattice is the same to all of them: with the log-probabilities of its arcs brought into a semiring, the shortest distance
/// from its start to its end is the sum over all paths ([`Log`], [`Real`]), the best of them ([`Tropical`]), their number
/// ([`Count`]) or a mean over them ([`Expectation`]).
pub trait Semiring {
    /// An element.
    type Weight: Copy;
    /// Of no path: `0 ⊕ a = a`, `0 ⊗ a = 0`.
    const ZERO: Self::Weight;
    /// Of the path without arcs: `1 ⊗ a = a`.
    const ONE: Self::Weight;
    /// `a ⊕ b`
    fn plus(a: Self::Weight, b: Self::Weight) -> Self::Weight;
    /// `a ⊗ b`
    fn times(a: Self::Weight, b: Self::Weight) -> Self::Weight;
}

/// Log-probabilities: `⊕` is `log(exp a + exp b)`, `⊗` is `+`.
#[derive(Debug, Clone, Copy)]
pub struct Log;

/// Scores of which the largest counts: `⊕` is `max`, `⊗` is `+`.
#[derive(Debug, Clone, Copy)]
pub struct Tropical;

/// Probabilities as they are.
#[derive(Debug, Clone, Copy)]
pub struct Real;

/// Natural numbers; more than `u64` holds are as many as it holds.
#[derive(Debug, Clone, Copy)]
pub struct Count;

/// The mean over all paths of what their arcs are worth together, beside the log-sum of their probabilities (Eisner 2002, with
/// means in place of sums, so that nothing underflows).
#[derive(Debug, Clone, Copy)]
pub struct Expectation;

/// An element of [`Expectation`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// Log-sum of the paths' probabilities.
    pub log_prob: f64,
    /// Mean of their values, weighted with their probabilities.
    pub value: f64,
}

impl Semiring for Log {
    type Weight = f64;
    const ZERO: f64 = f64::NEG_INFINITY;
    const ONE: f64 = 0.0;

    /// To about two ULPs of the larger argument.
    #[inline]
    fn plus(a: f64, b: f64) -> f64 {
        let (high, low) = if a > b { (a, b) } else { (b, a) };
        if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
    }

    #[inline]
    fn times(a: f64, b: f64) -> f64 {
        a + b
    }
}

impl Semiring for Tropical {
    type Weight = f64;
    const ZERO: f64 = f64::NEG_INFINITY;
    const ONE: f64 = 0.0;

    #[inline]
    fn plus(a: f64, b: f64) -> f64 {
        if b > a { b } else { a }
    }

    #[inline]
    fn times(a: f64, b: f64) -> f64 {
        a + b
    }
}

impl Semiring for Real {
    type Weight = f64;
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn plus(a: f64, b: f64) -> f64 {
        a + b
    }

    fn times(a: f64, b: f64) -> f64 {
        a * b
    }
}

impl Semiring for Count {
    type Weight = u64;
    const ZERO: u64 = 0;
    const ONE: u64 = 1;

    fn plus(a: u64, b: u64) -> u64 {
        a.saturating_add(b)
    }

    fn times(a: u64, b: u64) -> u64 {
        a.saturating_mul(b)
    }
}

impl Semiring for Expectation {
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
