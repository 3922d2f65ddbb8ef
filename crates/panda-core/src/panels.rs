//! The factors of a wave's three products, packed: one engine for all kernels.
//!
//! ```text
//! Z = h Wᵀ      dW += Gᵀ h      dh += G W
//! ```
//!
//! Sites are cut into blocks and classes into tiles as the [`Plan`] says. Either side of a product wants its own order,
//! so that each of the six factors is packed for itself, and once; scores and their gradients exist for a few rows of a
//! tile at a time, in the nearest cache. A task owns what it writes, and every sum has one order: blocks and tiles by
//! number, whoever computes them.
use std::ops::Range;

use kernels::{
    Accumulate, Lines, View, ViewMut,
    packed::{Numbers, Operand},
};
use rayon::prelude::*;

use crate::{
    Head, Plan, Real, Selection, Sites,
    flight::{Flight, Targets},
};

/// Packed factors of the wave and the flight at hand, each part with room for a whole block or tile.
#[derive(Debug)]
pub(crate) struct Panels<W> {
    /// `h` on the left and on the right, block after block.
    h_left: Lines<W>,
    h_right: Lines<W>,
    /// `Wᵀ` and `W` on the right, tile after tile.
    wt_right: Lines<W>,
    w_right: Lines<W>,
    /// `Gᵀ` and `G` on the left, tile after tile, in each block after block.
    gt_left: Lines<W>,
    g_left: Lines<W>,
}

impl<W> Default for Panels<W> {
    fn default() -> Self {
        let [h_left, h_right, wt_right, w_right, gt_left, g_left] = std::array::from_fn(|_| Lines::default());
        Self { h_left, h_right, wt_right, w_right, gt_left, g_left }
    }
}

/// Where the scores of a flight go.
pub(crate) enum Room<'a, F> {
    /// All of them, tile after tile.
    Kept(&'a mut [F]),
    /// A few rows for each task.
    Passing(&'a mut [F]),
}

/// What forward wants to know of a flight.
pub(crate) struct Found<'a, F> {
    /// Largest score and sum of exponentials of each row of each tile.
    pub statistics: &'a mut [(F, f64)],
    /// Selected scores of each row of each tile, where the class is one of the tile's.
    pub picked: &'a mut [F],
}

/// How the engine cuts a wave for a kernel, and words of the parts of its panels.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows whose scores exist at once.
    strip: usize,
    /// Rows or classes of a task that has no tile to itself.
    piece: usize,
    h_left: usize,
    h_right: usize,
    wt_right: usize,
    w_right: usize,
    gt_left: usize,
    g_left: usize,
}

impl Cut {
    fn new<F: Real, N: Numbers<F>>(plan: &Plan, h: usize) -> Self {
        let Plan { block, classes, .. } = *plan;
        Self {
            strip: N::strip(),
            piece: 8 * N::strip(),
            h_left: N::words(Operand::Left, block, h),
            h_right: N::words(Operand::Right, h, block),
            wt_right: N::words(Operand::Right, classes, h),
            w_right: N::words(Operand::Right, h, classes),
            gt_left: N::words(Operand::Left, classes, block),
            g_left: N::words(Operand::Left, block, classes),
        }
    }
}

/// Bytes of the panels of a plan, and elements of the scores that pass.
pub(crate) fn packed<F: Real, N: Numbers<F>>(plan: &Plan, h: usize) -> (u128, u128) {
    let Cut { strip, h_left, h_right, wt_right, w_right, gt_left, g_left, .. } = Cut::new::<F, N>(plan, h);
    let wide = |size: usize| size as u128;
    let times = |a: u128, b: usize| a.saturating_mul(wide(b));
    let blocks = plan.wave.div_ceil(plan.block);
    let of_block = times(wide(h_left) + wide(h_right), blocks);
    let of_tile =
        (wide(wt_right) + wide(w_right)).saturating_add(times(wide(gt_left) + wide(g_left), blocks));
    let words = of_block.saturating_add(times(of_tile, plan.tiles));
    let passing = [blocks, strip, plan.classes].into_iter().fold(wide(plan.tiles), times);
    (times(words, size_of::<N::Word>()), passing)
}

impl<W: Copy + Send + Sync> Panels<W> {
    /// Makes the hidden rows of a wave and packs them for their scores, if there are any to be computed.
    pub fn fill<F: Real, N: Numbers<F, Word = W>, S: Sites<F>>(
        &mut self,
        plan: &Plan,
        sites: &S,
        wave: &[usize],
        scores: bool,
        hidden: &mut [F],
    ) {
        let h = sites.width();
        let Cut { piece, h_left, .. } = Cut::new::<F, N>(plan, h);
        let packed = self.h_left.room(wave.len().div_ceil(plan.block) * h_left, N::ZERO);
        let blocks = hidden.par_chunks_mut(plan.block * h).zip(wave.par_chunks(plan.block));
        blocks.zip(packed.par_chunks_mut(h_left)).for_each(|((hidden, wave), packed)| {
            let pieces = hidden.par_chunks_mut(piece * h).zip(wave.par_chunks(piece));
            let packed = packed.par_chunks_mut(N::words(Operand::Left, piece, h));
            pieces.zip(packed).for_each(|((hidden, wave), packed)| {
                sites.fill(wave, hidden);
                if scores {
                    N::pack(View::new(hidden, wave.len(), h), Operand::Left, packed, 0, h);
                }
            });
        });
    }

