//! Losses of the lattices, and the state that the backward pass needs.
//!
//! The forward pass turns emissions (log-probabilities of the selected classes at each site, a
//! lattice node) into losses and adjoints (derivatives of each loss with respect to emissions). The
//! backward pass applies the weights of the utterances to the adjoints and splits them by head.
use std::{borrow::Cow, ops::Range};

use kernels::reset;
use panda_core::{Adjoints, Clamp, Real};
use rnnt_dp::Lattices;

use crate::{
    Error, Options, Result,
    budget::SessionBuffers,
    columns::{self, HeadAdjoints},
    error::expect_len,
    heads::HeadOutput,
    objective::LatticeObjective,
    site_buffers::{SiteIndices, split_front},
    skipped_sites::{SkippedMass, skip},
    smoothing::{add_z_loss, smooth, unsmooth, z_loss_adjoints},
};

/// Result of a forward pass: row indices of the sites, and state of the lattices.
pub(crate) type ForwardPass<F> = (SiteIndices, LatticeState<F>);

/// Losses and the state for their gradients: numbers per site, and kept scores.
pub(crate) struct LatticeState<F> {
    /// Number of columns, and of those for tokens.
    width: (usize, usize),
    /// Output of each head, tokens first.
    outputs: Vec<HeadOutput<F>>,
    losses: Vec<f64>,
    /// Adjoints of the columns, *N x S*, followed by scratch memory.
    numbers: Vec<f64>,
    /// Number of adjoints, N S.
    entries: usize,
    skipped: Vec<SkippedMass>,
}

impl<F: Real> LatticeState<F> {
    /// Computes losses and adjoints from the outputs of all heads.
    pub fn forward(
        outputs: Vec<HeadOutput<F>>,
        objective: &LatticeObjective,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Self> {
        let (lattices, width) = (objective.sites().lattices(), objective.width());
        let (sites, entries) = (lattices.sites(), lattices.sites() * width.0);
        let numbers = std::mem::take(&mut buffers.sites.numbers);
        let mut numbers = reset(numbers, sites * columns::numbers_per_site(width.0, options), 0.0);
        let mut losses = vec![0.0; lattices.batch()];
        let (adjoints, mut scratch) = numbers.split_at_mut(entries);
        let emissions = if columns::is_combined(&outputs) || options.has_label_smoothing() {
            let emissions = split_front(&mut scratch, entries);
            columns::write_emissions(&outputs, emissions);
            if let ([all, .., mean], true) = (outputs.as_slice(), options.has_label_smoothing()) {
                let (all, mean) = (&all.normalized, &mean.normalized);
                smooth(emissions, width, options.label_smoothing, all, mean);
            }
            &*emissions
        } else {
            &outputs[0].normalized.emissions
        };
        objective.forward_backward(
            emissions,
            options,
            &mut buffers.lattices,
            &mut losses,
            adjoints,
            scratch,
        )?;
        if options.z_loss > 0.0 {
            add_z_loss(&mut losses, options.z_loss, &outputs[0].normalized, lattices)?;
        }
        let skipped = match options.skip > 0.0 {
            true => skip(lattices, width, adjoints, options.skip),
            false => Vec::new(),
        };
        Ok(Self { width, outputs, losses, numbers, entries, skipped })
    }

    /// Loss of each utterance.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Emissions of all sites, before smoothing.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        columns::emissions(&self.outputs)
    }

    /// Adjoints of the emissions, not yet weighted by utterance.
    pub fn adjoints(&self) -> &[f64] {
        &self.numbers[..self.entries]
    }

    /// Weighted mass of the skipped sites, if skipping is enabled.
    pub fn skipped_mass(&self, weights: &[f64]) -> Option<SkippedMass> {
        (!self.skipped.is_empty()).then(|| SkippedMass::weighted_sum(&self.skipped, weights))
    }

    /// Bound on the score gradients of a site, relative to its adjoints.
    pub fn gradient_bound(&self) -> f64 {
        columns::gradient_bound(&self.outputs)
    }

    /// Returns the output and the weighted adjoints of each head.
    ///
    /// Call it once: it overwrites the adjoints.
    pub fn backward(
        &mut self,
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
    ) -> Result<Vec<(&HeadOutput<F>, Adjoints<'_>)>> {
        let Self { width, outputs, losses, numbers, entries, .. } = self;
        expect_len("weights", lattices.batch(), weights.len())?;
        // An utterance without a path has no gradient; its weight may be infinite, and 0 · inf is
        // NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&*losses).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let sites = lattices.sites();
        // `emissions` are the adjoints of the emissions.
        let (emissions, mut scratch) = numbers.split_at_mut(*entries);
        // A clamp acts on the gradient of the unweighted loss, so that weights are applied
        // afterward.
        let clamp = options.clamp.map(|limit| {
            let at_sites = split_front(&mut scratch, sites);
            weights.iter().enumerate().for_each(|(b, weight)| at_sites[lattices.site_range(b)].fill(*weight));
            Clamp { limit, weights: at_sites }
        });
        if clamp.is_none() {
            let (columns, _) = *width;
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = lattices.site_range(utterance);
                emissions[start * columns..end * columns].iter_mut().for_each(|a| *a *= weight);
            }
        }
        let mean_adjoints = options.has_label_smoothing().then(|| {
            let mean_adjoints = split_front(&mut scratch, sites);
            unsmooth(emissions, *width, options.label_smoothing, mean_adjoints);
            mean_adjoints
        });
        let mut adjoints = columns::adjoints(outputs, emissions, &mut scratch);
        if mean_adjoints.is_some() || options.z_loss > 0.0 {
            let log_z = split_front(&mut scratch, sites);
            match &mean_adjoints {
                Some(mean_adjoints) => {
                    log_z.iter_mut().zip(&**mean_adjoints).for_each(|(z, mean)| *z = -mean)
                }
                None => log_z.fill(0.0),
            }
            let factor = |utterance: usize| match clamp {
                // The clamp applies the weights.
                Some(_) => 1.0,
                None => weights[utterance],
            };
            z_loss_adjoints(log_z, options.z_loss, &outputs[0].normalized, lattices, factor);
            adjoints[0].log_z = Some(log_z);
        }
        adjoints.extend(mean_adjoints.map(|log_z| HeadAdjoints { emissions: &[], log_z: Some(log_z) }));
        let adjoints = adjoints.into_iter().map(|HeadAdjoints { emissions, log_z }| Adjoints {
            emissions,
            log_z: log_z.map(|log_z| &*log_z),
            clamp,
        });
        Ok(outputs.iter().zip(adjoints).collect())
    }

    /// Returns all vectors to the buffers; the result is the losses.
    pub fn release(self, buffers: &mut SessionBuffers<F>) -> Vec<f64> {
        let mut normalizers = buffers.normalizers.iter_mut();
        for (head, HeadOutput { selection, normalized, .. }) in self.outputs.into_iter().enumerate() {
            buffers.sites.put_selection(head, selection);
            if let Some(workspace) = normalizers.next() {
                workspace.recycle(normalized);
            }
        }
        buffers.sites.numbers = self.numbers;
        self.losses
    }
}
