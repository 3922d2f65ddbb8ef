//! How the work is cut: by shape alone, so that bits never depend on the number of threads.
use crate::{Error, Result};

/// Tile and lane sizes.
///
/// A *tile* is `rows x classes` scores. Forward gives every block of `rows` sites to a task. Backward runs in
/// waves: `row_lanes` blocks of sites at a time, each of them split over `class_lanes` runs of class tiles.
/// A lane owns its part of the head's gradient, and lanes are summed in their order, so there are no atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Sites a tile.
    pub rows: usize,
    /// Classes a tile.
    pub classes: usize,
    /// Blocks of sites that backward has in flight; each beyond the first keeps a copy of the head's gradient.
    pub row_lanes: usize,
    /// Runs of class tiles that backward has in flight; each keeps `rows x H` partial hidden gradients.
    pub class_lanes: usize,
}

/// Lanes in flight: enough for a few cores, little enough for memory.
const LANES: usize = 8;
/// Sites and classes of a tile: 1 MiB of `f32` at most, large enough for a matrix product to be efficient.
const ROWS: usize = 256;
const CLASSES: usize = 1024;

impl Tiling {
    /// A good cut for *N* sites and *C* classes.
    ///
    /// What it costs in memory is [`transient`](Self::transient), which does not grow with N.
    pub fn for_shape(sites: usize, classes: usize) -> Self {
        let (rows, tile) = (sites.clamp(1, ROWS), classes.clamp(1, CLASSES));
        let class_lanes = classes.div_ceil(tile).clamp(1, LANES);
        let row_lanes = (LANES / class_lanes).clamp(1, sites.div_ceil(rows).max(1));
        Self { rows, classes: tile, row_lanes, class_lanes }
    }

    /// Elements that backward has allocated beside its arguments and results. Forward has `rows (H + classes)` for
    /// each thread.
    ///
    /// The matrix library's own packing buffer, about 4 MiB a thread whatever the shape, comes on top.
    pub fn transient(&self, sites: usize, hidden: usize, classes: usize) -> usize {
        let Self { rows, classes: tile, row_lanes, class_lanes } = self.fitted(sites, classes.max(1));
        let lanes = row_lanes * class_lanes;
        // Hidden rows of a wave; a lane's tile and partial hidden gradient; a row lane's copy of the head.
        let wave = (row_lanes * rows).min(sites) * hidden;
        wave + lanes * rows * (tile + hidden) + row_lanes * classes * (hidden + 2)
    }

    /// The same cut without the parts that `sites` and `classes` leave empty.
    pub(crate) fn fitted(&self, sites: usize, classes: usize) -> Self {
        let (rows, tile) = (self.rows.min(sites.max(1)), self.classes.min(classes));
        Self {
            rows,
            classes: tile,
            row_lanes: self.row_lanes.min(sites.div_ceil(rows).max(1)),
            class_lanes: self.class_lanes.min(classes.div_ceil(tile)),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("tiling.rows", self.rows),
            ("tiling.classes", self.classes),
            ("tiling.row_lanes", self.row_lanes),
            ("tiling.class_lanes", self.class_lanes),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some(&(argument, _)) => Err(Error::Zero { argument }),
            None => Ok(()),
        }
    }
}
