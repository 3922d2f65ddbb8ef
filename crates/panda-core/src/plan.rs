//! How the work is cut: by shape and budget alone, so that bits never depend on the number of threads.
use std::{fmt, marker::PhantomData, ops::Range};

use kernels::ScratchReq;

use crate::{
    Error, Precision, Real, Result,
    blocking::{Blocking, TASKS},
    workspace::{scratch, site_scratch},
};

/// Sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// N
    pub sites: usize,
    /// H
    pub hidden: usize,
    /// C
    pub classes: usize,
    /// S
    pub selected: usize,
}

/// Default budget of a call in bytes: 56 MiB.
///
/// Tiles have their best size and, for H = 512, the scores of some 3,600 of 50,500 sites over 1,024 classes are kept.
pub const DEFAULT_BUDGET: usize = 56 << 20;

/// The cut.
///
/// Sites go in *waves*, whose hidden rows exist at once, in *blocks*; classes go in *tiles*, of which some are in use at once, a *group*:
/// their weights and the gradients of their scores exist, packed, for the whole wave. Each step of a wave is many
/// tasks, and each task owns what it writes: the gradients of some scores, some classes of the head's gradient,
/// some rows of the hidden one. So there are no atomics and nothing is summed twice.
///
/// What it takes is a promise: a call never holds more than [`Plan::scratch`] beside its arguments and results, and
/// [`Plan::new`] stays within its budget.
pub struct Plan<F> {
    /// Sites of a wave.
    pub wave: usize,
    /// Sites of a block.
    pub block: usize,
    /// Classes of a tile.
    pub tile_classes: usize,
    /// Tiles of a group.
    pub tiles: usize,
    /// Sites, counted from the first, whose scores are kept from forward to backward.
    pub kept: usize,
    /// How many of these have their hidden rows kept as well; whole waves of them, or all.
    pub held: usize,
    /// The type of the rows.
    pub of: PhantomData<F>,
}

/// Bytes of weights and score gradients of a group: they stay in the shared cache between the products that make them and
/// those that use them.
const IN_FLIGHT: usize = 16 << 20;
/// The same where it takes more tiles to have enough tasks in each step of a wave.
const MOST_IN_FLIGHT: usize = 21 << 20;
/// Bytes of all scores of a wave, as long as few classes allow for a longer one.
const SCORES: usize = 24 << 20;
/// Sites of a block, about, and of a wave in blocks, where few classes do not ask for more: the head is read, and its
/// gradient touched, once a wave.
const BLOCK: usize = 224;
const WAVE: usize = 7;
const LONGEST_WAVE: usize = 10;
/// Classes of a tile: whole micro-panels of the widest kernels, whose packed weight stays in the second cache.
const CLASSES: usize = 448;

impl<F: Real> Plan<F> {
    /// The cut for a shape within `budget` bytes.
    ///
    /// With `keep_scores`, scores are kept from forward to backward for as many sites as fit (6 N H C floating-point
    /// operations in all) and recomputed for the others (8 N H C); bytes that are left keep hidden rows. Without it no
    /// score is kept, and of the budget no more is used than [`DEFAULT_BUDGET`] in addition to the numbers of each
    /// site. Results are the same to rounding for every budget and the same bits for the same budget.
    ///
    /// # Errors
    /// [`Error::Budget`] for a budget below the smallest cut.
    ///
    /// ```
    /// use panda_core::{Plan, Precision, Shape};
    /// let shape = Shape { sites: 2_600, hidden: 512, classes: 8_192, selected: 2 };
    /// let plan = Plan::<f32>::new(shape, Precision::Full, 200 << 20, true)?;
    /// assert_eq!(plan.kept, 2_600); // 85 MB of scores fit
    /// assert_eq!(Plan::<f32>::new(shape, Precision::Full, usize::MAX, false)?.kept, 0);
    /// # Ok::<(), panda_core::Error>(())
    /// ```
    pub fn new(shape: Shape, precision: Precision, budget: usize, keep_scores: bool) -> Result<Self> {
        let smallest = Self::smallest(shape, precision).bytes();
        let of_sites = ScratchReq::all_of(site_scratch::<F>(shape)).bytes();
        let limit = match keep_scores {
            true => budget,
            false => budget.min(DEFAULT_BUDGET.saturating_add(of_sites).max(smallest)),
        };
        if smallest > limit {
            return Err(Error::Budget { smallest, found: limit });
        }
        // Longer waves for more tasks, where memory may be used and no fewer scores and rows are kept for them.
        let [short, long] =
            [false, true].map(|long| Self::within(shape, precision, [limit, of_sites], keep_scores, long));
        let longer = keep_scores && (long.kept, long.held) >= (short.kept, short.held);
        Ok(if longer { long } else { short })
    }

