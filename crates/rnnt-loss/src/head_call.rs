//! Transducer and CTC losses from hidden rows and heads, with gradients.
//!
//! A group is a range of utterances that are processed together. A head is the last linear layer
//! over classes. Its normalizer computes log-probabilities of the classes that a site (lattice
//! node) needs without storing the scores of all classes.
//!
//! ```text
//! for each group of utterances:
//!     sites ──► normalizer of each head ──► lattice state
//!     lattice state ──► normalizer of each head ──► gradients
//! ```
use std::{borrow::Cow, ops::Range};

use panda_core::Real;
use panda_core::{BackwardInputs, Head, Sites};

use crate::{
    Error, Gradients, HiddenInputs, JointInputs, Layout, Loss, LossOutput, Options, Result, SkippedSites,
    Targets,
    budget::{CallSizes, SessionBuffers},
    ctc::CtcObjective,
    error::expect_rows,
    heads::{HeadGradients, HeadOutput, HeadRole, HeadSet},
    inputs::InputValues,
    joint_sites::{JointSites, JointSource, SiteGradients},
    lattice_state::{ForwardPass, LatticeState},
    objective::LatticeObjective,
    site_buffers::SiteIndices,
    sites::{GroupSites, HiddenSites, hidden_row_indices},
};

/// Inputs whose shapes are checked once; each pass takes the values as arguments.
pub(crate) struct HeadCall<'t, F> {
    objective: LatticeObjective<'t>,
    model: HeadInputs<F>,
}

/// Source of the hidden rows and their heads, independent of the objective.
pub(crate) struct HeadInputs<F> {
    source: SiteSource,
    heads: HeadSet<F>,
}

enum SiteSource {
    Joint(JointSource),
    Hidden { width: usize, layout: Layout },
}

/// A group of utterances of a call.
pub(crate) struct SiteGroup<'c, F> {
    sites: GroupSites<'c, F>,
    objective: &'c LatticeObjective<'c>,
    heads: Vec<(HeadRole, Head<'c, F>)>,
}

impl<F: Real> HeadInputs<F> {
    /// Checks the inputs of a joint network.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub fn joint(joint: &JointInputs<F>, targets: &Targets, options: &Options) -> Result<Self> {
        let JointInputs { encoded, predicted, head, durations, dropout, layout } = *joint;
        if options.loss == Loss::Ctc {
            return Err(Error::joint_with_ctc());
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

    /// Creates the call of an objective.
    pub fn with_objective(self, objective: LatticeObjective) -> HeadCall<F> {
        HeadCall { objective, model: self }
    }

    /// Sizes that determine the bytes of a call.
    ///
    /// `caller_bytes` are additional bytes of its caller.
    pub fn sizes<'s>(
        &self,
        objective: &'s LatticeObjective<'s>,
        options: &'s Options,
        caller_bytes: usize,
    ) -> CallSizes<'s> {
        let index_bytes = match &self.source {
            SiteSource::Joint(source) => JointSites::<F>::index_bytes(source.mask.is_some()),
            SiteSource::Hidden { layout, .. } => HiddenSites::<F>::index_bytes(*layout),
        };
        let (hidden, classes) = (self.heads.hidden(), self.heads.classes());
        CallSizes { objective, options, hidden, classes, index_bytes, caller_bytes, score_scratch: None }
    }

    /// Number of heads.
    pub fn num_heads(&self, options: &Options) -> usize {
        HeadSet::<F>::roles_and_classes(self.heads.classes(), options).len()
    }
}

