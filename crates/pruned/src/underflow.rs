//! Recomputes normalizers of the first pass whose sum of products underflows.
//!
//! A pair is a frame and a context (label position or unigram). The log-sum of a lost pair is
//! computed again over the sums of both scores, with the largest sum subtracted.
use std::ops::Range;

use kernels::{Real, WorkerSlots};

use crate::{
    Error, Result, Side, Source, TaskScratch,
    sums::{self, UtteranceSums, UtteranceSumsMut},
    tiles,
    utterance::UtteranceScores,
};

/// Writes the scores of contexts in a tile, less their maxima.
fn context_scores<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    label_max: &[F],
    classes: &Range<usize>,
    out: &mut [F],
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (labels, unigram) = out.split_at_mut(utterance.labels.len() * classes.len());
    utterance.label_scores(classes, labels, slots);
    let rows = labels.chunks_exact_mut(classes.len()).zip(label_max);
    rows.for_each(|(row, &max)| tiles::subtract_max(row, max));
    if let Some(row) = utterance.unigram {
        let logs = row.mass[classes.clone()].iter().map(|mass| F::from_f64(mass.to_f64().ln()));
        unigram.iter_mut().zip(logs).for_each(|(score, log)| *score = log);
    }
}

/// Returns the sums of the scores of a pair, class by class.
fn pair_sums<F: Real>(frame: &[F], context: &[F]) -> impl Iterator<Item = f64> + Clone {
    frame.iter().zip(context).map(|(am, lm)| am.to_f64() + lm.to_f64())
}

/// Replaces sums that are too small by their (negative) logarithms.
pub(crate) fn recompute<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &mut UtteranceSumsMut<F>,
    max_classes: usize,
    (tile, max_sums): (&mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (contexts, class_count) = (utterance.contexts(), utterance.source.classes());
    let min_reliable = tiles::min_reliable_sum::<F>(class_count);
    let is_lost = |pair: f64| pair < min_reliable || pair.is_nan();
    if !sums.pairs.iter().any(|&pair| is_lost(pair)) {
        return Ok(());
    }
    if sums.pairs.iter().any(|pair| pair.is_nan()) {
        find_bad_score(utterance, max_classes, slots)?;
    }
    // The maximum of each lost pair, whose sum starts again; NaN for the other pairs.
    let max_sums = &mut max_sums[..sums.pairs.len()];
    for (pair, max) in sums.pairs.iter_mut().zip(&mut *max_sums) {
        (*pair, *max) = if is_lost(*pair) { (0.0, f64::NEG_INFINITY) } else { (*pair, f64::NAN) };
    }
    let (block, last) = (tiles::block_rows(utterance.frames.len()), utterance.labels.len() - 1);
    for first in (0..utterance.frames.len()).step_by(block) {
        let frames = first..(first + block).min(utterance.frames.len());
        let range = frames.start * contexts..frames.end * contexts;
        let (pairs, max_sums) = (&mut sums.pairs[range.clone()], &mut max_sums[range]);
        if max_sums.iter().all(|max| max.is_nan()) {
            continue;
        }
        for classes in tiles::tiles(class_count, max_classes) {
            let width = classes.len();
            context_scores(utterance, sums.label_max, &classes, &mut tile[..contexts * width], slots);
            let mut scratch = slots.lock();
            let (packing, scores, _) = scratch.split(frames.len() * width, 0);
            utterance.frame_scores(frames.clone(), &classes, scores, packing);
            let rows = scores.chunks_exact_mut(width).zip(&sums.frame_max[frames.clone()]);
            rows.for_each(|(row, &max)| tiles::subtract_max(row, max));
            let lost = pairs.iter_mut().zip(&mut *max_sums).enumerate().filter(|(_, (_, max))| !max.is_nan());
            for (at, (sum, max)) in lost {
                let row = &scores[at / contexts * width..][..width];
                let pair = pair_sums(row, &tile[at % contexts * width..][..width]);
                let high = pair.clone().fold(*max, f64::max);
                if high > f64::NEG_INFINITY {
                    *sum = *sum * (*max - high).exp() + pair.map(|z| (z - high).exp()).sum::<f64>();
                    *max = high;
                }
            }
        }
        for (at, (pair, &max)) in pairs.iter_mut().zip(&*max_sums).enumerate() {
            if max == f64::NEG_INFINITY {
                let (frame, position) = (frames.start + at / contexts, (at % contexts).min(last));
                return Err(Error::AllMasked { utterance: utterance.index, frame, position });
            }
            if !max.is_nan() {
                *pair = max + pair.ln();
            }
        }
    }
    Ok(())
}

/// Adds the gradient of underflowed pairs to tiles of frames and labels.
///
/// `derivatives` are those of the pairs' log-normalizers. The gradient of the unigram's
/// probabilities is added as well. The tile of contexts is overwritten.
pub(crate) fn pull_back<F: Real, S: Source<F>>(
    (utterance, sums): (&UtteranceScores<F, S>, &UtteranceSums<F>),
    derivatives: &[f64],
    classes: &Range<usize>,
    tile: &mut [F],
    (frames, labels, unigram): (&mut [F], &mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (width, contexts) = (classes.len(), utterance.contexts());
    context_scores(utterance, sums.label_max, classes, tile, slots);
    let block = tiles::block_rows(utterance.frames.len());
    let mut derivatives = derivatives.iter();
    for first in (0..utterance.frames.len()).step_by(block) {
        let block = first..(first + block).min(utterance.frames.len());
        let mut scratch = slots.lock();
        let (packing, scores, _) = scratch.split(block.len() * width, 0);
        utterance.frame_scores(block.clone(), classes, scores, packing);
        for (frame, row) in block.zip(scores.chunks_exact_mut(width)) {
            tiles::subtract_max(row, sums.frame_max[frame]);
            let into_frame = &mut frames[frame * width..][..width];
            let pairs = sums.pairs[frame * contexts..][..contexts].iter().enumerate();
            for ((context, &log_sum), derivative) in
                pairs.filter(|(_, pair)| sums::is_underflow(**pair)).zip(&mut derivatives)
            {
                for (class, z) in pair_sums(row, &tile[context * width..][..width]).enumerate() {
                    let derivative = derivative * (z - log_sum).exp();
                    into_frame[class] += F::from_f64(derivative);
                    match utterance.unigram.filter(|_| context == utterance.labels.len()) {
                        None => labels[context * width + class] += F::from_f64(derivative),
                        Some(row) => unigram[class] += derivative / row.probability(classes.start + class),
                    }
                }
            }
        }
    }
}

/// Fails for the first score that is NaN or +inf.
pub(crate) fn find_bad_score<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    max_classes: usize,
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let is_bad = |value: &F| value.to_f64().is_nan() || value.to_f64() == f64::INFINITY;
    let mut scratch = slots.lock();
    for classes in tiles::tiles(utterance.source.classes(), max_classes) {
        for (side, rows) in [(Side::Frames, &utterance.frames), (Side::Labels, &utterance.labels)] {
            let block = tiles::block_rows(rows.len());
            for first in rows.clone().step_by(block) {
                let part = first..(first + block).min(rows.end);
                let (packing, tile, _) = scratch.split(part.len() * classes.len(), 0);
                utterance.source.fill(side, part, classes.clone(), tile, packing);
                if let Some(at) = tile.iter().position(is_bad) {
                    let (row, class) =
                        (first - rows.start + at / classes.len(), classes.start + at % classes.len());
                    let value = tile[at].to_f64();
                    return Err(Error::Score { side, utterance: utterance.index, row, class, value });
                }
            }
        }
    }
    Ok(())
}
