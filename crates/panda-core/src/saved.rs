//! Scores and hidden rows that the normalizer's forward pass saves for backward.
//!
//! They are those of the first sites, as many as the budget of the plan allows. A wave is a range
//! of `wave_sites` sites that are processed together; a tile is a range of classes. Backward may
//! run with another plan than forward: it uses what is compatible, and computes the rest again.
use std::ops::Range;

use crate::Plan;

/// Scores of the first sites, wave after wave.
///
/// In a wave they are stored tile after tile, and row-major in a tile.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SavedScores<F> {
    /// Scores of all saved sites, *sites x C* in this order.
    pub scores: Vec<F>,
    /// Number of sites whose scores are saved.
    pub sites: usize,
    /// Sites of a wave.
    wave_sites: usize,
    /// Classes of a tile.
    tile_classes: usize,
    /// Number of classes C.
    classes: usize,
}

impl<F> SavedScores<F> {
    /// Takes a buffer for a plan's scores, in waves of `wave_sites` sites.
    pub(crate) fn new(scores: Vec<F>, plan: &Plan<F>, wave_sites: usize, classes: usize) -> Self {
        Self { scores, sites: plan.saved_scores, wave_sites, tile_classes: plan.tile_classes, classes }
    }

    /// Returns the number of sites whose scores a plan can read.
    ///
    /// It is 0 if the tiles of the plan have another size, as a tile's scores are contiguous.
    pub(crate) fn compatible_sites(&self, plan: &Plan<F>, classes: usize) -> usize {
        let is_compatible =
            self.tile_classes == plan.tile_classes && self.classes == classes && !self.scores.is_empty();
        if is_compatible { self.sites } else { 0 }
    }

    /// Returns the scores of a site in a tile.
    pub(crate) fn row(&self, site: usize, tile: &Range<usize>) -> &[F] {
        let first_site = site / self.wave_sites * self.wave_sites;
        let sites_in_wave = self.wave_sites.min(self.sites - first_site);
        let tile_start = first_site * self.classes + sites_in_wave * tile.start;
        &self.scores[tile_start + (site - first_site) * tile.len()..][..tile.len()]
    }
}

/// Hidden rows of the first sites, wave after wave.
#[derive(Debug)]
pub(crate) struct SavedHidden<F> {
    /// Hidden rows of all saved sites, *sites x H*.
    pub rows: Vec<F>,
    /// Number of sites whose rows are saved.
    pub sites: usize,
    /// Sites of a wave.
    pub wave_sites: usize,
}

impl<F> Default for SavedHidden<F> {
    fn default() -> Self {
        Self { rows: Vec::new(), sites: 0, wave_sites: 1 }
    }
}

/// A clone has no rows; backward computes them again.
impl<F> Clone for SavedHidden<F> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Saved rows do not affect results, so they are not compared.
impl<F> PartialEq for SavedHidden<F> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<F> SavedHidden<F> {
    /// Returns the waves of saved rows that a plan can process.
    ///
    /// Either all waves or none: the buffers of the plan must have space for such a wave, and the
    /// scores of all of these sites must be usable too (`score_sites` of them are), because a wave
    /// has saved scores at all of its sites or at none.
    pub(crate) fn compatible_waves(
        &self,
        plan: &Plan<F>,
        score_sites: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<F> {
        let is_compatible =
            self.wave_sites <= plan.wave_sites && self.sites <= score_sites && !self.rows.is_empty();
        let (sites, wave_sites) = (if is_compatible { self.sites } else { 0 }, self.wave_sites);
        (0..sites).step_by(wave_sites).map(move |start| start..(start + wave_sites).min(sites))
    }
}
