//! How a first pass is cut, and how many bytes that takes: known from shapes, whatever the number of threads.
use std::ops::Range;

use kernels::{Real, packing_bytes_for};
use rnnt_dp::{Regularisers, Workspace};

use crate::{
    Batch, Error, Options, Result, Scratch, Side, Source, Unigram, emissions::Slopes, sums::Sums, tiles,
    unigram::Row,
};

/// The cut of a first pass. Results are the same to rounding whatever it is; the default is the fastest.
///
/// ```text
/// held      numbers of sites, frames and label positions, and the unigrams
/// forward   emissions, and the more of lattices or a group's label tiles and selected scores, with the scratches
/// backward  a group's slopes and gradients of a tile, with the scratches
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

/// Bytes of a first pass at most, beside arguments and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// What [`FirstPass`](crate::FirstPass) holds.
    pub held: usize,
    /// What [`first_pass`](fn@crate::first_pass) holds beside it.
    pub forward: usize,
    /// What [`FirstPass::backward`](crate::FirstPass::backward) holds beside it.
    pub backward: usize,
}

impl Bytes {
    /// The most that is held at once.
    pub fn most(&self) -> usize {
        self.held.saturating_add(self.forward.max(self.backward))
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
        let shape = Shape { source, batch, options, width: tiles::even(source.classes(), self.classes) };
        let (unigrams, classes) = (options.am_only_scale != 0.0, source.classes());
        let shared = unigrams && options.unigram == Unigram::AllRows;
        let rows = source.rows(Side::Labels);
        let (all, lattices) = (0..batch.len(), batch.lattices());
        let of_shared = if shared { (8 + size_of::<F>()) * rows + size_of::<F>() * classes } else { 0 };
        let held = SLACK + of_shared + all.clone().map(|b| shape.held(b)).sum::<usize>();
        let most = |rows: usize, of: &dyn Fn(usize) -> usize| {
            let groups = groups(batch, rows).into_iter();
            groups.map(|group| group.map(of).sum::<usize>()).max().unwrap_or(0)
        };
        let scratches = shape.scratch(if shared { rows } else { 0 }) * self.tasks;
        let forward = most(self.forward_rows(), &|b| shape.forward(b)) + scratches;
        let recursions =
            Workspace::bytes(lattices, &options.topology, &Regularisers::default(), self.lanes(batch));
        let average = if shared { 8 * classes + scratches } else { 0 };
        let forward = 16 * lattices.sites() + forward.max(recursions).max(average);
        let pulled = size_of::<F>() * tiles::ROWS * shape.width + 8 * rows;
        let of_unigrams = if unigrams { 8 * classes + pulled } else { 0 };
        let backward = most(self.rows, &|b| shape.backward(b)) + scratches + of_unigrams + 16 * batch.len();
        Bytes { held, forward: SLACK + forward, backward: SLACK + backward }
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

struct Shape<'a, S> {
    source: &'a S,
    batch: &'a Batch,
    options: &'a Options,
    /// Classes of the widest tile.
    width: usize,
}

impl<S> Shape<'_, S> {
    /// T, U + 1, K
    fn sizes(&self, b: usize) -> [usize; 3] {
        let lattices = self.batch.lattices();
        let positions = lattices.labels(b) + 1;
        let contexts = positions + usize::from(self.options.am_only_scale != 0.0);
        [lattices.frames(b), positions, contexts]
    }

    /// What is held of an utterance.
    fn held<F: Real>(&self, b: usize) -> usize
    where
        S: Source<F>,
    {
        let ([t, p, k], float) = (self.sizes(b), size_of::<F>());
        let sums = float * (t + p) + 8 * p + 8 * t * k + size_of::<Sums<F>>();
        let own = self.options.am_only_scale != 0.0 && self.options.unigram == Unigram::Utterance;
        let row = (float + 8) * p + float * self.source.classes() + size_of::<Row<F>>();
        let of_batch = 12 * p + UTTERANCE;
        sums + 16 * t * p + of_batch + if own { row } else { 0 }
    }

    /// What forward takes for an utterance of a group.
    fn forward<F: Real>(&self, b: usize) -> usize
    where
        S: Source<F>,
    {
        let ([t, p, k], float) = (self.sizes(b), size_of::<F>());
        let picks = float * (t + t * p + 2 * p);
        let unigram = if k > p { 8 * self.source.classes() } else { 0 };
        let emissions = 16 * k + 48 * p;
        UTTERANCE + 16 * p + unigram.max(picks + emissions + float * k * self.width)
    }

    /// What backward takes for one.
    fn backward<F: Real>(&self, b: usize) -> usize
    where
        S: Source<F>,
    {
        let ([t, p, k], float) = (self.sizes(b), size_of::<F>());
        let slopes = (float + 8) * t * k + float * (t + t * p + 3 * p) + 8 * p + size_of::<Slopes<F>>();
        let unigram = if k > p { 8 * self.source.classes() } else { 0 };
        let gradients = float * (t + p) * self.width;
        // Rows are listed in runs and blocks.
        let lists = UTTERANCE + 3 * (t + p);
        slopes + unigram + gradients + 2 * float * k * self.width + 32 * k + 16 * p + lists
    }

    /// A task's.
    fn scratch<F: Real>(&self, shared: usize) -> usize
    where
        S: Source<F>,
    {
        let sizes = (0..self.batch.len()).map(|b| self.sizes(b));
        let [t, p, k] = sizes.fold([0, shared, 0], |most, of| [0, 1, 2].map(|i| most[i].max(of[i])));
        let (rows, frames, float) = (t.max(p), t.min(tiles::ROWS), size_of::<F>());
        let block = rows.min(tiles::ROWS);
        let products = [(frames, self.width), (k, t), (frames, k)];
        let packing = products.map(|(m, k)| packing_bytes_for::<F>(m, k)).into_iter().max().unwrap_or(0);
        let packing = packing.max(self.source.packing(rows, self.width));
        let rare = 16 * frames * k;
        packing + float * block * (self.width + k) + rare + 8 * block + size_of::<Scratch<F>>() + 64
    }
}
