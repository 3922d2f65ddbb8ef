//! How the work is cut: by shape and budget alone, so that bits never depend on the number of threads.
use std::ops::Range;

use kernels::packed::{Full, half::Half};

use crate::{Error, MemoryBudget, Precision, Result, panels::packed};

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
/// Sites go in *waves*, whose hidden rows exist at once, in *blocks*; classes go in *tiles*, of which some are in flight:
/// their weights and the gradients of their scores exist, packed, for the whole wave. Each step of a wave is many
/// tasks, and each task owns what it writes: the gradients of a block's scores in a tile, some classes of the head's gradient,
/// some rows of the hidden one. So there are no atomics and nothing is summed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Sites of a wave.
    pub wave: usize,
    /// Sites of a block.
    pub block: usize,
    /// Classes of a tile.
    pub classes: usize,
    /// Tiles of a wave in flight.
    pub tiles: usize,
    /// Sites, counted from the first, whose scores are kept from forward to backward.
    pub kept: usize,
}

/// Bytes of weights and score gradients in flight: they stay in the shared cache between the products that make them and
/// those that use them.
const IN_FLIGHT: usize = 24 << 20;
/// Sites of a wave, where few classes do not ask for more: the head is read, and its gradient touched, once a wave.
const WAVE: usize = 7 * BLOCK;
const LONGEST_WAVE: usize = 10 * BLOCK;
/// Where all scores are kept.
const KEPT_WAVE: usize = 12 * BLOCK;
const SHORTEST_WAVE: usize = 64;
/// Sites of a block: eight times the strip of the AVX-512 kernel, and of the one for bf16.
const BLOCK: usize = 224;
const HALF_BLOCK: usize = 256;
/// Classes of a tile: whole strips of the widest kernels, whose packed weight stays in the second cache.
const CLASSES: usize = 448;
/// Classes of a small tile are a multiple of it, as a strip of most kernels is.
const SIDE: usize = 32;

/// Bytes of every site: largest score, log-sum, emissions.
fn compact(shape: Shape, element: usize) -> usize {
    let of_site = shape.selected.saturating_mul(8).saturating_add(element.saturating_add(8));
    shape.sites.saturating_mul(of_site)
}

impl Plan {
    /// The cut for a shape whose elements have `element` bytes.
    pub fn new(shape: Shape, element: usize, precision: Precision, budget: MemoryBudget) -> Self {
        let Shape { sites, hidden, classes, .. } = shape;
        let (sites, classes, element) = (sites.max(1), classes.max(1), element.max(1));
        // What every site takes is not to be had for waves and tiles.
        let all = budget.limit();
        let limit = all.saturating_sub(compact(shape, element)).max(all / 4);
        let packed = precision.bytes(element);
        // A hidden row and its gradient, and the row packed twice.
        let row = hidden.saturating_mul(2).saturating_mul(element.saturating_add(packed));
        let fits = |wave: usize| wave.saturating_mul(row) <= limit / 8 * 5;
        let scores = classes.saturating_mul(element);
        let mut wave = (IN_FLIGHT / scores).clamp(WAVE, LONGEST_WAVE);
        while wave > SHORTEST_WAVE && !fits(wave) {
            wave = (wave / 2).max(SHORTEST_WAVE);
        }
        let wave = wave.min(sites);
        let block = match precision {
            Precision::Full => BLOCK,
            Precision::Bf16 => HALF_BLOCK,
        };
        let tile =
            if classes > 4 * CLASSES { CLASSES } else { even(classes, CLASSES).next_multiple_of(SIDE) };
        let of_tile = tile.saturating_mul(2 * packed).saturating_mul(wave.saturating_add(hidden));
        let tiles = even(classes.div_ceil(tile), ((limit / 8 * 3).min(IN_FLIGHT) / of_tile.max(1)).max(1));
        let plan = Self { wave, block, classes: tile, tiles, kept: 0 };
        let plan = plan.fitted(sites, classes);
        let rest = all.saturating_sub(plan.bytes(shape, element, precision));
        let kept = if budget.keeps() { rest / scores } else { 0 };
        // All scores take so much memory that longer waves do not matter, and the head is packed once for each.
        let whole = Self { wave: even(sites, KEPT_WAVE), kept: shape.sites, ..plan };
        match kept >= sites && whole.bytes(shape, element, precision) <= all {
            true => whole,
            false => Self { kept: kept.min(shape.sites), ..plan },
        }
    }

    /// Bytes held beside arguments and results, scores kept included.
    pub fn bytes(&self, shape: Shape, element: usize, precision: Precision) -> usize {
        let Shape { sites, hidden, classes, selected } = shape;
        let cut = self.fitted(sites, classes.max(1));
        let wide = |size: usize| size as u128;
        let product = |sizes: &[usize]| sizes.iter().fold(1u128, |p, &size| p.saturating_mul(wide(size)));
        let [blocks, picked] = [cut.wave.div_ceil(cut.block), selected.max(1)];
        let (panels, passing) = match (precision, element) {
            (Precision::Full, 8) => packed::<f64, Full>(&cut, hidden),
            (Precision::Full, _) => packed::<f32, Full>(&cut, hidden),
            (Precision::Bf16, 8) => packed::<f64, Half>(&cut, hidden),
            (Precision::Bf16, _) => packed::<f32, Half>(&cut, hidden),
        };
        let numbers = [
            // Hidden rows of a wave and their gradient; kept scores; scores that pass.
            product(&[2, cut.wave, hidden]),
            product(&[cut.kept, classes]),
            passing,
            // Column sums and selected scores of each tile.
            product(&[cut.tiles, cut.classes, blocks]),
            product(&[cut.tiles, cut.wave, picked]),
        ];
        let numbers = numbers.into_iter().fold(0, u128::saturating_add).saturating_mul(wide(element));
        // Largest score and sum of each row of a tile, padded to two words; the site list of a wave.
        let lists = product(&[cut.tiles, cut.wave, 16]).saturating_add(product(&[cut.wave, 8]));
        let compact = wide(compact(shape, element));
        let bytes = [panels, numbers, lists, compact].into_iter().fold(0, u128::saturating_add);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Floating-point operations of forward and backward: 8 N H C, less 2 H C for each site kept.
    pub fn operations(&self, shape: Shape) -> u64 {
        let Shape { sites, hidden, classes, .. } = shape;
        // Of a quarter of a site's: forward and backward have three, and a fourth where scores are not kept.
        let quarters = 4 * sites as u128 - self.kept.min(sites) as u128;
        let quarter = (2 * hidden as u128).saturating_mul(classes as u128);
        u64::try_from(quarters.saturating_mul(quarter)).unwrap_or(u64::MAX)
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

    /// Runs of tiles that are in flight together, as ranges of classes.
    pub(crate) fn flights(&self, classes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = self.tiles * self.classes;
        (0..classes).step_by(step).map(move |from| from..(from + step).min(classes))
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

/// Size of the parts, `most` at most, into which `count` goes evenly.
fn even(count: usize, most: usize) -> usize {
    count.div_ceil(count.div_ceil(most).max(1))
}
