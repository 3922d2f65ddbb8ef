//! The engine behind every door: normaliser forward, lattice, normaliser backward.
use std::{borrow::Cow, ops::Range};

use panda_core::{Adjoints, Backward, Clamp, Gradients, Head, Normalized, Real, Selection, Sites};
use rnnt_dp::Lattices;

use crate::{
    Error, Options, Result, Skipped,
    columns::{Columns, Part, PartAdjoints},
    error::expect_len,
    objective::Objective,
    skip::{Lost, skip},
    smoothing::{add_z_loss, smooth, unsmooth, z_loss_adjoints},
};

/// What lies between the two directions: a few numbers a site, and the scores that the budget has room for.
pub(crate) struct Forward<F> {
    columns: Columns,
    /// Columns, and those of tokens.
    width: (usize, usize),
    /// One for each head.
    parts: Vec<Part<F>>,
    losses: Vec<f64>,
    adjoints: Vec<f64>,
    skipped: Vec<Lost>,
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
    /// Losses and adjoints from hidden rows and heads.
    pub fn new<S: Sites<F>>(
        sites: &S,
        heads: &[Head<F>],
        objective: &impl Objective,
        workspace: &mut Workspace<F>,
    ) -> Result<Self> {
        let Workspace { options, normaliser, lattices } = workspace;
        Self::from_normaliser(objective, options, lattices, |head, selection| {
            panda_core::forward(sites, &heads[head], selection, normaliser)
        })
    }

    /// The same, with emissions from elsewhere; `normalise` is asked for each head.
    pub fn from_normaliser(
        objective: &impl Objective,
        options: &Options,
        workspace: &mut rnnt_dp::Workspace,
        mut normalise: impl FnMut(usize, &Selection) -> panda_core::Result<Normalized<F>>,
    ) -> Result<Self> {
        options.check()?;
        objective.check(options)?;
        let (lattices, columns, width) =
            (objective.sites().lattices(), objective.columns(), objective.width(options));
        let mut parts = Vec::new();
        let mut selections = objective.selections()?;
        if options.label_smoothing > 0.0 {
            // The mean of all classes, whose log-sum is its score.
            selections.push(Selection::new(Vec::new(), Vec::new(), 0)?);
        }
        let (heads, blank) = (selections.len(), objective.sites().blank());
        for (head, selection) in selections.into_iter().enumerate() {
            let normalized = normalise(head, &selection).map_err(|error| {
                let mean = options.label_smoothing > 0.0 && head + 1 == heads;
                let masked = match (columns, head) {
                    _ if mean => "-inf for a class, which has no share to be smoothed",
                    (Columns::FactoredBlank, 1) => "-inf for the blank alone",
                    _ => "-inf for every class",
                };
                Error::at_site(columns.of_whole(error, head, blank), lattices).masked(masked)
            })?;
            parts.push(Part { selection, normalized });
        }
        let mut emissions = columns.emissions(&parts);
        if options.label_smoothing > 0.0
            && let [all, .., mean] = parts.as_slice()
        {
            let (all, mean) = (&all.normalized, &mean.normalized);
            smooth(emissions.to_mut(), width, options.label_smoothing, all, mean);
        }
        let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
        objective.sum(&emissions, options, workspace, &mut losses, &mut adjoints)?;
        if options.z_loss > 0.0 {
            add_z_loss(&mut losses, options.z_loss, &parts[0].normalized, lattices)?;
        }
        let skipped = match options.skip > 0.0 {
            true => skip(lattices, width, &mut adjoints, options.skip),
            false => Vec::new(),
        };
        drop(emissions);
        Ok(Self { columns, width, parts, losses, adjoints, skipped })
    }

