//! Tile sizes and memory of the pruned first pass, from shapes only.
//!
//! A context is one of the U + 1 label positions, or the unigram; a pair is a frame and a context.
//! A group is a run of utterances that are processed at once. A tile is a range of classes, and
//! rows are frames and label positions.
use std::ops::Range;

use kernels::{Real, ScratchReq, packing_bytes_for};
use rnnt_dp::{Regularizers, Workspace};

use crate::{
    Batch, Error, Options, Result, ScoreSource, Side,
    emissions::Derivatives,
    normalizer::SelectedScores,
    sums::{BatchSums, UtteranceSizes},
    tiles,
    unigram::UnigramDistribution,
};

/// Tile, group and task sizes of a first pass; the default is the fastest.
///
/// Results are equal up to rounding for all plans.
///
/// ```text
/// pass       numbers of sites, frames and label positions, and the unigrams
/// workspace  lattices, scratch of tasks, and buffers for forward or backward of a group:
///     forward    emissions of all sites, label tiles and selected scores of a group
///     backward   derivatives and gradients of a tile
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plan {
    /// Maximum classes of a tile.
    pub classes: usize,
    /// Maximum rows of a group of utterances in backward.
    ///
    /// Rows are frames and label positions. Their gradients exist at once for a tile. A single
    /// utterance may have more rows. Forward, which has no gradient, uses groups of four times as
    /// many rows.
    pub rows: usize,
    /// Maximum concurrent tasks on blocks of rows.
    pub tasks: usize,
}

/// Scratch of first passes: all buffers of a [`Workspace`](crate::Workspace) and of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassScratch {
    pub(crate) tasks: usize,
    /// Scratch of a task; see [`TaskScratch::allocated_by_buffer`](crate::TaskScratch).
    pub(crate) task_scratch: [ScratchReq; 3],
    /// In the order of [`Workspace::allocated_by_buffer`](crate::Workspace).
    pub(crate) buffers: [ScratchReq; 9],
    /// Small lists.
    lists: ScratchReq,
}

impl PassScratch {
    /// Returns the total.
    pub fn total(&self) -> ScratchReq {
        let task_bytes = ScratchReq::all_of(self.task_scratch).times(self.tasks);
        ScratchReq::all_of(self.buffers).and(task_bytes).and(self.lists)
    }

    /// Returns the scratch of two consecutive passes with one workspace.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.max(other.tasks),
            task_scratch: std::array::from_fn(|i| self.task_scratch[i].or(other.task_scratch[i])),
            buffers: std::array::from_fn(|i| self.buffers[i].or(other.buffers[i])),
            lists: self.lists.or(other.lists),
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::CANDIDATES[0]
    }
}

/// Bytes of small lists, and of growing queues of the thread pool.
const SLACK_BYTES: usize = 16 << 10;
/// Upper bound on the bytes of an utterance in small lists.
const UTTERANCE_BYTES: usize = 1024;
/// Bytes of a label position in the batch: label and token weight.
const BATCH_POSITION_BYTES: usize = size_of::<u32>() + size_of::<f64>();
/// Upper bound on the bytes of a frame in a group's lists.
const GROUP_FRAME_BYTES: usize = 3;
/// Upper bound on the bytes of a label position in these lists.
const GROUP_POSITION_BYTES: usize = 96;
/// Upper bound on the bytes of a context in these lists.
const GROUP_CONTEXT_BYTES: usize = 32;
/// Upper bound on the bytes of a task, without its factors.
const TASK_BYTES: usize = 64;
/// Rows of a forward group for each row of a backward group.
const FORWARD_ROW_FACTOR: usize = 4;

/// Numbers of elements of the scratch vectors of a [`Workspace`](crate::Workspace).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScratchLens {
    /// Elements of the vector of type `F`.
    pub scratch: usize,
    /// Elements of the vector of type `f64`.
    pub scratch_f64: usize,
}

