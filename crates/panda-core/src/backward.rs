//! Backward: gradients from compact adjoints, one wave of sites at a time, tile by tile.
use rayon::prelude::*;

use crate::{
    Error, Head, Normalized, Real, Result, Selection, Sites, Workspace,
    error::expect_len,
    forward::{fill, score_tile},
    kept::waves,
    kernel::{Accumulate, View, ViewMut, product},
    workspace::{flights, grow},
};

/// What the lattice sends back.
#[derive(Debug, Clone, Copy)]
pub struct Adjoints<'a> {
    /// `dL/dr`, *N x S*; inactive entries are not read.
    pub emissions: &'a [f64],
    /// `dL/dlogZ`, *N*, beyond what the emissions imply (z-loss).
    pub log_z: Option<&'a [f64]>,
    /// Clamp on the gradient of the scores.
    pub clamp: Option<Clamp<'a>>,
}

/// Clamps each element of the gradient of the scores: `g = weight · clip(g, -limit, limit)`.
#[derive(Debug, Clone, Copy)]
pub struct Clamp<'a> {
    /// The largest magnitude before weighting, at least 0.
    pub limit: f64,
    /// Applied after clipping, *N*; adjoints must not contain it.
    pub weights: &'a [f64],
}

impl<'a> Adjoints<'a> {
    /// Adjoints of the emissions alone.
    pub fn new(emissions: &'a [f64]) -> Self {
        Self { emissions, log_z: None, clamp: None }
    }

    /// Fails unless everything that a gradient is made of is finite in the type of the rows.
    pub(crate) fn check<F: Real>(&self, sites: usize, selection: &Selection) -> Result<()> {
        let per_site = selection.per_site();
        expect_len("adjoints.emissions", sites.saturating_mul(per_site), self.emissions.len())?;
        let weights = self.clamp.map(|clamp| clamp.weights);
        for (argument, values) in [("adjoints.log_z", self.log_z), ("adjoints.clamp.weights", weights)] {
            let Some(values) = values else { continue };
            expect_len(argument, sites, values.len())?;
            values.iter().enumerate().try_for_each(|(site, &value)| finite::<F>(argument, site, value))?;
        }
        for site in 0..sites {
            for (slot, _) in selection.active(site) {
                finite::<F>("adjoints.emissions", site, self.emissions[site * per_site + slot])?;
            }
            finite::<F>("adjoints.emissions", site, self.total(site, selection))?;
        }
        match self.clamp {
            Some(Clamp { limit, .. }) if limit.is_nan() || limit < 0.0 => Err(Error::Clamp { limit }),
            _ => Ok(()),
        }
    }

    /// Whether a site has any adjoint that is not zero, or next to it.
    fn counts<F: Real>(&self, site: usize, selection: &Selection) -> bool {
        let counts = |adjoint: f64| adjoint.abs() > F::TINY.to_f64();
        let row = &self.emissions[site * selection.per_site()..];
        self.log_z.is_some_and(|a| counts(a[site]))
            || selection.active(site).any(|(slot, _)| counts(row[slot]))
    }

    /// `A = Σ_s a_s - dL/dlogZ`
    fn total(&self, site: usize, selection: &Selection) -> f64 {
        let row = &self.emissions[site * selection.per_site()..];
        selection.active(site).map(|(slot, _)| row[slot]).sum::<f64>() - self.log_z.map_or(0.0, |a| a[site])
    }
}

fn finite<F: Real>(argument: &'static str, site: usize, value: f64) -> Result<()> {
    if F::from_f64(value).to_f64().is_finite() {
        Ok(())
    } else {
        Err(Error::Adjoint { argument, site, value })
    }
}

/// Gradients of everything that made the scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of what the sites were made of.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one. Blocks of sites are summed in `f64`.
    pub bias: Vec<f64>,
}

/// Elements that a task fills.
const PAGES: usize = 1 << 18;

impl<F: Real, G> Gradients<F, G> {
    /// Zero gradients of a head, around a gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        let mut weight = vec![F::ZERO; head.weight.len()];
        // Memory fresh from the system is one page of zeros, shared until written to. Were it read first, as a sum
        // is, each page would interrupt all threads when it gets its own place.
        weight.par_chunks_mut(PAGES).for_each(|weight| weight.fill(F::ZERO));
        Self { sites, weight, bias: vec![0.0; head.classes] }
    }
}

