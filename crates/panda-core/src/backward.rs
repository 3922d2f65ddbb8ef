//! Backward: gradients from compact adjoints, one wave of sites at a time, tile by tile.
use std::ops::Range;

use kernels::{
    grow,
    packed::{Full, Numbers, half::Half},
    zeros,
};
use rayon::prelude::*;

use crate::{
    Adjoints, Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    cut::{Cut, FEW},
    error::expect_len,
    flight::Flight,
    panels::{Panels, Targets, Wave, fill, pack},
    score_gradient::ScoreGradient,
    workspace::{in_pool, make},
};

/// Gradients of everything that made the scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of what the sites were made of.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one. Strips of sites are summed in `f64`.
    pub bias: Vec<f64>,
}

impl<F: Real, G> Gradients<F, G> {
    /// Zero gradients of a head, around a gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        Self { sites, weight: zeros(head.weight.len()), bias: vec![0.0; head.classes] }
    }
}

/// What [`backward`] goes back over: the arguments of [`forward`](crate::forward()), its result, and adjoints.
#[derive(Debug)]
pub struct Backward<'a, F, S> {
    /// N rows of width H.
    pub sites: &'a S,
    /// *C x H*
    pub head: &'a Head<'a, F>,
    /// *N x S*
    pub selection: &'a Selection,
    /// What forward found for the same arguments.
    pub normalized: &'a Normalized<F>,
    /// What the lattice sends back.
    pub adjoints: &'a Adjoints<'a>,
}

/// Adds the gradients of sites and head, from adjoints of the emissions, to `into`.
///
/// ```text
/// for each wave of sites with an adjoint that is not zero (and a few others where rows were kept):
///     h = φ(x), unless it was kept
///     for each flight of tiles:
///         par over tiles and strips of sites:   Z = h Wᵀ + b, or as kept;  G = -A exp((Z - m) - log s),
///                                               then += a at the selected classes
///         par over tiles and rows of sites:     dW += Gᵀ h;  db += Σ G;  dh += G W
///     par over rows:  dx = φ'(h) dh
///     scatter in site order
/// ```
///
/// With `A[i] = Σ_s a[i,s] - dL/dlogZ[i]`. At a selected class the softmax is taken from the emission in `f64`,
/// because there `a - A p` cancels when the model is sure. A site whose adjoints are all zero costs nothing,
/// unless it lies among kept rows of a wave of which seven eighths count; and
/// elements of `G` below [`Real::TINY`] count as zero. Returns how many sites were not left out.
///
/// # Shapes
/// As [`forward`](crate::forward()); `into` as [`Gradients::zero`] makes it.
///
/// # Errors
/// Shapes that do not fit; a budget below the smallest cut; an infinite weight; adjoints that are not finite in the type
/// of the rows. `into` is then untouched.
///
/// # Cost
/// 6 N H C floating-point operations (a third of them recomputes scores that were not kept) over the N sites that
/// count; memory as [`Plan::bytes`] says.
pub fn backward<F: Real, S: Sites<F>>(
    arguments: Backward<F, S>,
    workspace: &mut Workspace<F>,
    into: &mut Gradients<F, S::Gradient>,
) -> Result<usize> {
    let (mut full, mut half) = (std::mem::take(&mut workspace.full), std::mem::take(&mut workspace.half));
    let result = in_pool(|| {
        let plan = workspace.prepare(
            arguments.sites,
            arguments.head,
            arguments.selection,
            (&mut full, &mut half),
        )?;
        match workspace.precision {
            Precision::Full => Pass::<F, Full, S>::new(&arguments, plan, &mut full, into)?.run(workspace),
            Precision::Bf16 => Pass::<F, Half, S>::new(&arguments, plan, &mut half, into)?.run(workspace),
        }
    });
    (workspace.full, workspace.half) = (full, half);
    result
}

/// One way back through all waves.
struct Pass<'a, F: Real, N: Numbers<F>, S: Sites<F>> {
    of: &'a Backward<'a, F, S>,
    plan: Plan<F>,
    cut: Cut,
    kept_sites: usize,
    panels: &'a mut Panels<N::Word>,
    into: &'a mut Gradients<F, S::Gradient>,
}

impl<'a, F: Real, N: Numbers<F>, S: Sites<F>> Pass<'a, F, N, S> {
    /// Fails unless everything fits together.
    fn new(
        of: &'a Backward<'a, F, S>,
        plan: Plan<F>,
        panels: &'a mut Panels<N::Word>,
        into: &'a mut Gradients<F, S::Gradient>,
    ) -> Result<Self> {
        let Backward { sites, head, selection, normalized, adjoints } = *of;
        normalized.check(sites.len(), selection.per_site())?;
        adjoints.check::<F>(sites.len(), selection)?;
        expect_len("into.weight", head.weight.len(), into.weight.len())?;
        expect_len("into.bias", head.classes, into.bias.len())?;
        let kept_sites = normalized.kept.sites_for(&plan, head.classes).min(sites.len());
        Ok(Self { of, plan, cut: Cut::new::<F, N>(&plan, head.hidden), kept_sites, panels, into })
    }

