//! How many tasks the parallel steps of a wave have, as the loops of both directions cut them.
use crate::{
    Plan, Precision, Real, Shape,
    cut::{Cut, FEW},
};

/// Tasks of each parallel step of a full wave: what threads can do at the same time. Where a step is one of a flight of
/// tiles, of the average flight of a call.
///
/// The gradients of head, hidden rows and bias are one step: their tasks run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks {
    /// Makes a few hidden rows.
    pub rows: usize,
    /// Packs some steps of a micro-panel of weights, for scores.
    pub weights_for_scores: usize,
    /// The same for the gradient of the rows.
    pub weights_for_gradient: usize,
    /// Scores of a strip of sites in a tile.
    pub scores: usize,
    /// Gradients of these.
    pub score_gradients: usize,
    /// Gradient of the weights of a micro-panel of classes, over a block of sites; the blocks follow one another.
    pub head: usize,
    /// Gradient of a micro-panel of hidden rows, over a tile; the tiles follow one another.
    pub hidden: usize,
    /// Gradient of the bias of a micro-panel of classes.
    pub bias: usize,
    /// Pulls the gradient of a few rows back.
    pub pull_back: usize,
}

impl<F: Real> Plan<F> {
    /// How many tasks there are in the parallel steps of a call.
    pub fn tasks(&self, shape: Shape, precision: Precision) -> Tasks {
        let Shape { sites, hidden: h, classes, .. } = shape;
        let plan = self.fitted(sites, classes);
        let cut = Cut::of(&plan, h, precision);
        let wave = [plan.kept, sites - plan.kept].map(|part| plan.step(part, cut.strip)).into_iter().max();
        let wave = wave.unwrap_or(1).min(sites);
        let tiles = classes.div_ceil(plan.tile_classes);
        let flights = tiles.div_ceil(plan.tiles).max(1);
        let of_tiles = |tasks: &dyn Fn(usize) -> usize| over(classes, plan.tile_classes, tasks) / flights;
        let strips = over(wave, plan.block, |rows| rows.div_ceil(cut.strip));
        let scores = of_tiles(&|_| strips);
        Tasks {
            rows: over(wave, plan.block, |rows| over(rows, cut.strip, |rows| rows.div_ceil(FEW))),
            weights_for_scores: of_tiles(&|width| cut.packing(width, h)),
            weights_for_gradient: of_tiles(&|width| cut.packing(h, width)),
            scores,
            score_gradients: scores,
            head: of_tiles(&|width| over(width, cut.piece, |classes| classes.div_ceil(cut.leaf))),
            hidden: over(wave, plan.block, |rows| rows.div_ceil(cut.leaf)),
            bias: of_tiles(&|width| width.div_ceil(cut.nr)),
            pull_back: wave.div_ceil(FEW),
        }
    }
}

/// Tasks of all parts of a size into which something is cut, the last of them shorter.
fn over(all: usize, size: usize, tasks: impl Fn(usize) -> usize) -> usize {
    let last = all % size;
    (all / size).saturating_mul(tasks(size)).saturating_add(if last > 0 { tasks(last) } else { 0 })
}
