//! Plans training batches of utterances of similar length.
//!
//! | function | purpose |
//! |---|---|
//! | [`plan_batches`] | batches with a limit on their padded frames |
//! | [`filter_by_duration`], [`split_into_buckets`], [`bucket_batches`], [`EpochSize`] | batches of one size from buckets of similar lengths, as in MLPerf's RNN-T |
//! | [`split_batch`], [`split_sequences`] | parts of a batch, by utterances or by time |
//! | [`static_lengths`], [`bucket_for`] | a fixed set of shapes for all steps |
//! | [`presort`], [`packed_offsets`], [`FrameCounts`] | orders, offsets and lengths |
//! | [`Padding`] | padding statistics |
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

/// Largest relative change of a length for sorting, with a generator.
const LENGTH_JITTER: f64 = 0.1;

/// Splits utterances into batches of similar length.
///
/// Every index occurs exactly once. A batch has at most `max_utterances` utterances and at most
/// `max_frames` padded frames (its longest length times its count); an utterance longer than
/// `max_frames` is a separate batch. A limit of 0 counts as 1.
///
/// Without a generator the batches are sorted by length, ties by index. With a generator, lengths
/// are jittered by 10 % before sorting, and the batches are shuffled; a generator state always
/// gives the same batches.
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

/// [`plan_batches`] with a custom limit.
///
/// `fits` receives the number of utterances and the longest length of a batch. An utterance that
/// does not fit by itself is a separate batch.
///
/// ```
/// let lengths = [30, 10, 20, 11];
/// let fits = |count: usize, longest: usize| count * longest * longest <= 300;
/// assert_eq!(
///     speech::batching::plan_batches_with(&lengths, &fits, None),
///     [vec![1, 3], vec![2], vec![0]]
/// );
/// ```
pub fn plan_batches_with(
    lengths: &[usize],
    fits: &dyn Fn(usize, usize) -> bool,
    rng: Option<&mut ChaCha8Rng>,
) -> Vec<Vec<usize>> {
    match rng {
        None => split_greedily(lengths, &sort_by_length(lengths, |_| 1.0), fits),
        Some(rng) => {
            let factors: Vec<f64> =
                lengths.iter().map(|_| rng.random_range(1.0 - LENGTH_JITTER..=1.0 + LENGTH_JITTER)).collect();
            let order = sort_by_length(lengths, |index| factors[index]);
            let mut batches = split_greedily(lengths, &order, fits);
            batches.shuffle(rng);
            batches
        }
    }
}

/// Returns indices sorted by length times factor, ties by index.
fn sort_by_length(lengths: &[usize], factor: impl Fn(usize) -> f64) -> Vec<usize> {
    let keys: Vec<f64> =
        lengths.iter().enumerate().map(|(index, &length)| length as f64 * factor(index)).collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    order
}

/// Splits an order greedily into batches within the limits.
fn split_greedily(
    lengths: &[usize],
    order: &[usize],
    fits: &dyn Fn(usize, usize) -> bool,
) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut longest = 0;
    for &index in order {
        let max_length = lengths[index].max(longest);
        match batches.last_mut() {
            Some(batch) if fits(batch.len() + 1, max_length) => {
                batch.push(index);
                longest = max_length;
            }
            _ => {
                batches.push(vec![index]);
                longest = lengths[index];
            }
        }
    }
    batches
}
