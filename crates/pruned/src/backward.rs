//! Gradients of the scores, tile by tile, from the slopes of the normalisers.
//!
//! ```text
//! G[t,u] = dL/dlogZ[t,u] / Σ_c A[t,c] L[u,c]
//! dL/dam[t,c] = A[t,c] Σ_u G[t,u] L[u,c] + selected      dL/dlm[u,c] = L[u,c] Σ_t G[t,u] A[t,c] + selected
//! ```
use std::ops::Range;

use kernels::{Accumulate, Real, View, ViewMut, WorkerSlots, par_for, parts, parts_mut, product_in};

use crate::{
    Source, TaskScratch, emissions::Slopes, rare, sums::UtteranceSums, tiles, utterance::UtteranceScores,
};

/// Writes the gradient of a tile of classes: *T x tile*, *(U+1) x tile*, and the unigram's probabilities, *tile*
/// (nothing where there is no unigram). In twice a tile for all contexts.
pub(crate) fn tile<F: Real, S: Source<F>>(
    (utterance, sums): (&UtteranceScores<F, S>, &UtteranceSums<F>),
    slopes: &Slopes<F>,
    classes: &Range<usize>,
    (frames, labels, unigram): (&mut [F], &mut [F], &mut [f64]),
    room: &mut [F],
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (count, width) = (utterance.frames.len(), classes.len());
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let block = tiles::block(count);
    let (contexts_tile, found) = room[..2 * contexts * width].split_at_mut(contexts * width);
    utterance.context_probabilities(sums.label_max, classes, contexts_tile, slots);
    par_for((parts_mut(frames, block * width), parts(sums.frame_max, block)), |i, (out, max)| {
        let frames = i * block..i * block + max.len();
        utterance.frame_scores(frames, classes, out, &mut slots.lock().packing);
        out.chunks_exact_mut(width).zip(max).for_each(|(row, &max)| tiles::subtract(row, max));
        kernels::exp(out);
    });

    // Of the contexts first, as the gradient of the frames takes the place of their exponentials.
    let transposed = View::new(slopes.pairs, count, contexts).transposed();
    let (target, all) = (ViewMut::new(&mut *found, contexts, width), View::new(frames, count, width));
    product_in(&mut slots.lock().packing, target, transposed, all, Accumulate::Replace);
    let tile = View::new(contexts_tile, contexts, width);
    let blocks = (parts_mut(frames, block * width), parts(slopes.pairs, block * contexts));
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
                row[blank] += slopes.frame_blank[t];
            }
            let next = utterance.next_in(classes);
            next.for_each(|(class, u)| row[class] += slopes.frame_next[t * positions + u]);
        }
    });

    let (of_labels, of_unigram) = found.split_at(positions * width);
    let rows = labels.chunks_exact_mut(width).zip(of_labels.chunks_exact(width)).enumerate();
    for (u, (out, found)) in rows {
        let (row, sum) = (&contexts_tile[u * width..][..width], slopes.label_sums[u]);
        out.iter_mut().zip(found).zip(row).for_each(|((out, &found), &p)| *out = p * (found + sum));
        if let Some(blank) = utterance.blank_in(classes) {
            out[blank] += slopes.label_blank[u];
        }
    }
    utterance.next_in(classes).for_each(|(class, u)| labels[u * width + class] += slopes.label_next[u]);
    if let Some(row) = utterance.unigram {
        unigram.iter_mut().zip(of_unigram).for_each(|(out, found)| *out = found.to_f64() / row.largest);
        let of = |class: usize| row.probability(classes.start + class);
        if let Some(blank) = utterance.blank_in(classes) {
            unigram[blank] += slopes.unigram_blank / of(blank);
        }
        utterance
            .next_in(classes)
            .for_each(|(class, u)| unigram[class] += slopes.unigram_next[u] / of(class));
    }
    if !slopes.rare.is_empty() {
        let into = (frames, labels, unigram);
        rare::pull_back((utterance, sums), slopes.rare, classes, contexts_tile, into, slots);
    }
}
