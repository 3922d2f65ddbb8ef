//! Normalizers of the pruned first pass, as matrix products of exponentials.
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
    Result, ScoreSource, TaskScratch,
    sums::{UtteranceSizes, UtteranceSumsMut},
    tiles::{self, take_front},
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
    pub(crate) fn buffer_len(UtteranceSizes { frames, positions, .. }: UtteranceSizes) -> usize {
        frames + frames * positions + 2 * positions
    }

    /// Creates zeros in the front of a buffer.
    pub(crate) fn new(buffer: &mut &'a mut [F], sizes: UtteranceSizes) -> Self {
        let UtteranceSizes { frames, positions, .. } = sizes;
        let mut zeros = |count| {
            let values = take_front(buffer, count);
            values.fill(F::ZERO);
            values
        };
        Self {
            frame_blank: zeros(frames),
            frame_next: zeros(frames * positions),
            label_blank: zeros(positions),
            label_next: zeros(positions),
        }
    }
}

/// Computes the sums over all classes and the selected scores.
///
/// The sums must have their initial values. `tile` has space for a tile of classes for all contexts
/// (label rows and unigram), and `pair_buffer` for a number of each pair of frame and context, used
/// for underflowed pairs.
pub(crate) fn accumulate<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    max_classes: usize,
    sums: &mut UtteranceSumsMut<F>,
    selected: &mut SelectedScores<F>,
    tile: &mut [F],
    pair_buffer: &mut [f64],
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (frames, positions, contexts) =
        (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
    let block_rows = tiles::block_rows(frames);
    let class_count = utterance.source.classes();
    // Factors of earlier sums, by context; that of the unigram stays 1.
    let mut context_factors = vec![1.0; contexts];
    for classes in tiles::class_tiles(class_count, max_classes) {
        let width = classes.len();
        let (next_labels, blank) = (utterance.next_labels_in(&classes), utterance.blank_in(&classes));
        let tile = &mut tile[..contexts * width];
        let (label_scores, unigram) = tile.split_at_mut(positions * width);
        // Label scores of the tile: copies of the selected ones, then exponentials and their sums.
        utterance.fill_label_scores(&classes, label_scores, slots);
        if let Some(blank) = blank {
            label_scores
                .chunks_exact(width)
                .zip(&mut *selected.label_blank)
                .for_each(|(row, out)| *out = row[blank]);
        }
        next_labels.clone().for_each(|(class, u)| selected.label_next[u] = label_scores[u * width + class]);
        for (u, row) in label_scores.chunks_exact_mut(width).enumerate() {
            context_factors[u] = tiles::raise_max(row, &mut sums.label_max[u]);
        }
        kernels::exp(label_scores);
        for (u, row) in label_scores.chunks_exact(width).enumerate() {
            sums.label_sums[u] = sums.label_sums[u] * context_factors[u] + tiles::row_sum(row);
        }
        if let Some(distribution) = utterance.unigram {
            unigram.copy_from_slice(&distribution.relative[classes.clone()]);
        }
        // Frame scores, block by block: the same, and their products with the contexts.
        let (tile, context_factors) = (View::new(tile, contexts, width), &context_factors);
        let blocks = (
            parts_mut(sums.pair_sums, block_rows * contexts),
            parts_mut(sums.frame_max, block_rows),
            parts_mut(selected.frame_blank, block_rows),
            parts_mut(selected.frame_next, block_rows * positions),
        );
        par_for(blocks, |block, (pair_sums, frame_max, blank_scores, next_scores)| {
            let frame_count = frame_max.len();
            let mut scratch = slots.lock();
            let (packing, scores, products) = scratch.split(frame_count * width, frame_count * contexts);
            utterance.fill_frame_scores(
                block * block_rows..block * block_rows + frame_count,
                &classes,
                scores,
                packing,
            );
            let mut frame_factors = Vec::with_capacity(frame_count);
            for (t, row) in scores.chunks_exact_mut(width).enumerate() {
                if let Some(blank) = blank {
                    blank_scores[t] = row[blank];
                }
                next_labels.clone().for_each(|(class, u)| next_scores[t * positions + u] = row[class]);
                frame_factors.push(tiles::raise_max(row, &mut frame_max[t]));
            }
            kernels::exp(scores);
            let scores = View::new(scores, frame_count, width);
            let target = ViewMut::new(&mut *products, frame_count, contexts);
            product_in(packing, target, scores, tile.transposed(), Accumulate::Replace);
            let rows = pair_sums.chunks_exact_mut(contexts).zip(products.chunks_exact(contexts));
            for ((pair_sums, products), &frame_factor) in rows.zip(&frame_factors) {
                for ((pair_sum, product), context_factor) in
                    pair_sums.iter_mut().zip(products).zip(context_factors)
                {
                    *pair_sum = *pair_sum * (frame_factor * context_factor) + product.to_f64();
                }
            }
        });
    }
    underflow::recompute_underflow(utterance, sums, max_classes, tile, pair_buffer, slots)
}