    /// Waves that are held as they are come first, then other sites whose scores were kept, then the rest. Returns how many
    /// sites there were.
    fn run(&mut self, workspace: &mut Workspace<F>) -> Result<usize> {
        let Backward { sites, selection, normalized, adjoints, .. } = *self.of;
        let counts = |site: &usize| adjoints.counts::<F>(*site, selection);
        // Held rows lie side by side, so that a few that do not count come along: their gradients are zero.
        let whole = |wave: &Range<usize>| 8 * wave.clone().filter(counts).count() >= 7 * wave.len();
        let held = normalized.held.waves(&self.plan, self.kept_sites);
        let mut list = std::mem::take(&mut workspace.list);
        make(&mut list, self.plan.wave);
        let (mut counted, mut first_kept) = (0, 0);
        for wave in held.clone() {
            first_kept = wave.end;
            if whole(&wave) {
                counted += wave.clone().filter(counts).count();
                list.clear();
                list.extend(wave);
                self.wave(&list, true, workspace);
            }
        }
        let partly = || held.clone().filter(|wave| !whole(wave)).flatten();
        let kept = || partly().chain(first_kept..self.kept_sites).filter(counts);
        let rest = || (self.kept_sites..sites.len()).filter(counts);
        let sizes = [kept().count(), rest().count()];
        let (mut kept, mut rest) = (kept(), rest());
        let streams: [&mut dyn Iterator<Item = usize>; 2] = [&mut kept, &mut rest];
        for (sites, count) in streams.into_iter().zip(sizes) {
            let step = self.plan.step(count, self.cut.strip);
            for _ in 0..count.div_ceil(step) {
                list.clear();
                list.extend((&mut *sites).take(step));
                counted += list.len();
                self.wave(&list, false, workspace);
            }
        }
        workspace.list = list;
        Ok(counted)
    }

    /// One wave, which may be held.
    fn wave(&mut self, wave: &[usize], held: bool, workspace: &mut Workspace<F>) {
        let Self { of, plan, cut, kept_sites, panels, into } = self;
        let Backward { sites, head, selection, normalized, adjoints } = **of;
        let (rows, h) = (wave.len(), head.hidden);
        let (blocks, most) = (rows.div_ceil(plan.block), plan.wave.div_ceil(plan.block));
        grow(&mut workspace.gradient, plan.wave * h, F::ZERO);
        grow(&mut workspace.sums, plan.tiles * most * cut.strips * plan.tile_classes, F::ZERO);
        workspace.z.make(cut.slots(plan));
        let mut right = std::mem::take(&mut panels.h_right);
        let h_right = &mut right.room(most * cut.h_right, N::ZERO)[..blocks * cut.h_right];
        let hidden = if held {
            let hidden = &normalized.held.rows[wave[0] * h..][..rows * h];
            pack::<F, N>(plan, hidden, h, h_right);
            hidden
        } else {
            grow(&mut workspace.hidden, plan.wave * h, F::ZERO);
            let hidden = &mut workspace.hidden[..rows * h];
            let recompute = wave[0] >= *kept_sites;
            let left =
                recompute.then(|| &mut panels.h_left.room(most * cut.h_left, N::ZERO)[..blocks * cut.h_left]);
            let into = Wave { hidden: &mut *hidden, left, right: Some(&mut *h_right) };
            fill::<F, N, S>(plan, sites, wave, into);
            &*hidden
        };
        let gradient = &mut workspace.gradient[..rows * h];
        let step = &ScoreGradient { selection, normalized, adjoints };
        for classes in plan.flights(head.classes) {
            let count = classes.len().div_ceil(plan.tile_classes);
            let targets = Targets {
                z: &workspace.z,
                sums: &mut workspace.sums[..count * blocks * cut.strips * plan.tile_classes],
                gradient: &mut *gradient,
                weight: &mut into.weight[classes.start * h..classes.end * h],
                bias: &mut into.bias[classes.clone()],
            };
            let flight = Flight { plan, head, classes, wave, step, kept_sites: *kept_sites };
            panels.backward::<F, N>(&flight, h_right, targets);
        }
        let pieces = gradient.par_chunks_mut(FEW * h).zip(hidden.par_chunks(FEW * h));
        let pieces = pieces.zip(wave.par_chunks(FEW));
        pieces.for_each(|((gradient, hidden), wave)| sites.pull_back(wave, hidden, gradient));
        sites.scatter(wave, gradient, &mut into.sites);
        panels.h_right = right;
    }
}
