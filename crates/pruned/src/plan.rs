//! How a first pass is cut, and how many bytes that takes: known from shapes, whatever the number of threads.
use std::ops::Range;

use kernels::{Real, ScratchReq, packing_bytes_for};
use rnnt_dp::{Regularisers, Workspace};

use crate::{
    Batch, Error, Options, Result, Side, Source, emissions::Slopes, normaliser::Picks, sums::BatchSums,
    tiles, unigram::UnigramRow,
};

/// The cut of a first pass. Results are the same to rounding whatever it is; the default is the fastest.
///
/// ```text
/// pass       numbers of sites, frames and label positions, and the unigrams
/// workspace  lattices, scratch of tasks, and buffers as large as forward or backward needs for a group:
///     forward    emissions of all sites, label tiles and selected scores of a group
///     backward   its slopes and gradients of a tile
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plan {
    /// Classes of a tile, at most.
    pub classes: usize,
    /// Rows of utterances whose gradient of a tile exists at once, unless a single utterance has more; forward, which keeps no
    /// gradient, takes four times as many.
    pub rows: usize,
    /// Tasks that work on blocks of rows at once, at most.
    pub tasks: usize,
}

/// Scratch of first passes, forward and backward: all buffers of a [`Workspace`](crate::Workspace) and of the passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassScratch {
    pub(crate) tasks: usize,
    /// Of a task, see [`TaskScratch::requirements`](crate::TaskScratch).
    pub(crate) of_task: [ScratchReq; 3],
    /// In the order of [`Workspace::held`](crate::Workspace).
    pub(crate) buffers: [ScratchReq; 9],
    lists: ScratchReq,
}

impl PassScratch {
    /// All of it.
    pub fn total(&self) -> ScratchReq {
        let of_tasks = ScratchReq::all_of(self.of_task).times(self.tasks);
        ScratchReq::all_of(self.buffers).and(of_tasks).and(self.lists)
    }

    /// The scratch of two passes, one after the other in the same workspace.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.max(other.tasks),
            of_task: std::array::from_fn(|i| self.of_task[i].or(other.of_task[i])),
            buffers: std::array::from_fn(|i| self.buffers[i].or(other.buffers[i])),
            lists: self.lists.or(other.lists),
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::CUTS[0]
    }
}

/// Lists of lists, and what queues of the thread pool grow by.
const SLACK_BYTES: usize = 16 << 10;
/// Lists of an utterance, and its place in those of the batch.
const UTTERANCE_BYTES: usize = 1024;

