//! Recomputes normalizers of the pruned first pass whose sums of products underflow.
//!
//! A pair is a frame and a context (label position or unigram). If the sum of a pair is not
//! reliable, its logarithm is computed from the scores z = am + lm of all classes instead, as
//! max z + log Σ exp(z - max z).
use std::ops::Range;

use kernels::{Real, WorkerSlots};

use crate::{
    Error, Result, ScoreSource, Side, TaskScratch,
    sums::{self, UtteranceSums, UtteranceSumsMut},
    tile_gradients::TileGradients,
    tiles,
    utterance::UtteranceScores,
};

/// Writes the scores of all contexts in a tile, minus their maxima.
fn write_context_scores<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    label_max: &[F],
    classes: &Range<usize>,
    out: &mut [F],
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let (labels, unigram) = out.split_at_mut(utterance.labels.len() * classes.len());
    utterance.fill_label_scores(classes, labels, slots);
    let rows = labels.chunks_exact_mut(classes.len()).zip(label_max);
    rows.for_each(|(row, &max)| tiles::subtract_max(row, max));
    if let Some(distribution) = utterance.unigram {
        let logs =
            distribution.relative[classes.clone()].iter().map(|relative| F::from_f64(relative.to_f64().ln()));
        unigram.iter_mut().zip(logs).for_each(|(score, log)| *score = log);
    }
}

/// Returns the sum of frame score and context score for each class.
fn summed_scores<F: Real>(frame: &[F], context: &[F]) -> impl Iterator<Item = f64> + Clone {
    frame.iter().zip(context).map(|(am, lm)| am.to_f64() + lm.to_f64())
}

/// Replaces unreliable sums by their logarithms.
///
/// These are negative, which is how [`sums::is_underflow`] recognizes them.
///
/// `tile` is scratch memory for the scores of all contexts in a tile of classes, `max_sums` for the
/// maximum of each pair.
pub(crate) fn recompute_underflow<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &mut UtteranceSumsMut<F>,
    max_classes: usize,
    tile: &mut [F],
    max_sums: &mut [f64],
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let (contexts, class_count) = (utterance.contexts(), utterance.source.classes());
    let min_reliable = tiles::min_reliable_sum::<F>(class_count);
    let is_unreliable = |pair_sum: f64| pair_sum < min_reliable || pair_sum.is_nan();
    if !sums.pair_sums.iter().any(|&pair_sum| is_unreliable(pair_sum)) {
        return Ok(());
    }
    if sums.pair_sums.iter().any(|pair_sum| pair_sum.is_nan()) {
        check_scores(utterance, max_classes, slots)?;
    }
    // The maximum of each unreliable pair, whose sum starts again; NaN for the other pairs.
    let max_sums = &mut max_sums[..sums.pair_sums.len()];
    for (pair_sum, max_sum) in sums.pair_sums.iter_mut().zip(&mut *max_sums) {
        (*pair_sum, *max_sum) =
            if is_unreliable(*pair_sum) { (0.0, f64::NEG_INFINITY) } else { (*pair_sum, f64::NAN) };
    }
    let (block_rows, last_position) = (tiles::block_rows(utterance.frames.len()), utterance.labels.len() - 1);
    // Blocks of frames; the tiles of a block add to its sums.
    for first_frame in (0..utterance.frames.len()).step_by(block_rows) {
        let frames = first_frame..(first_frame + block_rows).min(utterance.frames.len());
        let block_pairs = frames.start * contexts..frames.end * contexts;
        let (pair_sums, max_sums) = (&mut sums.pair_sums[block_pairs.clone()], &mut max_sums[block_pairs]);
        if max_sums.iter().all(|max_sum| max_sum.is_nan()) {
            continue;
        }
        for classes in tiles::class_tiles(class_count, max_classes) {
            let width = classes.len();
            write_context_scores(utterance, sums.label_max, &classes, &mut tile[..contexts * width], slots);
            let mut scratch = slots.lock();
            let (packing, scores, _) = scratch.split(frames.len() * width, 0);
            utterance.fill_frame_scores(frames.clone(), &classes, scores, packing);
            let rows = scores.chunks_exact_mut(width).zip(&sums.frame_max[frames.clone()]);
            rows.for_each(|(row, &frame_max)| tiles::subtract_max(row, frame_max));
            let unreliable_pairs = pair_sums
                .iter_mut()
                .zip(&mut *max_sums)
                .enumerate()
                .filter(|(_, (_, max_sum))| !max_sum.is_nan());
            for (index, (pair_sum, max_sum)) in unreliable_pairs {
                let row = &scores[index / contexts * width..][..width];
                let pair_scores = summed_scores(row, &tile[index % contexts * width..][..width]);
                let new_max = pair_scores.clone().fold(*max_sum, f64::max);
                if new_max > f64::NEG_INFINITY {
                    *pair_sum = *pair_sum * (*max_sum - new_max).exp()
                        + pair_scores.map(|score| (score - new_max).exp()).sum::<f64>();
                    *max_sum = new_max;
                }
            }
        }
        // Logarithms of the sums of the block.
        for (index, (pair_sum, &max_sum)) in pair_sums.iter_mut().zip(&*max_sums).enumerate() {
            if max_sum == f64::NEG_INFINITY {
                let (frame, position) =
                    (frames.start + index / contexts, (index % contexts).min(last_position));
                return Err(Error::AllMasked { utterance: utterance.index, frame, position });
            }
            if !max_sum.is_nan() {
                *pair_sum = max_sum + pair_sum.ln();
            }
        }
    }
    Ok(())
}

