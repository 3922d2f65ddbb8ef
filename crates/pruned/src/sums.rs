//! What the normaliser leaves behind.
use kernels::{Real, reset};

use crate::tiles::part;

/// Sums over the classes, with K contexts; what backward needs. Of a batch in vectors, of an utterance in slices of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sums<N, W> {
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
pub(crate) type OfBatch<F> = Sums<Vec<F>, Vec<f64>>;
/// Of one of them.
pub(crate) type Found<'a, F> = Sums<&'a [F], &'a [f64]>;
/// Of one that is being looked at.
pub(crate) type Finding<'a, F> = Sums<&'a mut [F], &'a mut [f64]>;

impl<F: Real> OfBatch<F> {
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

    /// Bytes of each vector.
    pub fn bytes(sizes: &[[usize; 3]]) -> [usize; 4] {
        sizes.iter().fold([0; 4], |[frames, labels, sums, pairs], [t, p, k]| {
            let float = size_of::<F>();
            [frames + float * t, labels + float * p, sums + 8 * p, pairs + 8 * t * k]
        })
    }

    /// The same of those that are held.
    pub fn held(&self) -> [usize; 4] {
        let Self { frame_max, label_max, label_sums, pairs } = self;
        let float = size_of::<F>();
        [
            float * frame_max.capacity(),
            float * label_max.capacity(),
            8 * label_sums.capacity(),
            8 * pairs.capacity(),
        ]
    }

    pub fn cut(&self, sizes: &[[usize; 3]]) -> Vec<Found<'_, F>> {
        let mut rest = Found {
            frame_max: &self.frame_max,
            label_max: &self.label_max,
            label_sums: &self.label_sums,
            pairs: &self.pairs,
        };
        let cut = |[t, p, k]: &[usize; 3]| {
            let Sums { frame_max, label_max, label_sums, pairs } = &mut rest;
            Found {
                frame_max: shared(frame_max, *t),
                label_max: shared(label_max, *p),
                label_sums: shared(label_sums, *p),
                pairs: shared(pairs, t * k),
            }
        };
        sizes.iter().map(cut).collect()
    }

    pub fn cut_mut(&mut self, sizes: &[[usize; 3]]) -> Vec<Finding<'_, F>> {
        let mut rest = Finding {
            frame_max: &mut self.frame_max,
            label_max: &mut self.label_max,
            label_sums: &mut self.label_sums,
            pairs: &mut self.pairs,
        };
        let cut = |[t, p, k]: &[usize; 3]| {
            let Sums { frame_max, label_max, label_sums, pairs } = &mut rest;
            Finding {
                frame_max: part(frame_max, *t),
                label_max: part(label_max, *p),
                label_sums: part(label_sums, *p),
                pairs: part(pairs, t * k),
            }
        };
        sizes.iter().map(cut).collect()
    }
}

impl<F> Finding<'_, F> {
    pub fn found(&self) -> Found<'_, F> {
        let Self { frame_max, label_max, label_sums, pairs } = self;
        Found { frame_max, label_max, label_sums, pairs }
    }
}

fn shared<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    rest.split_off(..count).expect("sums were counted")
}

/// Whether a number of [`Sums::pairs`] is a logarithm.
pub(crate) fn rare(pair: f64) -> bool {
    pair < 0.0
}

/// `log Σ_c A[t,c] L[k,c]`
pub(crate) fn log(pair: f64) -> f64 {
    if rare(pair) { pair } else { pair.ln() }
}
