//! Losses of transducer or CTC lattices, with state for backward.
//!
//! The forward pass turns emissions (log-probabilities of the selected classes at each site, a
//! lattice node) into losses and adjoints (derivatives of each loss with respect to emissions). The
//! backward pass applies the weights of the utterances to the adjoints and splits them by head.
//! N: sites; S: columns, the selected classes of all heads.
use std::{borrow::Cow, ops::Range};

use kernels::reset;
use panda_core::{Adjoints, Clamp, Real};
use rnnt_dp::Lattices;

use crate::{
    Error, Options, Result,
    budget::SessionBuffers,
    column_counts::ColumnCounts,
    columns::{self, HeadAdjoints},
    error::expect_len,
    heads::HeadOutput,
    objective::LatticeObjective,
    site_buffers::{RowIndices, take_front},
    skipped_sites::{SkippedMass, skip_sites},
    smoothing::{add_z_loss, add_z_loss_adjoints, smooth, unsmooth},
};

/// Result of a call's forward pass, which its backward pass needs.
pub(crate) struct ForwardResult<F> {
    /// Row indices of the sites.
    pub indices: RowIndices,
    pub state: LatticeState<F>,
}

/// Losses, adjoints of the emissions, and kept scores of the heads.
pub(crate) struct LatticeState<F> {
    columns: ColumnCounts,
    /// Output of each head, tokens first.
    outputs: Vec<HeadOutput<F>>,
    losses: Vec<f64>,
    /// Adjoints of the columns, *N x S*, followed by scratch memory.
    site_values: Vec<f64>,
    /// Number of adjoints, N S.
    num_adjoints: usize,
    /// Skipped sites of each utterance; empty if skipping is disabled.
    skipped: Vec<SkippedMass>,
}

impl<F: Real> LatticeState<F> {
    /// Computes losses and adjoints from the outputs of all heads.
    pub(crate) fn forward(
        outputs: Vec<HeadOutput<F>>,
        objective: &LatticeObjective,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Self> {
        let (lattices, columns) = (objective.site_targets().lattices(), objective.column_counts());
        let num_adjoints = lattices.num_sites() * columns.all;
        let num_values = lattices.num_sites() * columns::values_per_site(columns.all, options);
        let mut site_values = reset(std::mem::take(&mut buffers.sites.site_values), num_values, 0.0);
        let mut losses = vec![0.0; lattices.batch()];
        let (adjoints, mut scratch) = site_values.split_at_mut(num_adjoints);
        // Emissions: those of the only head, or a combination of all heads.
        let emissions = if columns::is_combined(&outputs) || options.has_label_smoothing() {
            let emissions = take_front(&mut scratch, num_adjoints);
            columns::write_emissions(&outputs, emissions);
            if let ([tokens, .., mean], true) = (outputs.as_slice(), options.has_label_smoothing()) {
                let (tokens, mean) = (&tokens.normalized, &mean.normalized);
                smooth(emissions, columns, options.label_smoothing, tokens, mean);
            }
            &*emissions
        } else {
            &outputs[0].normalized.emissions
        };
        // Losses and adjoints.
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
            true => skip_sites(lattices, columns, adjoints, options.skip),
            false => Vec::new(),
        };
        Ok(Self { columns, outputs, losses, site_values, num_adjoints, skipped })
    }

