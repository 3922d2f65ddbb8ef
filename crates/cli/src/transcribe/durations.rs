//! Histogram of processing times, in constant memory.
use std::time::Duration;

/// Upper bound of the first bucket in seconds.
const FIRST_BOUND: f64 = 1e-6;
/// Ratio of the bounds of consecutive buckets.
const RATIO: f64 = 1.02;
/// Number of buckets; the last one starts at several hours.
const BUCKETS: usize = 1200;

/// Histogram of durations.
pub struct Durations {
    counts: Vec<u64>,
    longest: Duration,
    total: Duration,
}

impl Durations {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Durations { counts: vec![0; BUCKETS], longest: Duration::ZERO, total: Duration::ZERO }
    }

    /// Adds a duration.
    pub fn add(&mut self, duration: Duration) {
        let bucket = (duration.as_secs_f64() / FIRST_BOUND).max(1.0).log(RATIO) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.longest = self.longest.max(duration);
        self.total += duration;
    }

    /// Returns the sum of the durations.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns a quantile in seconds, within 2 %.
    ///
    /// The quantile of 1 is the longest duration; all quantiles of an empty histogram are 0.
    pub fn quantile(&self, share: f64) -> f64 {
        let longest = self.longest.as_secs_f64();
        if share >= 1.0 {
            return longest;
        }
        let mut remaining = (share * self.counts.iter().sum::<u64>() as f64).ceil() as u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if remaining <= count {
                return (FIRST_BOUND * RATIO.powf(bucket as f64 + 0.5)).min(longest);
            }
            remaining -= count;
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
            let ratio = all.quantile(share) / (0.1 * share);
            assert!((ratio - 1.0).abs() < 0.02, "{share}: {ratio}");
        }
        assert_eq!(all.total(), Duration::from_micros(500_050_000));
        all.add(Duration::from_secs(1_000_000));
        assert_eq!(all.quantile(1.0), 1e6);
        let mut zero = Durations::new();
        zero.add(Duration::ZERO);
        assert_eq!(zero.quantile(0.5), 0.0);
    }
}
