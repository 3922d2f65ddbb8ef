//! Equal-sized batches from buckets of similar length, as in MLPerf's RNN-T.
use rand::seq::{SliceRandom, index};
use rand_chacha::ChaCha8Rng;

use crate::{Error, Result};

/// Sorts utterances by duration and splits them into `count` buckets.
///
/// Ties are sorted by index; the first `n mod count` buckets have one more utterance.
///
/// Cost: O(n log n).
///
/// # Errors
/// [`Error::EmptyBucket`] if there are fewer utterances than buckets; [`Error::Setting`] if `count`
/// is 0.
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
            let (head, tail) = rest.split_at(n / count + usize::from(bucket < n % count));
            rest = tail;
            head.to_vec()
        })
        .collect())
}

/// Returns the shuffled batches of one epoch over buckets.
///
/// Each bucket is shuffled, the buckets are concatenated, and random utterances are dropped until
/// `batch` divides their number; the resulting batches are shuffled. A batch therefore has
/// utterances of one bucket or of adjacent ones. A generator state always gives the same epoch.
///
/// # Errors
/// [`Error::Setting`] if `batch` is 0, or larger than the number of utterances, which would leave
/// an epoch without a step.
pub fn bucket_batches(buckets: &[Vec<usize>], batch: usize, rng: &mut ChaCha8Rng) -> Result<Vec<Vec<usize>>> {
    let n: usize = buckets.iter().map(Vec::len).sum();
    if batch == 0 || batch > n {
        return Err(setting("batch", &format!("1 to {n} utterances"), batch));
    }
    let mut joined = Vec::with_capacity(n);
    for bucket in buckets {
        let start = joined.len();
        joined.extend_from_slice(bucket);
        joined[start..].shuffle(rng);
    }
    let mut keep = vec![true; n];
    index::sample(rng, n, n % batch).iter().for_each(|index| keep[index] = false);
    let kept: Vec<usize> = joined.into_iter().zip(keep).filter_map(|(i, keep)| keep.then_some(i)).collect();
    let mut batches: Vec<Vec<usize>> = kept.chunks(batch).map(<[usize]>::to_vec).collect();
    batches.shuffle(rng);
    Ok(batches)
}

/// The utterances and steps of an epoch of equal batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochSize {
    /// Utterances after dropping to a multiple of micro-batch × workers.
    pub utterances: usize,
    /// Dropped utterances.
    pub dropped: usize,
    /// Micro-batches of each worker.
    pub micro_batches: usize,
    /// Optimizer steps, each over the accumulated micro-batches; may be 0.
    pub steps: usize,
    /// Utterances of these steps.
    pub trained: usize,
}

impl EpochSize {
    /// An epoch over `n` utterances.
    ///
    /// Each of `workers` workers takes `micro` utterances at once and accumulates `accumulation`
    /// gradients a step.
    ///
    /// # Errors
    /// [`Error::Setting`] for an argument that is 0, or a batch size that overflows.
    pub fn new(n: usize, micro: usize, workers: usize, accumulation: usize) -> Result<Self> {
        for (field, value) in [("micro_batch", micro), ("workers", workers), ("accumulation", accumulation)] {
            if value == 0 {
                return Err(setting(field, "at least 1", value));
            }
        }
        let micro_step_utterances =
            micro.checked_mul(workers).and_then(|all| Some((all, all.checked_mul(accumulation)?)));
        let Some((micro_step_utterances, batch)) = micro_step_utterances else {
            let expected = "a product with workers and accumulation below 2^64";
            return Err(setting("micro_batch", expected, micro));
        };
        let micro_batches = n / micro_step_utterances;
        let steps = micro_batches / accumulation;
        let utterances = micro_batches * micro_step_utterances;
        Ok(EpochSize { utterances, dropped: n - utterances, micro_batches, steps, trained: steps * batch })
    }
}

pub(super) fn setting(field: &'static str, expected: &str, found: usize) -> Error {
    Error::Setting { field, expected: expected.into(), found: found.to_string() }
}
