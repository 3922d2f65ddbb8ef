//! Natural numbers.
use super::Semiring;

/// Natural numbers; more than `u64` holds are as many as it holds.
#[derive(Debug, Clone, Copy)]
pub struct Count;

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
