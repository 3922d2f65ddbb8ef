//! Block sizes and memory of the selected normalizer, within a budget.
//!
//! A plan depends on shapes and budget only, never on the number of threads, so results are
//! reproducible. N: sites, H: width of hidden rows, C: classes, S: selected classes of a site.
mod kernel_sizes;

use std::{fmt, marker::PhantomData, ops::Range};

use kernel_sizes::KernelSizes;
use kernels::ScratchReq;

use crate::{
    Error, Precision, Real, Result,
    workspace::{scratch, site_scratch},
};

/// Sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of sites N.
    pub sites: usize,
    /// Width of hidden rows H.
    pub hidden: usize,
    /// Number of classes C.
    pub classes: usize,
    /// Selected classes of a site S.
    pub selected: usize,
}

/// Default budget of a call in bytes: 56 MiB.
///
/// Tiles have their best size, and for H = 512 the scores of some 3,600 of 50,500 sites over 1,024
/// classes are saved.
pub const DEFAULT_BUDGET: usize = 56 << 20;

/// How a call is divided, and which scores and rows it saves.
///
/// Sites are processed in *waves*, whose hidden rows exist at once, divided into *blocks*. Classes
/// are processed in *tiles*, several at once: a *group*, whose packed weights and score gradients
/// exist for the whole wave. Each step of a wave is many tasks, and each task owns what it writes:
/// the gradients of some scores, some classes of the head's gradient, some hidden rows. Nothing
/// needs atomics or a second summation.
///
/// A call never allocates more than [`Plan::scratch`] in addition to arguments and results, and
/// [`Plan::new`] stays within its budget.
pub struct Plan<F> {
    /// Sites of a wave.
    pub wave_sites: usize,
    /// Sites of a block.
    pub block_sites: usize,
    /// Classes of a tile.
    pub tile_classes: usize,
    /// Tiles of a group.
    pub group_tiles: usize,
    /// Number of sites whose scores are saved for backward, from the first.
    pub saved_scores: usize,
    /// Number of these sites whose hidden rows are saved too: whole waves, or all.
    pub saved_hidden: usize,
    /// Marks the type of the rows.
    pub marker: PhantomData<F>,
}

/// Bytes of packed weights and score gradients of a group.
///
/// They stay in the shared cache between the products that write and that read them.
const GROUP_BYTES: usize = 16 << 20;
/// Maximum bytes of a group that needs more tiles for enough tasks.
const MAX_GROUP_BYTES: usize = 21 << 20;
/// Maximum bytes of all scores of a wave longer than [`WAVE_BLOCKS`].
const WAVE_SCORE_BYTES: usize = 24 << 20;
/// Approximate sites of a block.
const BLOCK_SITES: usize = 224;
/// Blocks of a wave, unless few classes require more; each wave reads the head once.
const WAVE_BLOCKS: usize = 7;
/// Maximum blocks of a wave.
const MAX_WAVE_BLOCKS: usize = 10;
/// Classes of a tile: whole micro-panels, with a packed weight that fits the second-level cache.
const TILE_CLASSES: usize = 448;

impl<F: Real> Plan<F> {
    /// Plans a call of some shape within `budget` bytes.
    ///
    /// With `keep_scores`, scores are saved from forward to backward for as many sites as fit (6 N
    /// H C floating-point operations in total) and recomputed for the others (8 N H C); remaining
    /// bytes save hidden rows. Without it no score is saved, and at most [`DEFAULT_BUDGET`] is used
    /// in addition to the numbers of each site. Results are equal up to rounding for all budgets,
    /// and bit-identical for the same budget.
    ///
    /// # Errors
    /// [`Error::Budget`] for a budget below the smallest plan.
    ///
    /// ```
    /// use panda_core::{Plan, Precision, Shape};
    /// let shape = Shape { sites: 2_600, hidden: 512, classes: 8_192, selected: 2 };
    /// let plan = Plan::<f32>::new(shape, Precision::Full, 200 << 20, true)?;
    /// assert_eq!(plan.saved_scores, 2_600); // 85 MB of scores fit
    /// assert_eq!(Plan::<f32>::new(shape, Precision::Full, usize::MAX, false)?.saved_scores, 0);
    /// # Ok::<(), panda_core::Error>(())
    /// ```
    pub fn new(shape: Shape, precision: Precision, budget: usize, keep_scores: bool) -> Result<Self> {
        let smallest = Self::minimal_scratch(shape, precision).bytes();
        let site_bytes = ScratchReq::all_of(site_scratch::<F>(shape)).bytes();
        let limit = match keep_scores {
            true => budget,
            false => budget.min(DEFAULT_BUDGET.saturating_add(site_bytes).max(smallest)),
        };
        if smallest > limit {
            return Err(Error::Budget { smallest, found: limit });
        }
        // Longer waves have more tasks; they are used if they save as many scores and rows.
        let [short, long] = [false, true]
            .map(|allow_long| Self::fit(shape, precision, limit, site_bytes, keep_scores, allow_long));
        let use_long =
            keep_scores && (long.saved_scores, long.saved_hidden) >= (short.saved_scores, short.saved_hidden);
        Ok(if use_long { long } else { short })
    }

