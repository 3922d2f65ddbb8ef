//! Sites whose products of exponentials are too small for their sum to have all its digits: each is computed again,
//! with the largest sum of two scores subtracted.
use std::ops::Range;

use kernels::Real;

use crate::{
    Error, Result, Side, Source,
    sums::{Rare, Sums},
    tiles,
    utterance::Utterance,
};

/// Scores of a tile of classes, less the largest of their row.
struct Scores<F> {
    frames: Vec<F>,
    contexts: Vec<F>,
    width: usize,
}

impl<F: Real> Scores<F> {
    fn of<S: Source<F>>(utterance: &Utterance<F, S>, sums: &Sums<F>, classes: &Range<usize>) -> Self {
        let width = classes.len();
        let frames = utterance.frames.len();
        let mut scores = Self {
            frames: vec![F::ZERO; frames * width],
            contexts: vec![F::ZERO; utterance.contexts() * width],
            width,
        };
        frame_scores(utterance, classes, &mut scores.frames);
        let (labels, unigram) = scores.contexts.split_at_mut(utterance.labels.len() * width);
        utterance.label_scores(classes, labels);
        let all = scores.frames.chunks_exact_mut(width).zip(&sums.frame_max);
        all.chain(labels.chunks_exact_mut(width).zip(&sums.label_max))
            .for_each(|(row, &max)| tiles::subtract(row, max));
        if let Some(row) = utterance.unigram {
            let logs = row.mass[classes.clone()].iter().map(|mass| F::from_f64(mass.to_f64().ln()));
            unigram.iter_mut().zip(logs).for_each(|(score, log)| *score = log);
        }
        scores
    }

    /// Sums of the scores of a pair.
    fn pair(&self, frame: usize, context: usize) -> impl Iterator<Item = f64> + '_ {
        let am = &self.frames[frame * self.width..][..self.width];
        let lm = &self.contexts[context * self.width..][..self.width];
        am.iter().zip(lm).map(|(am, lm)| am.to_f64() + lm.to_f64())
    }
}

/// In the blocks that the normaliser has, so that the scores are the same bits.
fn frame_scores<F: Real, S: Source<F>>(utterance: &Utterance<F, S>, classes: &Range<usize>, out: &mut [F]) {
    let block = tiles::block(utterance.frames.len());
    for (i, out) in out.chunks_mut(block * classes.len()).enumerate() {
        let first = i * block;
        utterance.frame_scores(first..first + out.len() / classes.len(), classes, out);
    }
}

/// The pairs with these indices, *T x K*.
pub(crate) fn exact<F: Real, S: Source<F>>(
    utterance: &Utterance<F, S>,
    sums: &Sums<F>,
    pairs: &[usize],
) -> Result<Vec<Rare>> {
    if pairs.iter().any(|&pair| sums.pairs[pair].is_nan()) {
        find_odd(utterance)?;
    }
    let contexts = utterance.contexts();
    let mut found = vec![(f64::NEG_INFINITY, 0.0); pairs.len()];
    for classes in tiles::tiles(utterance.source.classes()) {
        let scores = Scores::of(utterance, sums, &classes);
        for ((max, sum), &pair) in found.iter_mut().zip(pairs) {
            let all = || scores.pair(pair / contexts, pair % contexts);
            let high = all().fold(*max, f64::max);
            if high > f64::NEG_INFINITY {
                *sum = *sum * (*max - high).exp() + all().map(|z| (z - high).exp()).sum::<f64>();
                *max = high;
            }
        }
    }
    let last = utterance.labels.len() - 1;
    let rare = found.into_iter().zip(pairs).map(|((max, sum), &pair)| {
        let (frame, context) = (pair / contexts, pair % contexts);
        match max == f64::NEG_INFINITY {
            false => Ok(Rare { frame, context, log_sum: max + sum.ln() }),
            true => Err(Error::AllMasked { utterance: utterance.index, frame, position: context.min(last) }),
        }
    });
    rare.collect()
}

/// Adds the gradient of the scores of rare pairs, whose log-normaliser has slope `slopes`, to tiles of frames and
/// labels, and that of the unigram's probabilities.
pub(crate) fn pull_back<F: Real, S: Source<F>>(
    utterance: &Utterance<F, S>,
    sums: &Sums<F>,
    slopes: &[f64],
    classes: &Range<usize>,
    frames: &mut [F],
    labels: &mut [F],
    unigram: &mut [f64],
) {
    let width = classes.len();
    let scores = Scores::of(utterance, sums, classes);
    for (rare, slope) in sums.rare.iter().zip(slopes) {
        let into_frame = &mut frames[rare.frame * width..][..width];
        for (class, z) in scores.pair(rare.frame, rare.context).enumerate() {
            let slope = slope * (z - rare.log_sum).exp();
            into_frame[class] += F::from_f64(slope);
            match utterance.unigram.filter(|_| rare.context == utterance.labels.len()) {
                None => labels[rare.context * width + class] += F::from_f64(slope),
                Some(row) => unigram[class] += slope / row.probability(classes.start + class),
            }
        }
    }
}

/// Names the first score that is NaN or +inf.
pub(crate) fn find_odd<F: Real, S: Source<F>>(utterance: &Utterance<F, S>) -> Result<()> {
    let odd = |value: &F| value.to_f64().is_nan() || value.to_f64() == f64::INFINITY;
    let mut tile = Vec::new();
    for classes in tiles::tiles(utterance.source.classes()) {
        for (side, count) in [(Side::Frames, utterance.frames.len()), (Side::Labels, utterance.labels.len())]
        {
            tile.resize(count * classes.len(), F::ZERO);
            match side {
                Side::Frames => frame_scores(utterance, &classes, &mut tile),
                Side::Labels => utterance.label_scores(&classes, &mut tile),
            }
            if let Some(at) = tile.iter().position(odd) {
                let (row, class) = (at / classes.len(), classes.start + at % classes.len());
                let value = tile[at].to_f64();
                return Err(Error::Score { side, utterance: utterance.index, row, class, value });
            }
        }
    }
    Ok(())
}
