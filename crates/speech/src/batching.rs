//! Batches of utterances of similar length.
//!
//! | what | for |
//! |---|---|
//! | [`plan_batches`] | batches of at most so many padded frames |
//! | [`filter_by_duration`], [`split_into_buckets`], [`bucket_batches`], [`EpochSize`] | batches of one size from buckets of similar lengths, as MLPerf's RNN-T has them |
//! | [`split_batch`], [`split_sequences`] | a batch in parts, of utterances or of time |
//! | [`static_lengths`], [`bucket_for`] | few shapes for all steps |
//! | [`presort`], [`packed_offsets`], [`FrameCounts`] | orders, places and lengths |
//! | [`Padding`] | what is lost |
mod buckets;
mod lengths;
mod split;

pub use buckets::{EpochSize, bucket_batches, split_into_buckets};
pub use lengths::{
    DurationFilter, FrameCounts, Padding, bucket_for, filter_by_duration, packed_offsets, presort,
    static_lengths,
};
pub use split::{BatchSplit, SequenceSplit, split_batch, split_sequences};

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// With a generator, lengths are compared after a random factor of up to this much either way.
const JITTER: f64 = 0.1;

/// Cuts utterances into batches of similar length; every index occurs exactly once.
///
/// A batch has at most `max_utterances` utterances and at most `max_frames` padded frames (its longest length times its count);
/// an utterance that is longer than `max_frames` by itself is a batch of its own. A limit of 0 is taken as 1.
///
/// Without a generator the batches go from short to long, ties by index. With one, neighbours are mixed by jittering the lengths
/// by 10 % before sorting, and the batches are shuffled; the same generator state gives the same batches.
///
/// Cost: O(n log n).
///
/// ```
/// let lengths = [30, 10, 20, 11];
/// assert_eq!(speech::plan_batches(&lengths, 40, 8, None), [vec![1, 3], vec![2], vec![0]]);
/// ```
pub fn plan_batches(
    lengths: &[usize],
    max_frames: usize,
    max_utterances: usize,
    rng: Option<&mut ChaCha8Rng>,
) -> Vec<Vec<usize>> {
    let fits =
        |count: usize, longest: usize| count <= max_utterances && longest.saturating_mul(count) <= max_frames;
    plan_batches_with(lengths, &fits, rng)
}

/// [`plan_batches`] with a limit of one's own: whether so many utterances fit, the longest of which has this length. What does not fit
/// alone is a batch of its own.
///
/// ```
/// let lengths = [30, 10, 20, 11];
/// let fits = |count: usize, longest: usize| count * longest * longest <= 300;
/// assert_eq!(speech::batching::plan_batches_with(&lengths, &fits, None), [vec![1, 3], vec![2], vec![0]]);
/// ```
pub fn plan_batches_with(
    lengths: &[usize],
    fits: &dyn Fn(usize, usize) -> bool,
    rng: Option<&mut ChaCha8Rng>,
) -> Vec<Vec<usize>> {
    match rng {
        None => cut(lengths, &order(lengths, |_| 1.0), fits),
        Some(rng) => {
            let factors: Vec<f64> =
                lengths.iter().map(|_| rng.random_range(1.0 - JITTER..=1.0 + JITTER)).collect();
            let mut batches = cut(lengths, &order(lengths, |i| factors[i]), fits);
            batches.shuffle(rng);
            batches
        }
    }
}

/// Indices sorted by length times factor, ties by index.
fn order(lengths: &[usize], factor: impl Fn(usize) -> f64) -> Vec<usize> {
    let keys: Vec<f64> = lengths.iter().enumerate().map(|(i, &n)| n as f64 * factor(i)).collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    order
}

/// Cuts an order greedily into batches within the limits.
fn cut(lengths: &[usize], order: &[usize], fits: &dyn Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut longest = 0;
    for &i in order {
        let with = lengths[i].max(longest);
        match batches.last_mut() {
            Some(b) if fits(b.len() + 1, with) => {
                b.push(i);
                longest = with;
            }
            _ => {
                batches.push(vec![i]);
                longest = lengths[i];
            }
        }
    }
    batches
}