impl<'t, F: Real> HeadCall<'t, F> {
    /// Checks a call over projected rows.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub fn joint(
        joint: &JointInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let model = HeadInputs::joint(joint, &targets, options)?;
        Ok(model.with_objective(LatticeObjective::new(loss, targets)?))
    }

    /// Checks a call over hidden rows of sites or, for CTC, frames.
    ///
    /// # Errors
    /// Those of [`HeadCall::joint`].
    pub fn hidden(
        rows: &HiddenInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let HiddenInputs { hidden, head, durations, layout } = *rows;
        options.check()?;
        targets.check_classes(head.classes())?;
        let (blank, layout) =
            (targets.blank(), if *loss == Loss::Ctc { CtcObjective::layout(layout) } else { layout });
        let (objective, width) = (LatticeObjective::new(loss, targets)?, head.hidden());
        layout.check(objective.site_targets())?;
        expect_rows("hidden", layout.score_rows(objective.site_targets()), width, hidden.len())?;
        let heads = HeadSet::new(&head, durations, blank, options)?;
        Ok(HeadInputs { source: SiteSource::Hidden { width, layout }, heads }.with_objective(objective))
    }

    /// Sizes that determine the bytes of the call.
    ///
    /// `caller_bytes` are additional bytes of its caller.
    pub fn sizes<'s>(&'s self, options: &'s Options, caller_bytes: usize) -> CallSizes<'s> {
        self.model.sizes(&self.objective, options, caller_bytes)
    }

    /// Number of heads.
    pub fn num_heads(&self, options: &Options) -> usize {
        self.model.num_heads(options)
    }

    /// Computes losses and gradients, one group at a time.
    pub fn sum(
        &self,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        caller_bytes: usize,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let plan = self.sizes(options, caller_bytes).in_groups::<F>()?;
        let mut gradients = self.zero_gradients(values)?;
        buffers.apply_plan(&plan, gradients.len(), options)?;
        let (mut losses, mut skipped) = (Vec::with_capacity(weights.len()), SkippedSites::default());
        for utterances in plan.groups {
            let (first_utterance, objective) = (utterances.start, self.objective.part(utterances.clone()));
            let mut run_group = || {
                let group = self.group(values, &objective, utterances.clone(), buffers)?;
                let state = group.forward(options, buffers)?;
                group.backward(state, &weights[utterances.clone()], options, buffers, &mut gradients)
            };
            let (group_losses, group_skipped) =
                run_group().map_err(|error: Error| error.in_group(first_utterance))?;
            losses.extend(group_losses);
            skipped.add(group_skipped);
        }
        Ok(LossOutput { losses, first_pass: None, gradients: self.named_gradients(gradients), skipped })
    }

    /// Computes the losses, and the row indices of all sites.
    pub fn forward(
        &self,
        values: &InputValues<F>,
        options: &Options,
        caller_bytes: usize,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<ForwardPass<F>> {
        let plan = self.sizes(options, caller_bytes).all_at_once::<F>()?;
        buffers.apply_plan(&plan, self.num_heads(options), options)?;
        let group = self.group(values, &self.objective, self.utterances(), buffers)?;
        let state = group.forward(options, buffers)?;
        Ok(ForwardPass { indices: group.sites.into_indices(), state })
    }

    /// Computes the gradients of [`HeadCall::forward`].
    pub fn backward(
        &self,
        ForwardPass { indices, state }: ForwardPass<F>,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let (sites, heads) =
            (self.sites(values, self.utterances(), indices), self.model.heads.all_heads(values)?);
        let (group, mut gradients) =
            (SiteGroup { sites, objective: &self.objective, heads }, self.zero_gradients(values)?);
        let (losses, skipped) = group.backward(state, weights, options, buffers, &mut gradients)?;
        Ok(LossOutput { losses, first_pass: None, gradients: self.named_gradients(gradients), skipped })
    }

    /// Range of all utterances.
    fn utterances(&self) -> Range<usize> {
        0..self.objective.site_targets().batch()
    }

    /// Objective of a range of utterances.
    pub fn part(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        self.objective.part(utterances)
    }

    /// Creates the group of a range of utterances.
    ///
    /// # Errors
    /// A row with an infinite value.
    pub fn group<'c>(
        &'c self,
        values: &InputValues<'c, F>,
        objective: &'c LatticeObjective<'c>,
        utterances: Range<usize>,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<SiteGroup<'c, F>> {
        let (targets, spare) = (self.objective.site_targets(), std::mem::take(&mut buffers.sites.indices));
        let indices = match &self.model.source {
            SiteSource::Joint(source) => source.indices(values, targets, utterances.clone(), spare)?,
            SiteSource::Hidden { layout, .. } => {
                hidden_row_indices(*layout, targets, utterances.clone(), spare)
            }
        };
        let sites = self.sites(values, utterances, indices);
        Ok(SiteGroup { sites, objective, heads: self.model.heads.all_heads(values)? })
    }

    /// Hidden rows of a range of utterances.
    fn sites<'c>(
        &self,
        values: &InputValues<'c, F>,
        utterances: Range<usize>,
        indices: SiteIndices,
    ) -> GroupSites<'c, F> {
        match &self.model.source {
            SiteSource::Joint(source) => GroupSites::Joint(JointSites::new(source, values, indices)),
            SiteSource::Hidden { width, layout } => {
                let (hidden, targets) = (values.hidden, self.objective.site_targets());
                GroupSites::Hidden(HiddenSites::new(hidden, *width, *layout, targets, utterances, indices))
            }
        }
    }

    /// Zero gradients of each head; the first entry includes those of the input rows.
    fn zero_gradients(&self, values: &InputValues<F>) -> Result<Vec<HeadGradients<F>>> {
        let [encoded, predicted, hidden] =
            [values.encoded, values.predicted, values.hidden].map(|rows| kernels::zeros(rows.len()));
        let heads = self.model.heads.all_heads(values)?;
        let no_rows = SiteGradients::default;
        let mut gradients: Vec<_> =
            heads.iter().map(|(_, head)| HeadGradients::zero(no_rows(), head)).collect();
        gradients[0].sites = SiteGradients { encoded, predicted, hidden };
        Ok(gradients)
    }

    /// Gradients by the names of the inputs.
    fn named_gradients(&self, mut gradients: Vec<HeadGradients<F>>) -> Gradients<F> {
        let SiteGradients { encoded, predicted, hidden } = std::mem::take(&mut gradients[0].sites);
        let [head, durations] = self.model.heads.join_gradients(gradients);
        Gradients { encoded, predicted, hidden, head, durations, ..Gradients::default() }
    }
}

