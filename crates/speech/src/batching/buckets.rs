//! Equal-sized training batches from buckets of similar length, as in MLPerf's RNN-T.

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
    let num_utterances = durations.len();
    if count == 0 {
        return Err(setting_error("buckets", "at least 1", count));
    }
    if num_utterances < count {
        return Err(Error::EmptyBucket {
            bucket: num_utterances + 1,
            buckets: count,
            utterances: num_utterances,
        });
    }
    let mut order: Vec<usize> = (0..num_utterances).collect();
    order.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut remaining = order.as_slice();
    Ok((0..count)
        .map(|bucket| {
            let size = num_utterances / count + usize::from(bucket < num_utterances % count);
            let (utterances, next_buckets) = remaining.split_at(size);
            remaining = next_buckets;
            utterances.to_vec()
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
    let num_utterances: usize = buckets.iter().map(Vec::len).sum();
    if batch == 0 || batch > num_utterances {
        return Err(setting_error("batch", &format!("1 to {num_utterances} utterances"), batch));
    }
    let mut joined = Vec::with_capacity(num_utterances);
    for bucket in buckets {
        let start = joined.len();
        joined.extend_from_slice(bucket);
        joined[start..].shuffle(rng);
    }
    let mut is_kept = vec![true; num_utterances];
    index::sample(rng, num_utterances, num_utterances % batch)
        .iter()
        .for_each(|index| is_kept[index] = false);
    let utterances: Vec<usize> = joined
        .into_iter()
        .zip(is_kept)
        .filter_map(|(utterance, is_kept)| is_kept.then_some(utterance))
        .collect();
    let mut batches: Vec<Vec<usize>> = utterances.chunks(batch).map(<[usize]>::to_vec).collect();
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
    /// An epoch over `num_utterances` utterances.
    ///
    /// Each of `workers` workers takes `micro_batch` utterances at once and accumulates
    /// `accumulation` gradients a step.
    ///
    /// # Errors
    /// [`Error::Setting`] for an argument that is 0, or a batch size that overflows.
    pub fn new(
        num_utterances: usize,
        micro_batch: usize,
        workers: usize,
        accumulation: usize,
    ) -> Result<Self> {
        for (field, value) in
            [("micro_batch", micro_batch), ("workers", workers), ("accumulation", accumulation)]
        {
            if value == 0 {
                return Err(setting_error(field, "at least 1", value));
            }
        }
        // Utterances of all workers: of a micro-batch each, and of an optimizer step.
        let products = micro_batch
            .checked_mul(workers)
            .and_then(|micro_step| Some((micro_step, micro_step.checked_mul(accumulation)?)));
        let Some((micro_step_utterances, step_utterances)) = products else {
            let expected = "a product with workers and accumulation below 2^64";
            return Err(setting_error("micro_batch", expected, micro_batch));
        };
        let micro_batches = num_utterances / micro_step_utterances;
        let steps = micro_batches / accumulation;
        let utterances = micro_batches * micro_step_utterances;
        Ok(EpochSize {
            utterances,
            dropped: num_utterances - utterances,
            micro_batches,
            steps,
            trained: steps * step_utterances,
        })
    }
}

/// Returns the error of a setting that is out of range.
pub(super) fn setting_error(field: &'static str, expected: &str, found: usize) -> Error {
    Error::Setting { field, expected: expected.into(), found: found.to_string() }
}
