//! Durations of any number of chunks, in memory that does not grow with it.
use std::time::Duration;

/// Upper end of the first bucket in seconds.
const SHORTEST: f64 = 1e-6;
/// Ratio of neighboring buckets.
const RATIO: f64 = 1.02;
/// Number of buckets; the last one begins after hours.
const BUCKETS: usize = 1200;

/// A histogram of durations.
pub struct Durations {
    counts: Vec<u64>,
    longest: Duration,
    total: Duration,
}

impl Durations {
    /// A histogram without durations.
    pub fn new() -> Self {
        Durations { counts: vec![0; BUCKETS], longest: Duration::ZERO, total: Duration::ZERO }
    }

    /// Adds one.
    pub fn add(&mut self, one: Duration) {
        let bucket = (one.as_secs_f64() / SHORTEST).max(1.0).log(RATIO) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.longest = self.longest.max(one);
        self.total += one;
    }

    /// The sum.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Seconds that a share of the durations does not exceed, within 2 %; the longest for a share of 1, and 0 without any.
    pub fn quantile(&self, share: f64) -> f64 {
        let longest = self.longest.as_secs_f64();
        if share >= 1.0 {
            return longest;
        }
        let mut left = (share * self.counts.iter().sum::<u64>() as f64).ceil() as u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if left <= count {
                return (SHORTEST * RATIO.powf(bucket as f64 + 0.5)).min(longest);
            }
            left -= count;
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_two_percent() {
        let mut all = Durations::new();
        assert_eq!((all.quantile(0.5), all.quantile(1.0), all.total()), (0.0, 0.0, Duration::ZERO));
        (1..=10_000).rev().for_each(|n| all.add(Duration::from_micros(10 * n)));
        for share in [0.1, 0.5, 0.95] {
            let found = all.quantile(share) / (0.1 * share);
            assert!((found - 1.0).abs() < 0.02, "{share}: {found}");
        }
        assert_eq!(all.total(), Duration::from_micros(500_050_000));
        all.add(Duration::from_secs(1_000_000));
        assert_eq!(all.quantile(1.0), 1e6);
        let mut zero = Durations::new();
        zero.add(Duration::ZERO);
        assert_eq!(zero.quantile(0.5), 0.0);
    }
}
