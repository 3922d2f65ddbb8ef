//! Backward: gradients from compact adjoints, one wave of sites at a time, tile by tile.
use kernels::{
    grow,
    packed::{Full, Numbers, half::Half},
    zeros,
};
use rayon::prelude::*;

use crate::{
    Adjoints, Head, Normalized, Precision, Real, Result, Selection, Sites, Workspace,
    error::expect_len,
    flight::{Flight, Targets},
    kept::waves,
    panels::Panels,
    score_gradient::ScoreGradient,
    workspace::in_pool,
};

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
        for classes in plan.flights(classes) {
            let targets = Targets {
                gradient: &mut *gradient,
                weight: &mut into.weight[classes.start * h..classes.end * h],
                bias: &mut into.bias[classes.clone()],
            };
            let sums = &mut sums[..rows.div_ceil(plan.block) * classes.len()];
            let flight = Flight { plan: &plan, head, classes, wave: &wave, step, kept_sites };
            panels.backward::<F, N>(&flight, z, sums, targets);
        }
        let rows = gradient.par_chunks_mut(64 * h).zip(hidden.par_chunks(64 * h));
        rows.zip(wave.par_chunks(64))
            .for_each(|((gradient, hidden), wave)| sites.pull_back(wave, hidden, gradient));
        sites.scatter(&wave, gradient, &mut into.sites);
    }
    Ok(counted)
}
