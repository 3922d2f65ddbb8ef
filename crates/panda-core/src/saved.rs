//! Buffers of scores and hidden rows that the normalizer saves for backward.
//!
//! They hold those of the first sites, as many as the budget of the plan allows. A wave is a group
//! of `wave_sites` consecutive sites that are processed together.
use std::ops::Range;

use crate::Plan;

/// Scores of the first sites, wave after wave.
///
/// In a wave they are stored tile after tile, and row-major in a tile.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SavedScores<F> {
    pub scores: Vec<F>,
    /// Number of sites whose scores are saved.
    pub sites: usize,
    /// Sites of a wave.
    wave_sites: usize,
    tile_classes: usize,
    classes: usize,
}

impl<F> SavedScores<F> {
    /// Takes a buffer for a plan's scores, in waves of `wave_sites` sites.
    pub fn new(scores: Vec<F>, plan: &Plan<F>, wave_sites: usize, classes: usize) -> Self {
        let Plan { saved_scores: sites, tile_classes, .. } = *plan;
        Self { scores, sites, wave_sites, tile_classes, classes }
    }

    /// Returns the number of sites whose scores another plan may use.
    ///
    /// It is 0 for other tiles or classes.
    pub fn sites_for(&self, plan: &Plan<F>, classes: usize) -> usize {
        let is_compatible =
            self.tile_classes == plan.tile_classes && self.classes == classes && !self.scores.is_empty();
        if is_compatible { self.sites } else { 0 }
    }

    /// Returns the scores of a site in a tile.
    pub fn row(&self, site: usize, tile: &Range<usize>) -> &[F] {
        let first_site = site / self.wave_sites * self.wave_sites;
        let rows = self.wave_sites.min(self.sites - first_site);
        let tile_start = first_site * self.classes + rows * tile.start;
        &self.scores[tile_start + (site - first_site) * tile.len()..][..tile.len()]
    }
}

/// Hidden rows of the first sites, wave after wave.
#[derive(Debug)]
pub(crate) struct SavedHidden<F> {
    pub rows: Vec<F>,
    /// Number of sites whose rows are saved.
    pub sites: usize,
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
    /// Returns the waves of saved rows that another plan may use.
    ///
    /// There are none if the waves of the plan are shorter.
    pub fn waves(
        &self,
        plan: &Plan<F>,
        score_sites: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<F> {
        let fits = self.wave_sites <= plan.wave_sites && self.sites <= score_sites && !self.rows.is_empty();
        let (sites, wave_sites) = (if fits { self.sites } else { 0 }, self.wave_sites);
        (0..sites).step_by(wave_sites).map(move |first| first..(first + wave_sites).min(sites))
    }
}