    /// Returns the plan within `limit` bytes that saves the most.
    ///
    /// `site_bytes` is the part of the limit that the numbers of each site take. `allow_long`
    /// allows longer waves.
    fn fit(
        shape: Shape,
        precision: Precision,
        limit: usize,
        site_bytes: usize,
        keep_scores: bool,
        allow_long: bool,
    ) -> Self {
        let bytes = |plan: &Self| plan.scratch(shape, precision).bytes();
        let fits = |plan: &Self| bytes(plan) <= limit;
        let sizes = KernelSizes::new::<F>(precision);
        // The fastest plan that fits, without saved scores.
        let mut plan = Self::fastest(shape, precision, limit - site_bytes, allow_long);
        while !fits(&plan) {
            plan = plan.shrink(sizes);
        }
        // Scores of as many sites as fit in the remaining bytes.
        let all_sites = shape.sites;
        let remaining_bytes = limit - bytes(&plan);
        let score_row_bytes = shape.classes.max(1).saturating_mul(size_of::<F>());
        let score_sites = if keep_scores { remaining_bytes / score_row_bytes } else { 0 };
        if score_sites < all_sites || all_sites == 0 {
            return Self { saved_scores: score_sites.min(all_sites), ..plan };
        }
        // Scores and hidden rows of all sites, if they fit.
        let wave_sites =
            sizes.wave_sites(all_sites, WAVE_BLOCKS * sizes.block_sites, shape.classes, allow_long);
        let group_tiles =
            plan.group_tiles.max(sizes.group_tiles(wave_sites, plan.tile_classes, shape.classes));
        let with_all = Self {
            wave_sites,
            block_sites: sizes.block_sites,
            group_tiles,
            saved_scores: all_sites,
            saved_hidden: all_sites,
            ..plan
        };
        let with_all = with_all.fitted(all_sites, shape.classes);
        if fits(&with_all) {
            return with_all;
        }
        // Scores of all sites, and hidden rows of as many waves as fit.
        let wave_sites = even_size(all_sites, plan.wave_sites, sizes.wave_unit);
        let with_hidden = |waves: usize| Self {
            saved_scores: all_sites,
            saved_hidden: waves.saturating_mul(wave_sites).min(all_sites),
            ..plan
        };
        let [bytes_with_none, bytes_with_one] = [0, 1].map(|waves| bytes(&with_hidden(waves)));
        with_hidden((limit - bytes_with_none) / (bytes_with_one - bytes_with_none).max(1))
    }

    /// Creates a custom plan, without saved hidden rows.
    pub fn custom(
        wave_sites: usize,
        block_sites: usize,
        tile_classes: usize,
        group_tiles: usize,
        saved_scores: usize,
    ) -> Self {
        Self {
            wave_sites,
            block_sites,
            tile_classes,
            group_tiles,
            saved_scores,
            saved_hidden: 0,
            marker: PhantomData,
        }
    }

    /// Returns the smallest plan: a micro-panel of rows by one of classes.
    pub fn minimal(shape: Shape, precision: Precision) -> Self {
        let KernelSizes { mr, nr, .. } = KernelSizes::new::<F>(precision);
        Self::custom(mr, mr, nr, 1, 0).fitted(shape.sites, shape.classes)
    }

    /// Returns the scratch of the smallest plan.
    ///
    /// It is about `(4 MR + 2 NR) H` elements for MR and NR of the kernel, and `S + 2` numbers and
    /// a flag of each site.
    pub(crate) fn minimal_scratch(shape: Shape, precision: Precision) -> ScratchReq {
        Self::minimal(shape, precision).scratch(shape, precision)
    }

