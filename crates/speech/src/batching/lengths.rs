//! Lengths of utterances in training batches: limits, orders, offsets, padding.

use std::ops::AddAssign;

use super::buckets::setting_error;
use crate::Result;

/// Numbers of frames in the stages of a front end and encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames of a centered transform: `⌊samples / hop⌋ + 1`.
    pub frames: usize,
    /// Groups of frames: `⌈frames / splice⌉`.
    pub spliced: usize,
    /// Encoder frames: `⌈spliced / stack⌉`.
    pub encoder: usize,
}

impl FrameCounts {
    /// The counts of a signal; a hop, splice or stack of 0 counts as 1.
    ///
    /// ```
    /// let lengths = speech::batching::FrameCounts::new(195_840, 160, 3, 2);
    /// assert_eq!((lengths.frames, lengths.spliced, lengths.encoder), (1225, 409, 205));
    /// ```
    pub fn new(samples: usize, hop: usize, splice: usize, stack: usize) -> Self {
        let frames = (samples / hop.max(1)).saturating_add(1);
        let spliced = frames.div_ceil(splice.max(1));
        FrameCounts { frames, spliced, encoder: spliced.div_ceil(stack.max(1)) }
    }
}

/// Returns `count` evenly spaced lengths up to `longest`, in decreasing order.
///
/// `L_i = longest - ⌊i · longest / count⌋` for `0 <= i < count`; the smallest is about `longest /
/// count`. If `count` exceeds `longest`, lengths repeat.
///
/// # Errors
/// [`crate::Error::Setting`] for an argument that is 0, or a product that overflows.
///
/// ```
/// use speech::batching::{bucket_for, static_lengths};
///
/// let lengths = static_lengths(17, 5)?;
/// assert_eq!(lengths, [17, 14, 11, 7, 4]);
/// assert_eq!([1, 11, 18].map(|length| bucket_for(&lengths, length)), [Some(4), Some(11), None]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn static_lengths(longest: usize, count: usize) -> Result<Vec<usize>> {
    if longest == 0 || longest.checked_mul(count).is_none() {
        return Err(setting_error("longest", "at least 1, and a product with count below 2^64", longest));
    }
    if count == 0 {
        return Err(setting_error("count", "at least 1", count));
    }
    Ok((0..count).map(|i| longest - i * longest / count).collect())
}

/// Returns the smallest static length of at least `length`, if any.
pub fn bucket_for(lengths: &[usize], length: usize) -> Option<usize> {
    lengths.iter().copied().filter(|&bucket| bucket >= length).min()
}

/// The utterances within a duration limit.
#[derive(Debug, Clone, PartialEq)]
pub struct DurationFilter {
    /// Indices of the utterances within the limit, in order.
    pub kept_indices: Vec<usize>,
    /// Number of removed utterances.
    pub removed: usize,
    /// Total seconds of the removed utterances.
    pub removed_seconds: f64,
}

/// Keeps the utterances of at most `max_seconds`.
///
/// A duration of NaN is removed.
///
/// ```
/// let filter = speech::batching::filter_by_duration(&[1.0, 16.7, 20.0], 16.7);
/// assert_eq!(filter.kept_indices, [0, 1]);
/// assert_eq!((filter.removed, filter.removed_seconds), (1, 20.0));
/// ```
pub fn filter_by_duration(seconds: &[f64], max_seconds: f64) -> DurationFilter {
    let (kept, removed): (Vec<usize>, Vec<usize>) =
        (0..seconds.len()).partition(|&index| seconds[index] <= max_seconds);
    DurationFilter {
        removed: removed.len(),
        removed_seconds: removed.iter().map(|&index| seconds[index]).sum(),
        kept_indices: kept,
    }
}

/// Returns an order in which short and long utterances alternate.
///
/// The shorter half is at even positions with increasing lengths, the longer half at odd positions
/// with decreasing lengths. Of an odd number the middle one counts as short; ties are sorted by
/// index. Contiguous parts of even size have about the same total length.
///
/// ```
/// assert_eq!(speech::batching::presort(&[5.0, 1.0, 4.0, 2.0, 3.0]), [1, 0, 3, 2, 4]);
/// ```
pub fn presort(durations: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..durations.len()).collect();
    order.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut sorted = order.into_iter();
    let mut position = 0;
    // The shortest remaining utterance, then the longest, and so on.
    std::iter::from_fn(|| {
        position += 1;
        if position % 2 == 1 { sorted.next() } else { sorted.next_back() }
    })
    .collect()
}

/// Returns the end of each utterance's rows in a packed lattice.
///
/// These are the cumulative sums of `T_b (U_b + 1)`.
///
/// # Errors
/// [`crate::Error::Setting`] if the lists differ in length, or the number of rows overflows.
///
/// ```
/// assert_eq!(speech::batching::packed_offsets(&[3, 2], &[1, 4])?, [6, 16]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn packed_offsets(frames: &[usize], labels: &[usize]) -> Result<Vec<usize>> {
    if frames.len() != labels.len() {
        return Err(setting_error(
            "labels",
            &format!("{} counts, as many as frames", frames.len()),
            labels.len(),
        ));
    }
    let mut end = 0usize;
    let ends = frames.iter().zip(labels).map(|(&t, &u)| {
        let rows = u.checked_add(1).and_then(|positions| t.checked_mul(positions));
        end = rows
            .and_then(|rows| end.checked_add(rows))
            .ok_or_else(|| setting_error("frames", "fewer than 2^64 rows", t))?;
        Ok(end)
    });
    ends.collect()
}

/// The rows of batches, with and without padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding {
    /// Padded rows: longest length times utterances, summed over batches.
    pub padded_rows: usize,
    /// Rows that belong to an utterance.
    pub utterance_rows: usize,
}

impl Padding {
    /// The padding of batches of indices into `lengths`.
    ///
    /// An index without a length counts as an empty utterance.
    ///
    /// ```
    /// let padding = speech::batching::Padding::new(&[3, 1, 4], &[vec![0, 1], vec![2]]);
    /// assert_eq!((padding.padded_rows, padding.utterance_rows, padding.fraction()), (10, 8, 0.2));
    /// ```
    pub fn new(lengths: &[usize], batches: &[Vec<usize>]) -> Self {
        let mut total = Padding::default();
        let length = |&index: &usize| lengths.get(index).copied().unwrap_or(0);
        for batch in batches {
            let longest = batch.iter().map(length).max().unwrap_or(0);
            total += Padding {
                padded_rows: longest * batch.len(),
                utterance_rows: batch.iter().map(length).sum(),
            };
        }
        total
    }

    /// Returns the padded fraction of the rows; 0 without rows.
    pub fn fraction(self) -> f64 {
        if self.padded_rows == 0 {
            0.0
        } else {
            (self.padded_rows - self.utterance_rows) as f64 / self.padded_rows as f64
        }
    }
}

impl AddAssign for Padding {
    fn add_assign(&mut self, other: Self) {
        self.padded_rows += other.padded_rows;
        self.utterance_rows += other.utterance_rows;
    }
}