impl ScratchLens {
    fn sum(self, other: Self) -> Self {
        Self { scratch: self.scratch + other.scratch, scratch_f64: self.scratch_f64 + other.scratch_f64 }
    }

    fn max(self, other: Self) -> Self {
        Self {
            scratch: self.scratch.max(other.scratch),
            scratch_f64: self.scratch_f64.max(other.scratch_f64),
        }
    }
}

impl Plan {
    /// Plans from the fastest to the smallest.
    const CANDIDATES: [Self; 9] = [
        Self { classes: 1024, rows: 4096, tasks: 64 },
        Self { classes: 1024, rows: 4096, tasks: 32 },
        Self { classes: 1024, rows: 2048, tasks: 16 },
        Self { classes: 1024, rows: 1024, tasks: 8 },
        Self { classes: 1024, rows: 512, tasks: 4 },
        Self { classes: 512, rows: 256, tasks: 4 },
        Self { classes: 256, rows: 0, tasks: 2 },
        Self { classes: 128, rows: 0, tasks: 1 },
        Self { classes: 64, rows: 0, tasks: 1 },
    ];

    /// Returns the fastest plan within `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if the smallest plan needs more.
    pub fn within<F: Real, S: ScoreSource<F>>(
        source: &S,
        batch: &Batch,
        options: &Options,
        bytes: usize,
    ) -> Result<Self> {
        let bytes_of = |plan: &Self| plan.scratch(source, batch, options).total().bytes();
        let fitting = Self::CANDIDATES.iter().find(|plan| bytes_of(plan) <= bytes);
        fitting.copied().ok_or_else(|| Error::Memory { needed: bytes_of(&Self::minimal()), found: bytes })
    }

    /// Returns the smallest plan.
    pub fn minimal() -> Self {
        Self::CANDIDATES[Self::CANDIDATES.len() - 1]
    }

