//! The engine behind every door: normaliser forward, lattice, normaliser backward.
use std::ops::Range;

use panda_core::{Adjoints, Clamp, Gradients, Head, Normalized, Real, Selection, Sites};
use rnnt_dp::Regularisers;

use crate::{
    Error, Options, Result, Skipped, Targets,
    error::expect_len,
    skip::{Part, skip},
};

/// What lies between the two directions: a few numbers a site, and the scores that the budget has room for.
pub(crate) struct Forward<F> {
    selection: Selection,
    normalized: Normalized<F>,
    losses: Vec<f64>,
    adjoints: Vec<f64>,
    skipped: Vec<Part>,
}

/// Options and the buffers of calls with them: what a step takes beside arguments and results stays for the next one.
///
/// The system clears every page that a step takes afresh; where all scores are kept, that is 5 % of a step.
///
/// ```
/// use rnnt_loss::{Head, Layout, MemoryBudget, Options, Targets, Workspace};
/// let options = Options { budget: MemoryBudget::unlimited(), ..Options::default() };
/// let mut workspace = Workspace::new(&options)?;
/// let (weight, targets) = ([0.1f32; 3 * 4], Targets::new(0, vec![2], vec![vec![1]])?);
/// for _step in 0..2 {
///     let (frames, labels) = ([1.0; 2 * 4], [1.0; 2 * 4]); // T = 2, U = 1, H = 4
///     let head = Head::new(&weight, None, 4)?;
///     let out = workspace.projected_loss(&frames, &labels, &head, Layout::Packed, &targets, &[1.0])?;
///     assert!((out.losses[0] - (3.0 * 3f64.ln() - 2f64.ln())).abs() < 1e-6);
/// }
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub struct Workspace<F> {
    pub(crate) options: Options,
    pub(crate) normaliser: panda_core::Workspace<F>,
    pub(crate) lattices: rnnt_dp::Workspace,
}

impl<F: Real> Workspace<F> {
    /// Empty buffers.
    ///
    /// # Errors
    /// A plan with a size of zero.
    pub fn new(options: &Options) -> Result<Self> {
        let (normaliser, lattices) = (options.workspace()?, rnnt_dp::Workspace::new());
        Ok(Self { options: options.clone(), normaliser, lattices })
    }
}

impl<F: Real> Forward<F> {
    /// Losses and adjoints from hidden rows and a head.
    pub fn new<S: Sites<F>>(
        sites: &S,
        head: &Head<F>,
        targets: &Targets,
        workspace: &mut Workspace<F>,
    ) -> Result<Self> {
        targets.check_classes(head.classes())?;
        let Workspace { options, normaliser, lattices } = workspace;
        Self::from_normaliser(targets, options, lattices, |selection| {
            panda_core::forward(sites, head, selection, normaliser)
        })
    }