/// Adds the gradients of sites and head, from adjoints of the emissions, to `into`.
///
/// ```text
/// for each wave of sites with an adjoint that is not zero, for each flight of tiles:
///     in parallel over tiles:                       Z = h Wᵀ + b, or as kept;  G = -A exp((Z - m) - log s),
///                                                   then += a at the selected classes
///     in parallel over tiles and blocks of sites:   dW += Gᵀ h;  db += Σ G;  dh += G W
///     dx = φ'(h) dh;  scatter in site order
/// ```
///
/// With `A[i] = Σ_s a[i,s] - dL/dlogZ[i]`. At a selected class the softmax is taken from the emission in `f64`,
/// because there `a - A p` cancels when the model is sure. A site whose adjoints are all zero costs nothing, and
/// elements of `G` below [`Real::TINY`] count as zero. Returns how many sites were not left out.
///
/// # Shapes
/// As [`forward`](crate::forward()), whose result for the same arguments is `normalized`; `into` as
/// [`Gradients::zero`] makes it.
///
/// # Errors
/// Shapes that do not fit; an infinite weight; adjoints that are not finite in the type of the rows. `into` is then
/// untouched.
///
/// # Cost
/// 6 N H C floating-point operations (a third of them recomputes scores that were not kept) over the N sites that
/// count; memory as [`Plan::bytes`](crate::Plan::bytes) says.
pub fn backward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    normalized: &Normalized<F>,
    adjoints: &Adjoints,
    workspace: &mut Workspace<F>,
    into: &mut Gradients<F, S::Gradient>,
) -> Result<usize> {
    let plan = workspace.prepare(sites, head, selection)?;
    let (n, h, classes) = (sites.len(), head.hidden, head.classes);
    normalized.check(n, selection.per_site())?;
    adjoints.check::<F>(n, selection)?;
    expect_len("into.weight", head.weight.len(), into.weight.len())?;
    expect_len("into.bias", classes, into.bias.len())?;
    let step = ScoreGradient { selection, normalized, adjoints };
    let (kept, kept_sites) = (&normalized.kept, normalized.kept.sites_for(&plan, classes));
    let wide = plan.tiles * plan.classes;
    grow(&mut workspace.gradient, plan.wave * h, F::ZERO);
    grow(&mut workspace.sums, plan.wave.div_ceil(plan.block) * wide, F::ZERO);
    let Workspace { hidden, gradient, tiles, sums, .. } = workspace;

    let counts = |site: &usize| adjoints.counts::<F>(*site, selection);
    let (first, rest) = ((0..kept_sites).filter(counts), (kept_sites..n).filter(counts));
    let mut counted = 0;
    for wave in waves(first, plan.wave).chain(waves(rest, plan.wave)) {
        let rows = wave.len();
        counted += rows;
        let task = plan.task(rows);
        let (hidden, gradient) = (&mut hidden[..rows * h], &mut gradient[..rows * h]);
        fill(sites, &wave, hidden);
        gradient.fill(F::ZERO);
        let blocks = rows.div_ceil(plan.block);
        for flight in flights(&plan, classes) {
            let tiles = &mut tiles[..rows * flight.len()];
            let sums = &mut sums[..blocks * flight.len()];
            let pairs =
                tiles.par_chunks_mut(rows * plan.classes).zip(sums.par_chunks_mut(blocks * plan.classes));
            pairs.enumerate().for_each(|(tile, (g, sums))| {
                let from = flight.start + tile * plan.classes;
                let width = g.len() / rows;
                let bias = head.bias.map(|bias| &bias[from..from + width]);
                let tasks =
                    g.par_chunks_mut(task * width).zip(sums.par_chunks_mut(task / plan.block * width));
                let rows = hidden.par_chunks(task * h).zip(wave.par_chunks(task));
                tasks.zip(rows).for_each(|((g, sums), (hidden, wave))| {
                    if wave[0] >= kept_sites {
                        score_tile(head, hidden, from, g);
                    }
                    let blocks = g.chunks_mut(plan.block * width).zip(sums.chunks_exact_mut(width));
                    for ((g, sums), wave) in blocks.zip(wave.chunks(plan.block)) {
                        sums.fill(F::ZERO);
                        for (g, &site) in g.chunks_exact_mut(width).zip(wave) {
                            let z = match site < kept_sites {
                                true => Scores::Kept(kept.row(site, &(from..from + width))),
                                false => Scores::Here(bias),
                            };
                            step.apply(site, from, z, g);
                            F::add_slice(sums, g);
                        }
                    }
                });
            });
            let (tiles, sums) = (&*tiles, &*sums);
            let into_head = || {
                let weight = into.weight[flight.start * h..flight.end * h].par_chunks_mut(plan.classes * h);
                let bias = into.bias[flight.clone()].par_chunks_mut(plan.classes);
                let g = tiles.par_chunks(rows * plan.classes).zip(sums.par_chunks(blocks * plan.classes));
                weight.zip(bias).zip(g).for_each(|((weight, bias), (g, sums))| {
                    let width = bias.len();
                    for sums in sums.chunks_exact(width) {
                        bias.iter_mut().zip(sums).for_each(|(b, g)| *b += g.to_f64());
                    }
                    let g = View::new(g, rows, width).transposed();
                    let hidden = View::new(hidden, rows, h);
                    product(ViewMut::new(weight, width, h), g, hidden, F::ONE, Accumulate::Add);
                });
            };
            let into_hidden = || {
                gradient.par_chunks_mut(plan.block * h).enumerate().for_each(|(block, gradient)| {
                    let count = gradient.len() / h;
                    for (tile, g) in tiles.chunks(rows * plan.classes).enumerate() {
                        let from = flight.start + tile * plan.classes;
                        let width = g.len() / rows;
                        let g = View::new(&g[block * plan.block * width..], count, width);
                        let weight = View::new(&head.weight[from * h..][..width * h], width, h);
                        product(ViewMut::new(gradient, count, h), g, weight, F::ONE, Accumulate::Add);
                    }
                });
            };
            rayon::join(into_head, into_hidden);
        }
        let block = 64 * h;
        let pairs = gradient.par_chunks_mut(block).zip(hidden.par_chunks(block));
        pairs.for_each(|(gradient, hidden)| sites.pull_back(hidden, gradient));
        sites.scatter(&wave, gradient, &mut into.sites);
    }
    Ok(counted)
}