    /// Returns the fastest plan within a limit.
    ///
    /// Five eighths of the limit are for the wave, three for the tiles of a group.
    fn fastest(shape: Shape, precision: Precision, limit: usize, allow_long: bool) -> Self {
        let (sites, hidden, classes) = (shape.sites.max(1), shape.hidden, shape.classes.max(1));
        let sizes @ KernelSizes { nr, wave_unit, block_sites, .. } = KernelSizes::new::<F>(precision);
        let (element_bytes, packed_bytes) = (size_of::<F>(), precision.bytes(size_of::<F>()));
        // Wave. A site needs a hidden row and its gradient, and two packed copies of the row.
        let row_bytes = hidden.saturating_mul(2 * (element_bytes + packed_bytes));
        let score_row_bytes = classes.saturating_mul(element_bytes);
        let max_sites = (WAVE_SCORE_BYTES / score_row_bytes)
            .clamp(WAVE_BLOCKS * block_sites, MAX_WAVE_BLOCKS * block_sites);
        let max_rows = (limit / 8 * 5 / row_bytes.max(1)).max(wave_unit);
        let wave_sites = match sizes.wave_sites(sites, max_sites, classes, allow_long) {
            preferred if preferred > max_rows => even_size(sites, max_sites.min(max_rows), wave_unit),
            preferred => preferred,
        };
        // Tile. With many classes, a smaller last tile costs little.
        let has_many_tiles = classes > 4 * TILE_CLASSES;
        let tile_classes = if has_many_tiles { TILE_CLASSES } else { even_size(classes, TILE_CLASSES, nr) };
        // Group. A class of a tile needs two packed copies of its weights and score gradients.
        let tile_bytes =
            tile_classes.saturating_mul(2 * packed_bytes).saturating_mul(wave_sites.saturating_add(hidden));
        let max_tiles = |bytes: usize| (limit / 8 * 3).min(bytes) / tile_bytes.max(1);
        let tiles_for_tasks =
            sizes.group_tiles(wave_sites, tile_classes, classes).min(max_tiles(MAX_GROUP_BYTES));
        let max_group_tiles = max_tiles(GROUP_BYTES).max(tiles_for_tasks).max(1);
        let group_tiles = even_size(classes.div_ceil(tile_classes), max_group_tiles, 1);
        Self::custom(wave_sites, block_sites, tile_classes, group_tiles, 0).fitted(sites, classes)
    }

    /// Reduces the largest part of the scratch by an eighth.
    fn shrink(self, sizes: KernelSizes) -> Self {
        let reduce = |size: usize, unit: usize| (size / 8 * 7).min(size - 1) / unit * unit;
        let Self { wave_sites, tile_classes, group_tiles, .. } = self;
        // A row has four copies, a class two.
        let can_reduce_wave =
            wave_sites > sizes.mr && (2 * wave_sites > tile_classes || tile_classes <= sizes.nr);
        match (group_tiles, can_reduce_wave) {
            (2.., _) => Self { group_tiles: group_tiles - group_tiles.div_ceil(8), ..self },
            (_, true) => {
                let unit = if wave_sites > 2 * sizes.wave_unit { sizes.wave_unit } else { sizes.mr };
                let wave_sites = reduce(wave_sites, unit).max(sizes.mr);
                Self { wave_sites, block_sites: self.block_sites.min(wave_sites), ..self }
            }
            _ => {
                let reduced = reduce(tile_classes, sizes.nr).max(sizes.nr).min(tile_classes);
                Self { tile_classes: reduced, ..self }
            }
        }
    }

    /// Returns the scratch of a call, including saved scores and hidden rows.
    pub fn scratch(&self, shape: Shape, precision: Precision) -> ScratchReq {
        scratch(&self.fitted(shape.sites, shape.classes), shape, precision)
    }

    /// Returns the floating-point operations: 8 N H C, less 2 H C for each saved site.
    pub fn operations(&self, shape: Shape) -> u64 {
        let Shape { sites, hidden, classes, .. } = shape;
        // Four products of a site, 2 H C each: three are needed, a fourth where scores are
        // recomputed.
        let products = 4 * sites as u128 - self.saved_scores.min(sites) as u128;
        let product_operations = (2 * hidden as u128).saturating_mul(classes as u128);
        u64::try_from(products.saturating_mul(product_operations)).unwrap_or(u64::MAX)
    }

