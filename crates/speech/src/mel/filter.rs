//! Filters over a power spectrum.

use super::MelScale;
use crate::real::Real;

/// One triangular filter over the bins of a power spectrum, without its zeros.
pub(crate) struct Filter<F> {
    first: usize,
    weights: Vec<F>,
}

impl<F: Real> Filter<F> {
    /// The filters of a scale over spectra of `size / 2 + 1` bins; `None` if one of them falls between two bins of the spectrum.
    pub(crate) fn bank(scale: &MelScale, size: usize, sample_rate: u32) -> Option<Vec<Self>> {
        let hz = |k: usize| k as f64 * f64::from(sample_rate) / size as f64;
        let filter = |bin| {
            let weight = |k: &usize| F::of(scale.weight(bin, hz(*k)));
            let support: Vec<usize> = (0..=size / 2).filter(|k| weight(k) > F::zero()).collect();
            let first = *support.first()?;
            Some(Filter { first, weights: support.iter().map(weight).collect() })
        };
        (0..scale.bins()).map(filter).collect()
    }

    /// Filtered power.
    pub(crate) fn apply(&self, power: &[F]) -> F {
        power[self.first..].iter().zip(&self.weights).fold(F::zero(), |sum, (&p, &w)| sum + p * w)
    }

    /// Its weights over a spectrum of so many bins.
    pub(crate) fn row(&self, bins: usize) -> impl Iterator<Item = f64> {
        let weight = |k: usize| Some(self.weights.get(k.checked_sub(self.first)?)?.wide());
        (0..bins).map(move |k| weight(k).unwrap_or(0.0))
    }
}
