//! Scores of a wave against a flight of tiles.
use std::ops::Range;

use kernels::{ViewMut, packed::Numbers};
use rayon::prelude::*;

use super::{Panels, Slots, parts};
use crate::{Head, Plan, Real, Selection, cut::Cut};

/// Where the scores of a flight go.
pub(crate) enum Room<'a, F> {
    /// All of them, tile after tile.
    Kept(&'a mut [F]),
    /// A few rows for each task.
    Passing(&'a Slots<F>),
}

/// What forward wants to know of a flight.
pub(crate) struct Found<'a, F> {
    /// Largest score and sum of exponentials of each row of each tile.
    pub statistics: &'a mut [(F, f64)],
    /// Selected scores of each row of each tile, where the class is one of the tile's.
    pub picked: &'a mut [F],
}

/// A wave against the classes of a flight.
pub(crate) struct Scores<'a, F> {
    pub plan: &'a Plan<F>,
    pub head: &'a Head<'a, F>,
    pub selection: &'a Selection,
    pub wave: &'a [usize],
    pub flight: Range<usize>,
}

impl<W: Copy + Send + Sync> Panels<W> {
    /// Scores of a wave and a flight, and what is to be known of them.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b;  m = max Z;  s = Σ exp(Z - m);  remember Z at the selected classes
    /// ```
    pub fn forward<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        of: &Scores<F>,
        room: Room<F>,
        found: Found<F>,
    ) {
        let Scores { plan, head, selection, wave, ref flight } = *of;
        let cut = Cut::new::<F, N>(plan, head.hidden);
        let (rows, per_site, strip) = (wave.len(), selection.per_site().max(1), cut.strip);
        self.hold_for_scores::<F, N>(plan, head, flight);
        let (kept, slots) = match room {
            Room::Kept(z) => (Some(z), None),
            Room::Passing(slots) => (None, Some(slots)),
        };
        let (tiles, blocks) = (flight.len().div_ceil(plan.tile_classes), rows.div_ceil(plan.block));
        let found = found.statistics.par_chunks_mut(rows).zip(found.picked.par_chunks_mut(rows * per_site));
        let kept = parts(kept, rows * plan.tile_classes, tiles);
        kept.zip(found).enumerate().for_each(|(tile, (kept, (statistics, picked)))| {
            let from = flight.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(flight.end - from);
            let bias = head.bias.map(|bias| &bias[from..from + width]);
            let score = |at, z: &mut [F], wave: &[usize], statistics: &mut [_], picked: &mut [F]| {
                self.scores::<F, N>(&cut, head.hidden, at, tile, ViewMut::new(z, wave.len(), width));
                F::tile_statistics(z, width, bias, statistics);
                for ((z, picked), &site) in z.chunks(width).zip(picked.chunks_mut(per_site)).zip(wave) {
                    for (slot, class) in selection.active(site) {
                        if let Some(z) = (class as usize).checked_sub(from).and_then(|class| z.get(class)) {
                            picked[slot] = *z;
                        }
                    }
                }
            };
            let found =
                statistics.par_chunks_mut(plan.block).zip(picked.par_chunks_mut(plan.block * per_site));
            let kept = parts(kept, plan.block * width, blocks);
            let blocks = kept.zip(found).zip(wave.par_chunks(plan.block)).enumerate();
            blocks.for_each(|(block, ((kept, (statistics, picked)), wave))| {
                let found = statistics.par_chunks_mut(strip).zip(picked.par_chunks_mut(strip * per_site));
                let kept = parts(kept, strip * width, wave.len().div_ceil(strip));
                let strips = kept.zip(found).zip(wave.par_chunks(strip)).enumerate();
                strips.for_each(|(at, ((kept, (statistics, picked)), wave))| {
                    let at = (block, at * strip);
                    match (kept, slots) {
                        (None, Some(slots)) => {
                            slots.with(wave.len() * width, |z| score(at, z, wave, statistics, picked))
                        }
                        (Some(z), _) => score(at, z, wave, statistics, picked),
                        (None, None) => unreachable!("scores are kept or pass"),
                    }
                });
            });
        });
    }
}
