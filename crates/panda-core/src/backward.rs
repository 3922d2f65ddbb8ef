//! Backward: gradients from compact adjoints, one wave of sites at a time, tile by tile.
use std::ops::Range;

use rayon::prelude::*;

use crate::{
    Error, Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    error::expect_len,
    kept::waves,
    kernel::{
        packed::{Full, Numbers, half::Half},
        zeros,
    },
    panels::Panels,
    workspace::{flights, grow, in_pool},
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

impl<F: Real, G> Gradients<F, G> {
    /// Zero gradients of a head, around a gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        Self { sites, weight: zeros(head.weight.len()), bias: vec![0.0; head.classes] }
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
    let (mut full, mut half) = (std::mem::take(&mut workspace.full), std::mem::take(&mut workspace.half));
    let step = ScoreGradient { selection, normalized, adjoints };
    let result = in_pool(|| match workspace.precision {
        Precision::Full => backward_with::<F, Full, S>(sites, head, &step, workspace, &mut full, into),
        Precision::Bf16 => backward_with::<F, Half, S>(sites, head, &step, workspace, &mut half, into),
    });
    (workspace.full, workspace.half) = (full, half);
    result
}

fn backward_with<F: Real, N: Numbers<F>, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    step: &ScoreGradient<F>,
    workspace: &mut Workspace<F>,
    panels: &mut Panels<N::Word>,
    into: &mut Gradients<F, S::Gradient>,
) -> Result<usize> {
    let ScoreGradient { selection, normalized, adjoints } = *step;
    let plan = workspace.prepare(sites, head, selection)?;
    let (n, h, classes) = (sites.len(), head.hidden, head.classes);
    normalized.check(n, selection.per_site())?;
    adjoints.check::<F>(n, selection)?;
    expect_len("into.weight", head.weight.len(), into.weight.len())?;
    expect_len("into.bias", classes, into.bias.len())?;
    let kept_sites = normalized.kept.sites_for(&plan, classes).min(n);
    grow(&mut workspace.gradient, plan.wave * h, F::ZERO);
    grow(&mut workspace.sums, plan.wave.div_ceil(plan.block) * plan.tiles * plan.classes, F::ZERO);
    let Workspace { hidden, gradient, z, sums, .. } = workspace;

    let counts = |site: &usize| adjoints.counts::<F>(*site, selection);
    let (first, rest) = ((0..kept_sites).filter(counts), (kept_sites..n).filter(counts));
    let mut counted = 0;
    for wave in waves(first, plan.wave).chain(waves(rest, plan.wave)) {
        let rows = wave.len();
        counted += rows;
        let (hidden, gradient) = (&mut hidden[..rows * h], &mut gradient[..rows * h]);
        panels.fill::<F, N, S>(&plan, sites, &wave, wave[0] >= kept_sites, hidden);
        panels.hold::<F, N>(&plan, hidden, h);
        for classes in flights(&plan, classes) {
            let targets = Targets {
                gradient: &mut *gradient,
                weight: &mut into.weight[classes.start * h..classes.end * h],
                bias: &mut into.bias[classes.clone()],
            };
            let sums = &mut sums[..rows.div_ceil(plan.block) * classes.len()];
            let flight = Flight { plan: &plan, head, classes, wave: &wave, step, kept_sites };
            panels.backward::<F, N>(&flight, z, sums, targets);
        }
        let block = 64 * h;
        let pairs = gradient.par_chunks_mut(block).zip(hidden.par_chunks(block));
        pairs.for_each(|(gradient, hidden)| sites.pull_back(hidden, gradient));
        sites.scatter(&wave, gradient, &mut into.sites);
    }
    Ok(counted)
}

/// A wave of sites against the classes of a flight.
pub(crate) struct Flight<'a, F> {
    pub plan: &'a Plan,
    pub head: &'a Head<'a, F>,
    pub classes: Range<usize>,
    pub wave: &'a [usize],
    pub step: &'a ScoreGradient<'a, F>,
    /// Sites, from the first, whose scores were kept.
    pub kept_sites: usize,
}

/// What a flight adds to.
pub(crate) struct Targets<'a, F> {
    /// Of the hidden rows of the wave; the first flight overwrites it.
    pub gradient: &'a mut [F],
    /// Of the weight and the bias of the flight's classes.
    pub weight: &'a mut [F],
    pub bias: &'a mut [f64],
}

impl<F: Real> Flight<'_, F> {
    /// Turns a site's scores of a tile, unless they were kept elsewhere, into their gradient.
    pub fn row(&self, site: usize, from: usize, g: &mut [F]) {
        let classes = from..from + g.len();
        let z = match site < self.kept_sites {
            true => Scores::Kept(self.step.normalized.kept.row(site, &classes)),
            false => Scores::Here(self.head.bias.map(|bias| &bias[classes])),
        };
        self.step.apply(site, from, z, g);
    }

    /// Adds the column sums of the blocks of each tile.
    pub fn add_to_bias(&self, sums: &[F], bias: &mut [f64]) {
        let blocks = self.wave.len().div_ceil(self.plan.block);
        for (bias, sums) in bias.chunks_mut(self.plan.classes).zip(sums.chunks(blocks * self.plan.classes)) {
            for sums in sums.chunks_exact(bias.len()) {
                bias.iter_mut().zip(sums).for_each(|(b, g)| *b += g.to_f64());
            }
        }
    }
}

/// Where a row of scores is.
pub(crate) enum Scores<'a, F> {
    /// Where the gradient goes, without the bias.
    Here(Option<&'a [F]>),
    /// Somewhere else, complete.
    Kept(&'a [F]),
}

/// The gradient of a row of scores, written over the scores.
#[derive(Clone, Copy)]
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
