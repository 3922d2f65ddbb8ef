//! What stays from forward to backward, and where it lies: scores and hidden rows.
use std::ops::Range;

use crate::Plan;

/// Scores of the first sites: a wave after the other, in each wave tile after tile, each tile row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SavedScores<F> {
    pub scores: Vec<F>,
    /// How many sites have theirs here.
    pub sites: usize,
    wave: usize,
    tile: usize,
    classes: usize,
}

impl<F> SavedScores<F> {
    /// `scores` has room for the sites that the plan keeps, in waves of so many.
    pub fn new(scores: Vec<F>, plan: &Plan<F>, wave: usize, classes: usize) -> Self {
        Self { scores, sites: plan.kept, wave, tile: plan.tile_classes, classes }
    }

    /// How many sites a backward of another plan may take from here: all, or none if its tiles or classes are others.
    pub fn sites_for(&self, plan: &Plan<F>, classes: usize) -> usize {
        let same = self.tile == plan.tile_classes && self.classes == classes && !self.scores.is_empty();
        if same { self.sites } else { 0 }
    }

    /// A site's scores of a tile.
    pub fn row(&self, site: usize, tile: &Range<usize>) -> &[F] {
        let first = site / self.wave * self.wave;
        let rows = self.wave.min(self.sites - first);
        &self.scores[first * self.classes + rows * tile.start + (site - first) * tile.len()..][..tile.len()]
    }
}

/// Hidden rows of the first sites, a wave after the other.
#[derive(Debug)]
pub(crate) struct SavedHidden<F> {
    pub rows: Vec<F>,
    /// How many sites have theirs here, in waves of so many.
    pub sites: usize,
    pub wave: usize,
}

impl<F> Default for SavedHidden<F> {
    fn default() -> Self {
        Self { rows: Vec::new(), sites: 0, wave: 1 }
    }
}

/// A copy holds no rows: a backward makes them again.
impl<F> Clone for SavedHidden<F> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What is held never reaches a result.
impl<F> PartialEq for SavedHidden<F> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<F> SavedHidden<F> {
    /// Ranges of sites of the waves that a backward of another plan may take from here: all, or none if its waves are shorter.
    pub fn waves(&self, plan: &Plan<F>, kept: usize) -> impl Iterator<Item = Range<usize>> + Clone + use<F> {
        let fits = self.wave <= plan.wave && self.sites <= kept && !self.rows.is_empty();
        let (sites, wave) = (if fits { self.sites } else { 0 }, self.wave);
        (0..sites).step_by(wave).map(move |from| from..(from + wave).min(sites))
    }
}
