//! Sites whose products of exponentials are too small for their sum to have all its digits: each is computed again,
//! with the largest sum of two scores subtracted.
use std::ops::Range;

use kernels::{Real, WorkerSlots};

use crate::{
    Error, Result, Side, Source, TaskScratch,
    sums::{self, UtteranceSums, UtteranceSumsMut},
    tiles,
    utterance::UtteranceScores,
};

/// Writes the scores of all contexts in a tile of classes, less the largest of their row.
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
    rows.for_each(|(row, &max)| tiles::subtract(row, max));
    if let Some(row) = utterance.unigram {
        let logs = row.mass[classes.clone()].iter().map(|mass| F::from_f64(mass.to_f64().ln()));
        unigram.iter_mut().zip(logs).for_each(|(score, log)| *score = log);
    }
}

/// ClassSums of the scores of a pair.
fn sums_of<F: Real>(frame: &[F], context: &[F]) -> impl Iterator<Item = f64> + Clone {
    frame.iter().zip(context).map(|(am, lm)| am.to_f64() + lm.to_f64())
}

/// Puts logarithms in the place of the sums that are too small.
pub(crate) fn find<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &mut UtteranceSumsMut<F>,
    most: usize,
    (tile, largest): (&mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (contexts, all) = (utterance.contexts(), utterance.source.classes());
    let trusted = tiles::trusted::<F>(all);
    let lost = |pair: f64| pair < trusted || pair.is_nan();
    if !sums.pairs.iter().any(|&pair| lost(pair)) {
        return Ok(());
    }
    if sums.pairs.iter().any(|pair| pair.is_nan()) {
        find_odd(utterance, most, slots)?;
    }
    // The largest sum of two scores of each that is lost, whose sum begins anew; NaN for the others.
    let largest = &mut largest[..sums.pairs.len()];
    for (pair, largest) in sums.pairs.iter_mut().zip(&mut *largest) {
        (*pair, *largest) = if lost(*pair) { (0.0, f64::NEG_INFINITY) } else { (*pair, f64::NAN) };
    }
    let (block, last) = (tiles::block(utterance.frames.len()), utterance.labels.len() - 1);
    for first in (0..utterance.frames.len()).step_by(block) {
        let frames = first..(first + block).min(utterance.frames.len());
        let range = frames.start * contexts..frames.end * contexts;
        let (pairs, largest) = (&mut sums.pairs[range.clone()], &mut largest[range]);
        if largest.iter().all(|largest| largest.is_nan()) {
            continue;
        }
        for classes in tiles::tiles(all, most) {
            let width = classes.len();
            context_scores(utterance, sums.label_max, &classes, &mut tile[..contexts * width], slots);
            let mut scratch = slots.lock();
            let (packing, scores, _) = scratch.split(frames.len() * width, 0);
            utterance.frame_scores(frames.clone(), &classes, scores, packing);
            let rows = scores.chunks_exact_mut(width).zip(&sums.frame_max[frames.clone()]);
            rows.for_each(|(row, &max)| tiles::subtract(row, max));
            let lost = pairs.iter_mut().zip(&mut *largest).enumerate().filter(|(_, (_, max))| !max.is_nan());
            for (at, (sum, max)) in lost {
                let row = &scores[at / contexts * width..][..width];
                let all = sums_of(row, &tile[at % contexts * width..][..width]);
                let high = all.clone().fold(*max, f64::max);
                if high > f64::NEG_INFINITY {
                    *sum = *sum * (*max - high).exp() + all.map(|z| (z - high).exp()).sum::<f64>();
                    *max = high;
                }
            }
        }
        for (at, (pair, &max)) in pairs.iter_mut().zip(&*largest).enumerate() {
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

/// Adds the gradient of the scores of rare pairs, whose log-normaliser has slope `slopes`, to tiles of frames and
/// labels, and that of the unigram's probabilities. The tile of contexts is overwritten.
pub(crate) fn pull_back<F: Real, S: Source<F>>(
    (utterance, sums): (&UtteranceScores<F, S>, &UtteranceSums<F>),
    slopes: &[f64],
    classes: &Range<usize>,
    tile: &mut [F],
    (frames, labels, unigram): (&mut [F], &mut [F], &mut [f64]),
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (width, contexts) = (classes.len(), utterance.contexts());
    context_scores(utterance, sums.label_max, classes, tile, slots);
    let block = tiles::block(utterance.frames.len());
    let mut slopes = slopes.iter();
    for first in (0..utterance.frames.len()).step_by(block) {
        let block = first..(first + block).min(utterance.frames.len());
        let mut scratch = slots.lock();
        let (packing, scores, _) = scratch.split(block.len() * width, 0);
        utterance.frame_scores(block.clone(), classes, scores, packing);
        for (frame, row) in block.zip(scores.chunks_exact_mut(width)) {
            tiles::subtract(row, sums.frame_max[frame]);
            let into_frame = &mut frames[frame * width..][..width];
            let pairs = sums.pairs[frame * contexts..][..contexts].iter().enumerate();
            for ((context, &log_sum), slope) in pairs.filter(|(_, pair)| sums::rare(**pair)).zip(&mut slopes)
            {
                for (class, z) in sums_of(row, &tile[context * width..][..width]).enumerate() {
                    let slope = slope * (z - log_sum).exp();
                    into_frame[class] += F::from_f64(slope);
                    match utterance.unigram.filter(|_| context == utterance.labels.len()) {
                        None => labels[context * width + class] += F::from_f64(slope),
                        Some(row) => unigram[class] += slope / row.probability(classes.start + class),
                    }
                }
            }
        }
    }
}

/// Names the first score that is NaN or +inf.
pub(crate) fn find_odd<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    most: usize,
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let odd = |value: &F| value.to_f64().is_nan() || value.to_f64() == f64::INFINITY;
    let mut scratch = slots.lock();
    for classes in tiles::tiles(utterance.source.classes(), most) {
        for (side, rows) in [(Side::Frames, &utterance.frames), (Side::Labels, &utterance.labels)] {
            let block = tiles::block(rows.len());
            for first in rows.clone().step_by(block) {
                let part = first..(first + block).min(rows.end);
                let (packing, tile, _) = scratch.split(part.len() * classes.len(), 0);
                utterance.source.fill(side, part, classes.clone(), tile, packing);
                if let Some(at) = tile.iter().position(odd) {
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
