//! Layout of packed frames in an LSTM layer: groups of utterances, and rows of frames.
//!
//! ```text
//! group       utterances, longest first; frame t has one row for each utterance longer than t
//! direction   groups one after another, longest first; no padding
//! strip       16 units of a frame, the task of a step if a layer is wide and groups are few
//! ```
use std::ops::Range;

use kernels::UNITS_PER_STRIP;

/// Largest number of utterances of a group: more would not make the products of a step faster.
const MAX_GROUP_UTTERANCES: usize = 16;
/// Smallest number of utterances of a group in large batches.
///
/// Smaller groups would read the recurrent weight too often.
const MIN_GROUP_UTTERANCES: usize = 8;
/// Target number of groups of a layer, in both directions together.
const TARGET_GROUPS: usize = 128;

/// Smallest number of strips of a frame, if strips are tasks.
const MIN_STRIPS: usize = 64;
/// Smallest number of multiply-adds of a frame with strips; fewer do not outweigh fork and join.
const MIN_STRIP_OPERATIONS: usize = 1 << 24;
/// Smallest number of utterances in the count of a frame's operations.
///
/// A frame of fewer utterances takes as long, as it must read the whole weight.
const MIN_COUNTED_UTTERANCES: usize = 4;

/// Rows of a task that only copies rows.
pub(super) const ROWS_PER_BLOCK: usize = 8;

/// The sizes of a layer: frames of the padded tensor, input width D, state width H.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerSizes {
    pub frames: usize,
    pub input: usize,
    pub hidden: usize,
}

/// Returns the number of utterances of a group.
pub(super) fn group_size(batch: usize, directions: usize) -> usize {
    let groups_target = (batch * directions).div_ceil(TARGET_GROUPS);
    let size = groups_target.clamp(MIN_GROUP_UTTERANCES, MAX_GROUP_UTTERANCES);
    size.min(batch.div_ceil(3 - directions)).max(1)
}

/// How the recurrent steps of a layer are divided into tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerBlocking {
    /// Groups of at most this number of utterances, each with separate steps.
    Groups(usize),
    /// Strips of units in each frame, for all utterances of a direction.
    Strips,
}

/// Selects the blocking of a layer by its shape only.
///
/// Strips are used if groups are few and the operations of a frame outweigh a fork and a join.
pub(super) fn blocking(batch: usize, directions: usize, hidden: usize) -> LayerBlocking {
    let size = group_size(batch, directions);
    let groups = batch.div_ceil(size) * directions;
    let operations = batch.max(MIN_COUNTED_UTTERANCES).saturating_mul(4 * hidden).saturating_mul(hidden);
    let allows_strips =
        batch > 0 && hidden.div_ceil(UNITS_PER_STRIP) >= MIN_STRIPS && operations >= MIN_STRIP_OPERATIONS;
    if groups < TARGET_GROUPS && allows_strips { LayerBlocking::Strips } else { LayerBlocking::Groups(size) }
}

/// A group of utterances, and the packed rows of their frames.
#[derive(Debug)]
pub(super) struct RowGroup {
    /// Batch index of each utterance, longest first.
    utterances: Vec<usize>,
    lengths: Vec<usize>,
    /// First row of each frame, relative to the group.
    ///
    /// The last entry is the number of rows.
    offsets: Vec<usize>,
}

impl RowGroup {
    /// Creates a group; `utterances` must be ordered by decreasing length.
    fn new(utterances: Vec<usize>, lengths: &[usize]) -> Self {
        let lengths: Vec<usize> = utterances.iter().map(|&b| lengths[b]).collect();
        debug_assert!(lengths.is_sorted_by(|a, b| a >= b));
        let mut offsets = vec![0];
        for t in 0..lengths.first().copied().unwrap_or(0) {
            offsets.push(offsets[t] + lengths.partition_point(|&length| length > t));
        }
        RowGroup { utterances, lengths, offsets }
    }

    /// Returns batch index and length of each utterance, longest first.
    pub fn utterances(&self) -> impl Iterator<Item = (usize, usize)> {
        self.utterances.iter().copied().zip(self.lengths.iter().copied())
    }

    /// Returns the number of utterances.
    pub fn size(&self) -> usize {
        self.utterances.len()
    }

