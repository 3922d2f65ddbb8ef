//! Bootstrap confidence intervals of error rates.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ErrorCounts;

/// Returns the 95 % bootstrap interval of the error rate.
///
/// The bounds are the 2.5 and 97.5 percentiles over resampled sets of blocks; a block is an
/// utterance or all utterances of a speaker. Each of `resamples` sets draws `blocks.len()` blocks
/// with replacement (Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR
/// performance evaluation"). A seed always gives the same interval. Percentiles are order
/// statistics without interpolation. Without blocks or resamples, both bounds are the plain rate.
///
/// Cost: O(resamples × blocks).
///
/// ```
/// let utterances = [("one", "one"), ("two", "too")].map(|(r, h)| speech::word_errors(r, h));
/// assert_eq!(speech::bootstrap_interval(&utterances, 1000, 7), (0.0, 1.0));
/// ```
pub fn bootstrap_interval(blocks: &[ErrorCounts], resamples: usize, seed: u64) -> (f64, f64) {
    let count = blocks.len();
    if count == 0 || resamples == 0 {
        let rate = blocks.iter().sum::<ErrorCounts>().rate();
        return (rate, rate);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw_rate = || (0..count).map(|_| blocks[rng.random_range(0..count)]).sum::<ErrorCounts>().rate();
    let mut rates: Vec<f64> = (0..resamples).map(|_| draw_rate()).collect();
    rates.sort_by(f64::total_cmp);
    let percentile = |fraction: f64| rates[((fraction * resamples as f64) as usize).min(resamples - 1)];
    (percentile(0.025), percentile(0.975))
}

/// Sums the errors of each speaker, in the order of their names.
///
/// These sums are the blocks of an interval over speakers. `None` if an utterance has no speaker,
/// or all have the same one. Errors of one speaker are correlated, so an interval over utterances
/// is too narrow for new speakers.
pub fn sum_by_speaker<'a>(
    utterances: impl IntoIterator<Item = (Option<&'a str>, ErrorCounts)>,
) -> Option<Vec<ErrorCounts>> {
    let mut sums: BTreeMap<&str, ErrorCounts> = BTreeMap::new();
    for (speaker, errors) in utterances {
        *sums.entry(speaker?).or_default() += errors;
    }
    (sums.len() > 1).then(|| sums.into_values().collect())
}
