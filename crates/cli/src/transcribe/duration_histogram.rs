//! Histogram of the processing times of audio chunks, in constant memory.
//!
//! `transcribe --stream` adds the time of each chunk and prints quantiles after a recording.
use std::time::Duration;

/// Upper bound of the first bucket in seconds.
const FIRST_BOUND_SECONDS: f64 = 1e-6;
/// Ratio of the bounds of consecutive buckets.
const BOUND_RATIO: f64 = 1.02;
/// Number of buckets; the last one starts at several hours.
const BUCKET_COUNT: usize = 1200;

/// Histogram of durations.
pub(super) struct DurationHistogram {
    counts: Vec<u64>,
    longest: Duration,
    total: Duration,
}

impl DurationHistogram {
    /// Creates an empty histogram.
    pub(super) fn new() -> Self {
        DurationHistogram { counts: vec![0; BUCKET_COUNT], longest: Duration::ZERO, total: Duration::ZERO }
    }

    /// Adds a duration.
    pub(super) fn add(&mut self, duration: Duration) {
        let bucket = (duration.as_secs_f64() / FIRST_BOUND_SECONDS).max(1.0).log(BOUND_RATIO) as usize;
        self.counts[bucket.min(BUCKET_COUNT - 1)] += 1;
        self.longest = self.longest.max(duration);
        self.total += duration;
    }

    /// Returns the sum of the durations.
    pub(super) fn total(&self) -> Duration {
        self.total
    }

    /// Returns a quantile in seconds, within 2 %.
    ///
    /// The quantile of 1 is the longest duration; all quantiles of an empty histogram are 0.
    pub(super) fn quantile(&self, fraction: f64) -> f64 {
        let longest = self.longest.as_secs_f64();
        if fraction >= 1.0 {
            return longest;
        }
        let mut remaining = (fraction * self.counts.iter().sum::<u64>() as f64).ceil() as u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if remaining <= count {
                return (FIRST_BOUND_SECONDS * BOUND_RATIO.powf(bucket as f64 + 0.5)).min(longest);
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
        let mut durations = DurationHistogram::new();
        assert_eq!(
            (durations.quantile(0.5), durations.quantile(1.0), durations.total()),
            (0.0, 0.0, Duration::ZERO)
        );
        (1..=10_000).rev().for_each(|n| durations.add(Duration::from_micros(10 * n)));
        for fraction in [0.1, 0.5, 0.95] {
            let ratio = durations.quantile(fraction) / (0.1 * fraction);
            assert!((ratio - 1.0).abs() < 0.02, "{fraction}: {ratio}");
        }
        assert_eq!(durations.total(), Duration::from_micros(500_050_000));
        durations.add(Duration::from_secs(1_000_000));
        assert_eq!(durations.quantile(1.0), 1e6);
        let mut zero_durations = DurationHistogram::new();
        zero_durations.add(Duration::ZERO);
        assert_eq!(zero_durations.quantile(0.5), 0.0);
    }
}
