//! A call over heads: sites of a joint network or hidden rows, forward to losses and backward to gradients.
//!
//! ```text
//! for each group of utterances:
//!     sites ──► normalizer of each head ──► lattice state ──► normalizer of each head ──► gradients
//! ```
use std::{borrow::Cow, ops::Range};

use panda_core::Real;
use panda_core::{Backward, Head, Sites};

use crate::{
    Error, Gradients, HiddenInputs, JointInputs, Layout, Loss, LossOutput, Options, Result, SkippedSites,
    Targets,
    budget::{CallSizes, SessionBuffers},
    ctc::Ctc,
    error::expect_rows,
    heads::{HeadGradients, HeadOutput, HeadSet, Role},
    inputs::InputValues,
    joint_sites::{JointSites, JointSource, SiteGradients},
    lattice_state::{Built, LatticeState},
    objective::LatticeObjective,
    site_buffers::SiteIndices,
    sites::{GroupSites, HiddenSites, row_indices},
};

/// Checked heads over sites of one kind, for a sum over paths. The values come with each direction.
pub(crate) struct HeadCall<'t, F> {
    objective: LatticeObjective<'t>,
    model: HeadModel<F>,
}

/// Where hidden rows come from and which heads normalize them, whatever the objective.
pub(crate) struct HeadModel<F> {
    source: SiteSource,
    heads: HeadSet<F>,
}

enum SiteSource {
    Joint(JointSource),
    Hidden { width: usize, layout: Layout },
}

/// Some utterances of a call.
pub(crate) struct SiteGroup<'c, F> {
    sites: GroupSites<'c, F>,
    objective: &'c LatticeObjective<'c>,
    heads: Vec<(Role, Head<'c, F>)>,
}

impl<F: Real> HeadModel<F> {
    /// Rows that a joint network adds.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn joint(joint: &JointInputs<F>, targets: &Targets, options: &Options) -> Result<Self> {
        let JointInputs { encoded, predicted, head, durations, dropout, layout } = *joint;
        if options.loss == Loss::Ctc {
            return Err(Error::joint_under_ctc());
        }
        options.check()?;
        targets.check_classes(head.classes())?;
        layout.check(targets)?;
        let (frames, labels, width) =
            (layout.frame_starts(targets), layout.label_starts(targets), head.hidden());
        expect_rows("encoded", frames.total(), width, encoded.len())?;
        expect_rows("predicted", labels.total(), width, predicted.len())?;
        let mask = dropout.map_or(Ok(None), |dropout| dropout.mask())?;
        let source = JointSource { width, frames, labels, activation: options.activation, mask };
        let heads = HeadSet::new(&head, durations, targets.blank(), options)?;
        Ok(Self { source: SiteSource::Joint(source), heads })
    }

    /// The call of a sum over paths.
    pub fn over(self, objective: LatticeObjective) -> HeadCall<F> {
        HeadCall { objective, model: self }
    }

    /// CallSizes that decide the bytes of a call, in addition to `held` bytes of its caller.
    pub fn sizes<'s>(
        &self,
        objective: &'s LatticeObjective<'s>,
        options: &'s Options,
        held: usize,
    ) -> CallSizes<'s> {
        let indices = match &self.source {
            SiteSource::Joint(source) => JointSites::<F>::index_bytes(source.mask.is_some()),
            SiteSource::Hidden { layout, .. } => HiddenSites::<F>::index_bytes(*layout),
        };
        let (hidden, classes) = (self.heads.hidden(), self.heads.classes());
        CallSizes { objective, options, hidden, classes, indices, held, scores: None }
    }

    /// Number of heads.
    pub fn heads(&self, options: &Options) -> usize {
        HeadSet::<F>::roles(self.heads.classes(), options).len()
    }
}

