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
    pub input_width: usize,
    pub hidden: usize,
}

/// Returns the number of utterances of a group.
pub(super) fn group_size(batch: usize, directions: usize) -> usize {
    let size_for_target = (batch * directions).div_ceil(TARGET_GROUPS);
    let size = size_for_target.clamp(MIN_GROUP_UTTERANCES, MAX_GROUP_UTTERANCES);
    // A layer has at least two groups: a single direction has at least two itself.
    let min_groups = 3 - directions;
    size.min(batch.div_ceil(min_groups)).max(1)
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
pub(super) fn select_blocking(batch: usize, directions: usize, hidden: usize) -> LayerBlocking {
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
    /// Frames of each utterance.
    lengths: Vec<usize>,
    /// First row of each frame, relative to the group.
    ///
    /// The last entry is the number of rows.
    frame_starts: Vec<usize>,
}

impl RowGroup {
    /// Creates a group; `utterances` must be ordered by decreasing length.
    fn new(utterances: Vec<usize>, lengths: &[usize]) -> Self {
        let lengths: Vec<usize> = utterances.iter().map(|&b| lengths[b]).collect();
        debug_assert!(lengths.is_sorted_by(|a, b| a >= b));
        let mut frame_starts = vec![0];
        for t in 0..lengths.first().copied().unwrap_or(0) {
            frame_starts.push(frame_starts[t] + lengths.partition_point(|&length| length > t));
        }
        RowGroup { utterances, lengths, frame_starts }
    }

    /// Returns batch index and length of each utterance, longest first.
    pub(super) fn utterances(&self) -> impl Iterator<Item = (usize, usize)> {
        self.utterances.iter().copied().zip(self.lengths.iter().copied())
    }

    /// Returns the number of utterances.
    pub(super) fn size(&self) -> usize {
        self.utterances.len()
    }

    /// Returns the number of utterances of a band.
    ///
    /// They are the rows of a recurrent product. Bands have nearly equal sizes, and at most as many
    /// rows as the micro-kernel.
    pub(super) fn band_size(&self) -> usize {
        let bands = self.size().div_ceil(kernels::MAX_GATE_ROWS).max(1);
        self.size().div_ceil(bands).max(1)
    }

    /// Returns the number of packed rows.
    pub(super) fn rows(&self) -> usize {
        *self.frame_starts.last().expect("offsets start with 0")
    }

    /// Returns the number of frames of the longest utterance.
    pub(super) fn steps(&self) -> usize {
        self.frame_starts.len() - 1
    }

    /// Returns the rows of a frame.
    pub(super) fn frame_rows(&self, t: usize) -> Range<usize> {
        self.frame_starts[t]..self.frame_starts[t + 1]
    }

    /// Returns the rows of the previous frame, none for the first.
    pub(super) fn previous_rows(&self, t: usize) -> Range<usize> {
        if t > 0 { self.frame_rows(t - 1) } else { 0..0 }
    }

    /// Returns the rows of the next frame, none for the last.
    pub(super) fn next_rows(&self, t: usize) -> Range<usize> {
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
    group_starts: Vec<usize>,
    /// The position of each utterance of the batch.
    positions: Vec<UtterancePosition>,
}

/// The position of an utterance in the groups of a layout.
#[derive(Debug, Clone, Copy, Default)]
struct UtterancePosition {
    group: usize,
    /// Index in the group.
    index: usize,
}

impl TapeLayout {
    pub(super) fn new(lengths: &[usize], blocking: LayerBlocking, is_reverse: bool) -> Self {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(lengths[b]), b));
        let size = match blocking {
            LayerBlocking::Groups(size) => size,
            LayerBlocking::Strips => lengths.len(),
        };
        let groups: Vec<RowGroup> =
            order.chunks(size.max(1)).map(|group| RowGroup::new(group.to_vec(), lengths)).collect();
        let mut positions = vec![UtterancePosition::default(); lengths.len()];
        let (mut group_starts, mut next_start) = (Vec::with_capacity(groups.len()), 0);
        for (group, row_group) in groups.iter().enumerate() {
            group_starts.push(next_start);
            for (index, &b) in row_group.utterances.iter().enumerate() {
                positions[b] = UtterancePosition { group, index };
            }
            next_start += row_group.rows();
        }
        TapeLayout { groups, blocking, is_reverse, group_starts, positions }
    }

    /// Returns true if threads share the frames of the direction's one group.
    pub(super) fn uses_strips(&self) -> bool {
        self.blocking == LayerBlocking::Strips
    }

    /// Returns the number of packed rows of the direction.
    pub(super) fn rows(&self) -> usize {
        self.groups.iter().map(RowGroup::rows).sum()
    }

    /// Returns the packed row of a frame of the tensor; none for padding.
    pub(super) fn row(&self, utterance: usize, frame: usize) -> Option<usize> {
        let UtterancePosition { group, index } = self.positions[utterance];
        let row_group = &self.groups[group];
        let frames_to_end = row_group.lengths[index].checked_sub(1 + frame)?;
        let step = if self.is_reverse { frames_to_end } else { frame };
        Some(self.group_starts[group] + row_group.frame_starts[step] + index)
    }

    /// Returns batch index and frame in the tensor of a packed row.
    pub(super) fn frame(&self, row: usize) -> (usize, usize) {
        let group = self.group_starts.partition_point(|&start| start <= row) - 1;
        let (row_group, row) = (&self.groups[group], row - self.group_starts[group]);
        let step = row_group.frame_starts.partition_point(|&start| start <= row) - 1;
        let index = row - row_group.frame_starts[step];
        let frame = if self.is_reverse { row_group.lengths[index] - 1 - step } else { step };
        (row_group.utterances[index], frame)
    }

    /// Returns batch index and frame of the previous step; none for the first step.
    pub(super) fn previous_frame(&self, row: usize) -> Option<(usize, usize)> {
        let (b, t) = self.frame(row);
        let previous = if self.is_reverse { t + 1 } else { t.checked_sub(1)? };
        self.row(b, previous).map(|_| (b, previous))
    }

    /// Divides packed rows of `width` values into those of each group.
    pub(super) fn split_mut<'a, F>(&self, rows: &'a mut [F], width: usize) -> Vec<&'a mut [F]> {
        let mut rest = rows;
        let split_off =
            |group: &RowGroup| rest.split_off_mut(..group.rows() * width).expect("rows of all groups");
        self.groups.iter().map(split_off).collect()
    }
}
