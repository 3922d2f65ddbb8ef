//! Adjoints: loss gradients from which the normalizer's backward pass starts.
//!
//! An emission r is the log-probability of a selected class at a site, a lattice node (t, u).
use kernels::{par_find, range_parts};

use crate::{Error, Real, Result, Selection, blocking::SITES_PER_TASK, error::expect_len};

/// Gradients of the loss that [`backward`](crate::backward()) starts from.
#[derive(Debug, Clone, Copy)]
pub struct Adjoints<'a> {
    /// `dL/dr`, *N x S*; inactive entries are not read.
    pub emissions: &'a [f64],
    /// `dL/dlogZ`, *N*, in addition to what the emissions imply (z-loss).
    pub log_z: Option<&'a [f64]>,
    /// Optional clamp on the gradient of the scores.
    pub clamp: Option<Clamp<'a>>,
}

/// Clamp of the score gradient: `g = weight · clip(g, -limit, limit)`.
#[derive(Debug, Clone, Copy)]
pub struct Clamp<'a> {
    /// Largest magnitude before weighting, at least 0.
    pub limit: f64,
    /// Weight of each site, *N*, applied after clipping; adjoints must not contain it.
    pub weights: &'a [f64],
}

impl<'a> Adjoints<'a> {
    /// Creates adjoints of the emissions, without z-loss and clamp.
    pub fn new(emissions: &'a [f64]) -> Self {
        Self { emissions, log_z: None, clamp: None }
    }

    /// Fails unless all values are finite in the type of the rows.
    pub(crate) fn check<F: Real>(&self, sites: usize, selection: &Selection) -> Result<()> {
        let per_site = selection.per_site();
        expect_len("adjoints.emissions", sites.saturating_mul(per_site), self.emissions.len())?;
        let weights = self.clamp.map(|clamp| clamp.weights);
        for (argument, values) in [("adjoints.log_z", self.log_z), ("adjoints.clamp.weights", weights)] {
            let Some(values) = values else { continue };
            expect_len(argument, sites, values.len())?;
            first_error(sites, |site| check_finite::<F>(argument, site, values[site]))?;
        }
        first_error(sites, |site| {
            let entries = selection.active(site).map(|(slot, _)| self.emissions[site * per_site + slot]);
            let mut values = entries.chain([self.total(site, selection)]);
            values.try_for_each(|value| check_finite::<F>("adjoints.emissions", site, value))
        })?;
        match self.clamp {
            Some(Clamp { limit, .. }) if limit.is_nan() || limit < 0.0 => Err(Error::Clamp { limit }),
            _ => Ok(()),
        }
    }

    /// Returns whether a site has an adjoint that is not negligible.
    pub(crate) fn is_active<F: Real>(&self, site: usize, selection: &Selection) -> bool {
        let is_nonzero = |adjoint: f64| adjoint.abs() > F::FLUSH_THRESHOLD.to_f64();
        let row = &self.emissions[site * selection.per_site()..];
        self.log_z.is_some_and(|a| is_nonzero(a[site]))
            || selection.active(site).any(|(slot, _)| is_nonzero(row[slot]))
    }

    /// Returns `A = Σ_s a_s - dL/dlogZ` of a site.
    pub(crate) fn total(&self, site: usize, selection: &Selection) -> f64 {
        let row = &self.emissions[site * selection.per_site()..];
        selection.active(site).map(|(slot, _)| row[slot]).sum::<f64>() - self.log_z.map_or(0.0, |a| a[site])
    }
}

/// Checks all sites in parallel; returns the error of the first bad site.
fn first_error(sites: usize, check: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let error = |site| check(site).err();
    par_find(range_parts(sites, SITES_PER_TASK), |_, mut sites| sites.find_map(error)).map_or(Ok(()), Err)
}

fn check_finite<F: Real>(argument: &'static str, site: usize, value: f64) -> Result<()> {
    if F::from_f64(value).to_f64().is_finite() {
        Ok(())
    } else {
        Err(Error::Adjoint { argument, site, value })
    }
}
