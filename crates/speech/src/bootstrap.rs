//! How far an error rate could lie elsewhere: the bootstrap interval.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ErrorCounts;

/// 95 % interval of the error rate: the 2.5 and 97.5 percentiles over resampled sets of blocks, which are utterances or all that a
/// speaker said.
///
/// Each of `resamples` sets draws as many blocks as there are, with replacement (Bisani and Ney 2004, "Bootstrap estimates for
/// confidence intervals in ASR performance evaluation"); the same seed gives the same interval. Percentiles are order statistics,
/// without interpolation. Without blocks or resamples, both ends are the plain rate.
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
    let mut draw = || (0..count).map(|_| blocks[rng.random_range(0..count)]).sum::<ErrorCounts>().rate();
    let mut rates: Vec<f64> = (0..resamples).map(|_| draw()).collect();
    rates.sort_by(f64::total_cmp);
    let percentile = |p: f64| rates[((p * resamples as f64) as usize).min(resamples - 1)];
    (percentile(0.025), percentile(0.975))
}

/// The sum of each speaker's utterances, in the order of their names: the blocks of an interval over speakers. `None` where an
/// utterance has no speaker or all have the same one.
///
/// Utterances of one speaker fail together, so an interval over utterances is too narrow where new speakers are the question.
pub fn by_speaker<'a>(
    utterances: impl IntoIterator<Item = (Option<&'a str>, ErrorCounts)>,
) -> Option<Vec<ErrorCounts>> {
    let mut sums: BTreeMap<&str, ErrorCounts> = BTreeMap::new();
    for (speaker, errors) in utterances {
        *sums.entry(speaker?).or_default() += errors;
    }
    (sums.len() > 1).then(|| sums.into_values().collect())
}
