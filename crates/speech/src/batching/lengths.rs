//! Lengths of the utterances of a batch: limits, orders, places and padding.
use std::ops::AddAssign;

use super::buckets::setting;
use crate::Result;

/// Frame counts of one signal on its way through a front end and an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames of a centred transform: `⌊samples / hop⌋ + 1`.
    pub frames: usize,
    /// Groups of frames: `⌈frames / splice⌉`.
    pub spliced: usize,
    /// Encoder frames: `⌈spliced / stack⌉`.
    pub encoder: usize,
}

impl FrameCounts {
    /// Of so many samples; a hop, splice or stack of 0 is taken as 1.
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

/// `L_i = longest - ⌊i · longest / count⌋` for i from 0 to below `count`: falling, the smallest about `longest / count`.
///
/// With more lengths than `longest`, some are there twice.
///
/// # Errors
/// [`crate::Error::Setting`] for a number that is 0, or a product that cannot be counted.
///
/// ```
/// use speech::batching::{bucket_for, static_lengths};
///
/// let lengths = static_lengths(17, 5)?;
/// assert_eq!(lengths, [17, 14, 11, 7, 4]);
/// assert_eq!([bucket_for(&lengths, 1), bucket_for(&lengths, 11), bucket_for(&lengths, 18)], [Some(4), Some(11), None]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn static_lengths(longest: usize, count: usize) -> Result<Vec<usize>> {
    if longest == 0 || longest.checked_mul(count).is_none() {
        return Err(setting("longest", "at least 1, and a product with count that can be counted", longest));
    }
    if count == 0 {
        return Err(setting("count", "at least 1", count));
    }
    Ok((0..count).map(|i| longest - i * longest / count).collect())
}

/// The smallest of some lengths that holds `length`; none if all are shorter.
pub fn bucket_for(lengths: &[usize], length: usize) -> Option<usize> {
    lengths.iter().copied().filter(|&captured| captured >= length).min()
}

/// Which utterances stay, and what is lost without the others.
#[derive(Debug, Clone, PartialEq)]
pub struct DurationFilter {
    /// Indices of those that stay, in order.
    pub kept: Vec<usize>,
    /// How many are left out.
    pub removed: usize,
    /// Their seconds in all.
    pub removed_seconds: f64,
}

/// Keeps what is at most `max_seconds` long, which itself still counts as short enough; a duration that is no number does not.
///
/// ```
/// let found = speech::batching::filter_by_duration(&[1.0, 16.7, 20.0], 16.7);
/// assert_eq!((found.kept, found.removed, found.removed_seconds), (vec![0, 1], 1, 20.0));
/// ```
pub fn filter_by_duration(seconds: &[f64], max_seconds: f64) -> DurationFilter {
    let (kept, others): (Vec<usize>, Vec<usize>) =
        (0..seconds.len()).partition(|&i| seconds[i] <= max_seconds);
    DurationFilter { removed: others.len(), removed_seconds: others.iter().map(|&i| seconds[i]).sum(), kept }
}

/// Order of a batch in which short and long alternate: the shorter half, rising, at even places, the longer half, falling, at odd
/// ones. Of an odd number the one in the middle counts as short; ties by index.
///
/// Contiguous parts of even size have about the same length in all, and each has its share of long utterances.
///
/// ```
/// assert_eq!(speech::batching::presort(&[5.0, 1.0, 4.0, 2.0, 3.0]), [1, 0, 3, 2, 4]);
/// ```
pub fn presort(durations: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..durations.len()).collect();
    order.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut both = order.into_iter();
    let mut at = 0;
    std::iter::from_fn(|| {
        at += 1;
        if at % 2 == 1 { both.next() } else { both.next_back() }
    })
    .collect()
}

/// Ends of the utterances' rows in a packed lattice: sums of `T_b (U_b + 1)` up to and with each utterance.
///
/// # Errors
/// [`crate::Error::Setting`] if lists differ in length, or rows cannot be counted.
///
/// ```
/// assert_eq!(speech::batching::packed_offsets(&[3, 2], &[1, 4])?, [6, 16]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn packed_offsets(frames: &[usize], labels: &[usize]) -> Result<Vec<usize>> {
    if frames.len() != labels.len() {
        return Err(setting("labels", &format!("{} counts, as of frames", frames.len()), labels.len()));
    }
    let mut end = 0usize;
    let rows = frames.iter().zip(labels).map(|(&t, &u)| {
        let next = u.checked_add(1).and_then(|u| t.checked_mul(u)).and_then(|rows| end.checked_add(rows));
        end = next.ok_or_else(|| setting("frames", "rows that can be counted", t))?;
        Ok(end)
    });
    rows.collect()
}

/// Rows of batches, real and padded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding {
    /// All rows: longest length times utterances, summed over batches.
    pub rows: usize,
    /// Those that belong to an utterance.
    pub real: usize,
}

impl Padding {
    /// Of a plan: batches of indices into `lengths`. An index without a length counts as an utterance of none.
    ///
    /// ```
    /// let padding = speech::batching::Padding::new(&[3, 1, 4], &[vec![0, 1], vec![2]]);
    /// assert_eq!((padding.rows, padding.real, padding.fraction()), (10, 8, 0.2));
    /// ```
    pub fn new(lengths: &[usize], batches: &[Vec<usize>]) -> Self {
        let mut all = Padding::default();
        let length = |&at: &usize| lengths.get(at).copied().unwrap_or(0);
        for batch in batches {
            let longest = batch.iter().map(length).max().unwrap_or(0);
            all += Padding { rows: longest * batch.len(), real: batch.iter().map(length).sum() };
        }
        all
    }

    /// Share of the rows that are padding; 0 without rows.
    pub fn fraction(self) -> f64 {
        if self.rows == 0 { 0.0 } else { (self.rows - self.real) as f64 / self.rows as f64 }
    }
}

impl AddAssign for Padding {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.real += other.real;
    }
}