/// Where a row of scores is.
pub(crate) enum Scores<'a, F> {
    /// Where the gradient goes, without the bias.
    Here(Option<&'a [F]>),
    /// Somewhere else, complete.
    Kept(&'a [F]),
}

/// The gradient of a row of scores, written over the scores.
pub(crate) struct ScoreGradient<'a, F> {
    pub selection: &'a Selection,
    pub normalized: &'a Normalized<F>,
    pub adjoints: &'a Adjoints<'a>,
}

impl<F: Real> ScoreGradient<'_, F> {
    /// `g` is to hold the gradient `a - A p` of the classes from `from` on of a site.
    pub(crate) fn apply(&self, site: usize, from: usize, z: Scores<F>, g: &mut [F]) {
        let per_site = self.selection.per_site();
        let adjoint = |slot: usize| self.adjoints.emissions[site * per_site + slot];
        let total = self.adjoints.total(site, self.selection);
        if total == 0.0 {
            // Also when p would be 0 · anything.
            g.fill(F::ZERO);
        } else {
            let factor = F::from_f64(-total * (-self.normalized.log_sum[site]).exp());
            let max = self.normalized.max[site];
            match z {
                Scores::Kept(z) => F::row_softmax(g, Some(z), None, max, factor),
                Scores::Here(bias) => F::row_softmax(g, None, bias, max, factor),
            }
        }
        for (slot, class) in self.selection.active(site) {
            if (from..from + g.len()).contains(&(class as usize)) {
                let p = self.normalized.emissions[site * per_site + slot].exp();
                let exact = adjoint(slot) - total * p;
                let counts = exact.abs() >= F::TINY.to_f64();
                g[class as usize - from] = if counts { F::from_f64(exact) } else { F::ZERO };
            }
        }
        if let Some(Clamp { limit, weights }) = self.adjoints.clamp {
            for g in g {
                *g = F::from_f64(weights[site] * g.to_f64().clamp(-limit, limit));
            }
        }
    }
}