/// Adds the gradient of underflowed pairs to tiles of frames and labels.
///
/// `derivatives` are those of the loss by the log-normalizers, one for each underflowed pair, in
/// the order of [`UtteranceSums::pair_sums`](sums::ClassSums::pair_sums). The gradient of the
/// unigram's probabilities is added as well. `tile`, the scores of all contexts, is overwritten.
pub(crate) fn pull_back<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &UtteranceSums<F>,
    derivatives: &[f64],
    classes: &Range<usize>,
    tile: &mut [F],
    gradients: TileGradients<F>,
    slots: &WorkerSlots<TaskScratch<F>>,
) {
    let TileGradients { frames, labels, unigram } = gradients;
    let (width, contexts) = (classes.len(), utterance.contexts());
    write_context_scores(utterance, sums.label_max, classes, tile, slots);
    let block_rows = tiles::block_rows(utterance.frames.len());
    let mut derivatives = derivatives.iter();
    for first_frame in (0..utterance.frames.len()).step_by(block_rows) {
        let block = first_frame..(first_frame + block_rows).min(utterance.frames.len());
        let mut scratch = slots.lock();
        let (packing, scores, _) = scratch.split(block.len() * width, 0);
        utterance.fill_frame_scores(block.clone(), classes, scores, packing);
        for (frame, frame_scores) in block.zip(scores.chunks_exact_mut(width)) {
            tiles::subtract_max(frame_scores, sums.frame_max[frame]);
            let frame_gradient = &mut frames[frame * width..][..width];
            let pair_sums = sums.pair_sums[frame * contexts..][..contexts].iter().enumerate();
            for ((context, &log_sum), derivative) in
                pair_sums.filter(|(_, pair_sum)| sums::is_underflow(**pair_sum)).zip(&mut derivatives)
            {
                for (class, score) in
                    summed_scores(frame_scores, &tile[context * width..][..width]).enumerate()
                {
                    let derivative = derivative * (score - log_sum).exp();
                    frame_gradient[class] += F::from_f64(derivative);
                    match utterance.unigram.filter(|_| context == utterance.labels.len()) {
                        None => labels[context * width + class] += F::from_f64(derivative),
                        Some(distribution) => {
                            unigram[class] += derivative / distribution.probability(classes.start + class)
                        }
                    }
                }
            }
        }
    }
}

/// Fails for the first score that is NaN or +inf.
pub(crate) fn check_scores<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    max_classes: usize,
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Result<()> {
    let is_bad = |value: &F| value.to_f64().is_nan() || value.to_f64() == f64::INFINITY;
    let mut scratch = slots.lock();
    for classes in tiles::class_tiles(utterance.source.classes(), max_classes) {
        for (side, rows) in [(Side::Frames, &utterance.frames), (Side::Labels, &utterance.labels)] {
            let block_rows = tiles::block_rows(rows.len());
            for first_row in rows.clone().step_by(block_rows) {
                let block = first_row..(first_row + block_rows).min(rows.end);
                let (packing, tile, _) = scratch.split(block.len() * classes.len(), 0);
                utterance.source.fill_scores(side, block, classes.clone(), tile, packing);
                if let Some(index) = tile.iter().position(is_bad) {
                    let (row, class) = (
                        first_row - rows.start + index / classes.len(),
                        classes.start + index % classes.len(),
                    );
                    let value = tile[index].to_f64();
                    return Err(Error::Score { side, utterance: utterance.index, row, class, value });
                }
            }
        }
    }
    Ok(())
}
