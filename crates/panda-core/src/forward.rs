//! Forward: emissions and the two halves of logZ, one wave of sites at a time, tile by tile.
use std::ops::Range;

use kernels::{
    grow,
    packed::{Full, Numbers, half::Half},
};
use rayon::prelude::*;

use crate::{
    Error, Head, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    cut::{Cut, FEW},
    error::expect_len,
    kept::{Held, Kept},
    panels::{Found, Panels, Room, Scores, Wave, fill},
    workspace::{Spare, in_pool, make},
};

/// What forward returns and backward needs: `N (S + 2)` numbers, and the scores and hidden rows that the budget had room
/// for. A clone has no hidden rows.
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
    pub(crate) held: Held<F>,
}

impl<F: Real> Normalized<F> {
    /// `logZ[i]`
    ///
    /// # Panics
    /// If there is no such site.
    pub fn log_z(&self, site: usize) -> f64 {
        self.max[site].to_f64() + self.log_sum[site]
    }

    /// Lets go of kept scores and rows: a later backward makes them again, and `workspace` has their room for its next call.
    pub fn release(&mut self, workspace: &mut Workspace<F>) {
        workspace.give_spare(Spare {
            kept: std::mem::take(&mut self.kept.scores),
            held: std::mem::take(&mut self.held),
        });
    }

