//! Batches of one size, each from a bucket of utterances of similar length: the sampler of MLPerf's RNN-T.
use rand::seq::{SliceRandom, index};
use rand_chacha::ChaCha8Rng;

use crate::{Error, Result};

/// Sorts utterances by duration, ties by index, and cuts them into `count` buckets; the first `n mod count` hold one more.
///
/// Cost: O(n log n).
///
/// # Errors
/// [`Error::EmptyBucket`] if there are fewer utterances than buckets; [`Error::Setting`] for none at all.
///
/// ```
/// assert_eq!(speech::batching::split_into_buckets(&[3.0, 1.0, 2.0], 2)?, [vec![1, 2], vec![0]]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn split_into_buckets(durations: &[f64], count: usize) -> Result<Vec<Vec<usize>>> {
    let n = durations.len();
    if count == 0 {
        return Err(setting("buckets", "at least 1", count));
    }
    if n < count {
        return Err(Error::EmptyBucket { bucket: n + 1, buckets: count, utterances: n });
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut rest = order.as_slice();
    Ok((0..count)
        .map(|bucket| {
            let (here, later) = rest.split_at(n / count + usize::from(bucket < n % count));
            rest = later;
            here.to_vec()
        })
        .collect())
}

/// One epoch over buckets: each is shuffled, all are joined, utterances from anywhere are dropped until `batch` divides their
/// number, and the batches that this is cut into are shuffled as a whole.
///
/// A batch therefore holds utterances of one bucket, or of neighbours. The same generator state gives the same epoch.
///
/// # Errors
/// [`Error::Setting`] for a batch of no utterance, or of more than there are, which would leave an epoch without a step.
pub fn bucket_batches(buckets: &[Vec<usize>], batch: usize, rng: &mut ChaCha8Rng) -> Result<Vec<Vec<usize>>> {
    let n: usize = buckets.iter().map(Vec::len).sum();
    if batch == 0 || batch > n {
        return Err(setting("batch", &format!("1 to {n} utterances, as many as there are"), batch));
    }
    let mut joined = Vec::with_capacity(n);
    for bucket in buckets {
        let from = joined.len();
        joined.extend_from_slice(bucket);
        joined[from..].shuffle(rng);
    }
    let mut keep = vec![true; n];
    index::sample(rng, n, n % batch).iter().for_each(|at| keep[at] = false);
    let kept: Vec<usize> = joined.into_iter().zip(keep).filter_map(|(i, keep)| keep.then_some(i)).collect();
    let mut batches: Vec<Vec<usize>> = kept.chunks(batch).map(<[usize]>::to_vec).collect();
    batches.shuffle(rng);
    Ok(batches)
}

/// How many utterances and steps an epoch of equal batches has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochSize {
    /// Utterances after dropping to a multiple of micro-batch × workers.
    pub utterances: usize,
    /// Those dropped.
    pub dropped: usize,
    /// Micro-batches of each worker.
    pub micro_batches: usize,
    /// Optimiser steps, each of as many micro-batches as are accumulated; may be 0.
    pub steps: usize,
    /// Utterances of these steps.
    pub trained: usize,
}

impl EpochSize {
    /// An epoch over `n` utterances on some workers, that take `micro` utterances at once and accumulate `accumulation` gradients a
    /// step.
    ///
    /// # Errors
    /// [`Error::Setting`] for a number that is 0, or a batch larger than can be counted.
    pub fn new(n: usize, micro: usize, workers: usize, accumulation: usize) -> Result<Self> {
        for (field, value) in [("micro_batch", micro), ("workers", workers), ("accumulation", accumulation)] {
            if value == 0 {
                return Err(setting(field, "at least 1", value));
            }
        }
        let at_once = micro.checked_mul(workers).and_then(|all| Some((all, all.checked_mul(accumulation)?)));
        let Some((at_once, batch)) = at_once else {
            let expected = "a product with workers and accumulation that can be counted";
            return Err(setting("micro_batch", expected, micro));
        };
        let micro_batches = n / at_once;
        let steps = micro_batches / accumulation;
        let utterances = micro_batches * at_once;
        Ok(EpochSize { utterances, dropped: n - utterances, micro_batches, steps, trained: steps * batch })
    }
}

pub(super) fn setting(field: &'static str, expected: &str, found: usize) -> Error {
    Error::Setting { field, expected: expected.into(), found: found.to_string() }
}