    /// The cut within a limit of bytes, some of which are for the sites, that keeps as much as there is room for.
    fn within(
        shape: Shape,
        precision: Precision,
        [limit, of_sites]: [usize; 2],
        keeps: bool,
        long: bool,
    ) -> Self {
        let bytes = |plan: &Self| plan.scratch(shape, precision).bytes();
        let fits = |plan: &Self| bytes(plan) <= limit;
        let sides = Sides::of::<F>(precision);
        let mut plan = Self::best(shape, precision, limit - of_sites, long);
        while !fits(&plan) {
            plan = plan.smaller(sides);
        }
        let all = shape.sites;
        let rest = limit - bytes(&plan);
        let kept = if keeps { rest / shape.classes.max(1).saturating_mul(size_of::<F>()) } else { 0 };
        if kept < all || all == 0 {
            return Self { kept: kept.min(all), ..plan };
        }
        let wave = sides.wave(all, WAVE * sides.block, shape.classes, long);
        let tiles = plan.tiles.max(sides.tiles(wave, plan.tile_classes, shape.classes));
        let whole = Self { wave, block: sides.block, tiles, kept: all, held: all, ..plan };
        let whole = whole.fitted(all, shape.classes);
        if fits(&whole) {
            return whole;
        }
        let step = even(all, plan.wave, sides.strip);
        let held = |waves: usize| Self { kept: all, held: waves.saturating_mul(step).min(all), ..plan };
        let [none, one] = [0, 1].map(|waves| bytes(&held(waves)));
        held((limit - none) / (one - none).max(1))
    }

    /// A cut of one's own; no hidden row is kept.
    pub fn custom(wave: usize, block: usize, tile_classes: usize, tiles: usize, kept: usize) -> Self {
        Self { wave, block, tile_classes, tiles, kept, held: 0, of: PhantomData }
    }

    /// The cut that takes least: a micro-panel of rows against one of classes.
    pub fn least(shape: Shape, precision: Precision) -> Self {
        let Sides { mr, nr, .. } = Sides::of::<F>(precision);
        Self::custom(mr, mr, nr, 1, 0).fitted(shape.sites, shape.classes)
    }

    /// Scratch of the smallest cut: about `(4 MR + 2 NR) H` elements, with MR and NR of the machine's kernel, and
    /// `S + 2` numbers of every site and whether it counts.
    pub fn smallest(shape: Shape, precision: Precision) -> ScratchReq {
        Self::least(shape, precision).scratch(shape, precision)
    }