    pub(crate) fn new(sites: usize, per_site: usize, (kept, held): (Kept<F>, Held<F>)) -> Self {
        Self {
            max: vec![F::NEG_INFINITY; sites],
            log_sum: vec![0.0; sites],
            emissions: vec![0.0; sites * per_site],
            kept,
            held,
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
    pub(crate) fn finish(&mut self, selection: &Selection) -> Result<()> {
        let Self { max, log_sum, emissions, .. } = self;
        log_sum.par_iter_mut().with_min_len(FEW).for_each(|log_sum| *log_sum = log_sum.ln());
        let (max, log_sum, per_site) = (&*max, &*log_sum, selection.per_site());
        let of_sites = emissions.par_chunks_mut(per_site.max(1)).enumerate().with_min_len(FEW);
        of_sites.for_each(|(site, emissions)| {
            for (slot, _) in selection.active(site) {
                emissions[slot] = (emissions[slot] - max[site].to_f64()) - log_sum[site];
            }
        });
        let bad = |(log_sum, max): (&f64, &F)| !log_sum.is_finite() || !max.to_f64().is_finite();
        match log_sum.par_iter().zip(max).with_min_len(1 << 10).position_first(bad) {
            None => Ok(()),
            Some(site) if max[site] == F::NEG_INFINITY && log_sum[site] == f64::NEG_INFINITY => {
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
/// Shapes that do not fit, a budget below the smallest cut, a selected class out of range, an infinite weight, a site whose scores hold NaN or +inf
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
    let result = in_pool(|| {
        let plan = workspace.prepare(sites, head, selection, (&mut full, &mut half))?;
        let mut out = Normalized::new(sites.len(), selection.per_site(), workspace.take_spare(&plan, head));
        let arguments = Arguments { sites, head, selection, plan };
        match workspace.precision {
            Precision::Full => arguments.run::<Full>(workspace, &mut full, &mut out),
            Precision::Bf16 => arguments.run::<Half>(workspace, &mut half, &mut out),
        }
        match out.finish(selection) {
            Ok(()) => Ok(out),
            Err(error) => {
                out.release(workspace);
                Err(error)
            }
        }
    });
    (workspace.full, workspace.half) = (full, half);
    result
}

/// What a forward works on.
struct Arguments<'a, F, S> {
    sites: &'a S,
    head: &'a Head<'a, F>,
    selection: &'a Selection,
    plan: Plan<F>,
}

impl<F: Real, S: Sites<F>> Arguments<'_, F, S> {
    /// All waves.
    fn run<N: Numbers<F>>(
        &self,
        workspace: &mut Workspace<F>,
        panels: &mut Panels<N::Word>,
        out: &mut Normalized<F>,
    ) {
        let Self { sites, head, selection, ref plan } = *self;
        let (n, h, classes, per_site) = (sites.len(), head.hidden, head.classes, selection.per_site());
        let cut = Cut::new::<F, N>(plan, h);
        let most = plan.wave.div_ceil(plan.block);
        let Workspace { list, hidden, z, statistics, picked, .. } = workspace;
        make(list, plan.wave);
        z.make(cut.slots(plan));
        grow(picked, plan.wave * plan.tiles * per_site.max(1), F::ZERO);
        grow(statistics, plan.wave * plan.tiles, (F::ZERO, 0.0));
        let Normalized { max, log_sum, emissions, kept, held: outlives } = out;
        let Held { rows: held_rows, sites: held_sites, .. } = outlives;
        let (mut held_rows, mut kept) = (held_rows.as_mut_slice(), kept.scores.as_mut_slice());
        for wave in waves(plan, n, cut.strip) {
            let rows = wave.len();
            let blocks = rows.div_ceil(plan.block);
            list.clear();
            list.extend(wave.clone());
            let left = &mut panels.h_left.room(most * cut.h_left, N::ZERO)[..blocks * cut.h_left];
            let hidden = match wave.end <= *held_sites {
                true => {
                    held_rows.split_off_mut(..rows * h).expect("there is room for all rows that are held")
                }
                false => {
                    grow(hidden, plan.wave * h, F::ZERO);
                    &mut hidden[..rows * h]
                }
            };
            fill::<F, N, S>(plan, sites, list, Wave { hidden, left: Some(left), right: None });
            for flight in plan.flights(classes) {
                let tiles = flight.len().div_ceil(plan.tile_classes);
                let room = if wave.start < plan.kept {
                    let keep = kept.split_off_mut(..rows * flight.len());
                    Room::Kept(keep.expect("there is room for the scores of all kept sites"))
                } else {
                    Room::Passing(z)
                };
                let statistics = &mut statistics[..rows * tiles];
                let picked = &mut picked[..rows * tiles * per_site.max(1)];
                let found = Found { statistics: &mut *statistics, picked: &mut *picked };
                let scores = Scores { plan, head, selection, wave: list, flight: flight.clone() };
                panels.forward::<F, N>(&scores, room, found);
                merge(statistics, &mut max[wave.clone()], &mut log_sum[wave.clone()]);
                select(&scores, picked, emissions);
            }
        }
    }
}

/// Waves of sites whose scores are kept, then of the others.
fn waves<F: Real>(plan: &Plan<F>, sites: usize, strip: usize) -> impl Iterator<Item = Range<usize>> {
    [0..plan.kept, plan.kept..sites].into_iter().flat_map(move |part| {
        let step = plan.step(part.len(), strip);
        part.clone().step_by(step).map(move |from| from..(from + step).min(part.end))
    })
}

/// Folds the statistics of a flight's tiles into those of its sites, in tile order.
fn merge<F: Real>(statistics: &[(F, f64)], max: &mut [F], sum: &mut [f64]) {
    let rows = max.len();
    max.par_iter_mut().zip(sum).enumerate().with_min_len(FEW).for_each(|(row, (max, sum))| {
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
fn select<F: Real>(scores: &Scores<F>, picked: &[F], emissions: &mut [f64]) {
    let Scores { plan, selection, wave, ref flight, .. } = *scores;
    let (per_site, rows) = (selection.per_site(), wave.len());
    if per_site == 0 {
        return;
    }
    let of_wave = &mut emissions[wave[0] * per_site..][..rows * per_site];
    let each = of_wave.par_chunks_mut(per_site).zip(wave).enumerate().with_min_len(FEW);
    each.for_each(|(row, (emissions, &site))| {
        for (slot, class) in selection.active(site) {
            if flight.contains(&(class as usize)) {
                let tile = (class as usize - flight.start) / plan.tile_classes;
                emissions[slot] = picked[(tile * rows + row) * per_site + slot].to_f64();
            }
        }
    });
}