impl<F: Real> SiteGroup<'_, F> {
    /// Targets of the group, with its sites.
    pub fn targets(&self) -> &Targets {
        self.objective.site_targets()
    }

    /// Computes the losses and the state for their gradients.
    pub fn forward(&self, options: &Options, buffers: &mut SessionBuffers<F>) -> Result<LatticeState<F>> {
        let mut outputs = Vec::with_capacity(3);
        for (index, &(role, ref head)) in self.heads.iter().enumerate() {
            let selection = self.objective.selection(role, buffers.sites.take_selection(index))?;
            let workspace = &mut buffers.normalizers[index];
            let normalized = panda_core::forward(&self.sites, head, &selection, workspace)
                .map_err(|error| role.convert_error(error, self.targets().lattices()))?;
            outputs.push(HeadOutput { role, selection, normalized });
        }
        LatticeState::forward(outputs, self.objective, options, buffers)
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`; those of the sites are in the first entry.
    ///
    /// Returns the losses and the skipped sites; all vectors return to the buffers.
    pub fn backward(
        self,
        mut state: LatticeState<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
        gradients: &mut [HeadGradients<F>],
    ) -> Result<(Vec<f64>, SkippedSites)> {
        let Self { sites, heads, .. } = &self;
        let (lattices, mut active_sites) = (self.targets().lattices(), 0);
        for (index, (output, adjoints)) in state.backward(lattices, options, weights)?.into_iter().enumerate()
        {
            let HeadOutput { selection, normalized, .. } = output;
            // Each head in turn adds to the gradients of the sites.
            gradients[index].sites = std::mem::take(&mut gradients[0].sites);
            let arguments =
                BackwardInputs { sites, head: &heads[index].1, selection, normalized, adjoints: &adjoints };
            let outcome =
                panda_core::backward(arguments, &mut buffers.normalizers[index], &mut gradients[index]);
            gradients[0].sites = std::mem::take(&mut gradients[index].sites);
            active_sites = active_sites.max(outcome.map_err(|error| Error::at_site(error, lattices))?);
        }
        let skipped = state.skipped_mass(weights).map_or_else(SkippedSites::default, |mass| {
            let max_weight = heads.iter().map(|(_, head)| head.max_abs_weight()).fold(0.0, f64::max);
            SkippedSites::new(mass, state.gradient_bound(), sites.max_abs(), sites.max_slope() * max_weight)
        });
        let skipped = SkippedSites { zero_sites: sites.len() - active_sites - skipped.sites, ..skipped };
        let losses = state.release(buffers);
        self.release(buffers);
        Ok((losses, skipped))
    }

    /// Returns the indices of the sites to the buffers.
    pub fn release(self, buffers: &mut SessionBuffers<F>) {
        buffers.sites.indices = self.sites.into_indices();
    }
}