    /// The cut at which products run best, within a few eighths of a limit.
    fn best(shape: Shape, precision: Precision, limit: usize, long: bool) -> Self {
        let (sites, hidden, classes) = (shape.sites.max(1), shape.hidden, shape.classes.max(1));
        let sides @ Sides { nr, strip, block, .. } = Sides::of::<F>(precision);
        let (element, packed) = (size_of::<F>(), precision.bytes(size_of::<F>()));
        // A hidden row and its gradient, and the row packed twice.
        let row = hidden.saturating_mul(2 * (element + packed));
        let scores = classes.saturating_mul(element);
        let most = (SCORES / scores).clamp(WAVE * block, LONGEST_WAVE * block);
        let room = (limit / 8 * 5 / row.max(1)).max(strip);
        let wave = match sides.wave(sites, most, classes, long) {
            wave if wave > room => even(sites, most.min(room), strip),
            wave => wave,
        };
        let tile = if classes > 4 * CLASSES { CLASSES } else { even(classes, CLASSES, nr) };
        let of_tile = tile.saturating_mul(2 * packed).saturating_mul(wave.saturating_add(hidden));
        let fit = |bytes: usize| (limit / 8 * 3).min(bytes) / of_tile.max(1);
        let shared = sides.tiles(wave, tile, classes).min(fit(MOST_IN_FLIGHT));
        let tiles = fit(IN_FLIGHT).max(shared).max(1);
        let tiles = even(classes.div_ceil(tile), tiles, 1);
        Self::custom(wave, block, tile, tiles, 0).fitted(sites, classes)
    }

    /// An eighth less of what takes most.
    fn smaller(self, sides: Sides) -> Self {
        let less = |size: usize, unit: usize| (size / 8 * 7).min(size - 1) / unit * unit;
        let Self { wave, tile_classes: tile, tiles, .. } = self;
        // A row is there four times, a class twice.
        let rows = wave > sides.mr && (2 * wave > tile || tile <= sides.nr);
        match (tiles, rows) {
            (2.., _) => Self { tiles: tiles - tiles.div_ceil(8), ..self },
            (_, true) => {
                let unit = if wave > 2 * sides.strip { sides.strip } else { sides.mr };
                let wave = less(wave, unit).max(sides.mr);
                Self { wave, block: self.block.min(wave), ..self }
            }
            _ => Self { tile_classes: less(tile, sides.nr).max(sides.nr).min(tile), ..self },
        }
    }

    /// Scratch memory of a call, saved scores and hidden rows included.
    pub fn scratch(&self, shape: Shape, precision: Precision) -> ScratchReq {
        scratch(&self.fitted(shape.sites, shape.classes), shape, precision)
    }

    /// Floating-point operations of forward and backward: 8 N H C, less 2 H C for each site kept.
    pub fn operations(&self, shape: Shape) -> u64 {
        let Shape { sites, hidden, classes, .. } = shape;
        // Of a quarter of a site's: forward and backward have three, and a fourth where scores are not kept.
        let quarters = 4 * sites as u128 - self.kept.min(sites) as u128;
        let quarter = (2 * hidden as u128).saturating_mul(classes as u128);
        u64::try_from(quarters.saturating_mul(quarter)).unwrap_or(u64::MAX)
    }

    /// The same sizes for rows of another type.
    pub fn to<G: Real>(&self) -> Plan<G> {
        let Self { wave, block, tile_classes, tiles, kept, held, .. } = *self;
        Plan { held, ..Plan::custom(wave, block, tile_classes, tiles, kept) }
    }

    /// The same cut without the parts that `sites` and `classes` leave empty.
    pub(crate) fn fitted(&self, sites: usize, classes: usize) -> Self {
        let classes = classes.max(1);
        let tile = self.tile_classes.clamp(1, classes);
        let wave = self.wave.clamp(1, sites.max(1));
        let all_tiles = classes.div_ceil(tile);
        let kept = self.kept.min(sites);
        Self {
            wave,
            block: self.block.clamp(1, wave),
            tile_classes: tile,
            tiles: all_tiles.div_ceil(all_tiles.div_ceil(self.tiles.max(1))),
            kept,
            held: self.held.min(kept),
            ..*self
        }
    }

    /// Sites of a wave of so many: waves are even, so that the last has as many tasks as the others.
    pub(crate) fn step(&self, sites: usize, strip: usize) -> usize {
        even(sites, self.wave, strip).max(1)
    }

