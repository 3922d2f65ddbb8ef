//! How a first pass is cut, and how many bytes that takes: known from shapes, whatever the number of threads.
use std::ops::Range;

use kernels::{Real, packing_bytes_for};
use rnnt_dp::{Regularisers, Workspace};

use crate::{
    Batch, Error, Options, Result, Side, Source, emissions::Slopes, normaliser::Picks, sums::OfBatch, tiles,
    unigram::Row, workspace::Parts,
};

/// The cut of a first pass. Results are the same to rounding whatever it is; the default is the fastest.
///
/// ```text
/// pass       numbers of sites, frames and label positions, and the unigrams
/// workspace  lattices, scratches, and rooms that are as large as forward or backward needs for a group:
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

/// Bytes of first passes at most, forward and backward, beside arguments and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// Of each buffer of the workspace, and of the pass.
    pub(crate) parts: Parts,
    lists: usize,
}

impl Bytes {
    /// The most that is held at once.
    pub fn most(&self) -> usize {
        self.parts.bytes().saturating_add(self.lists)
    }

    /// Of two passes, one after the other in the same workspace.
    pub fn max(self, other: Self) -> Self {
        Self { parts: self.parts.max(other.parts), lists: self.lists.max(other.lists) }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::CUTS[0]
    }
}