    /// Returns the scratch of a batch.
    pub fn scratch<F: Real, S: ScoreSource<F>>(
        &self,
        source: &S,
        batch: &Batch,
        options: &Options,
    ) -> PassScratch {
        let (classes, lattices) = (source.classes(), batch.lattices());
        let sizes = GroupSizes::new(classes, batch, options, *self);
        let (shares_unigram, label_rows) = (options.shares_unigram(), source.rows(Side::Labels));
        // Scratch of the largest group in forward and in backward.
        let forward =
            sizes.max_over(&utterance_groups(batch, self.forward_rows()), |b| sizes.forward_lens::<F>(b));
        // At worst, all pairs underflow.
        let backward_lens = |b: usize| sizes.backward_lens::<F>(b, sizes.utterances[b].pairs());
        let backward_groups = utterance_groups(batch, self.rows);
        let backward = sizes.max_over(&backward_groups, backward_lens);
        let shared_len = if shares_unigram { classes } else { 0 };
        let unigram_block_len = if sizes.has_unigram { tiles::BLOCK_ROWS * sizes.tile_classes } else { 0 };
        let scratch = forward.scratch.max(backward.scratch).max(unigram_block_len);
        // The emissions of all sites precede the scratch of a group in forward.
        let num_emissions = 2 * lattices.num_sites();
        let scratch_f64 =
            (num_emissions + forward.scratch_f64.max(shared_len)).max(shared_len + backward.scratch_f64);
        // Results: sums over classes, and unigrams.
        let sums = BatchSums::<F>::scratch(&sizes.utterances);
        let positions: usize = sizes.utterances.iter().map(|utterance| utterance.positions).sum();
        let own_unigram =
            |utterance: &UtteranceSizes| UnigramDistribution::<F>::scratch(utterance.positions, classes);
        let unigrams = match (sizes.has_unigram, shares_unigram) {
            (false, _) => ScratchReq::EMPTY,
            (true, true) => UnigramDistribution::<F>::scratch(label_rows, classes),
            (true, false) => ScratchReq::all_of(sizes.utterances.iter().map(own_unigram)),
        };
        // Buffers in the order of the workspace.
        let lanes = self.lanes(batch);
        let recursions = Workspace::scratch(lattices, &options.topology, &Regularizers::default(), lanes);
        let [frame_max, label_max, label_sums, pair_sums] = sums;
        let buffers = [
            recursions,
            ScratchReq::new::<F>(scratch),
            ScratchReq::new::<f64>(scratch_f64),
            frame_max,
            label_max,
            label_sums,
            pair_sums,
            ScratchReq::new::<f64>(2).times(lattices.num_sites()),
            unigrams,
        ];
        // Lists of the batch and of a group; means of a unigram's rows, and recycled unigrams.
        let unigram_lists = match sizes.has_unigram {
            true => ScratchReq::new::<f64>(label_rows).and(UnigramDistribution::<F>::scratch(positions, 0)),
            false => ScratchReq::EMPTY,
        };
        let batch_lists: usize =
            sizes.utterances.iter().map(|size| BATCH_POSITION_BYTES * size.positions + UTTERANCE_BYTES).sum();
        let utterance_lists = |UtteranceSizes { frames, positions, contexts }: UtteranceSizes| {
            UTTERANCE_BYTES
                + GROUP_FRAME_BYTES * frames
                + GROUP_POSITION_BYTES * positions
                + GROUP_CONTEXT_BYTES * contexts
        };
        let max_lists = |max_rows: usize| {
            let group_sum = |group: Range<usize>| group.map(|b| utterance_lists(sizes.utterances[b])).sum();
            utterance_groups(batch, max_rows).into_iter().map(group_sum).max().unwrap_or(0)
        };
        let group_lists: usize = max_lists(self.forward_rows()).max(max_lists(self.rows));
        // The factors of a block's rows, in `f64`.
        let task_bytes = self.tasks * (size_of::<f64>() * tiles::BLOCK_ROWS + TASK_BYTES);
        PassScratch {
            tasks: self.tasks,
            task_scratch: sizes.task_scratch::<F, S>(source),
            buffers,
            lists: ScratchReq::from_bytes(2 * SLACK_BYTES + batch_lists + group_lists + task_bytes)
                .and(unigram_lists),
        }
    }

    /// Returns the number of lattices that are summed concurrently.
    pub(crate) fn lanes(&self, batch: &Batch) -> usize {
        self.tasks.min(batch.len())
    }

    /// Returns the maximum rows of a group in forward.
    pub(crate) fn forward_rows(&self) -> usize {
        FORWARD_ROW_FACTOR * self.rows
    }
}

/// Divides a batch into groups of utterances with at most `max_rows` rows.
pub(crate) fn utterance_groups(batch: &Batch, max_rows: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(batch.len());
    let mut group_rows = 0;
    for b in 0..batch.len() {
        let utterance_rows: usize =
            [Side::Frames, Side::Labels].map(|side| batch.rows(side, b).len()).iter().sum();
        match groups.last_mut().filter(|_| group_rows + utterance_rows <= max_rows) {
            Some(group) => (group.end, group_rows) = (b + 1, group_rows + utterance_rows),
            None => {
                groups.push(b..b + 1);
                group_rows = utterance_rows;
            }
        }
    }
    groups
}

/// Sizes of a batch, which determine the buffers of each group.
pub(crate) struct GroupSizes {
    /// Sizes of all utterances of the batch.
    pub utterances: Vec<UtteranceSizes>,
    /// Classes of the widest tile.
    tile_classes: usize,
    /// Number of classes C.
    classes: usize,
    has_unigram: bool,
    /// Whether all utterances share the unigram.
    shares_unigram: bool,
}

