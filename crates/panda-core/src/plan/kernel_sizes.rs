//! Sizes of a plan that depend on micro-kernel and tasks.
//!
//! Each step of a wave should have enough parallel tasks: waves and groups of tiles grow where few
//! classes or sites would leave threads idle.
use super::{BLOCK_SITES, MAX_WAVE_BLOCKS, Plan, even_size};
use crate::{
    Precision, Real,
    blocking::{Blocking, MIN_TASKS, SHARED_PRODUCTS},
};

/// Units of a plan's sizes, for a kernel.
#[derive(Clone, Copy)]
pub(super) struct KernelSizes {
    /// Rows of a left micro-panel.
    pub mr: usize,
    /// Columns of a right micro-panel.
    pub nr: usize,
    /// Multiple of the sites of a wave, if possible.
    pub wave_unit: usize,
    /// Sites of a block.
    pub block_sites: usize,
}

impl KernelSizes {
    /// Returns the units of the kernel for a precision.
    pub(super) fn new<F: Real>(precision: Precision) -> Self {
        let Blocking { mr, nr, shared_rows, .. } =
            Blocking::for_precision(&Plan::<F>::custom(1, 1, 1, 1, 0), 1, precision);
        let block_sites = BLOCK_SITES.next_multiple_of(shared_rows / 2);
        Self { mr, nr, wave_unit: shared_rows / SHARED_PRODUCTS, block_sites }
    }

    /// Returns the sites of a wave, at most `max_sites`.
    ///
    /// With `allow_long`, it is longer where few classes would leave a step with fewer tasks than
    /// [`MIN_TASKS`].
    pub(super) fn wave_sites(
        self,
        sites: usize,
        max_sites: usize,
        classes: usize,
        allow_long: bool,
    ) -> usize {
        let class_tasks = classes.div_ceil(self.mr).saturating_add(classes.div_ceil(self.nr));
        let sites_for_tasks = MIN_TASKS.saturating_sub(class_tasks).saturating_mul(self.mr);
        let min_sites = sites_for_tasks.min(MAX_WAVE_BLOCKS * self.block_sites);
        match even_size(sites, max_sites, self.wave_unit) {
            short if allow_long && short < min_sites && short < sites => {
                let waves = (sites / min_sites).max(1);
                even_size(sites, sites.div_ceil(waves), self.wave_unit)
            }
            wave_sites => wave_sites,
        }
    }

    /// Returns the tiles of a group with enough tasks.
    ///
    /// Each step of a wave has [`MIN_TASKS`] tasks on average, if all tiles have as many.
    ///
    /// Tasks of scores are the strips of sites in each tile. Tasks of gradients are as many strips
    /// for the rows, and micro-panels of classes for head and bias.
    pub(super) fn group_tiles(self, wave_sites: usize, tile_classes: usize, classes: usize) -> usize {
        let (tiles, strips) = (classes.div_ceil(tile_classes), wave_sites.div_ceil(self.mr));
        let class_tasks = classes.div_ceil(self.mr).saturating_add(classes.div_ceil(self.nr));
        // Most groups for which the scores, and the gradients, have enough tasks.
        let score_groups = tiles.saturating_mul(strips) / MIN_TASKS;
        let gradient_groups = class_tasks / MIN_TASKS.saturating_sub(strips).max(1);
        tiles.div_ceil(score_groups.min(gradient_groups).max(1))
    }
}