/// Lists of lists, and what queues of the thread pool grow by.
const SLACK: usize = 16 << 10;
/// Lists of an utterance, and its place in those of the batch.
const UTTERANCE: usize = 1024;

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
        let most = |plan: &Self| plan.bytes(source, batch, options).most();
        let fitting = Self::CUTS.iter().find(|plan| most(plan) <= bytes);
        fitting.copied().ok_or_else(|| Error::Memory { needed: most(&Self::smallest()), found: bytes })
    }

    /// The cut that takes the least.
    pub fn smallest() -> Self {
        Self::CUTS[Self::CUTS.len() - 1]
    }

    /// Bytes of a batch.
    pub fn bytes<F: Real, S: Source<F>>(&self, source: &S, batch: &Batch, options: &Options) -> Bytes {
        let (classes, lattices) = (source.classes(), batch.lattices());
        let rooms = Rooms::new(classes, batch, options, *self);
        let (shared, rows) = (options.shares_unigram(), source.rows(Side::Labels));
        let forward = rooms.most(&groups(batch, self.forward_rows()), |b| rooms.forward::<F>(b));
        let all_rare = |b: usize| {
            let [t, _, k] = rooms.sizes[b];
            rooms.backward::<F>(b, t * k)
        };
        let of_groups = groups(batch, self.rows);
        let backward = rooms.most(&of_groups, all_rare);
        let of_total = if shared { classes } else { 0 };
        let narrow =
            forward[0].max(backward[0]).max(if rooms.unigram { tiles::ROWS * rooms.width } else { 0 });
        let wide = (2 * lattices.sites() + forward[1].max(of_total)).max(of_total + backward[1]);
        let [frame_max, label_max, label_sums, pairs] = OfBatch::<F>::bytes(&rooms.sizes);
        let own = |[_, p, _]: &[usize; 3]| Row::<F>::bytes(*p, classes);
        let unigrams = match (rooms.unigram, shared) {
            (false, _) => 0,
            (true, true) => Row::<F>::bytes(rows, classes),
            (true, false) => rooms.sizes.iter().map(own).sum(),
        };
        let lanes = self.lanes(batch);
        let recursions = Workspace::bytes(lattices, &options.topology, &Regularisers::default(), lanes);
        let float = size_of::<F>();
        let vectors = [
            recursions,
            float * narrow,
            8 * wide,
            frame_max,
            label_max,
            label_sums,
            pairs,
            16 * lattices.sites(),
            unigrams,
        ];
        let scratch = rooms.scratch::<F, S>(source);
        let parts = Parts { tasks: self.tasks, scratch, vectors };
        // Of the batch, and of the utterances of a group; means of a unigram's rows, and vectors of the unigrams of other utterances.
        let of_unigrams = if rooms.unigram { 8 * rows + (8 + float) * label_sums / 8 } else { 0 };
        let of_batch: usize = rooms.sizes.iter().map(|[_, p, _]| 12 * p + UTTERANCE).sum();
        let lists = |[t, p, k]: [usize; 3]| UTTERANCE + 3 * t + 96 * p + 32 * k;
        let most = |rows: usize| {
            let of = |group: Range<usize>| group.map(|b| lists(rooms.sizes[b])).sum();
            groups(batch, rows).into_iter().map(of).max().unwrap_or(0)
        };
        let of_group: usize = most(self.forward_rows()).max(most(self.rows));
        let of_tasks = self.tasks * (8 * tiles::ROWS + 64);
        Bytes { parts, lists: 2 * SLACK + of_batch + of_group + of_tasks + of_unigrams }
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

/// How large the rooms are that utterances work in.
pub(crate) struct Rooms {
    /// T, U + 1, K of each utterance.
    pub sizes: Vec<[usize; 3]>,
    /// Classes of the widest tile.
    width: usize,
    classes: usize,
    /// Whether there is a unigram, and whether it is one for all.
    unigram: bool,
    shared: bool,
}

impl Rooms {
    pub fn new(classes: usize, batch: &Batch, options: &Options, plan: Plan) -> Self {
        let (lattices, unigram) = (batch.lattices(), options.am_only_scale != 0.0);
        let size = |b: usize| {
            let positions = lattices.labels(b) + 1;
            [lattices.frames(b), positions, positions + usize::from(unigram)]
        };
        let sizes = (0..batch.len()).map(size).collect();
        let (width, shared) = (tiles::even(classes, plan.classes), options.shares_unigram());
        Self { sizes, width, classes, unigram, shared }
    }

    fn of_unigram(&self) -> usize {
        if self.unigram { self.classes } else { 0 }
    }

    /// Numbers of either type for an utterance going forward: what is picked and a tile for all contexts; a unigram.
    pub fn forward<F: Real>(&self, b: usize) -> [usize; 2] {
        let [_, _, k] = self.sizes[b];
        [Picks::<F>::count(self.sizes[b]) + k * self.width, self.of_unigram()]
    }

    /// The same going backward, with so many rare pairs: slopes, tiles for all contexts, gradients of a tile.
    pub fn backward<F: Real>(&self, b: usize, rare: usize) -> [usize; 2] {
        let [t, p, _] = self.sizes[b];
        let narrow = Slopes::<F>::count(self.sizes[b]) + self.contexts(b) + (t + p) * self.width;
        [narrow, rare + self.of_unigram()]
    }

    /// Numbers of two tiles for all contexts.
    pub fn contexts(&self, b: usize) -> usize {
        let [_, _, k] = self.sizes[b];
        2 * k * self.width
    }

    /// What the largest group needs of either.
    pub fn most(&self, groups: &[Range<usize>], of: impl Fn(usize) -> [usize; 2]) -> [usize; 2] {
        groups.iter().fold([0; 2], |[narrow, wide], group| {
            let sum = group.clone().map(&of).fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
            [narrow.max(sum[0]), wide.max(sum[1])]
        })
    }

    /// Bytes of a task: packing, scores, other numbers.
    pub fn scratch<F: Real, S: Source<F>>(&self, source: &S) -> [usize; 3] {
        let sizes = self.sizes.iter();
        let shared = if self.shared { source.rows(Side::Labels) } else { 0 };
        let [t, p, k] = sizes.fold([0, shared, 0], |most, of| [0, 1, 2].map(|i| most[i].max(of[i])));
        let (rows, frames, float) = (t.max(p), t.min(tiles::ROWS), size_of::<F>());
        let block = rows.min(tiles::ROWS);
        let products = [(frames, self.width), (k, t), (frames, k)];
        let packing = products.map(|(m, k)| packing_bytes_for::<F>(m, k)).into_iter().max().unwrap_or(0);
        let packing = packing.max(source.packing(rows, self.width));
        [packing, float * block * self.width, float * block * k]
    }
}