    /// Packs the same rows for the gradient of the head.
    pub fn hold<F: Real, N: Numbers<F, Word = W>>(&mut self, plan: &Plan, hidden: &[F], h: usize) {
        let part = Cut::new::<F, N>(plan, h).h_right;
        let packed = self.h_right.room(hidden.len().div_ceil(plan.block * h) * part, N::ZERO);
        packed.par_chunks_mut(part).zip(hidden.par_chunks(plan.block * h)).for_each(|(packed, hidden)| {
            let rows = hidden.len() / h;
            N::pack(View::new(hidden, rows, h), Operand::Right, packed, 0, rows);
        });
    }

    /// Packs the weights of a flight: for its scores, and for the gradient of the rows.
    fn hold_weight<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        plan: &Plan,
        head: &Head<F>,
        flight: &Range<usize>,
        (scores, gradient): (bool, bool),
    ) {
        let h = head.hidden;
        let Cut { wt_right, w_right, .. } = Cut::new::<F, N>(plan, h);
        let count = flight.len().div_ceil(plan.classes);
        let tiles = || head.weight[flight.start * h..flight.end * h].par_chunks(plan.classes * h);
        let view = |weight| View::new(weight, <[F]>::len(weight) / h, h);
        if scores {
            let packed = self.wt_right.room(count * wt_right, N::ZERO);
            packed.par_chunks_mut(wt_right).zip(tiles()).for_each(|(packed, weight)| {
                N::pack(view(weight).transposed(), Operand::Right, packed, 0, h);
            });
        }
        if gradient {
            let packed = self.w_right.room(count * w_right, N::ZERO);
            packed.par_chunks_mut(w_right).zip(tiles()).for_each(|(packed, weight)| {
                N::pack(view(weight), Operand::Right, packed, 0, weight.len() / h);
            });
        }
    }

    /// Scores, without the bias, of a strip of a block from its row `first` on in a tile.
    fn scores<F: Real, N: Numbers<F, Word = W>>(
        &self,
        cut: &Cut,
        h: usize,
        (block, first): (usize, usize),
        tile: usize,
        z: ViewMut<F>,
    ) {
        let left = &self.h_left[block * cut.h_left + N::words(Operand::Left, first, h)..];
        N::multiply(z, left, &self.wt_right[tile * cut.wt_right..], h, Accumulate::Replace);
    }

    /// Scores of a wave and a flight.
    pub fn forward<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        plan: &Plan,
        head: &Head<F>,
        selection: &Selection,
        wave: &[usize],
        flight: &Range<usize>,
        room: Room<F>,
        found: Found<F>,
    ) {
        let cut = Cut::new::<F, N>(plan, head.hidden);
        let (rows, per_site) = (wave.len(), selection.per_site().max(1));
        self.hold_weight::<F, N>(plan, head, flight, (true, false));
        let (z, kept) = match room {
            Room::Kept(z) => (z, true),
            Room::Passing(z) => (z, false),
        };
        let of_tile = if kept { rows } else { rows.div_ceil(plan.block) * cut.strip } * plan.classes;
        let found = found.statistics.par_chunks_mut(rows).zip(found.picked.par_chunks_mut(rows * per_site));
        z.par_chunks_mut(of_tile).zip(found).enumerate().for_each(|(tile, (z, (statistics, picked)))| {
            let from = flight.start + tile * plan.classes;
            let width = plan.classes.min(flight.end - from);
            let bias = head.bias.map(|bias| &bias[from..from + width]);
            let of_block = if kept { plan.block * width } else { cut.strip * plan.classes };
            let found =
                statistics.par_chunks_mut(plan.block).zip(picked.par_chunks_mut(plan.block * per_site));
            let blocks = z.par_chunks_mut(of_block).zip(found).zip(wave.par_chunks(plan.block));
            blocks.enumerate().for_each(|(block, ((z, (statistics, picked)), wave))| {
                let found = statistics.chunks_mut(cut.strip).zip(picked.chunks_mut(cut.strip * per_site));
                for (strip, (wave, (statistics, picked))) in wave.chunks(cut.strip).zip(found).enumerate() {
                    let first = strip * cut.strip;
                    let z = &mut z[if kept { first * width } else { 0 }..][..wave.len() * width];
                    let out = ViewMut::new(z, wave.len(), width);
                    self.scores::<F, N>(&cut, head.hidden, (block, first), tile, out);
                    F::tile_statistics(z, width, bias, statistics);
                    for ((z, picked), &site) in z.chunks(width).zip(picked.chunks_mut(per_site)).zip(wave) {
                        for (slot, class) in selection.active(site) {
                            if let Some(z) = (class as usize).checked_sub(from).and_then(|class| z.get(class))
                            {
                                picked[slot] = *z;
                            }
                        }
                    }
                }
            });
        });
    }

    /// Gradients of a wave and a flight; `z` has room for the scores that pass.
    pub fn backward<F: Real, N: Numbers<F, Word = W>>(
        &mut self,
        flight: &Flight<F>,
        z: &mut [F],
        sums: &mut [F],
        into: Targets<F>,
    ) {
        let Flight { plan, head, classes, wave, .. } = flight;
        let (h, rows, blocks) = (head.hidden, wave.len(), wave.len().div_ceil(plan.block));
        let cut = Cut::new::<F, N>(plan, h);
        let count = classes.len().div_ceil(plan.classes);
        // Waves hold kept sites or others, never both.
        let recompute = wave[0] >= flight.kept_sites;
        self.hold_weight::<F, N>(plan, head, classes, (recompute, true));
        let (mut gt_room, mut g_room) = (std::mem::take(&mut self.gt_left), std::mem::take(&mut self.g_left));
        let gt_left = gt_room.room(count * blocks * cut.gt_left, N::ZERO);
        let g_left = g_room.room(count * blocks * cut.g_left, N::ZERO);

        let scores = z.par_chunks_mut(blocks * cut.strip * plan.classes);
        let scores = scores.zip(sums.par_chunks_mut(blocks * plan.classes));
        let packed =
            gt_left.par_chunks_mut(blocks * cut.gt_left).zip(g_left.par_chunks_mut(blocks * cut.g_left));
        scores.zip(packed).enumerate().for_each(|(tile, ((z, sums), (gt_left, g_left)))| {
            let from = classes.start + tile * plan.classes;
            let width = plan.classes.min(classes.end - from);
            let scores = z.par_chunks_mut(cut.strip * plan.classes).zip(sums.par_chunks_mut(width));
            let packed = gt_left.par_chunks_mut(cut.gt_left).zip(g_left.par_chunks_mut(cut.g_left));
            let pieces = scores.zip(packed).zip(wave.par_chunks(plan.block));
            pieces.enumerate().for_each(|(block, (((z, sums), (gt_left, g_left)), wave))| {
                sums.fill(F::ZERO);
                for (strip, sites) in wave.chunks(cut.strip).enumerate() {
                    let first = strip * cut.strip;
                    let z = &mut z[..sites.len() * width];
                    if recompute {
                        let out = ViewMut::new(z, sites.len(), width);
                        self.scores::<F, N>(&cut, h, (block, first), tile, out);
                    }
                    z.chunks_exact_mut(width).zip(sites).for_each(|(g, &site)| flight.row(site, from, g));
                    F::add_rows(sums, z);
                    let g = View::new(z, sites.len(), width);
                    N::pack(g.transposed(), Operand::Left, gt_left, first, wave.len());
                    let part = &mut g_left[N::words(Operand::Left, first, width)..];
                    N::pack(g, Operand::Left, part, 0, width);
                }
            });
        });

        let (gt_left, g_left) = (&*gt_left, &*g_left);
        let Targets { gradient, weight, bias } = into;
        let into_head = || {
            let tiles = weight.par_chunks_mut(plan.classes * h).zip(gt_left.par_chunks(blocks * cut.gt_left));
            tiles.for_each(|(weight, gt_left)| {
                weight.par_chunks_mut(cut.piece * h).enumerate().for_each(|(piece, weight)| {
                    for (block, gt_left) in gt_left.chunks(cut.gt_left).enumerate() {
                        let depth = plan.block.min(rows - block * plan.block);
                        let left = &gt_left[N::words(Operand::Left, piece * cut.piece, depth)..];
                        let out = ViewMut::new(weight, weight.len() / h, h);
                        N::multiply(out, left, &self.h_right[block * cut.h_right..], depth, Accumulate::Add);
                    }
                });
            });
            flight.add_to_bias(sums, bias);
        };
        let into_hidden = || {
            gradient.par_chunks_mut(plan.block * h).enumerate().for_each(|(block, gradient)| {
                gradient.par_chunks_mut(cut.piece * h).enumerate().for_each(|(piece, gradient)| {
                    for tile in 0..count {
                        let depth = plan.classes.min(classes.len() - tile * plan.classes);
                        let left = &g_left[(tile * blocks + block) * cut.g_left..];
                        let left = &left[N::words(Operand::Left, piece * cut.piece, depth)..];
                        let out = ViewMut::new(gradient, gradient.len() / h, h);
                        let first = classes.start == 0 && tile == 0;
                        let how = if first { Accumulate::Replace } else { Accumulate::Add };
                        N::multiply(out, left, &self.w_right[tile * cut.w_right..], depth, how);
                    }
                });
            });
        };
        rayon::join(into_head, into_hidden);
        (self.gt_left, self.g_left) = (gt_room, g_room);
    }
}
