//! A wave of sites against some tiles of classes.
use std::ops::Range;

use crate::{
    Head, Plan, Real,
    score_gradient::{ScoreGradient, Scores},
};

/// A wave of sites against the classes of a flight.
pub(crate) struct Flight<'a, F> {
    pub plan: &'a Plan,
    pub head: &'a Head<'a, F>,
    pub classes: Range<usize>,
    pub wave: &'a [usize],
    pub step: &'a ScoreGradient<'a, F>,
    /// Sites, from the first, whose scores were kept.
    pub kept_sites: usize,
}

/// What a flight adds to.
pub(crate) struct Targets<'a, F> {
    /// Of the hidden rows of the wave; the first flight overwrites it.
    pub gradient: &'a mut [F],
    /// Of the weight and the bias of the flight's classes.
    pub weight: &'a mut [F],
    pub bias: &'a mut [f64],
}

impl<F: Real> Flight<'_, F> {
    /// Turns a site's scores of a tile, unless they were kept elsewhere, into their gradient.
    pub fn row(&self, site: usize, from: usize, g: &mut [F]) {
        let classes = from..from + g.len();
        let z = match site < self.kept_sites {
            true => Scores::Kept(self.step.normalized.kept.row(site, &classes)),
            false => Scores::Here(self.head.bias.map(|bias| &bias[classes])),
        };
        self.step.apply(site, from, z, g);
    }

    /// Adds the column sums of the blocks of each tile.
    pub fn add_to_bias(&self, sums: &[F], bias: &mut [f64]) {
        let blocks = self.wave.len().div_ceil(self.plan.block);
        for (bias, sums) in bias.chunks_mut(self.plan.classes).zip(sums.chunks(blocks * self.plan.classes)) {
            for sums in sums.chunks_exact(bias.len()) {
                bias.iter_mut().zip(sums).for_each(|(b, g)| *b += g.to_f64());
            }
        }
    }
}
