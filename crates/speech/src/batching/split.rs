//! Splits training batches by utterances (joint network) or time (recurrent layers).

use std::ops::Range;

use super::buckets::setting_error;
use crate::Result;

/// Equal parts of a batch; their gradients sum to the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSplit {
    /// Utterances of each part.
    pub ranges: Vec<Range<usize>>,
    /// The divisor of each part's mean loss: parts × accumulation.
    pub loss_divisor: usize,
}

/// Splits a batch into `factor` equal parts.
///
/// Encoder and predictor process the whole batch, joint and loss one part at a time.
///
/// # Errors
/// [`crate::Error::Setting`] if `factor` does not divide `batch`, or an argument is 0.
///
/// ```
/// let split = speech::batching::split_batch(12, 3, 2)?;
/// assert_eq!((split.ranges, split.loss_divisor), (vec![0..4, 4..8, 8..12], 6));
/// # Ok::<(), speech::Error>(())
/// ```
pub fn split_batch(batch: usize, factor: usize, accumulation: usize) -> Result<BatchSplit> {
    if factor == 0 || batch == 0 || !batch.is_multiple_of(factor) {
        return Err(setting_error("batch_split", &format!("a divisor of the batch, {batch}"), factor));
    }
    let Some(loss_divisor) = factor.checked_mul(accumulation).filter(|&divisor| divisor > 0) else {
        return Err(setting_error(
            "accumulation",
            "at least 1, and a product with factor below 2^64",
            accumulation,
        ));
    };
    let part_size = batch / factor;
    Ok(BatchSplit {
        ranges: (0..factor).map(|index| index * part_size..(index + 1) * part_size).collect(),
        loss_divisor,
    })
}

/// A split of a batch in time.
///
/// The first part runs all rows up to the pivot; the second part continues the longer half from
/// their states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceSplit {
    /// Utterances by decreasing length, ties by index.
    pub order: Vec<usize>,
    /// Rows of the second part: half of the batch, rounded down.
    pub rows_of_second_part: usize,
    /// Frames of the first part.
    pub pivot: usize,
    /// Frames of the second part.
    pub second_part_frames: usize,
    /// Whether the second part is long enough for a split.
    pub is_split: bool,
}

/// Splits a batch of sequences in time.
///
/// The pivot is the length at position B/2 of the order, rounded up to a multiple of `stack`, so
/// that no group of stacked frames is divided. The batch is split if at least
/// `min_second_part_frames` frames remain after the pivot.
///
/// # Errors
/// [`crate::Error::Setting`] for no sequence, or a `stack` of 0.
///
/// ```
/// let split = speech::batching::split_sequences(&[79, 100, 80, 99], 2, 20)?;
/// assert_eq!((split.order, split.pivot, split.second_part_frames), (vec![1, 3, 2, 0], 80, 20));
/// assert!(split.is_split && split.rows_of_second_part == 2);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn split_sequences(
    lengths: &[usize],
    stack: usize,
    min_second_part_frames: usize,
) -> Result<SequenceSplit> {
    if lengths.is_empty() {
        return Err(setting_error("lengths", "at least one sequence", 0));
    }
    if stack == 0 {
        return Err(setting_error("stack", "at least 1", stack));
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let half_batch = lengths.len() / 2;
    let longest = lengths[order[0]];
    let pivot = lengths[order[half_batch]].checked_next_multiple_of(stack).unwrap_or(usize::MAX);
    let second_part_frames = longest.saturating_sub(pivot);
    let is_split = half_batch > 0 && second_part_frames > 0 && second_part_frames >= min_second_part_frames;
    Ok(SequenceSplit { order, rows_of_second_part: half_batch, pivot, second_part_frames, is_split })
}
