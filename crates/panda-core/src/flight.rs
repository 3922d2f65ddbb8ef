//! A wave of sites against some tiles of classes, on the way back.
use std::ops::Range;

use crate::{
    Head, Plan, Real,
    score_gradient::{ScoreGradient, Scores},
};

/// A wave of sites against the classes of a flight.
pub(crate) struct Flight<'a, F> {
    pub plan: &'a Plan<F>,
    pub head: &'a Head<'a, F>,
    pub classes: Range<usize>,
    /// Sites whose scores were kept, or others, never both.
    pub wave: &'a [usize],
    pub step: &'a ScoreGradient<'a, F>,
    /// Sites, from the first, whose scores were kept.
    pub kept_sites: usize,
}

impl<F: Real> Flight<'_, F> {
    /// Whether the wave's scores were not kept.
    pub fn recompute(&self) -> bool {
        self.wave[0] >= self.kept_sites
    }

    /// Turns a site's scores of a tile, unless they were kept elsewhere, into their gradient.
    pub fn row(&self, site: usize, from: usize, g: &mut [F]) {
        let classes = from..from + g.len();
        let z = match self.recompute() {
            false => Scores::Kept(self.step.normalized.kept.row(site, &classes)),
            true => Scores::Here(self.head.bias.map(|bias| &bias[classes])),
        };
        self.step.apply(site, from, z, g);
    }
}
