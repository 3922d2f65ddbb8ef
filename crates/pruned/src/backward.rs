//! Gradients of the encoder (am) and predictor (lm) scores, by class tiles.
//!
//! ```text
//! G[t,u] = dL/dlogZ[t,u] / Σ_c A[t,c] L[u,c]
//! dL/dam[t,c] = A[t,c] Σ_u G[t,u] L[u,c] + selected
//! dL/dlm[u,c] = L[u,c] Σ_t G[t,u] A[t,c] + selected
//! ```
//! A = exp(am - max), L = exp(lm - max); t: frame, u: label position, c: class; logZ: normalizer;
//! selected: the derivative of the class's own score, for the blank and the next label.
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, WorkerSlots, par_for, parts, parts_mut, product_in};

use crate::{
    Source, TaskScratch, emissions::Derivatives, sums::UtteranceSums, tiles, underflow,
    utterance::UtteranceScores,
};

/// Writes the gradient of a tile of classes.
///
/// It is *T x tile* for frames, *(U+1) x tile* for labels, and *tile* for the probabilities of the
/// unigram, if there is one. The buffer has two tiles for all contexts (label rows and unigram).
pub(crate) fn tile_gradient<F: Real, S: Source<F>>(
    (utterance, sums): (&UtteranceScores<F, S>, &UtteranceSums<F>),
    derivatives: &Derivatives<F>,
    classes: &Range<usize>,
    (frames, labels, unigram): (&mut [F], &mut [F], &mut [f64]),
    buffer: &mut [F],
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (count, width) = (utterance.frames.len(), classes.len());
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let block = tiles::block_rows(count);
    let (contexts_tile, context_sums) = buffer[..2 * contexts * width].split_at_mut(contexts * width);
    utterance.context_probabilities(sums.label_max, classes, contexts_tile, slots);
    par_for((parts_mut(frames, block * width), parts(sums.frame_max, block)), |i, (out, max)| {
        let frames = i * block..i * block + max.len();
        utterance.frame_scores(frames, classes, out, &mut slots.lock().packing);
        out.chunks_exact_mut(width).zip(max).for_each(|(row, &max)| tiles::subtract_max(row, max));
        kernels::exp(out);
    });

    // The sums of the contexts are computed first, because the gradient of the frames overwrites
    // the exponentials of the frames.
    let transposed = View::new(derivatives.pairs, count, contexts).transposed();
    let target = ViewMut::new(&mut *context_sums, contexts, width);
    let frame_tile = View::new(frames, count, width);
    product_in(&mut slots.lock().packing, target, transposed, frame_tile, Accumulate::Replace);
    let tile = View::new(contexts_tile, contexts, width);
    let blocks = (parts_mut(frames, block * width), parts(derivatives.pairs, block * contexts));
    par_for(blocks, |i, (out, pairs)| {
        let count = out.len() / width;
        let mut scratch = slots.lock();
        let (packing, buffer, _) = scratch.split(out.len(), 0);
        let target = ViewMut::new(&mut *buffer, count, width);
        product_in(packing, target, View::new(pairs, count, contexts), tile, Accumulate::Replace);
        out.iter_mut().zip(buffer.iter()).for_each(|(out, sum)| *out *= *sum);
        for (t, row) in out.chunks_exact_mut(width).enumerate() {
            let t = i * block + t;
            if let Some(blank) = utterance.blank_in(classes) {
                row[blank] += derivatives.frame_blank[t];
            }
            let next = utterance.next_in(classes);
            next.for_each(|(class, u)| row[class] += derivatives.frame_next[t * positions + u]);
        }
    });

    let (label_sums, unigram_sums) = context_sums.split_at(positions * width);
    let rows = labels.chunks_exact_mut(width).zip(label_sums.chunks_exact(width)).enumerate();
    for (u, (out, sums)) in rows {
        let (row, sum) = (&contexts_tile[u * width..][..width], derivatives.label_sums[u]);
        out.iter_mut().zip(sums).zip(row).for_each(|((out, &class_sum), &p)| *out = p * (class_sum + sum));
        if let Some(blank) = utterance.blank_in(classes) {
            out[blank] += derivatives.label_blank[u];
        }
    }
    utterance.next_in(classes).for_each(|(class, u)| labels[u * width + class] += derivatives.label_next[u]);
    if let Some(row) = utterance.unigram {
        unigram.iter_mut().zip(unigram_sums).for_each(|(out, sum)| *out = sum.to_f64() / row.max_probability);
        let probability = |class: usize| row.probability(classes.start + class);
        if let Some(blank) = utterance.blank_in(classes) {
            unigram[blank] += derivatives.unigram_blank / probability(blank);
        }
        utterance
            .next_in(classes)
            .for_each(|(class, u)| unigram[class] += derivatives.unigram_next[u] / probability(class));
    }
    if !derivatives.underflow.is_empty() {
        let into = (frames, labels, unigram);
        underflow::pull_back((utterance, sums), derivatives.underflow, classes, contexts_tile, into, slots);
    }
}
