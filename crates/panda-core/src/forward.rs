//! Forward: emissions and the two halves of logZ, one wave of sites at a time, tile by tile.
use std::ops::Range;

use kernels::packed::{Full, Numbers, half::Half};
use rayon::prelude::*;

use crate::{
    Error, Head, Precision, Real, Result, Selection, Sites, Workspace,
    error::expect_len,
    kept::{Kept, waves},
    panels::{Found, Panels, Room},
    workspace::in_pool,
};

/// What forward returns and backward needs: `N (S + 2)` numbers, and the scores that the budget had room for.
///
/// `log Σ exp z` is kept as `max` and `log_sum` = `log Σ exp(z - max)`, because `(z - max) - log_sum` keeps
/// digits that `z - logZ` loses when all scores share a large offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalized<F> {
    /// Largest score of each site, *N*.
    pub max: Vec<F>,
    /// `log Σ_c exp(z[i,c] - max[i])`, *N*.
    pub log_sum: Vec<f64>,
    /// `z[i, id[i,s]] - logZ[i]`, *N x S*; 0 at inactive entries.
    pub emissions: Vec<f64>,
    pub(crate) kept: Kept<F>,
}

impl<F: Real> Normalized<F> {
    /// `logZ[i]`
    ///
    /// # Panics
    /// If there is no such site.
    pub fn log_z(&self, site: usize) -> f64 {
        self.max[site].to_f64() + self.log_sum[site]
    }

    /// Lets go of kept scores: a later backward recomputes them, and `workspace` has their room for its next call.
    pub fn release(&mut self, workspace: &mut Workspace<F>) {
        workspace.give_spare(std::mem::take(&mut self.kept.scores));
    }

    pub(crate) fn new(sites: usize, per_site: usize, kept: Kept<F>) -> Self {
        Self {
            max: vec![F::NEG_INFINITY; sites],
            log_sum: vec![0.0; sites],
            emissions: vec![0.0; sites * per_site],
            kept,
        }
    }

    pub(crate) fn check(&self, sites: usize, per_site: usize) -> Result<()> {
        expect_len("normalized.max", sites, self.max.len())?;
        expect_len("normalized.log_sum", sites, self.log_sum.len())?;
        expect_len("normalized.emissions", sites.saturating_mul(per_site), self.emissions.len())
    }

    /// Turns sums into logs and selected scores into emissions.
    ///
    /// The first site whose denominator is no positive number, if any, is an error.
    pub(crate) fn finish(mut self, selection: &Selection) -> Result<Self> {
        let per_site = selection.per_site();
        for (site, (log_sum, max)) in self.log_sum.iter_mut().zip(&self.max).enumerate() {
            *log_sum = log_sum.ln();
            for (slot, _) in selection.active(site) {
                let emission = &mut self.emissions[site * per_site + slot];
                *emission = (*emission - max.to_f64()) - *log_sum;
            }
        }
        let bad = |(log_sum, max): (&f64, &F)| !log_sum.is_finite() || !max.to_f64().is_finite();
        match self.log_sum.iter().zip(&self.max).position(bad) {
            None => Ok(self),
            Some(site) if self.max[site] == F::NEG_INFINITY && self.log_sum[site] == f64::NEG_INFINITY => {
                Err(Error::AllMasked { site })
            }
            Some(site) => Err(Error::NotFinite { site }),
        }
    }
}

