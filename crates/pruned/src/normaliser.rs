//! Normalisers of all sites of an utterance, from products of exponentials, and the scores that emissions need.
//!
//! ```text
//! A[t,c] = exp(am[t,c] - max am[t])    L[u,c] = exp(lm[u,c] - max lm[u])
//! logZ[t,u] = max am[t] + max lm[u] + log Σ_c A[t,c] L[u,c]
//! ```
//!
//! Tile by tile of classes: largest scores grow, and sums so far are scaled down accordingly.
use kernels::{Accumulate, Real, View, ViewMut, WorkerSlots, par_for, parts_mut, product_in};

use crate::{
    Result, Source, TaskScratch, rare,
    sums::UtteranceSumsMut,
    tiles::{self, part},
    utterance::UtteranceScores,
};

/// Scores of the selected classes.
pub(crate) struct Picks<'a, F> {
    /// `am[t, blank]`, *T*.
    pub frame_blank: &'a mut [F],
    /// `am[t, next(u)]`, *T x (U+1)*; the last of a frame means nothing.
    pub frame_next: &'a mut [F],
    /// `lm[u, blank]`, *U+1*.
    pub label_blank: &'a mut [F],
    /// `lm[u, next(u)]`, *U+1*; the last means nothing.
    pub label_next: &'a mut [F],
}

impl<'a, F: Real> Picks<'a, F> {
    /// Numbers of an utterance.
    pub fn count([t, p, _]: [usize; 3]) -> usize {
        t + t * p + 2 * p
    }

    /// Nothing picked yet.
    pub fn new(room: &mut &'a mut [F], [t, p, _]: [usize; 3]) -> Self {
        let mut zeros = |count| {
            let part = part(room, count);
            part.fill(F::ZERO);
            part
        };
        Self { frame_blank: zeros(t), frame_next: zeros(t * p), label_blank: zeros(p), label_next: zeros(p) }
    }
}

/// Writes sums, which are still empty, and what is picked. In a tile for all contexts and, for rare pairs, a number for each pair.
pub(crate) fn sums<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    most: usize,
    (sums, picks): (&mut UtteranceSumsMut<F>, &mut Picks<F>),
    (tile, of_pairs): (&mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (frames, positions, contexts) =
        (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
    let block = tiles::block(frames);
    let all = utterance.source.classes();
    let mut factors = vec![1.0; contexts];
    for classes in tiles::tiles(all, most) {
        let width = classes.len();
        let (next, blank) = (utterance.next_in(&classes), utterance.blank_in(&classes));
        let tile = &mut tile[..contexts * width];
        let (labels, unigram) = tile.split_at_mut(positions * width);
        utterance.label_scores(&classes, labels, slots);
        if let Some(blank) = blank {
            labels.chunks_exact(width).zip(&mut *picks.label_blank).for_each(|(row, to)| *to = row[blank]);
        }
        next.clone().for_each(|(class, u)| picks.label_next[u] = labels[u * width + class]);
        for (u, row) in labels.chunks_exact_mut(width).enumerate() {
            factors[u] = tiles::raise(row, &mut sums.label_max[u]);
        }
        kernels::exp(labels);
        for (u, row) in labels.chunks_exact(width).enumerate() {
            sums.label_sums[u] = sums.label_sums[u] * factors[u] + tiles::sum(row);
        }
        if let Some(row) = utterance.unigram {
            unigram.copy_from_slice(&row.mass[classes.clone()]);
        }
        let (tile, factors) = (View::new(tile, contexts, width), &factors);
        let blocks = (
            parts_mut(sums.pairs, block * contexts),
            parts_mut(sums.frame_max, block),
            parts_mut(picks.frame_blank, block),
            parts_mut(picks.frame_next, block * positions),
        );
        par_for(blocks, |i, (pairs, max, of_blank, of_next)| {
            let count = max.len();
            let mut scratch = slots.lock();
            let (packing, scores, found) = scratch.split(count * width, count * contexts);
            utterance.frame_scores(i * block..i * block + count, &classes, scores, packing);
            let mut frame_factors = Vec::with_capacity(count);
            for (t, row) in scores.chunks_exact_mut(width).enumerate() {
                if let Some(blank) = blank {
                    of_blank[t] = row[blank];
                }
                next.clone().for_each(|(class, u)| of_next[t * positions + u] = row[class]);
                frame_factors.push(tiles::raise(row, &mut max[t]));
            }
            kernels::exp(scores);
            let scores = View::new(scores, count, width);
            let target = ViewMut::new(&mut *found, count, contexts);
            product_in(packing, target, scores, tile.transposed(), Accumulate::Replace);
            let rows = pairs.chunks_exact_mut(contexts).zip(found.chunks_exact(contexts));
            for ((pairs, found), &frame) in rows.zip(&frame_factors) {
                for ((pair, found), factor) in pairs.iter_mut().zip(found).zip(factors) {
                    *pair = *pair * (frame * factor) + found.to_f64();
                }
            }
        });
    }
    rare::find(utterance, sums, most, (tile, of_pairs), slots)
}
