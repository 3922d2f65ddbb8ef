//! Scores that stay from forward to backward, and where they lie.
use std::ops::Range;

use crate::Plan;

/// Scores of the first sites: a wave after the other, in each wave tile after tile, each tile row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Kept<F> {
    pub scores: Vec<F>,
    /// How many sites have theirs here.
    pub sites: usize,
    wave: usize,
    tile: usize,
    classes: usize,
}

impl<F> Kept<F> {
    /// `scores` has room for the sites that the plan keeps.
    pub fn new(scores: Vec<F>, plan: &Plan, classes: usize) -> Self {
        Self { scores, sites: plan.kept, wave: plan.wave, tile: plan.classes, classes }
    }

    /// How many sites a backward of another plan may take from here: all, or none if its tiles or classes are others.
    pub fn sites_for(&self, plan: &Plan, classes: usize) -> usize {
        let same = self.tile == plan.classes && self.classes == classes && !self.scores.is_empty();
        if same { self.sites } else { 0 }
    }

    /// A site's scores of a tile.
    pub fn row(&self, site: usize, tile: &Range<usize>) -> &[F] {
        let first = site / self.wave * self.wave;
        let rows = self.wave.min(self.sites - first);
        &self.scores[first * self.classes + rows * tile.start + (site - first) * tile.len()..][..tile.len()]
    }
}

/// Cuts a list of sites into waves.
///
/// All but the last are full: buffers then have one size whatever the number of sites, and there are no more waves than
/// if all were of one size.
pub(crate) fn waves(mut sites: impl Iterator<Item = usize>, most: usize) -> impl Iterator<Item = Vec<usize>> {
    std::iter::from_fn(move || Some(sites.by_ref().take(most).collect::<Vec<_>>()).filter(|w| !w.is_empty()))
}
