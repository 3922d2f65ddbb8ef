//! Result of the normalizer's forward: emissions and logZ of each site.
//!
//! An emission is the log-probability of a selected class; a site is a lattice node (t, u).
use kernels::{par_find, par_for, parts_mut, range_parts};

use crate::{
    Error, Real, Result, Selection,
    blocking::{ROWS_PER_TASK, SITES_PER_TASK},
    error::expect_len,
    saved::{SavedHidden, SavedScores},
};

/// The result of forward, which backward needs.
///
/// It has `N (S + 2)` numbers, and the scores and hidden rows that the budget allowed. A clone has
/// no hidden rows.
///
/// `log Σ exp z` is stored as `max` and `log_sum` = `log Σ exp(z - max)`: `(z - max) - log_sum`
/// keeps digits that `z - logZ` loses if all scores share a large offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalized<F> {
    /// Largest score of each site, *N*.
    pub max: Vec<F>,
    /// `log Σ_c exp(z[i,c] - max[i])`, *N*.
    pub log_sum: Vec<f64>,
    /// `z[i, id[i,s]] - logZ[i]`, *N x S*; 0 at inactive entries.
    pub emissions: Vec<f64>,
    pub(crate) saved_scores: SavedScores<F>,
    pub(crate) saved_hidden: SavedHidden<F>,
}

impl<F: Real> Normalized<F> {
    /// Returns `logZ` of a site.
    ///
    /// # Panics
    /// If there is no such site.
    pub fn log_z(&self, site: usize) -> f64 {
        self.max[site].to_f64() + self.log_sum[site]
    }

    /// Creates the result for no site.
    pub(crate) fn empty() -> Self {
        Self::new(0, 0)
    }

    /// Creates initial values, without saved scores and rows.
    pub(crate) fn new(sites: usize, per_site: usize) -> Self {
        Self {
            max: vec![F::NEG_INFINITY; sites],
            log_sum: vec![0.0; sites],
            emissions: vec![0.0; sites * per_site],
            saved_scores: SavedScores::default(),
            saved_hidden: SavedHidden::default(),
        }
    }

    /// Fails unless the result has the lengths of a call.
    pub(crate) fn check(&self, sites: usize, per_site: usize) -> Result<()> {
        expect_len("normalized.max", sites, self.max.len())?;
        expect_len("normalized.log_sum", sites, self.log_sum.len())?;
        expect_len("normalized.emissions", sites.saturating_mul(per_site), self.emissions.len())
    }

    /// Converts sums to logarithms and selected scores to emissions, in place.
    ///
    /// # Errors
    /// The first site whose denominator is not positive and finite.
    pub(crate) fn finish(&mut self, selection: &Selection) -> Result<()> {
        let Self { max, log_sum, emissions, .. } = self;
        par_for(parts_mut(log_sum, ROWS_PER_TASK), |_, log_sum| log_sum.iter_mut().for_each(|s| *s = s.ln()));
        let (max, log_sum, per_site) = (&*max, &*log_sum, selection.per_site().max(1));
        par_for(parts_mut(emissions, ROWS_PER_TASK * per_site), |task, emissions| {
            let sites = task * ROWS_PER_TASK..;
            for (site, emissions) in sites.zip(emissions.chunks_exact_mut(per_site)) {
                for (slot, _) in selection.active(site) {
                    emissions[slot] = (emissions[slot] - max[site].to_f64()) - log_sum[site];
                }
            }
        });
        let is_bad = |&site: &usize| !log_sum[site].is_finite() || !max[site].to_f64().is_finite();
        match par_find(range_parts(max.len(), SITES_PER_TASK), |_, mut sites| sites.find(is_bad)) {
            None => Ok(()),
            Some(site) if max[site] == F::NEG_INFINITY && log_sum[site] == f64::NEG_INFINITY => {
                Err(Error::AllMasked { site })
            }
            Some(site) => Err(Error::NotFinite { site }),
        }
    }
}
