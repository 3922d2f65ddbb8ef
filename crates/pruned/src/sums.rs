//! Row maxima and sums of exponentials, which the first pass saves.
//!
//! ```text
//! A[t,c] = exp(am[t,c] - frame_max[t])      L[k,c] = exp(lm[k,c] - label_max[k])
//! ```
//! am: encoder scores of frame t; lm: predictor scores; c: class; k: one of K contexts, which are
//! the label positions u and, if there is one, the unigram, whose L are its probabilities divided
//! by the largest one. A pair is a frame and a context.
use kernels::{Real, ScratchReq, reset};

use crate::tiles::take_front;

/// Sizes of an utterance, which determine the lengths of its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UtteranceSizes {
    /// Number of frames T.
    pub frames: usize,
    /// Number of label positions U + 1.
    pub positions: usize,
    /// Number of contexts K.
    pub contexts: usize,
}

impl UtteranceSizes {
    /// Returns the number of pairs of a frame and a context.
    pub(crate) fn pairs(&self) -> usize {
        self.frames * self.contexts
    }
}

/// Maxima and sums over the classes: vectors of a batch, or slices of an utterance.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ClassSums<Scores, Sums> {
    /// Largest score of each frame.
    pub frame_max: Scores,
    /// Largest score of each label position.
    pub label_max: Scores,
    /// `Σ_c L[u,c]`
    pub label_sums: Sums,
    /// `Σ_c A[t,c] L[k,c]`, *T x K*; underflowed pairs store their logarithm.
    ///
    /// An *underflowed* pair has a sum below
    /// [`min_reliable_sum`](crate::tiles::min_reliable_sum), so near to the smallest normal number
    /// that digits are lost. Its logarithm is negative, while other sums are positive.
    pub pair_sums: Sums,
}

/// Sums of all utterances, one after the other.
pub(crate) type BatchSums<F> = ClassSums<Vec<F>, Vec<f64>>;
/// Sums of one utterance.
pub(crate) type UtteranceSums<'a, F> = ClassSums<&'a [F], &'a [f64]>;
/// Mutable sums of one utterance.
pub(crate) type UtteranceSumsMut<'a, F> = ClassSums<&'a mut [F], &'a mut [f64]>;

impl<F: Real> BatchSums<F> {
    /// Creates initial sums for utterances of given sizes, in recycled vectors.
    pub(crate) fn new(recycled: Self, sizes: &[UtteranceSizes]) -> Self {
        let sum_of = |size: fn(&UtteranceSizes) -> usize| sizes.iter().map(size).sum();
        Self {
            frame_max: reset(recycled.frame_max, sum_of(|size| size.frames), F::NEG_INFINITY),
            label_max: reset(recycled.label_max, sum_of(|size| size.positions), F::NEG_INFINITY),
            label_sums: reset(recycled.label_sums, sum_of(|size| size.positions), 0.0),
            pair_sums: reset(recycled.pair_sums, sum_of(|size| size.pairs()), 0.0),
        }
    }

    /// Returns the scratch of each vector.
    pub(crate) fn scratch(sizes: &[UtteranceSizes]) -> [ScratchReq; 4] {
        let sum_of = |size: fn(&UtteranceSizes) -> usize| sizes.iter().map(size).sum();
        [
            ScratchReq::new::<F>(sum_of(|size| size.frames)),
            ScratchReq::new::<F>(sum_of(|size| size.positions)),
            ScratchReq::new::<f64>(sum_of(|size| size.positions)),
            ScratchReq::new::<f64>(sum_of(|size| size.pairs())),
        ]
    }

    /// Splits the sums into those of each utterance.
    pub(crate) fn split(&self, sizes: &[UtteranceSizes]) -> Vec<UtteranceSums<'_, F>> {
        let mut remaining = UtteranceSums {
            frame_max: &self.frame_max,
            label_max: &self.label_max,
            label_sums: &self.label_sums,
            pair_sums: &self.pair_sums,
        };
        let split = |size: &UtteranceSizes| {
            let ClassSums { frame_max, label_max, label_sums, pair_sums } = &mut remaining;
            UtteranceSums {
                frame_max: take_front_shared(frame_max, size.frames),
                label_max: take_front_shared(label_max, size.positions),
                label_sums: take_front_shared(label_sums, size.positions),
                pair_sums: take_front_shared(pair_sums, size.pairs()),
            }
        };
        sizes.iter().map(split).collect()
    }

    /// Splits the sums into mutable sums of each utterance.
    pub(crate) fn split_mut(&mut self, sizes: &[UtteranceSizes]) -> Vec<UtteranceSumsMut<'_, F>> {
        let mut remaining = UtteranceSumsMut {
            frame_max: &mut self.frame_max,
            label_max: &mut self.label_max,
            label_sums: &mut self.label_sums,
            pair_sums: &mut self.pair_sums,
        };
        let split = |size: &UtteranceSizes| {
            let ClassSums { frame_max, label_max, label_sums, pair_sums } = &mut remaining;
            UtteranceSumsMut {
                frame_max: take_front(frame_max, size.frames),
                label_max: take_front(label_max, size.positions),
                label_sums: take_front(label_sums, size.positions),
                pair_sums: take_front(pair_sums, size.pairs()),
            }
        };
        sizes.iter().map(split).collect()
    }
}

impl<F> UtteranceSumsMut<'_, F> {
    /// Returns the sums for reading.
    pub(crate) fn as_sums(&self) -> UtteranceSums<'_, F> {
        let Self { frame_max, label_max, label_sums, pair_sums } = self;
        UtteranceSums { frame_max, label_max, label_sums, pair_sums }
    }
}

/// Splits off the first `count` elements of a shared slice.
fn take_front_shared<'a, T>(remaining: &mut &'a [T], count: usize) -> &'a [T] {
    remaining.split_off(..count).expect("the vectors have the sums of all utterances")
}

/// Returns whether an element of [`ClassSums::pair_sums`] is a (negative) logarithm.
pub(crate) fn is_underflow(pair_sum: f64) -> bool {
    pair_sum < 0.0
}

/// Returns `log Σ_c A[t,c] L[k,c]`.
pub(crate) fn log_pair_sum(pair_sum: f64) -> f64 {
    if is_underflow(pair_sum) { pair_sum } else { pair_sum.ln() }
}