    /// Returns the same plan for rows of another type.
    pub fn to<G: Real>(&self) -> Plan<G> {
        let Self { wave_sites, block_sites, tile_classes, group_tiles, saved_scores, saved_hidden, .. } =
            *self;
        Plan {
            saved_hidden,
            ..Plan::custom(wave_sites, block_sites, tile_classes, group_tiles, saved_scores)
        }
    }

    /// Returns the plan without parts that `sites` and `classes` leave empty.
    pub(crate) fn fitted(&self, sites: usize, classes: usize) -> Self {
        let classes = classes.max(1);
        let tile_classes = self.tile_classes.clamp(1, classes);
        let wave_sites = self.wave_sites.clamp(1, sites.max(1));
        let tiles = classes.div_ceil(tile_classes);
        let groups = tiles.div_ceil(self.group_tiles.max(1));
        let saved_scores = self.saved_scores.min(sites);
        Self {
            wave_sites,
            block_sites: self.block_sites.clamp(1, wave_sites),
            tile_classes,
            group_tiles: tiles.div_ceil(groups),
            saved_scores,
            saved_hidden: self.saved_hidden.min(saved_scores),
            ..*self
        }
    }

    /// Returns the sites of a wave; all waves have nearly the same size.
    ///
    /// The last wave therefore has as many tasks as the others.
    pub(crate) fn wave_sites(&self, sites: usize, strip_rows: usize) -> usize {
        even_size(sites, self.wave_sites, strip_rows).max(1)
    }

    /// Returns the sites with saved hidden rows: total, and per wave.
    pub(crate) fn hidden_waves(&self, strip_rows: usize) -> (usize, usize) {
        let wave_sites = self.wave_sites(self.saved_scores, strip_rows);
        let hidden_sites = if self.saved_hidden >= self.saved_scores {
            self.saved_scores
        } else {
            self.saved_hidden / wave_sites * wave_sites
        };
        (hidden_sites, wave_sites)
    }

    /// Returns the groups of tiles as ranges of classes.
    pub(crate) fn tile_groups(&self, classes: usize) -> impl Iterator<Item = Range<usize>> + use<F> {
        let group_classes = self.group_tiles * self.tile_classes;
        (0..classes).step_by(group_classes).map(move |start| start..(start + group_classes).min(classes))
    }

    /// Fails if a size is zero.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("plan.wave", self.wave_sites),
            ("plan.block", self.block_sites),
            ("plan.tile_classes", self.tile_classes),
            ("plan.tiles", self.group_tiles),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some(&(argument, _)) => Err(Error::Zero { argument }),
            None => Ok(()),
        }
    }
}

/// Returns the size of nearly even parts, at most `max_size`.
///
/// It is a multiple of `unit` if `max_size` allows.
fn even_size(count: usize, max_size: usize, unit: usize) -> usize {
    count
        .div_ceil(count.div_ceil(max_size.max(1)).max(1))
        .checked_next_multiple_of(unit)
        .unwrap_or(max_size)
        .min(max_size)
}

// Not derived: the type of the rows need not implement these traits.
impl<F> Clone for Plan<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Plan<F> {}

impl<F> Plan<F> {
    /// Returns all sizes, in the order of the fields.
    fn sizes(&self) -> [usize; 6] {
        [
            self.wave_sites,
            self.block_sites,
            self.tile_classes,
            self.group_tiles,
            self.saved_scores,
            self.saved_hidden,
        ]
    }
}

impl<F> PartialEq for Plan<F> {
    fn eq(&self, other: &Self) -> bool {
        self.sizes() == other.sizes()
    }
}

impl<F> Eq for Plan<F> {}

impl<F> fmt::Debug for Plan<F> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [wave_sites, block_sites, tile_classes, group_tiles, saved_scores, saved_hidden] = self.sizes();
        write!(f, "Plan {{ wave: {wave_sites}, block: {block_sites}, tile_classes: {tile_classes}, ")?;
        write!(f, "tiles: {group_tiles}, saved_scores: {saved_scores}, saved_hidden: {saved_hidden} }}")
    }
}

#[cfg(test)]
mod tests;