    /// Sites whose hidden rows are kept, in waves of so many.
    pub(crate) fn held(&self, strip: usize) -> (usize, usize) {
        let step = self.step(self.kept, strip);
        (if self.held >= self.kept { self.kept } else { self.held / step * step }, step)
    }

    /// Groups of tiles, as ranges of classes.
    pub(crate) fn tile_groups(&self, classes: usize) -> impl Iterator<Item = Range<usize>> + use<F> {
        let step = self.tiles * self.tile_classes;
        (0..classes).step_by(step).map(move |from| from..(from + step).min(classes))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("plan.wave", self.wave),
            ("plan.block", self.block),
            ("plan.tile_classes", self.tile_classes),
            ("plan.tiles", self.tiles),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some(&(argument, _)) => Err(Error::Zero { argument }),
            None => Ok(()),
        }
    }
}

/// What a kernel wants parts to be multiples of.
#[derive(Clone, Copy)]
struct Sides {
    mr: usize,
    nr: usize,
    strip: usize,
    block: usize,
}

impl Sides {
    fn of<F: Real>(precision: Precision) -> Self {
        let Blocking { mr, nr, piece, .. } = Blocking::of(&Plan::<F>::custom(1, 1, 1, 1, 0), 1, precision);
        // `piece` is eight pairs of micro-panels.
        Self { mr, nr, strip: piece / 8, block: BLOCK.next_multiple_of(piece / 2) }
    }

    /// Sites of a wave, `most` or less; more, if it may be long, where few classes would leave a step of it with fewer tasks
    /// than [`TASKS`].
    fn wave(self, sites: usize, most: usize, classes: usize, long: bool) -> usize {
        let of_classes = classes.div_ceil(self.mr).saturating_add(classes.div_ceil(self.nr));
        let least = TASKS.saturating_sub(of_classes).saturating_mul(self.mr).min(LONGEST_WAVE * self.block);
        match even(sites, most, self.strip) {
            wave if long && wave < least && wave < sites => {
                let waves = (sites / least).max(1);
                even(sites, sites.div_ceil(waves), self.strip)
            }
            wave => wave,
        }
    }

    /// Tiles of a group with which each step of a wave has [`TASKS`] on average, if all tiles have: scores are so many strips
    /// of sites in each tile; of the gradients, that of the rows is as many, those of head and bias are micro-panels of classes.
    fn tiles(self, wave: usize, tile: usize, classes: usize) -> usize {
        let (tiles, strips) = (classes.div_ceil(tile), wave.div_ceil(self.mr));
        let scores = tiles.saturating_mul(strips) / TASKS;
        let gradients = classes.div_ceil(self.mr).saturating_add(classes.div_ceil(self.nr));
        let tile_groups = scores.min(gradients / TASKS.saturating_sub(strips).max(1));
        tiles.div_ceil(tile_groups.max(1))
    }
}

/// Size of the parts, `most` at most and a multiple of `unit` if they may be, into which `count` goes evenly.
fn even(count: usize, most: usize, unit: usize) -> usize {
    count
        .div_ceil(count.div_ceil(most.max(1)).max(1))
        .checked_next_multiple_of(unit)
        .unwrap_or(most)
        .min(most)
}

// Written out: the type of the rows need not have these itself.
impl<F> Clone for Plan<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Plan<F> {}

impl<F> Plan<F> {
    fn sizes(&self) -> [usize; 6] {
        [self.wave, self.block, self.tile_classes, self.tiles, self.kept, self.held]
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
        let [wave, block, tile_classes, tiles, kept, held] = self.sizes();
        write!(f, "Plan {{ wave: {wave}, block: {block}, tile_classes: {tile_classes}, ")?;
        write!(f, "tiles: {tiles}, kept: {kept}, held: {held} }}")
    }
}

#[cfg(test)]
mod tests;