/// Emissions of the selected classes, exact over all classes.
///
/// ```text
/// for each wave of sites, for each flight of tiles, in parallel over tiles:
///     Z = h Wᵀ + b;  m_j = max Z;  s_j = Σ exp(Z - m_j);  remember Z at the selected classes
/// for each site:  m = max_j m_j;  s = Σ_j s_j exp(m_j - m)
///     logZ = m + log s;  r = (Z_selected - m) - log s
/// ```
///
/// # Shapes
/// `sites` N rows of width H, `head` *C x H*, `selection` *N x S*. N = 0, S = 0 and C = 1 are legal.
///
/// # Errors
/// Shapes that do not fit, a selected class out of range, an infinite weight, a site whose scores hold NaN or +inf
/// ([`Error::NotFinite`]) or are all -inf ([`Error::AllMasked`]).
///
/// # Cost
/// 2 N H C floating-point operations and N C exponentials; memory as [`Plan::bytes`](crate::Plan::bytes) says. `f32`
/// products accumulate in `f32`, sums of exponentials in `f64`.
pub fn forward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
) -> Result<Normalized<F>> {
    let (mut full, mut half) = (std::mem::take(&mut workspace.full), std::mem::take(&mut workspace.half));
    let result = in_pool(|| match workspace.precision {
        Precision::Full => forward_with::<F, Full, S>(sites, head, selection, workspace, &mut full),
        Precision::Bf16 => forward_with::<F, Half, S>(sites, head, selection, workspace, &mut half),
    });
    (workspace.full, workspace.half) = (full, half);
    result
}

fn forward_with<F: Real, N: Numbers<F>, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
    panels: &mut Panels<N::Word>,
) -> Result<Normalized<F>> {
    let plan = workspace.prepare(sites, head, selection)?;
    let (n, h, classes, per_site) = (sites.len(), head.hidden, head.classes, selection.per_site());
    let kept = Kept::new(workspace.take_spare(plan.kept * classes), &plan, classes);
    let mut out = Normalized::new(n, per_site, kept);
    let Workspace { hidden, z, statistics, picked, .. } = workspace;
    let Normalized { max, log_sum, emissions, kept } = &mut out;
    let mut kept = kept.scores.as_mut_slice();
    for wave in waves(0..plan.kept, plan.wave).chain(waves(plan.kept..n, plan.wave)) {
        let rows = wave.len();
        panels.fill::<F, N, S>(&plan, sites, &wave, true, &mut hidden[..rows * h]);
        for flight in plan.flights(classes) {
            let tiles = flight.len().div_ceil(plan.classes);
            let room = if wave[0] < plan.kept {
                let keep = kept.split_off_mut(..rows * flight.len());
                Room::Kept(keep.expect("there is room for the scores of all kept sites"))
            } else {
                Room::Passing(z)
            };
            let statistics = &mut statistics[..rows * tiles];
            let picked = &mut picked[..rows * tiles * per_site.max(1)];
            let found = Found { statistics: &mut *statistics, picked: &mut *picked };
            panels.forward::<F, N>(&plan, head, selection, &wave, &flight, room, found);
            merge(statistics, rows, &mut max[wave[0]..][..rows], &mut log_sum[wave[0]..][..rows]);
            select(selection, &wave, &flight, plan.classes, picked, emissions);
        }
    }
    out.finish(selection)
}

/// Folds the statistics of a flight's tiles into those of its sites, in tile order.
fn merge<F: Real>(statistics: &[(F, f64)], rows: usize, max: &mut [F], sum: &mut [f64]) {
    max.par_iter_mut().zip(sum).enumerate().with_min_len(64).for_each(|(row, (max, sum))| {
        for &(tile_max, tile_sum) in statistics[row..].iter().step_by(rows) {
            let (low, high) = if tile_max > *max { (*max, tile_max) } else { (tile_max, *max) };
            // exp(-inf + inf) would be NaN; without a path below, the other side alone remains.
            let factor = if low == high { 1.0 } else { (low.to_f64() - high.to_f64()).exp() };
            *sum = if tile_max > *max { *sum * factor + tile_sum } else { *sum + tile_sum * factor };
            *max = high;
        }
    });
}

/// Remembers the scores of the selected classes that are in flight.
fn select<F: Real>(
    selection: &Selection,
    wave: &[usize],
    flight: &Range<usize>,
    tile_classes: usize,
    picked: &[F],
    emissions: &mut [f64],
) {
    let per_site = selection.per_site();
    for (row, &site) in wave.iter().enumerate() {
        for (slot, class) in selection.active(site) {
            if flight.contains(&(class as usize)) {
                let tile = (class as usize - flight.start) / tile_classes;
                emissions[site * per_site + slot] =
                    picked[(tile * wave.len() + row) * per_site + slot].to_f64();
            }
        }
    }
}