impl Plan {
    /// From the best to the smallest.
    const CUTS: [Self; 9] = [
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

    /// The best cut of so many bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] with the bytes of the smallest cut.
    pub fn within<F: Real, S: Source<F>>(
        source: &S,
        batch: &Batch,
        options: &Options,
        bytes: usize,
    ) -> Result<Self> {
        let most = |plan: &Self| plan.scratch(source, batch, options).total().bytes();
        let fitting = Self::CUTS.iter().find(|plan| most(plan) <= bytes);
        fitting.copied().ok_or_else(|| Error::Memory { needed: most(&Self::smallest()), found: bytes })
    }

    /// The cut that takes the least.
    pub fn smallest() -> Self {
        Self::CUTS[Self::CUTS.len() - 1]
    }

    /// Scratch of a batch.
    pub fn scratch<F: Real, S: Source<F>>(
        &self,
        source: &S,
        batch: &Batch,
        options: &Options,
    ) -> PassScratch {
        let (classes, lattices) = (source.classes(), batch.lattices());
        let sizes = GroupSizes::new(classes, batch, options, *self);
        let (shared, rows) = (options.shares_unigram(), source.rows(Side::Labels));
        let forward = sizes.most(&groups(batch, self.forward_rows()), |b| sizes.forward::<F>(b));
        let all_rare = |b: usize| {
            let [t, _, k] = sizes.of_utterances[b];
            sizes.backward::<F>(b, t * k)
        };
        let of_groups = groups(batch, self.rows);
        let backward = sizes.most(&of_groups, all_rare);
        let of_total = if shared { classes } else { 0 };
        let narrow =
            forward[0].max(backward[0]).max(if sizes.unigram { tiles::ROWS * sizes.width } else { 0 });
        let wide = (2 * lattices.sites() + forward[1].max(of_total)).max(of_total + backward[1]);
        let sums = BatchSums::<F>::scratch(&sizes.of_utterances);
        let positions: usize = sizes.of_utterances.iter().map(|[_, p, _]| p).sum();
        let own = |[_, p, _]: &[usize; 3]| UnigramRow::<F>::scratch(*p, classes);
        let unigrams = match (sizes.unigram, shared) {
            (false, _) => ScratchReq::EMPTY,
            (true, true) => UnigramRow::<F>::scratch(rows, classes),
            (true, false) => ScratchReq::all_of(sizes.of_utterances.iter().map(own)),
        };
        let lanes = self.lanes(batch);
        let recursions = Workspace::scratch(lattices, &options.topology, &Regularisers::default(), lanes);
        let [frame_max, label_max, label_sums, pairs] = sums;
        let buffers = [
            recursions,
            ScratchReq::new::<F>(narrow),
            ScratchReq::new::<f64>(wide),
            frame_max,
            label_max,
            label_sums,
            pairs,
            ScratchReq::new::<f64>(2).times(lattices.sites()),
            unigrams,
        ];
        // Of the batch, and of the utterances of a group; means of a unigram's rows, and vectors of the unigrams of other utterances.
        let of_unigrams = match sizes.unigram {
            true => ScratchReq::new::<f64>(rows).and(UnigramRow::<F>::scratch(positions, 0)),
            false => ScratchReq::EMPTY,
        };
        let of_batch: usize = sizes.of_utterances.iter().map(|[_, p, _]| 12 * p + UTTERANCE_BYTES).sum();
        let lists = |[t, p, k]: [usize; 3]| UTTERANCE_BYTES + 3 * t + 96 * p + 32 * k;
        let most = |rows: usize| {
            let of = |group: Range<usize>| group.map(|b| lists(sizes.of_utterances[b])).sum();
            groups(batch, rows).into_iter().map(of).max().unwrap_or(0)
        };
        let of_group: usize = most(self.forward_rows()).max(most(self.rows));
        let of_tasks = self.tasks * (8 * tiles::ROWS + 64);
        PassScratch {
            tasks: self.tasks,
            of_task: sizes.of_task::<F, S>(source),
            buffers,
            lists: ScratchReq::from_bytes(2 * SLACK_BYTES + of_batch + of_group + of_tasks).and(of_unigrams),
        }
    }

    /// Utterances that are summed over at once.
    pub(crate) fn lanes(&self, batch: &Batch) -> usize {
        self.tasks.min(batch.len())
    }

    pub(crate) fn forward_rows(&self) -> usize {
        4 * self.rows
    }
}

/// Runs of utterances of not too many rows.
pub(crate) fn groups(batch: &Batch, most: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(batch.len());
    let mut rows = 0;
    for b in 0..batch.len() {
        let own: usize = [Side::Frames, Side::Labels].map(|side| batch.rows(side, b).len()).iter().sum();
        match groups.last_mut().filter(|_| rows + own <= most) {
            Some(group) => (group.end, rows) = (b + 1, rows + own),
            None => {
                groups.push(b..b + 1);
                rows = own;
            }
        }
    }
    groups
}

/// Sizes of the parts of buffers that the utterances of a group work in.
pub(crate) struct GroupSizes {
    /// T, U + 1, K of each utterance.
    pub of_utterances: Vec<[usize; 3]>,
    /// Classes of the widest tile.
    width: usize,
    classes: usize,
    /// Whether there is a unigram, and whether it is one for all.
    unigram: bool,
    shared: bool,
}

impl GroupSizes {
    pub fn new(classes: usize, batch: &Batch, options: &Options, plan: Plan) -> Self {
        let (lattices, unigram) = (batch.lattices(), options.am_only_scale != 0.0);
        let size = |b: usize| {
            let positions = lattices.labels(b) + 1;
            [lattices.frames(b), positions, positions + usize::from(unigram)]
        };
        let of_utterances = (0..batch.len()).map(size).collect();
        let (width, shared) = (tiles::even(classes, plan.classes), options.shares_unigram());
        Self { of_utterances, width, classes, unigram, shared }
    }

    fn of_unigram(&self) -> usize {
        if self.unigram { self.classes } else { 0 }
    }

    /// Numbers of either type for an utterance going forward: what is picked and a tile for all contexts; a unigram.
    pub fn forward<F: Real>(&self, b: usize) -> [usize; 2] {
        let [_, _, k] = self.of_utterances[b];
        [Picks::<F>::count(self.of_utterances[b]) + k * self.width, self.of_unigram()]
    }

    /// The same going backward, with so many rare pairs: slopes, tiles for all contexts, gradients of a tile.
    pub fn backward<F: Real>(&self, b: usize, rare: usize) -> [usize; 2] {
        let [t, p, _] = self.of_utterances[b];
        let narrow = Slopes::<F>::count(self.of_utterances[b]) + self.contexts(b) + (t + p) * self.width;
        [narrow, rare + self.of_unigram()]
    }

    /// Numbers of two tiles for all contexts.
    pub fn contexts(&self, b: usize) -> usize {
        let [_, _, k] = self.of_utterances[b];
        2 * k * self.width
    }

    /// What the largest group needs of either.
    pub fn most(&self, groups: &[Range<usize>], of: impl Fn(usize) -> [usize; 2]) -> [usize; 2] {
        groups.iter().fold([0; 2], |[narrow, wide], group| {
            let sum = group.clone().map(&of).fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
            [narrow.max(sum[0]), wide.max(sum[1])]
        })
    }

    /// Scratch of a task: packing, scores, sums.
    pub fn of_task<F: Real, S: Source<F>>(&self, source: &S) -> [ScratchReq; 3] {
        let sizes = self.of_utterances.iter();
        let shared = if self.shared { source.rows(Side::Labels) } else { 0 };
        let [t, p, k] = sizes.fold([0, shared, 0], |most, of| [0, 1, 2].map(|i| most[i].max(of[i])));
        let (rows, frames) = (t.max(p), t.min(tiles::ROWS));
        let block = rows.min(tiles::ROWS);
        let products = [(frames, self.width), (k, t), (frames, k)];
        let packing = products.map(|(m, k)| packing_bytes_for::<F>(m, k)).into_iter().max().unwrap_or(0);
        let packing = packing.max(source.packing(rows, self.width));
        [
            ScratchReq::from_bytes(packing),
            ScratchReq::new::<F>(self.width).times(block),
            ScratchReq::new::<F>(k).times(block),
        ]
    }
}