impl<'t, F: Real> HeadCall<'t, F> {
    /// Sites of a joint network.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn joint(
        joint: &JointInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let model = HeadModel::joint(joint, &targets, options)?;
        Ok(model.over(LatticeObjective::new(loss, targets)?))
    }

    /// Hidden rows, a site's or, for CTC, a frame's.
    ///
    /// # Errors
    /// As above.
    pub fn rows(
        rows: &HiddenInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let HiddenInputs { hidden, head, durations, layout } = *rows;
        options.check()?;
        targets.check_classes(head.classes())?;
        let (blank, layout) =
            (targets.blank(), if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout });
        let (objective, width) = (LatticeObjective::new(loss, targets)?, head.hidden());
        layout.check(objective.sites())?;
        expect_rows("hidden", layout.score_rows(objective.sites()), width, hidden.len())?;
        let heads = HeadSet::new(&head, durations, blank, options)?;
        Ok(HeadModel { source: SiteSource::Hidden { width, layout }, heads }.over(objective))
    }

    /// CallSizes that decide the bytes of the call, in addition to `held` bytes of its caller.
    pub fn sizes<'s>(&'s self, options: &'s Options, held: usize) -> CallSizes<'s> {
        self.model.sizes(&self.objective, options, held)
    }

    /// Number of heads.
    pub fn heads(&self, options: &Options) -> usize {
        self.model.heads(options)
    }

    /// Losses and gradients, group after group.
    pub fn sum(
        &self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        held: usize,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let plan = self.sizes(options, held).in_groups::<F>()?;
        let mut into = self.zero(values)?;
        buffers.apply_plan(&plan, into.len(), options)?;
        let (mut losses, mut skipped) = (Vec::with_capacity(weights.len()), SkippedSites::default());
        for utterances in plan.groups {
            let (first, objective) = (utterances.start, self.objective.part(utterances.clone()));
            let mut run = || {
                let group = self.group(values, &objective, utterances.clone(), buffers)?;
                let state = group.forward(options, buffers)?;
                group.backward(state, &weights[utterances.clone()], options, buffers, &mut into)
            };
            let (of_group, left_out) = run().map_err(|error: Error| error.in_group(first))?;
            losses.extend(of_group);
            skipped.add(left_out);
        }
        Ok(LossOutput { losses, first_pass: None, gradients: self.gradients(into), skipped })
    }

    /// Losses of all utterances at once, and the rows of their sites.
    pub fn forward(
        &self,
        values: &InputValues<F>,
        options: &Options,
        held: usize,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Built<F>> {
        let plan = self.sizes(options, held).whole::<F>()?;
        buffers.apply_plan(&plan, self.heads(options), options)?;
        let group = self.group(values, &self.objective, self.utterances(), buffers)?;
        let state = group.forward(options, buffers)?;
        Ok((group.sites.into_indices(), state))
    }

    /// Their gradients.
    pub fn backward(
        &self,
        (indices, state): Built<F>,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let (sites, heads) = (self.sites(values, self.utterances(), indices), self.model.heads.list(values)?);
        let (group, mut into) = (SiteGroup { sites, objective: &self.objective, heads }, self.zero(values)?);
        let (losses, skipped) = group.backward(state, weights, options, buffers, &mut into)?;
        Ok(LossOutput { losses, first_pass: None, gradients: self.gradients(into), skipped })
    }

    fn utterances(&self) -> Range<usize> {
        0..self.objective.sites().batch()
    }

    /// The objective of some utterances.
    pub fn part(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        self.objective.part(utterances)
    }

    /// Some of the utterances, with indices in vectors of the session.
    ///
    /// # Errors
    /// A row that holds an infinite value.
    pub fn group<'c>(
        &'c self,
        values: &InputValues<'c, F>,
        objective: &'c LatticeObjective<'c>,
        utterances: Range<usize>,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<SiteGroup<'c, F>> {
        let (targets, spare) = (self.objective.sites(), std::mem::take(&mut buffers.sites.indices));
        let indices = match &self.model.source {
            SiteSource::Joint(source) => source.indices(values, targets, utterances.clone(), spare)?,
            SiteSource::Hidden { layout, .. } => row_indices(*layout, targets, utterances.clone(), spare),
        };
        let sites = self.sites(values, utterances, indices);
        Ok(SiteGroup { sites, objective, heads: self.model.heads.list(values)? })
    }

    fn sites<'c>(
        &self,
        values: &InputValues<'c, F>,
        utterances: Range<usize>,
        indices: SiteIndices,
    ) -> GroupSites<'c, F> {
        match &self.model.source {
            SiteSource::Joint(source) => GroupSites::Joint(JointSites::new(source, values, indices)),
            SiteSource::Hidden { width, layout } => {
                let (rows, targets) = ((values.hidden, *width), self.objective.sites());
                GroupSites::Hidden(HiddenSites::new(rows, *layout, targets, utterances, indices))
            }
        }
    }

    /// Zero gradients: of each head, and of the rows with the first.
    fn zero(&self, values: &InputValues<F>) -> Result<Vec<HeadGradients<F>>> {
        let [encoded, predicted, hidden] =
            [values.encoded, values.predicted, values.hidden].map(|rows| kernels::zeros(rows.len()));
        let list = self.model.heads.list(values)?;
        let none = SiteGradients::default;
        let mut into: Vec<_> = list.iter().map(|(_, head)| HeadGradients::zero(none(), head)).collect();
        into[0].sites = SiteGradients { encoded, predicted, hidden };
        Ok(into)
    }

    /// The same under the names of the inputs.
    fn gradients(&self, mut into: Vec<HeadGradients<F>>) -> Gradients<F> {
        let SiteGradients { encoded, predicted, hidden } = std::mem::take(&mut into[0].sites);
        let [head, durations] = self.model.heads.join(into);
        Gradients { encoded, predicted, hidden, head, durations, ..Gradients::default() }
    }
}

