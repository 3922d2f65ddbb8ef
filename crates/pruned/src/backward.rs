//! Backward pass of the pruned first pass: gradients of am and lm scores.
//!
//! ```text
//! G[t,u] = dL/dlogZ[t,u] / Σ_c A[t,c] L[u,c]
//! dL/dam[t,c] = A[t,c] Σ_u G[t,u] L[u,c] + selected
//! dL/dlm[u,c] = L[u,c] Σ_t G[t,u] A[t,c] + selected
//! ```
//! A = exp(am - max), L = exp(lm - max), with the maximum of each row; t: frame, u: label position,
//! c: class; logZ: normalizer; L in dL: the loss; selected: the derivative of the class's own
//! score, for the blank and the next label. A tile is a range of classes whose scores exist at the
//! same time.
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, WorkerSlots, par_for, parts, parts_mut, product_in};

use crate::{
    ScoreSource, TaskScratch, emissions::Derivatives, sums::UtteranceSums, tile_gradients::TileGradients,
    tiles, underflow, utterance::UtteranceScores,
};

/// Writes the gradient of a tile of classes.
///
/// The buffer has two tiles for all contexts (label rows and unigram).
pub(crate) fn tile_gradient<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &UtteranceSums<F>,
    derivatives: &Derivatives<F>,
    classes: &Range<usize>,
    gradients: TileGradients<F>,
    buffer: &mut [F],
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let TileGradients { frames, labels, unigram } = gradients;
    let (frame_count, width) = (utterance.frames.len(), classes.len());
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let block_rows = tiles::block_rows(frame_count);
    let (context_tile, context_sums) = buffer[..2 * contexts * width].split_at_mut(contexts * width);
    utterance.fill_context_exponentials(sums.label_max, classes, context_tile, slots);
    // Exponentials of the contexts and of the frames; those of the frames are in their gradient.
    par_for(
        (parts_mut(frames, block_rows * width), parts(sums.frame_max, block_rows)),
        |block, (out, frame_max)| {
            let frames = block * block_rows..block * block_rows + frame_max.len();
            utterance.fill_frame_scores(frames, classes, out, &mut slots.lock().packing);
            out.chunks_exact_mut(width)
                .zip(frame_max)
                .for_each(|(row, &frame_max)| tiles::subtract_max(row, frame_max));
            kernels::exp(out);
        },
    );

    // Σ_t G[t,u] A[t,c] of the contexts, before the gradient of the frames overwrites A.
    let pairs_transposed = View::new(derivatives.pairs, frame_count, contexts).transposed();
    let target = ViewMut::new(&mut *context_sums, contexts, width);
    let frame_tile = View::new(frames, frame_count, width);
    product_in(&mut slots.lock().packing, target, pairs_transposed, frame_tile, Accumulate::Replace);
    let context_view = View::new(context_tile, contexts, width);
    // Gradient of the frames.
    let blocks = (parts_mut(frames, block_rows * width), parts(derivatives.pairs, block_rows * contexts));
    par_for(blocks, |block, (out, pairs)| {
        let frame_count = out.len() / width;
        let mut scratch = slots.lock();
        let (packing, buffer, _) = scratch.split(out.len(), 0);
        let target = ViewMut::new(&mut *buffer, frame_count, width);
        product_in(
            packing,
            target,
            View::new(pairs, frame_count, contexts),
            context_view,
            Accumulate::Replace,
        );
        out.iter_mut().zip(buffer.iter()).for_each(|(out, sum)| *out *= *sum);
        for (row_index, row) in out.chunks_exact_mut(width).enumerate() {
            let t = block * block_rows + row_index;
            if let Some(blank) = utterance.blank_in(classes) {
                row[blank] += derivatives.frame_blank[t];
            }
            let next = utterance.next_labels_in(classes);
            next.for_each(|(class, u)| row[class] += derivatives.frame_next[t * positions + u]);
        }
    });

    // Gradient of the labels.
    let (label_sums, unigram_sums) = context_sums.split_at(positions * width);
    let rows = labels.chunks_exact_mut(width).zip(label_sums.chunks_exact(width)).enumerate();
    for (u, (out, sums)) in rows {
        let (exponentials, sum) = (&context_tile[u * width..][..width], derivatives.label_sums[u]);
        let values = out.iter_mut().zip(sums).zip(exponentials);
        values.for_each(|((out, &class_sum), &exponential)| *out = exponential * (class_sum + sum));
        if let Some(blank) = utterance.blank_in(classes) {
            out[blank] += derivatives.label_blank[u];
        }
    }
    utterance
        .next_labels_in(classes)
        .for_each(|(class, u)| labels[u * width + class] += derivatives.label_next[u]);
    // Gradient of the unigram, and of underflowed pairs.
    if let Some(distribution) = utterance.unigram {
        unigram
            .iter_mut()
            .zip(unigram_sums)
            .for_each(|(out, sum)| *out = sum.to_f64() / distribution.max_probability);
        let probability = |class: usize| distribution.probability(classes.start + class);
        if let Some(blank) = utterance.blank_in(classes) {
            unigram[blank] += derivatives.unigram_blank / probability(blank);
        }
        utterance
            .next_labels_in(classes)
            .for_each(|(class, u)| unigram[class] += derivatives.unigram_next[u] / probability(class));
    }
    if !derivatives.underflow.is_empty() {
        let gradients = TileGradients { frames, labels, unigram };
        underflow::pull_back(utterance, sums, derivatives.underflow, classes, context_tile, gradients, slots);
    }
}
