//! Which utterances run side by side, and where their frames lie.
//!
//! ```text
//! utterances of a group, longest first; frame t has the rows of those longer than t, one after another, no padding
//! groups of a direction one after another, longest first
//! ```
use std::ops::Range;

use kernels::UNITS;

/// Most utterances of a group: more would not make the products of a step faster.
const GROUP: usize = 16;
/// Fewest where there are more than enough: fewer would read the recurrent weight too often.
const THIN: usize = 8;
/// Groups of a layer that are aimed for, in both directions together.
const TASKS: usize = 128;

/// Strips that a frame has at least where they are tasks.
const STRIPS: usize = 64;
/// Multiply-adds of a frame's recurrent product from which on it is cut, if not [`LEAST`].
const FRAME: usize = 1 << 24;
/// Utterances that a frame counts as, at least: with fewer it takes as long to read the weight.
const LEAST: usize = 4;

/// Rows of a task that only copies.
pub(super) const ROWS: usize = 8;

/// Sizes of a layer: frames of the padded tensor, input width D, state width H.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerSizes {
    pub frames: usize,
    pub input: usize,
    pub hidden: usize,
}

/// Utterances of a group, for a batch of so many in so many directions.
pub(super) fn group_size(batch: usize, directions: usize) -> usize {
    (batch * directions).div_ceil(TASKS).clamp(THIN, GROUP).min(batch.div_ceil(3 - directions)).max(1)
}

/// How the recurrent steps of a layer are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerBlocking {
    /// Into groups of so many utterances, each with steps of its own.
    Groups(usize),
    /// Each frame into strips of units, for all utterances of a direction.
    Strips,
}

/// The cut of a layer, by its shape alone: strips where groups would be few and a frame is worth a
/// fork and a join.
pub(super) fn cut(batch: usize, directions: usize, hidden: usize) -> LayerBlocking {
    let size = group_size(batch, directions);
    let groups = batch.div_ceil(size) * directions;
    let work = batch.max(LEAST).saturating_mul(4 * hidden).saturating_mul(hidden);
    let strips = batch > 0 && hidden.div_ceil(UNITS) >= STRIPS && work >= FRAME;
    if groups < TASKS && strips { LayerBlocking::Strips } else { LayerBlocking::Groups(size) }
}

/// One group, whose frames are the packed rows `rows` of its direction.
#[derive(Debug)]
pub(super) struct RowGroup {
    /// Batch index of each utterance, longest first.
    utterances: Vec<usize>,
    lengths: Vec<usize>,
    /// First row of each frame, counted from the group's own first, and the total at the end.
    offsets: Vec<usize>,
}

impl RowGroup {
    /// `utterances` must be ordered by falling length.
    fn new(utterances: Vec<usize>, lengths: &[usize]) -> Self {
        let lengths: Vec<usize> = utterances.iter().map(|&b| lengths[b]).collect();
        debug_assert!(lengths.is_sorted_by(|a, b| a >= b));
        let mut offsets = vec![0];
        for t in 0..lengths.first().copied().unwrap_or(0) {
            offsets.push(offsets[t] + lengths.partition_point(|&length| length > t));
        }
        RowGroup { utterances, lengths, offsets }
    }

    /// Batch index and length of each utterance, longest first.
    pub fn utterances(&self) -> impl Iterator<Item = (usize, usize)> {
        self.utterances.iter().copied().zip(self.lengths.iter().copied())
    }

    /// Number of utterances.
    pub fn size(&self) -> usize {
        self.utterances.len()
    }

    /// Most utterances that a product takes at once: bands as even as can be.
    pub fn band(&self) -> usize {
        self.size().div_ceil(self.size().div_ceil(kernels::ROWS).max(1)).max(1)
    }

    /// Packed rows in all.
    pub fn rows(&self) -> usize {
        *self.offsets.last().expect("offsets start with 0")
    }

    /// Frames of the longest utterance.
    pub fn steps(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Rows of a frame.
    pub fn at(&self, t: usize) -> Range<usize> {
        self.offsets[t]..self.offsets[t + 1]
    }

    /// Rows of the frame before, none for the first.
    pub fn before(&self, t: usize) -> Range<usize> {
        if t > 0 { self.at(t - 1) } else { 0..0 }
    }

    /// Rows of the frame after, none for the last.
    pub fn after(&self, t: usize) -> Range<usize> {
        if t + 1 < self.steps() { self.at(t + 1) } else { 0..0 }
    }
}

/// The packed rows of one direction.
#[derive(Debug)]
pub(super) struct TapeLayout {
    pub groups: Vec<RowGroup>,
    cut: LayerBlocking,
    /// Runs from each utterance's own end to its start.
    reverse: bool,
    /// First packed row of each group.
    firsts: Vec<usize>,
    /// Group, place in it, and first packed row of that group, of each utterance of the batch.
    places: Vec<(usize, usize, usize)>,
}

impl TapeLayout {
    pub fn new(lengths: &[usize], cut: LayerBlocking, reverse: bool) -> Self {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(lengths[b]), b));
        let size = match cut {
            LayerBlocking::Groups(size) => size,
            LayerBlocking::Strips => lengths.len(),
        };
        let groups: Vec<RowGroup> =
            order.chunks(size.max(1)).map(|group| RowGroup::new(group.to_vec(), lengths)).collect();
        let mut places = vec![(0, 0, 0); lengths.len()];
        let (mut firsts, mut first) = (Vec::with_capacity(groups.len()), 0);
        for (g, group) in groups.iter().enumerate() {
            firsts.push(first);
            group.utterances.iter().enumerate().for_each(|(j, &b)| places[b] = (g, j, first));
            first += group.rows();
        }
        TapeLayout { groups, cut, reverse, firsts, places }
    }

    /// Whether threads share the frames of the direction's one group.
    pub fn shared(&self) -> bool {
        self.cut == LayerBlocking::Strips
    }

    /// Packed rows of the direction.
    pub fn rows(&self) -> usize {
        self.groups.iter().map(RowGroup::rows).sum()
    }

    /// The packed row of a frame of the tensor, unless it is padding.
    pub fn row(&self, utterance: usize, frame: usize) -> Option<usize> {
        let (g, j, first) = self.places[utterance];
        let group = &self.groups[g];
        let last = group.lengths[j].checked_sub(1 + frame)?;
        Some(first + group.offsets[if self.reverse { last } else { frame }] + j)
    }

    /// Batch index and frame in the tensor of a packed row.
    pub fn frame(&self, row: usize) -> (usize, usize) {
        let g = self.firsts.partition_point(|&first| first <= row) - 1;
        let (group, row) = (&self.groups[g], row - self.firsts[g]);
        let t = group.offsets.partition_point(|&offset| offset <= row) - 1;
        let j = row - group.offsets[t];
        (group.utterances[j], if self.reverse { group.lengths[j] - 1 - t } else { t })
    }

    /// The same of the frame that the direction comes from, unless it begins here.
    pub fn frame_before(&self, row: usize) -> Option<(usize, usize)> {
        let (b, t) = self.frame(row);
        let before = if self.reverse { t + 1 } else { t.checked_sub(1)? };
        self.row(b, before).map(|_| (b, before))
    }

    /// Cuts packed rows of `width` values into those of each group.
    pub fn cut<'a, F>(&self, rows: &'a mut [F], width: usize) -> Vec<&'a mut [F]> {
        let mut rest = rows;
        let next = |group: &RowGroup| rest.split_off_mut(..group.rows() * width).expect("groups lie inside");
        self.groups.iter().map(next).collect()
    }
}