    /// `-log P` of each utterance.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Emissions of all sites.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.columns.emissions(&self.parts)
    }

    /// Adjoints of the emissions, not yet weighted by utterance.
    pub fn adjoints(&self) -> &[f64] {
        &self.adjoints
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`: those of each head to its own, that of the sites to the first one's.
    pub fn backward<S: Sites<F>>(
        &self,
        sites: &S,
        heads: &[Head<F>],
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
        workspace: &mut panda_core::Workspace<F>,
        into: &mut [Gradients<F, S::Gradient>],
    ) -> Result<Skipped> {
        let mut counted = 0;
        self.with_adjoints(lattices, options, weights, |head, part, adjoints| {
            let Part { selection, normalized } = part;
            let sum = std::mem::take(&mut into[0].sites);
            into[head].sites = sum;
            let arguments = Backward { sites, head: &heads[head], selection, normalized, adjoints };
            let outcome = panda_core::backward(arguments, workspace, &mut into[head]);
            into[0].sites = std::mem::take(&mut into[head].sites);
            counted = counted.max(outcome?);
            Ok(())
        })?;
        let skipped = match self.skipped.is_empty() {
            true => Skipped::default(),
            false => {
                let largest = heads.iter().map(Head::largest_weight).fold(0.0, f64::max);
                Skipped::new(&self.skipped, weights, self.columns.reach(), sites.largest(), largest)
            }
        };
        Ok(Skipped { zeros: sites.len() - counted - skipped.sites, ..skipped })
    }

    /// Hands the weighted adjoints of each head to a backward pass.
    pub fn with_adjoints(
        &self,
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
        mut backward: impl FnMut(usize, &Part<F>, &Adjoints) -> panda_core::Result<()>,
    ) -> Result<()> {
        expect_len("weights", lattices.batch(), weights.len())?;
        // An impossible utterance has no gradient, whatever an infinite loss has become above: 0 · inf would be NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(self.losses()).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let mut emissions = self.adjoints.clone();
        // A clamp acts on the gradient of the unweighted loss, so that the weights have to wait.
        let at_sites = options.clamp.map(|_| at_sites(lattices, &weights));
        if at_sites.is_none() {
            let (columns, _) = self.width;
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = lattices.range(utterance);
                emissions[start * columns..end * columns].iter_mut().for_each(|a| *a *= weight);
            }
        }
        let clamp = options.clamp.zip(at_sites.as_ref()).map(|(limit, weights)| Clamp { limit, weights });
        let of_means = (options.label_smoothing > 0.0)
            .then(|| unsmooth(&mut emissions, self.width, options.label_smoothing));
        let mut adjoints = self.columns.adjoints(&self.parts, emissions);
        if of_means.is_some() || options.z_loss > 0.0 {
            let mut log_z = vec![0.0; lattices.sites()];
            if let Some(of_means) = &of_means {
                log_z.iter_mut().zip(of_means).for_each(|(z, mean)| *z -= mean);
            }
            let factor = |utterance: usize| match clamp {
                // As above; there is no gradient without a path.
                Some(_) => 1.0,
                None => weights[utterance],
            };
            z_loss_adjoints(&mut log_z, options.z_loss, &self.parts[0].normalized, lattices, factor);
            adjoints[0].log_z = Some(log_z);
        }
        adjoints.extend(of_means.map(|log_z| PartAdjoints { emissions: Vec::new(), log_z: Some(log_z) }));
        for (head, (part, PartAdjoints { emissions, log_z })) in self.parts.iter().zip(&adjoints).enumerate()
        {
            let adjoints = Adjoints { emissions, log_z: log_z.as_deref(), clamp };
            backward(head, part, &adjoints).map_err(|error| Error::at_site(error, lattices))?;
        }
        Ok(())
    }

    /// Lets go of kept scores; `workspace` has their room for its next call.
    pub fn release(&mut self, workspace: &mut panda_core::Workspace<F>) {
        self.parts.iter_mut().for_each(|part| part.normalized.release(workspace));
    }
}

/// A value for each utterance, repeated at its sites.
fn at_sites(lattices: &Lattices, values: &[f64]) -> Vec<f64> {
    (0..lattices.batch()).flat_map(|b| std::iter::repeat_n(values[b], lattices.range(b).len())).collect()
}

/// A whole batch, one group of utterances after the other, so that memory does not grow with the batch.
///
/// Li et al., arXiv 2211.16270: nothing that a group needs survives it but losses and gradients. Short utterances
/// share a group, so that its waves are full; a long one is alone.
pub(crate) struct SampleWise<'a, F, O> {
    heads: &'a [Head<'a, F>],
    pub objective: O,
    /// Of each utterance.
    weights: &'a [f64],
    workspace: &'a mut Workspace<F>,
    losses: Vec<f64>,
    skipped: Skipped,
}

/// Sites of a group where no more scores can be kept: four full waves of most plans.
const SITES: usize = 6272;
const SHORTEST: usize = 64;

impl<'a, F: Real, O: Objective> SampleWise<'a, F, O> {
    pub fn new(
        heads: &'a [Head<'a, F>],
        objective: O,
        weights: &'a [f64],
        workspace: &'a mut Workspace<F>,
    ) -> Result<Self> {
        let batch = objective.sites().batch();
        expect_len("weights", batch, weights.len())?;
        let losses = Vec::with_capacity(batch);
        Ok(Self { heads, objective, weights, workspace, losses, skipped: Skipped::default() })
    }

    /// Utterances that go together: neighbours, as many as fit.
    pub fn groups(&self) -> Vec<Range<usize>> {
        groups(&self.objective, self.heads[0].classes(), size_of::<F>(), &self.workspace.options)
    }

    /// Loss and gradients of a group with the given sites.
    pub fn step<S: Sites<F>>(
        &mut self,
        group: Range<usize>,
        part: &O,
        sites: &S,
        into: &mut [Gradients<F, S::Gradient>],
    ) -> Result<()> {
        let first = group.start;
        let run = || {
            let Self { heads, workspace, .. } = self;
            let mut forward = Forward::new(sites, heads, part, workspace)?;
            let Workspace { options, normaliser, .. } = &mut **workspace;
            let (weights, lattices) = (&self.weights[group], part.sites().lattices());
            let skipped = forward.backward(sites, heads, lattices, options, weights, normaliser, into)?;
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
    objective: &impl Objective,
    classes: usize,
    element: usize,
    options: &Options,
) -> Vec<Range<usize>> {
    let (budget, bytes) = (options.budget, objective.bytes());
    let each = classes.saturating_mul(element).saturating_add(bytes);
    let kept = if budget.keeps() { budget.limit() / 2 / each } else { 0 };
    let room = match options.plan {
        Some(plan) => plan.wave,
        None => kept.max((budget.limit() / 4 / bytes).clamp(SHORTEST, SITES)),
    };
    let lattices = objective.sites().lattices();
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sites = 0;
    for utterance in 0..lattices.batch() {
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