impl<F: Real> SiteGroup<'_, F> {
    /// Utterances and their sites.
    pub fn targets(&self) -> &Targets {
        self.objective.sites()
    }

    /// Losses, and everything that their gradients need.
    pub fn forward(&self, options: &Options, buffers: &mut SessionBuffers<F>) -> Result<LatticeState<F>> {
        let mut outputs = Vec::with_capacity(3);
        for (index, &(role, ref head)) in self.heads.iter().enumerate() {
            let selection = self.objective.selection(role, buffers.sites.take_selection(index))?;
            let workspace = &mut buffers.normalizers[index];
            let normalized = panda_core::forward(&self.sites, head, &selection, workspace)
                .map_err(|error| role.error(error, self.targets().lattices()))?;
            outputs.push(HeadOutput { role, selection, normalized });
        }
        LatticeState::forward(outputs, self.objective, options, buffers)
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`: those of each head to its own, those of the sites to the first one's.
    ///
    /// Returns the losses and what was left out; all vectors return to the buffers.
    pub fn backward(
        self,
        mut state: LatticeState<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
        into: &mut [HeadGradients<F>],
    ) -> Result<(Vec<f64>, SkippedSites)> {
        let Self { sites, heads, .. } = &self;
        let (lattices, mut active) = (self.targets().lattices(), 0);
        for (index, (output, adjoints)) in state.backward(lattices, options, weights)?.into_iter().enumerate()
        {
            let HeadOutput { selection, normalized, .. } = output;
            into[index].sites = std::mem::take(&mut into[0].sites);
            let arguments =
                Backward { sites, head: &heads[index].1, selection, normalized, adjoints: &adjoints };
            let outcome = panda_core::backward(arguments, &mut buffers.normalizers[index], &mut into[index]);
            into[0].sites = std::mem::take(&mut into[index].sites);
            active = active.max(outcome.map_err(|error| Error::at_site(error, lattices))?);
        }
        let skipped = state.lost(weights).map_or_else(SkippedSites::default, |lost| {
            let largest = heads.iter().map(|(_, head)| head.largest_weight()).fold(0.0, f64::max);
            SkippedSites::new(lost, state.gradient_bound(), sites.largest(), sites.max_slope() * largest)
        });
        let skipped = SkippedSites { zeros: sites.len() - active - skipped.sites, ..skipped };
        let losses = state.release(buffers);
        self.release(buffers);
        Ok((losses, skipped))
    }

    /// Returns the indices of the sites to the buffers.
    pub fn release(self, buffers: &mut SessionBuffers<F>) {
        buffers.sites.indices = self.sites.into_indices();
    }
}
