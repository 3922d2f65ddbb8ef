//! What the normaliser leaves behind.
use kernels::{Real, ScratchReq, reset};

use crate::tiles::part;

/// ClassSums over the classes, with K contexts; what backward needs. Of a batch in vectors, of an utterance in slices of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ClassSums<N, W> {
    /// Largest score of each frame.
    pub frame_max: N,
    /// Largest score of each label position.
    pub label_max: N,
    /// `Σ_c L[u,c]`
    pub label_sums: W,
    /// `Σ_c A[t,c] L[k,c]`, *T x K*. Where it would be too small to have all its digits, the pair is *rare*: its logarithm, which is
    /// negative.
    pub pairs: W,
}

/// Of all utterances, one behind the other.
pub(crate) type BatchSums<F> = ClassSums<Vec<F>, Vec<f64>>;
/// Of one of them.
pub(crate) type UtteranceSums<'a, F> = ClassSums<&'a [F], &'a [f64]>;
/// Of one that is being looked at.
pub(crate) type UtteranceSumsMut<'a, F> = ClassSums<&'a mut [F], &'a mut [f64]>;

impl<F: Real> BatchSums<F> {
    /// Nothing found yet of utterances of T, U + 1 and K, in the vectors of another batch.
    pub fn new(spare: Self, sizes: &[[usize; 3]]) -> Self {
        let sum = |of: fn(&[usize; 3]) -> usize| sizes.iter().map(of).sum();
        Self {
            frame_max: reset(spare.frame_max, sum(|[t, ..]| *t), F::NEG_INFINITY),
            label_max: reset(spare.label_max, sum(|[_, p, _]| *p), F::NEG_INFINITY),
            label_sums: reset(spare.label_sums, sum(|[_, p, _]| *p), 0.0),
            pairs: reset(spare.pairs, sum(|[t, _, k]| t * k), 0.0),
        }
    }

    /// Scratch of each vector.
    pub fn scratch(sizes: &[[usize; 3]]) -> [ScratchReq; 4] {
        let sum = |of: fn(&[usize; 3]) -> usize| sizes.iter().map(of).sum();
        [
            ScratchReq::new::<F>(sum(|[t, ..]| *t)),
            ScratchReq::new::<F>(sum(|[_, p, _]| *p)),
            ScratchReq::new::<f64>(sum(|[_, p, _]| *p)),
            ScratchReq::new::<f64>(sum(|[t, _, k]| t * k)),
        ]
    }

    pub fn cut(&self, sizes: &[[usize; 3]]) -> Vec<UtteranceSums<'_, F>> {
        let mut rest = UtteranceSums {
            frame_max: &self.frame_max,
            label_max: &self.label_max,
            label_sums: &self.label_sums,
            pairs: &self.pairs,
        };
        let cut = |[t, p, k]: &[usize; 3]| {
            let ClassSums { frame_max, label_max, label_sums, pairs } = &mut rest;
            UtteranceSums {
                frame_max: shared(frame_max, *t),
                label_max: shared(label_max, *p),
                label_sums: shared(label_sums, *p),
                pairs: shared(pairs, t * k),
            }
        };
        sizes.iter().map(cut).collect()
    }

    pub fn cut_mut(&mut self, sizes: &[[usize; 3]]) -> Vec<UtteranceSumsMut<'_, F>> {
        let mut rest = UtteranceSumsMut {
            frame_max: &mut self.frame_max,
            label_max: &mut self.label_max,
            label_sums: &mut self.label_sums,
            pairs: &mut self.pairs,
        };
        let cut = |[t, p, k]: &[usize; 3]| {
            let ClassSums { frame_max, label_max, label_sums, pairs } = &mut rest;
            UtteranceSumsMut {
                frame_max: part(frame_max, *t),
                label_max: part(label_max, *p),
                label_sums: part(label_sums, *p),
                pairs: part(pairs, t * k),
            }
        };
        sizes.iter().map(cut).collect()
    }
}

impl<F> UtteranceSumsMut<'_, F> {
    pub fn found(&self) -> UtteranceSums<'_, F> {
        let Self { frame_max, label_max, label_sums, pairs } = self;
        UtteranceSums { frame_max, label_max, label_sums, pairs }
    }
}

fn shared<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    rest.split_off(..count).expect("sums were counted")
}

/// Whether a number of [`ClassSums::pairs`] is a logarithm.
pub(crate) fn rare(pair: f64) -> bool {
    pair < 0.0
}

/// `log Σ_c A[t,c] L[k,c]`
pub(crate) fn log(pair: f64) -> f64 {
    if rare(pair) { pair } else { pair.ln() }
}