    /// Returns the utterances of a band, the rows of a recurrent product.
    ///
    /// Bands have nearly equal sizes, and at most as many rows as the micro-kernel.
    pub fn band(&self) -> usize {
        self.size().div_ceil(self.size().div_ceil(kernels::MAX_GATE_ROWS).max(1)).max(1)
    }

    /// Returns the number of packed rows.
    pub fn rows(&self) -> usize {
        *self.offsets.last().expect("offsets start with 0")
    }

    /// Returns the frames of the longest utterance.
    pub fn steps(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the rows of a frame.
    pub fn frame_rows(&self, t: usize) -> Range<usize> {
        self.offsets[t]..self.offsets[t + 1]
    }

    /// Returns the rows of the previous frame, none for the first.
    pub fn previous_rows(&self, t: usize) -> Range<usize> {
        if t > 0 { self.frame_rows(t - 1) } else { 0..0 }
    }

    /// Returns the rows of the next frame, none for the last.
    pub fn next_rows(&self, t: usize) -> Range<usize> {
        if t + 1 < self.steps() { self.frame_rows(t + 1) } else { 0..0 }
    }
}

/// The layout of the packed rows of one direction.
#[derive(Debug)]
pub(super) struct TapeLayout {
    pub groups: Vec<RowGroup>,
    blocking: LayerBlocking,
    /// True for the backward direction, from each utterance's end to its start.
    is_reverse: bool,
    /// First packed row of each group.
    firsts: Vec<usize>,
    /// Group, index in it and the group's first row, by utterance.
    positions: Vec<(usize, usize, usize)>,
}

impl TapeLayout {
    pub fn new(lengths: &[usize], blocking: LayerBlocking, is_reverse: bool) -> Self {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(lengths[b]), b));
        let size = match blocking {
            LayerBlocking::Groups(size) => size,
            LayerBlocking::Strips => lengths.len(),
        };
        let groups: Vec<RowGroup> =
            order.chunks(size.max(1)).map(|group| RowGroup::new(group.to_vec(), lengths)).collect();
        let mut positions = vec![(0, 0, 0); lengths.len()];
        let (mut firsts, mut first) = (Vec::with_capacity(groups.len()), 0);
        for (g, group) in groups.iter().enumerate() {
            firsts.push(first);
            group.utterances.iter().enumerate().for_each(|(j, &b)| positions[b] = (g, j, first));
            first += group.rows();
        }
        TapeLayout { groups, blocking, is_reverse, firsts, positions }
    }

    /// Returns true if threads share the frames of the direction's one group.
    pub fn shares_frames(&self) -> bool {
        self.blocking == LayerBlocking::Strips
    }

    /// Returns the number of packed rows of the direction.
    pub fn rows(&self) -> usize {
        self.groups.iter().map(RowGroup::rows).sum()
    }

    /// Returns the packed row of a frame of the tensor; none for padding.
    pub fn row(&self, utterance: usize, frame: usize) -> Option<usize> {
        let (g, j, first) = self.positions[utterance];
        let group = &self.groups[g];
        let last = group.lengths[j].checked_sub(1 + frame)?;
        Some(first + group.offsets[if self.is_reverse { last } else { frame }] + j)
    }

    /// Returns batch index and frame in the tensor of a packed row.
    pub fn frame(&self, row: usize) -> (usize, usize) {
        let g = self.firsts.partition_point(|&first| first <= row) - 1;
        let (group, row) = (&self.groups[g], row - self.firsts[g]);
        let t = group.offsets.partition_point(|&offset| offset <= row) - 1;
        let j = row - group.offsets[t];
        (group.utterances[j], if self.is_reverse { group.lengths[j] - 1 - t } else { t })
    }

    /// Returns batch index and frame of the previous step; none for the first step.
    pub fn previous_frame(&self, row: usize) -> Option<(usize, usize)> {
        let (b, t) = self.frame(row);
        let previous = if self.is_reverse { t + 1 } else { t.checked_sub(1)? };
        self.row(b, previous).map(|_| (b, previous))
    }

    /// Divides packed rows of `width` values into those of each group.
    pub fn split_mut<'a, F>(&self, rows: &'a mut [F], width: usize) -> Vec<&'a mut [F]> {
        let mut rest = rows;
        let next = |group: &RowGroup| rest.split_off_mut(..group.rows() * width).expect("rows of all groups");
        self.groups.iter().map(next).collect()
    }
}