impl GroupSizes {
    /// Computes the sizes of a batch of C classes.
    pub(crate) fn new(classes: usize, batch: &Batch, options: &Options, plan: Plan) -> Self {
        let (lattices, has_unigram) = (batch.lattices(), options.am_only_scale != 0.0);
        let size = |b: usize| {
            let positions = lattices.num_labels(b) + 1;
            let contexts = positions + usize::from(has_unigram);
            UtteranceSizes { frames: lattices.num_frames(b), positions, contexts }
        };
        let utterances = (0..batch.len()).map(size).collect();
        let tile_classes = tiles::even_size(classes, plan.classes);
        Self { utterances, tile_classes, classes, has_unigram, shares_unigram: options.shares_unigram() }
    }

    /// Returns the elements of the scratch memory of a unigram.
    fn unigram_len(&self) -> usize {
        if self.has_unigram { self.classes } else { 0 }
    }

    /// Returns the scratch elements of an utterance in forward.
    ///
    /// They are selected scores, a tile for all contexts, and a unigram.
    pub(crate) fn forward_lens<F: Real>(&self, b: usize) -> ScratchLens {
        let utterance = self.utterances[b];
        let context_tile = utterance.contexts * self.tile_classes;
        let scratch = SelectedScores::<F>::buffer_len(utterance) + context_tile;
        ScratchLens { scratch, scratch_f64: self.unigram_len() }
    }

    /// Returns the scratch elements of an utterance in backward.
    ///
    /// They are derivatives, also of underflowed pairs, tiles for all contexts, gradients of a
    /// tile, and a unigram.
    pub(crate) fn backward_lens<F: Real>(&self, b: usize, underflow_count: usize) -> ScratchLens {
        let utterance = self.utterances[b];
        let gradients = (utterance.frames + utterance.positions) * self.tile_classes;
        let scratch = Derivatives::<F>::buffer_len(utterance) + self.context_tiles_len(b) + gradients;
        ScratchLens { scratch, scratch_f64: underflow_count + self.unigram_len() }
    }

    /// Returns the elements of two tiles for all contexts.
    pub(crate) fn context_tiles_len(&self, b: usize) -> usize {
        2 * self.utterances[b].contexts * self.tile_classes
    }

    /// Returns the largest sum over a group's utterances, for both vectors.
    pub(crate) fn max_over(
        &self,
        groups: &[Range<usize>],
        lens: impl Fn(usize) -> ScratchLens,
    ) -> ScratchLens {
        let group_lens =
            |group: &Range<usize>| group.clone().map(&lens).fold(ScratchLens::default(), ScratchLens::sum);
        groups.iter().map(group_lens).fold(ScratchLens::default(), ScratchLens::max)
    }

    /// Returns the scratch of a task: packing, scores, sums.
    pub(crate) fn task_scratch<F: Real, S: ScoreSource<F>>(&self, source: &S) -> [ScratchReq; 3] {
        let shared_rows = if self.shares_unigram { source.rows(Side::Labels) } else { 0 };
        let max_of = |size: fn(&UtteranceSizes) -> usize| self.utterances.iter().map(size).max().unwrap_or(0);
        let (frames, contexts) = (max_of(|size| size.frames), max_of(|size| size.contexts));
        let rows = frames.max(max_of(|size| size.positions)).max(shared_rows);
        let (block_rows, block_frames) = (rows.min(tiles::BLOCK_ROWS), frames.min(tiles::BLOCK_ROWS));
        // Rows and inner dimension of each product of forward and backward.
        let products = [(block_frames, self.tile_classes), (contexts, frames), (block_frames, contexts)];
        let packing = products.map(|(m, k)| packing_bytes_for::<F>(m, k)).into_iter().max().unwrap_or(0);
        let packing = packing.max(source.packing_bytes(rows, self.tile_classes));
        [
            ScratchReq::from_bytes(packing),
            ScratchReq::new::<F>(self.tile_classes).times(block_rows),
            ScratchReq::new::<F>(contexts).times(block_rows),
        ]
    }
}
