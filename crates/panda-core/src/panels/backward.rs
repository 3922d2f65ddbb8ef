//! Gradients of a wave against a flight of tiles.
use std::sync::Mutex;

use kernels::{
    Accumulate, View, ViewMut,
    packed::{Numbers, Operand},
};
use rayon::prelude::*;

use super::{Panels, Slots, lock};
use crate::{Real, cut::Cut, flight::Flight};

/// What a flight works in and adds to.
pub(crate) struct Targets<'a, F> {
    /// Rooms for scores.
    pub z: &'a Slots<F>,
    /// Column sums of each strip of each tile.
    pub sums: &'a mut [F],
    /// Of the hidden rows of the wave; the first flight overwrites it.
    pub gradient: &'a mut [F],
    /// Of the weight and the bias of the flight's classes.
    pub weight: &'a mut [F],
    pub bias: &'a mut [f64],
}

impl<W: Copy + Send + Sync> Panels<W> {
    /// Gradients of a wave and a flight; `h_right` are the wave's rows on the right.
    pub fn backward<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        flight: &Flight<F>,
        h_right: &[W],
        into: Targets<F>,
    ) {
        let Targets { z, sums, gradient, weight, bias } = into;
        if flight.recompute() {
            self.hold_for_scores::<F, N>(flight.plan, flight.head, &flight.classes);
        }
        self.hold_for_gradient::<F, N>(flight.plan, flight.head, &flight.classes);
        self.of_scores::<F, N>(flight, z, sums);
        let into_head = || self.add_to_head::<F, N>(flight, h_right, weight);
        let into_hidden = || self.add_to_hidden::<F, N>(flight, gradient);
        rayon::join(into_head, || rayon::join(into_hidden, || add_to_bias::<F, N>(flight, sums, bias)));
    }

    /// The gradients of the scores, packed on the left either way.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b, or as kept;  G = -A exp((Z - m) - log s), then += a at the selected classes
    ///     column sums of G;  pack G;  pack Gᵀ, as these steps of the block's sum
    /// ```
    fn of_scores<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        flight: &Flight<F>,
        z: &Slots<F>,
        sums: &mut [F],
    ) {
        let Flight { plan, head, classes, wave, .. } = flight;
        let (h, blocks) = (head.hidden, wave.len().div_ceil(plan.block));
        let cut = Cut::new::<F, N>(plan, h);
        let (count, strip) = (classes.len().div_ceil(plan.tile_classes), cut.strip);
        let (mut gt_room, mut g_room) = (std::mem::take(&mut self.gt_left), std::mem::take(&mut self.g_left));
        let gt_left =
            gt_room.room(count * blocks * cut.gt_left, N::ZERO).par_chunks_mut(blocks * cut.gt_left);
        let g_left = g_room.room(count * blocks * cut.g_left, N::ZERO).par_chunks_mut(blocks * cut.g_left);
        let sums = sums.par_chunks_mut(blocks * cut.strips * plan.tile_classes);
        sums.zip(gt_left.zip(g_left)).enumerate().for_each(|(tile, (sums, (gt_left, g_left)))| {
            let from = classes.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(classes.end - from);
            let packed = gt_left.par_chunks_mut(cut.gt_left).zip(g_left.par_chunks_mut(cut.g_left));
            let sums = sums.par_chunks_mut(cut.strips * width);
            let blocks = sums.zip(packed).zip(wave.par_chunks(plan.block)).enumerate();
            blocks.for_each(|(block, ((sums, (gt_left, g_left)), wave))| {
                let (depth, gt_left) = (wave.len(), Mutex::new(gt_left));
                let g_left = g_left.par_chunks_mut(N::words(Operand::Left, strip, width));
                let strips = sums.par_chunks_mut(width).zip(g_left).zip(wave.par_chunks(strip)).enumerate();
                strips.for_each(|(at, ((sums, g_left), sites))| {
                    let first = at * strip;
                    z.with(sites.len() * width, |z| {
                        if flight.recompute() {
                            let out = ViewMut::new(z, sites.len(), width);
                            self.scores::<F, N>(&cut, h, (block, first), tile, out);
                        }
                        z.chunks_exact_mut(width).zip(sites).for_each(|(g, &site)| flight.row(site, from, g));
                        sums.fill(F::ZERO);
                        F::add_rows(sums, z);
                        let g = View::new(z, sites.len(), width);
                        N::pack(g, Operand::Left, g_left, 0, width);
                        N::pack(g.transposed(), Operand::Left, &mut lock(&gt_left), first, depth);
                    });
                });
            });
        });
        (self.gt_left, self.g_left) = (gt_room, g_room);
    }

    /// ```text
    /// par for each tile, par for each piece of its classes:
    ///     for each block, par for each MR classes:  dW += Gᵀ h
    /// ```
    ///
    /// The pieces of a block come one after the other on a thread that nobody helps, with the rows in its second cache.
    fn add_to_head<F: Real, N: Numbers<F, Word = W>>(
        &self,
        flight: &Flight<F>,
        h_right: &[W],
        weight: &mut [F],
    ) {
        let Flight { plan, head, wave, .. } = flight;
        let (h, rows, blocks) = (head.hidden, wave.len(), wave.len().div_ceil(plan.block));
        let Cut { piece, leaf, gt_left, h_right: of_block, .. } = Cut::new::<F, N>(plan, h);
        let tiles =
            weight.par_chunks_mut(plan.tile_classes * h).zip(self.gt_left.par_chunks(blocks * gt_left));
        tiles.for_each(|(weight, packed)| {
            weight.par_chunks_mut(piece * h).enumerate().for_each(|(at, weight)| {
                for (block, packed) in packed.chunks(gt_left).enumerate() {
                    let depth = plan.block.min(rows - block * plan.block);
                    weight.par_chunks_mut(leaf * h).enumerate().for_each(|(row, weight)| {
                        let left = &packed[N::words(Operand::Left, at * piece + row * leaf, depth)..];
                        let out = ViewMut::new(weight, weight.len() / h, h);
                        N::multiply(out, left, &h_right[block * of_block..], depth, Accumulate::Add);
                    });
                }
            });
        });
    }

    /// ```text
    /// par for each block of sites:
    ///     for each tile, par for each MR sites:  dh (=|+=) G W
    /// ```
    fn add_to_hidden<F: Real, N: Numbers<F, Word = W>>(&self, flight: &Flight<F>, gradient: &mut [F]) {
        let Flight { plan, head, classes, wave, .. } = flight;
        let (h, blocks) = (head.hidden, wave.len().div_ceil(plan.block));
        let Cut { leaf, g_left, w_right, .. } = Cut::new::<F, N>(plan, h);
        gradient.par_chunks_mut(plan.block * h).enumerate().for_each(|(block, gradient)| {
            for tile in 0..classes.len().div_ceil(plan.tile_classes) {
                let depth = plan.tile_classes.min(classes.len() - tile * plan.tile_classes);
                let packed = &self.g_left[(tile * blocks + block) * g_left..];
                let first = classes.start == 0 && tile == 0;
                let how = if first { Accumulate::Replace } else { Accumulate::Add };
                gradient.par_chunks_mut(leaf * h).enumerate().for_each(|(row, gradient)| {
                    let left = &packed[N::words(Operand::Left, row * leaf, depth)..];
                    let out = ViewMut::new(gradient, gradient.len() / h, h);
                    N::multiply(out, left, &self.w_right[tile * w_right..], depth, how);
                });
            }
        });
    }
}

/// Adds the column sums of the strips of each tile.
///
/// ```text
/// par for each tile, par for each NR classes of it:  db += Σ G, strip after strip
/// ```
fn add_to_bias<F: Real, N: Numbers<F>>(flight: &Flight<F>, sums: &[F], bias: &mut [f64]) {
    let Flight { plan, head, wave, .. } = flight;
    let Cut { nr, strip, strips, .. } = Cut::new::<F, N>(plan, head.hidden);
    let of_tile = wave.len().div_ceil(plan.block) * strips * plan.tile_classes;
    bias.par_chunks_mut(plan.tile_classes).zip(sums.par_chunks(of_tile)).for_each(|(bias, sums)| {
        let width = bias.len();
        bias.par_chunks_mut(nr).enumerate().for_each(|(at, bias)| {
            for (wave, sums) in wave.chunks(plan.block).zip(sums.chunks(strips * width)) {
                for sums in sums.chunks_exact(width).take(wave.len().div_ceil(strip)) {
                    bias.iter_mut().zip(&sums[at * nr..]).for_each(|(b, g)| *b += g.to_f64());
                }
            }
        });
    });
}