    /// The same, with emissions from elsewhere.
    pub fn from_normaliser(
        targets: &Targets,
        options: &Options,
        workspace: &mut rnnt_dp::Workspace,
        normalise: impl FnOnce(&Selection) -> panda_core::Result<Normalized<F>>,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&options.skip) {
            return Err(Error::Skip { found: options.skip });
        }
        let (selection, lattices) = (targets.selection()?, targets.lattices());
        let normalized = normalise(&selection).map_err(|error| Error::at_site(error, lattices))?;
        let regularisers = Regularisers { fastemit: options.fastemit };
        let (mut losses, mut adjoints) = (vec![0.0; targets.batch()], vec![0.0; normalized.emissions.len()]);
        let emissions = &normalized.emissions;
        let topology = &options.topology;
        workspace.forward_backward(
            lattices,
            topology,
            emissions,
            &regularisers,
            &mut losses,
            &mut adjoints,
        )?;
        let skipped = match options.skip > 0.0 {
            true => skip(lattices, topology.arcs().len(), &mut adjoints, options.skip),
            false => Vec::new(),
        };
        Ok(Self { selection, normalized, losses, adjoints, skipped })
    }

    /// `-log P` of each utterance.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Emissions of all sites.
    pub fn emissions(&self) -> &[f64] {
        &self.normalized.emissions
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`.
    pub fn backward<S: Sites<F>>(
        &self,
        sites: &S,
        head: &Head<F>,
        targets: &Targets,
        options: &Options,
        weights: &[f64],
        workspace: &mut panda_core::Workspace<F>,
        into: &mut Gradients<F, S::Gradient>,
    ) -> Result<Skipped> {
        let counted = self.with_adjoints(targets, options, weights, |selection, normalized, adjoints| {
            panda_core::backward(sites, head, selection, normalized, adjoints, workspace, into)
        })?;
        let skipped = match self.skipped.is_empty() {
            true => Skipped::default(),
            false => Skipped::new(&self.skipped, weights, sites.largest(), head.largest_weight()),
        };
        Ok(Skipped { zeros: sites.len() - counted - skipped.sites, ..skipped })
    }

    /// Hands the weighted adjoints to a backward pass.
    pub fn with_adjoints<T>(
        &self,
        targets: &Targets,
        options: &Options,
        weights: &[f64],
        backward: impl FnOnce(&Selection, &Normalized<F>, &Adjoints) -> panda_core::Result<T>,
    ) -> Result<T> {
        expect_len("weights", targets.batch(), weights.len())?;
        // An impossible utterance has no gradient, whatever an infinite loss has become above: 0 · inf would be NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(self.losses()).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let mut emissions = self.adjoints.clone();
        // A clamp acts on the gradient of the unweighted loss, so that the weights have to wait.
        let at_sites = options.clamp.map(|_| targets.at_sites(&weights));
        if at_sites.is_none() {
            let arcs = self.selection.per_site();
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = targets.lattices().range(utterance);
                emissions[start * arcs..end * arcs].iter_mut().for_each(|a| *a *= weight);
            }
        }
        let clamp = options.clamp.zip(at_sites.as_ref()).map(|(limit, weights)| Clamp { limit, weights });
        let adjoints = Adjoints { emissions: &emissions, log_z: None, clamp };
        backward(&self.selection, &self.normalized, &adjoints)
            .map_err(|error| Error::at_site(error, targets.lattices()))
    }

    /// Lets go of kept scores; `workspace` has their room for its next call.
    pub fn release(&mut self, workspace: &mut panda_core::Workspace<F>) {
        self.normalized.release(workspace);
    }
}

/// A whole batch, one group of utterances after the other, so that memory does not grow with the batch.
///
/// Li et al., arXiv 2211.16270: nothing that a group needs survives it but losses and gradients. Short utterances
/// share a group, so that its waves are full; a long one is alone.
pub(crate) struct SampleWise<'a, F> {
    pub head: &'a Head<'a, F>,
    pub targets: &'a Targets,
    /// Of each utterance.
    pub weights: &'a [f64],
    workspace: &'a mut Workspace<F>,
    losses: Vec<f64>,
    skipped: Skipped,
}

/// Sites of a group where no more scores can be kept: four full waves of most plans.
const SITES: usize = 6272;
const SHORTEST: usize = 64;
/// Bytes of a group's site beside its scores: normaliser, selection, rows, lattice and adjoints.
const PER_SITE: usize = 128;

impl<'a, F: Real> SampleWise<'a, F> {
    pub fn new(
        head: &'a Head<F>,
        targets: &'a Targets,
        weights: &'a [f64],
        workspace: &'a mut Workspace<F>,
    ) -> Result<Self> {
        targets.check_classes(head.classes())?;
        expect_len("weights", targets.batch(), weights.len())?;
        let losses = Vec::with_capacity(targets.batch());
        Ok(Self { head, targets, weights, workspace, losses, skipped: Skipped::default() })
    }

    /// Utterances that go together: neighbours, as many as fit.
    pub fn groups(&self) -> Vec<Range<usize>> {
        groups(self.targets, self.head.classes(), size_of::<F>(), &self.workspace.options)
    }

    /// Loss and gradients of a group with the given sites.
    pub fn step<S: Sites<F>>(
        &mut self,
        group: Range<usize>,
        part: &Targets,
        sites: &S,
        into: &mut Gradients<F, S::Gradient>,
    ) -> Result<()> {
        let first = group.start;
        let run = || {
            let Self { head, workspace, .. } = self;
            let mut forward = Forward::new(sites, head, part, workspace)?;
            let Workspace { options, normaliser, .. } = &mut **workspace;
            let weights = &self.weights[group];
            let skipped = forward.backward(sites, head, part, options, weights, normaliser, into)?;
            forward.release(normaliser);
            self.losses.extend_from_slice(forward.losses());
            self.skipped.add(skipped);
            Ok(())
        };
        run().map_err(|error: Error| error.in_group(first))
    }

    /// Losses of all groups so far, and what was left out of their gradients.
    pub fn finish(self) -> (Vec<f64>, Skipped) {
        (self.losses, self.skipped)
    }
}

/// Utterances that go together.
pub(crate) fn groups(
    targets: &Targets,
    classes: usize,
    element: usize,
    options: &Options,
) -> Vec<Range<usize>> {
    let budget = options.budget;
    let each = classes.saturating_mul(element).saturating_add(PER_SITE);
    let kept = if budget.keeps() { budget.limit() / 2 / each } else { 0 };
    let room = match options.plan {
        Some(plan) => plan.wave,
        None => kept.max((budget.limit() / 4 / PER_SITE).clamp(SHORTEST, SITES)),
    };
    let lattices = targets.lattices();
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sites = 0;
    for utterance in 0..targets.batch() {
        let more = lattices.range(utterance).len();
        match groups.last_mut() {
            Some(group) if sites + more <= room => {
                group.end = utterance + 1;
                sites += more;
            }
            _ => {
                groups.push(utterance..utterance + 1);
                sites = more;
            }
        }
    }
    groups
}
