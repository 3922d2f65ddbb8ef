//! Normalizers logZ of the simple joiner, as a matrix product of exponentials.
//!
//! ```text
//! A[t,c] = exp(am[t,c] - max am[t])    L[u,c] = exp(lm[u,c] - max lm[u])
//! logZ[t,u] = max am[t] + max lm[u] + log Σ_c A[t,c] L[u,c]
//! ```
//! am: encoder scores of frame t; lm: predictor scores of label position u; c: class.
//!
//! Tiles of classes are processed in order. When the largest score of a row grows, earlier sums are
//! rescaled. The scores of the blank and of the next labels are copied on the way.
use kernels::{Accumulate, Real, View, ViewMut, WorkerSlots, par_for, parts_mut, product_in};

use crate::{
    Result, Source, TaskScratch,
    sums::UtteranceSumsMut,
    tiles::{self, split_front},
    underflow,
    utterance::UtteranceScores,
};

/// Scores of the selected classes: the blank, and the next label of each position.
pub(crate) struct SelectedScores<'a, F> {
    /// `am[t, blank]`, *T*.
    pub frame_blank: &'a mut [F],
    /// `am[t, next(u)]`, *T x (U+1)*; the last of a frame is unused.
    pub frame_next: &'a mut [F],
    /// `lm[u, blank]`, *U+1*.
    pub label_blank: &'a mut [F],
    /// `lm[u, next(u)]`, *U+1*; the last is unused.
    pub label_next: &'a mut [F],
}

impl<'a, F: Real> SelectedScores<'a, F> {
    /// Returns the buffer elements of an utterance.
    pub fn count([t, p, _]: [usize; 3]) -> usize {
        t + t * p + 2 * p
    }

    /// Creates zeros in the front of a buffer.
    pub fn new(buffer: &mut &'a mut [F], [t, p, _]: [usize; 3]) -> Self {
        let mut zeros = |count| {
            let values = split_front(buffer, count);
            values.fill(F::ZERO);
            values
        };
        Self { frame_blank: zeros(t), frame_next: zeros(t * p), label_blank: zeros(p), label_next: zeros(p) }
    }
}

/// Computes the sums over all classes and the selected scores.
///
/// The sums must have their initial values. `tile` has space for a tile of classes for all contexts
/// (label rows and unigram), and `pair_buffer` for a number of each pair of frame and context, used
/// for underflowed pairs.
pub(crate) fn accumulate<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    max_classes: usize,
    (sums, selected): (&mut UtteranceSumsMut<F>, &mut SelectedScores<F>),
    (tile, pair_buffer): (&mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (frames, positions, contexts) =
        (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
    let block = tiles::block_rows(frames);
    let class_count = utterance.source.classes();
    let mut factors = vec![1.0; contexts];
    for classes in tiles::tiles(class_count, max_classes) {
        let width = classes.len();
        let (next, blank) = (utterance.next_in(&classes), utterance.blank_in(&classes));
        let tile = &mut tile[..contexts * width];
        let (labels, unigram) = tile.split_at_mut(positions * width);
        utterance.label_scores(&classes, labels, slots);
        if let Some(blank) = blank {
            labels.chunks_exact(width).zip(&mut *selected.label_blank).for_each(|(row, to)| *to = row[blank]);
        }
        next.clone().for_each(|(class, u)| selected.label_next[u] = labels[u * width + class]);
        for (u, row) in labels.chunks_exact_mut(width).enumerate() {
            factors[u] = tiles::raise_max(row, &mut sums.label_max[u]);
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
            parts_mut(selected.frame_blank, block),
            parts_mut(selected.frame_next, block * positions),
        );
        par_for(blocks, |i, (pairs, max, blank_scores, next_scores)| {
            let count = max.len();
            let mut scratch = slots.lock();
            let (packing, scores, products) = scratch.split(count * width, count * contexts);
            utterance.frame_scores(i * block..i * block + count, &classes, scores, packing);
            let mut frame_factors = Vec::with_capacity(count);
            for (t, row) in scores.chunks_exact_mut(width).enumerate() {
                if let Some(blank) = blank {
                    blank_scores[t] = row[blank];
                }
                next.clone().for_each(|(class, u)| next_scores[t * positions + u] = row[class]);
                frame_factors.push(tiles::raise_max(row, &mut max[t]));
            }
            kernels::exp(scores);
            let scores = View::new(scores, count, width);
            let target = ViewMut::new(&mut *products, count, contexts);
            product_in(packing, target, scores, tile.transposed(), Accumulate::Replace);
            let rows = pairs.chunks_exact_mut(contexts).zip(products.chunks_exact(contexts));
            for ((pairs, products), &frame) in rows.zip(&frame_factors) {
                for ((pair, product), factor) in pairs.iter_mut().zip(products).zip(factors) {
                    *pair = *pair * (frame * factor) + product.to_f64();
                }
            }
        });
    }
    underflow::recompute(utterance, sums, max_classes, (tile, pair_buffer), slots)
}
