//! Largest scores and sums of exponentials that forward stores for backward.
//!
//! A and L: exponentials of encoder and predictor scores minus the row's maximum; K contexts: label
//! positions, and the unigram if any. A size `[t, p, k]` is T, U + 1 and K of an utterance.
use kernels::{Real, ScratchReq, reset};

use crate::tiles::split_front;

/// Sums over the classes, with K contexts: vectors of a batch, or slices of an utterance.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ClassSums<N, W> {
    /// Largest score of each frame.
    pub frame_max: N,
    /// Largest score of each label position.
    pub label_max: N,
    /// `Σ_c L[u,c]`
    pub label_sums: W,
    /// `Σ_c A[t,c] L[k,c]`, *T x K*; underflowed pairs store their logarithm.
    ///
    /// A sum that is too small to have all digits is an *underflowed* pair. Its logarithm is
    /// negative, while other sums are positive.
    pub pairs: W,
}

/// Sums of all utterances, one after the other.
pub(crate) type BatchSums<F> = ClassSums<Vec<F>, Vec<f64>>;
/// Sums of one utterance.
pub(crate) type UtteranceSums<'a, F> = ClassSums<&'a [F], &'a [f64]>;
/// Mutable sums of one utterance.
pub(crate) type UtteranceSumsMut<'a, F> = ClassSums<&'a mut [F], &'a mut [f64]>;

impl<F: Real> BatchSums<F> {
    /// Creates initial sums for utterances of given sizes, in recycled vectors.
    pub fn new(recycled: Self, sizes: &[[usize; 3]]) -> Self {
        let sum_of = |size: fn(&[usize; 3]) -> usize| sizes.iter().map(size).sum();
        Self {
            frame_max: reset(recycled.frame_max, sum_of(|[t, ..]| *t), F::NEG_INFINITY),
            label_max: reset(recycled.label_max, sum_of(|[_, p, _]| *p), F::NEG_INFINITY),
            label_sums: reset(recycled.label_sums, sum_of(|[_, p, _]| *p), 0.0),
            pairs: reset(recycled.pairs, sum_of(|[t, _, k]| t * k), 0.0),
        }
    }

    /// Returns the scratch of each vector.
    pub fn scratch(sizes: &[[usize; 3]]) -> [ScratchReq; 4] {
        let sum_of = |size: fn(&[usize; 3]) -> usize| sizes.iter().map(size).sum();
        [
            ScratchReq::new::<F>(sum_of(|[t, ..]| *t)),
            ScratchReq::new::<F>(sum_of(|[_, p, _]| *p)),
            ScratchReq::new::<f64>(sum_of(|[_, p, _]| *p)),
            ScratchReq::new::<f64>(sum_of(|[t, _, k]| t * k)),
        ]
    }

    /// Splits the sums into those of each utterance.
    pub fn split(&self, sizes: &[[usize; 3]]) -> Vec<UtteranceSums<'_, F>> {
        let mut remaining = UtteranceSums {
            frame_max: &self.frame_max,
            label_max: &self.label_max,
            label_sums: &self.label_sums,
            pairs: &self.pairs,
        };
        let split = |[t, p, k]: &[usize; 3]| {
            let ClassSums { frame_max, label_max, label_sums, pairs } = &mut remaining;
            UtteranceSums {
                frame_max: split_shared(frame_max, *t),
                label_max: split_shared(label_max, *p),
                label_sums: split_shared(label_sums, *p),
                pairs: split_shared(pairs, t * k),
            }
        };
        sizes.iter().map(split).collect()
    }

    pub fn split_mut(&mut self, sizes: &[[usize; 3]]) -> Vec<UtteranceSumsMut<'_, F>> {
        let mut remaining = UtteranceSumsMut {
            frame_max: &mut self.frame_max,
            label_max: &mut self.label_max,
            label_sums: &mut self.label_sums,
            pairs: &mut self.pairs,
        };
        let split = |[t, p, k]: &[usize; 3]| {
            let ClassSums { frame_max, label_max, label_sums, pairs } = &mut remaining;
            UtteranceSumsMut {
                frame_max: split_front(frame_max, *t),
                label_max: split_front(label_max, *p),
                label_sums: split_front(label_sums, *p),
                pairs: split_front(pairs, t * k),
            }
        };
        sizes.iter().map(split).collect()
    }
}

impl<F> UtteranceSumsMut<'_, F> {
    pub fn as_sums(&self) -> UtteranceSums<'_, F> {
        let Self { frame_max, label_max, label_sums, pairs } = self;
        UtteranceSums { frame_max, label_max, label_sums, pairs }
    }
}

fn split_shared<'a, T>(remaining: &mut &'a [T], count: usize) -> &'a [T] {
    remaining.split_off(..count).expect("the vectors have the sums of all utterances")
}

/// Returns whether an element of [`ClassSums::pairs`] is a (negative) logarithm.
pub(crate) fn is_underflow(pair: f64) -> bool {
    pair < 0.0
}

/// Returns `log Σ_c A[t,c] L[k,c]`.
pub(crate) fn log(pair: f64) -> f64 {
    if is_underflow(pair) { pair } else { pair.ln() }
}
