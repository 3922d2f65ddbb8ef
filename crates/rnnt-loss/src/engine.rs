//! The engine behind every door: normaliser forward, lattice, normaliser backward.
use panda_core::{Adjoints, Clamp, Gradients, Head, Normalized, Real, Selection, Sites, Tiling};
use rnnt_dp::{Posterior, Regularisers};

use crate::{Error, Options, Result, Targets, error::expect_len};

/// What lies between the two directions: a few numbers a site.
pub(crate) struct Forward<F> {
    selection: Selection,
    normalized: Normalized<F>,
    posterior: Posterior,
}

impl<F: Real> Forward<F> {
    /// Losses and adjoints from hidden rows and a head.
    pub fn new<S: Sites<F>>(sites: &S, head: &Head<F>, targets: &Targets, options: &Options) -> Result<Self> {
        targets.check_classes(head.classes())?;
        let tiling = Self::tiling(sites, head, options);
        Self::from_normaliser(targets, options, |selection| {
            panda_core::forward(sites, head, selection, &tiling)
        })
    }

    /// The same, with emissions from elsewhere.
    pub fn from_normaliser(
        targets: &Targets,
        options: &Options,
        normalise: impl FnOnce(&Selection) -> panda_core::Result<Normalized<F>>,
    ) -> Result<Self> {
        let selection = targets.selection()?;
        let normalized = normalise(&selection).map_err(|error| Error::at_site(error, targets.lattices()))?;
        let regularisers = Regularisers { fastemit: options.fastemit };
        let posterior = rnnt_dp::forward_backward(
            targets.lattices(),
            &options.topology,
            &normalized.emissions,
            &regularisers,
        )?;
        Ok(Self { selection, normalized, posterior })
    }

    /// `-log P` of each utterance.
    pub fn losses(&self) -> &[f64] {
        &self.posterior.losses
    }

    /// All of it: losses, adjoints, forward and backward log-sums.
    pub fn into_posterior(self) -> Posterior {
        self.posterior
    }

    /// Gradients of `Σ_b weights[b] loss[b]`.
    pub fn backward<S: Sites<F>>(
        &self,
        sites: &S,
        head: &Head<F>,
        targets: &Targets,
        options: &Options,
        weights: &[f64],
    ) -> Result<Gradients<F, S::Gradient>> {
        let tiling = Self::tiling(sites, head, options);
        self.with_adjoints(targets, options, weights, |selection, normalized, adjoints| {
            panda_core::backward(sites, head, selection, normalized, adjoints, &tiling)
        })
    }

    /// Hands the weighted adjoints to a backward pass.
    pub fn with_adjoints<T>(
        &self,
        targets: &Targets,
        options: &Options,
        weights: &[f64],
        backward: impl FnOnce(&Selection, &Normalized<F>, &Adjoints) -> panda_core::Result<T>,
    ) -> Result<T> {
        expect_len("weights", targets.batch(), weights.len())?;
        // An impossible utterance has no gradient, whatever an infinite loss has become above: 0 · inf would be NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(self.losses()).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let weights = targets.at_sites(&weights);
        // A clamp acts on the gradient of the unweighted loss, so that the weights have to wait.
        let mut emissions = self.posterior.adjoints.clone();
        if options.clamp.is_none() {
            emissions
                .chunks_exact_mut(2)
                .zip(&weights)
                .for_each(|(pair, w)| pair.iter_mut().for_each(|a| *a *= w));
        }
        let clamp = options.clamp.map(|limit| Clamp { limit, weights: &weights });
        let adjoints = Adjoints { emissions: &emissions, log_z: None, clamp };
        backward(&self.selection, &self.normalized, &adjoints)
            .map_err(|error| Error::at_site(error, targets.lattices()))
    }

    fn tiling<S: Sites<F>>(sites: &S, head: &Head<F>, options: &Options) -> Tiling {
        options.tiling(sites.len(), head.classes())
    }
}
