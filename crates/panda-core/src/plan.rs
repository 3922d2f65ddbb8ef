//! How the work is cut: by shape and budget alone, so that bits never depend on the number of threads.
use crate::{Error, MemoryBudget, Result, kept::even};

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

/// The cut.
///
/// Sites go in *waves*, whose hidden rows exist at once; the scores of a wave go in *tiles* of `classes` columns, of
/// which `tiles` are in flight at once. Each step of a wave is many tasks, and each task owns what it writes: a tile
/// of scores, the head's gradient of a tile's classes, the hidden gradient of `block` sites. So there are no
/// atomics and nothing is summed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Sites of a wave.
    pub wave: usize,
    /// Sites of a task that owns hidden rows.
    pub block: usize,
    /// Classes of a tile.
    pub classes: usize,
    /// Tiles of a wave in flight.
    pub tiles: usize,
    /// Sites, counted from the first, whose scores are kept from forward to backward.
    pub kept: usize,
}

/// Bytes of scores in flight: they stay in the shared cache between the product that makes them and the two that use them.
const IN_FLIGHT: usize = 16 << 20;
/// Sites of a wave, where few classes do not ask for more: the sum of a weight gradient's product is that long.
const WAVE: usize = 1536;
const LONGEST_WAVE: usize = 2048;
const SHORTEST_WAVE: usize = 64;
const BLOCK: usize = 256;
/// Sites of a task that makes scores, at most: the matrix library packs the weight anew for each.
const TASK: usize = 1536;
/// Tasks that a flight of few tiles is at least cut into.
const TASKS: usize = 8;
const CLASSES: usize = 480;
/// Elements of a vector register: tiles are so many times some.
const LANES: usize = 16;

/// Bytes of the matrix library's packing buffers for each thread, about.
pub const PACKING: usize = 4 << 20;

impl Plan {
    /// The cut for a shape whose elements have `element` bytes.
    pub fn new(shape: Shape, element: usize, budget: MemoryBudget) -> Self {
        let Shape { sites, hidden, classes, .. } = shape;
        let (sites, element, limit) = (sites.max(1), element.max(1), budget.limit());
        let in_flight = (limit / 3).min(IN_FLIGHT);
        // Hidden rows and their gradient take two rows of H, a tile one of its own.
        let row = hidden.saturating_mul(2).saturating_add(classes.min(CLASSES)).saturating_mul(element);
        let fits = |wave: usize| wave.saturating_mul(row) <= limit / 2;
        let scores = classes.max(1).saturating_mul(element);
        let mut wave = (in_flight / scores).clamp(WAVE, LONGEST_WAVE);
        while wave > SHORTEST_WAVE && !fits(wave) {
            wave /= 2;
        }
        let wave = even(sites, wave);
        // As many flights as must be, each of an even number of tiles: an odd one leaves half of the threads idle once.
        let flight = classes.div_ceil(scores.saturating_mul(wave).div_ceil(in_flight.max(1)).max(1));
        let tiles = match flight.div_ceil(CLASSES) {
            few @ (0 | 1) => few.max(1),
            many => many.next_multiple_of(2),
        };
        let tile = flight.div_ceil(tiles).next_multiple_of(LANES);
        // Rows of a power of two crowd into a few sets of the cache.
        let tile = if tile >= 8 * LANES && tile.is_power_of_two() { tile + LANES } else { tile };
        let block = even(wave, BLOCK).next_multiple_of(LANES);
        let plan = Self { wave, block, classes: tile, tiles, kept: 0 };
        let plan = plan.fitted(sites, classes.max(1));
        let rest = limit.saturating_sub(plan.bytes(shape, element));
        let kept = if budget.keeps() { rest / scores } else { 0 };
        Self { kept: kept.min(shape.sites), ..plan }
    }

    /// Bytes held beside arguments and results, scores kept included.
    ///
    /// The matrix library's packing buffers, about [`PACKING`] a thread whatever the shape, come on top.
    pub fn bytes(&self, shape: Shape, element: usize) -> usize {
        let Shape { sites, hidden, classes, selected } = shape;
        let cut = self.fitted(sites, classes.max(1));
        let wide = |size: usize| size as u128;
        let rows = 2 * wide(cut.wave) * wide(hidden)
            + wide(cut.tiles) * wide(cut.classes) * wide(cut.wave + cut.wave.div_ceil(cut.block))
            + wide(cut.kept) * wide(classes);
        // Largest score and sum of each row of a tile, padded to two words.
        let statistics = wide(cut.tiles) * wide(cut.wave) * 16;
        // Largest score, log-sum, emissions; the site list of a wave.
        let compact = wide(sites) * (wide(element) + 8 + 8 * wide(selected)) + 8 * wide(cut.wave);
        usize::try_from(rows.saturating_mul(wide(element)) + statistics + compact).unwrap_or(usize::MAX)
    }

    /// Floating-point operations of forward and backward: 8 N H C, less 2 H C for each site kept.
    pub fn operations(&self, shape: Shape) -> u64 {
        let Shape { sites, hidden, classes, .. } = shape;
        let product = |sites: usize| 2 * sites as u128 * hidden as u128 * classes as u128;
        u64::try_from(4 * product(sites) - product(self.kept.min(sites))).unwrap_or(u64::MAX)
    }

    /// Sites of a task that makes scores of so many, a multiple of `block`.
    pub(crate) fn task(&self, sites: usize) -> usize {
        let parts = sites.div_ceil(TASK).max(TASKS / self.tiles);
        sites.div_ceil(parts.max(1)).next_multiple_of(self.block)
    }

    /// The same cut without the parts that `sites` and `classes` leave empty.
    pub(crate) fn fitted(&self, sites: usize, classes: usize) -> Self {
        let tile = self.classes.clamp(1, classes);
        let wave = self.wave.clamp(1, sites.max(1));
        let all_tiles = classes.div_ceil(tile);
        Self {
            wave,
            block: self.block.clamp(1, wave),
            classes: tile,
            tiles: all_tiles.div_ceil(all_tiles.div_ceil(self.tiles.max(1))),
            kept: self.kept.min(sites),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("plan.wave", self.wave),
            ("plan.block", self.block),
            ("plan.classes", self.classes),
            ("plan.tiles", self.tiles),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some(&(argument, _)) => Err(Error::Zero { argument }),
            None => Ok(()),
        }
    }
}