    /// Loss of each utterance.
    pub(crate) fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Emissions of all sites, before smoothing.
    pub(crate) fn emissions(&self) -> Cow<'_, [f64]> {
        columns::emissions(&self.outputs)
    }

    /// Adjoints of the emissions, not yet weighted by utterance.
    pub(crate) fn adjoints(&self) -> &[f64] {
        &self.site_values[..self.num_adjoints]
    }

    /// Weighted mass of the skipped sites, if skipping is enabled.
    pub(crate) fn skipped_mass(&self, weights: &[f64]) -> Option<SkippedMass> {
        (!self.skipped.is_empty()).then(|| SkippedMass::weighted_sum(&self.skipped, weights))
    }

    /// Bound on the score gradients of a site, relative to its adjoints.
    pub(crate) fn gradient_bound(&self) -> f64 {
        columns::gradient_bound(&self.outputs)
    }

    /// Returns the output and the weighted adjoints of each head.
    ///
    /// Call it once: it overwrites the adjoints.
    pub(crate) fn backward(
        &mut self,
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
    ) -> Result<Vec<(&HeadOutput<F>, Adjoints<'_>)>> {
        let Self { columns, outputs, losses, site_values, num_adjoints, .. } = self;
        expect_len("weights", lattices.batch(), weights.len())?;
        // Weights. An utterance without a path has no gradient; its weight may be infinite, and 0 ·
        // inf is NaN.
        let weight_with_path = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&*losses).map(weight_with_path).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let sites = lattices.num_sites();
        let (emission_adjoints, mut scratch) = site_values.split_at_mut(*num_adjoints);
        // A clamp acts on the gradient of the unweighted loss, so that weights are applied
        // afterward.
        let clamp = options.clamp.map(|limit| {
            let site_weights = take_front(&mut scratch, sites);
            for (utterance, weight) in weights.iter().enumerate() {
                site_weights[lattices.site_range(utterance)].fill(*weight);
            }
            Clamp { limit, weights: site_weights }
        });
        if clamp.is_none() {
            let columns = columns.all;
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = lattices.site_range(utterance);
                emission_adjoints[start * columns..end * columns]
                    .iter_mut()
                    .for_each(|adjoint| *adjoint *= weight);
            }
        }
        // Adjoints of the log-probabilities of each head, of the mean score and of logZ.
        let mean_adjoints = options.has_label_smoothing().then(|| {
            let mean_adjoints = take_front(&mut scratch, sites);
            unsmooth(emission_adjoints, *columns, options.label_smoothing, mean_adjoints);
            mean_adjoints
        });
        let mut head_adjoints = columns::head_adjoints(outputs, emission_adjoints, &mut scratch);
        if mean_adjoints.is_some() || options.z_loss > 0.0 {
            // Label smoothing subtracts logZ from the mean score; the z-loss depends on it too.
            let log_z_adjoints = take_front(&mut scratch, sites);
            match &mean_adjoints {
                Some(mean_adjoints) => {
                    log_z_adjoints.iter_mut().zip(&**mean_adjoints).for_each(|(z, mean)| *z = -mean)
                }
                None => log_z_adjoints.fill(0.0),
            }
            let factor = |utterance: usize| match clamp {
                // The clamp applies the weights.
                Some(_) => 1.0,
                None => weights[utterance],
            };
            add_z_loss_adjoints(log_z_adjoints, options.z_loss, &outputs[0].normalized, lattices, factor);
            head_adjoints[0].log_z = Some(log_z_adjoints);
        }
        head_adjoints.extend(mean_adjoints.map(|log_z| HeadAdjoints { emissions: &[], log_z: Some(log_z) }));
        let head_adjoints = head_adjoints.into_iter().map(|HeadAdjoints { emissions, log_z }| Adjoints {
            emissions,
            log_z: log_z.map(|log_z| &*log_z),
            clamp,
        });
        Ok(outputs.iter().zip(head_adjoints).collect())
    }

    /// Returns all vectors to the buffers; the result is the losses.
    pub(crate) fn release(self, buffers: &mut SessionBuffers<F>) -> Vec<f64> {
        let mut normalizers = buffers.normalizers.iter_mut();
        for (head, HeadOutput { selection, normalized, .. }) in self.outputs.into_iter().enumerate() {
            buffers.sites.put_selection(head, selection);
            if let Some(workspace) = normalizers.next() {
                workspace.recycle(normalized);
            }
        }
        buffers.sites.site_values = self.site_values;
        self.losses
    }
}
