//! Computes transducer and CTC losses from hidden rows and heads, with gradients.
//!
//! A head is the last linear layer over classes. Its normalizer computes log-probabilities of the
//! classes that a site (lattice node) needs without storing the scores of all classes. The engine
//! of a session creates a [`HeadCall`], which processes a range of utterances (a group) at a time:
//!
//! ```text
//! forward:   hidden rows of the sites ──► normalizer of each head ──► lattice state, losses
//! backward:  lattice state ──► normalizer of each head ──► gradients of heads and hidden rows
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
    heads::{HeadOutput, HeadRole, HeadSet, NormalizerGradients},
    hidden_rows::{HiddenRows, StoredHiddenRows, stored_row_indices},
    inputs::InputValues,
    joint_hidden_rows::{JointHiddenRows, JointSpec, RowGradients},
    lattice_state::{ForwardResult, LatticeState},
    objective::LatticeObjective,
    site_buffers::RowIndices,
};

/// A checked call over hidden rows and heads; the values are arguments of each pass.
pub(crate) struct HeadCall<'t, F> {
    objective: LatticeObjective<'t>,
    inputs: HeadCallInputs<F>,
}

/// Checked hidden rows and heads, without values and independent of the objective.
pub(crate) struct HeadCallInputs<F> {
    row_source: HiddenRowSource,
    heads: HeadSet<F>,
}

/// Where the hidden rows of the sites come from.
enum HiddenRowSource {
    /// A joint network computes them from encoder and predictor rows.
    Joint(JointSpec),
    /// The caller stores them in a matrix.
    Stored { width: usize, layout: Layout },
}

/// A range of utterances of a call, with their values.
pub(crate) struct HeadCallGroup<'c, F> {
    hidden_rows: HiddenRows<'c, F>,
    objective: &'c LatticeObjective<'c>,
    heads: Vec<(HeadRole, Head<'c, F>)>,
}

impl<F: Real> HeadCallInputs<F> {
    /// Checks the inputs of a joint network.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub(crate) fn joint(joint: &JointInputs<F>, targets: &Targets, options: &Options) -> Result<Self> {
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
        let joint_spec = JointSpec { width, frames, labels, activation: options.activation, mask };
        let heads = HeadSet::new(&head, durations, targets.blank(), options)?;
        Ok(Self { row_source: HiddenRowSource::Joint(joint_spec), heads })
    }

    /// Creates the call of an objective.
    pub(crate) fn with_objective(self, objective: LatticeObjective) -> HeadCall<F> {
        HeadCall { objective, inputs: self }
    }

    /// Sizes that determine the bytes of a call.
    ///
    /// `caller_bytes` are additional bytes of its caller.
    pub(crate) fn sizes<'s>(
        &self,
        objective: &'s LatticeObjective<'s>,
        options: &'s Options,
        caller_bytes: usize,
    ) -> CallSizes<'s> {
        let index_bytes = match &self.row_source {
            HiddenRowSource::Joint(joint) => JointHiddenRows::<F>::index_bytes(joint.mask.is_some()),
            HiddenRowSource::Stored { layout, .. } => StoredHiddenRows::<F>::index_bytes(*layout),
        };
        let (hidden, classes) = (self.heads.hidden(), self.heads.classes());
        CallSizes { objective, options, hidden, classes, index_bytes, caller_bytes, score_scratch: None }
    }

    /// Number of heads.
    pub(crate) fn num_heads(&self, options: &Options) -> usize {
        HeadSet::<F>::roles_and_classes(self.heads.classes(), options).len()
    }
}

impl<'t, F: Real> HeadCall<'t, F> {
    /// Checks a call over projected rows.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub(crate) fn joint(
        joint: &JointInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let inputs = HeadCallInputs::joint(joint, &targets, options)?;
        Ok(inputs.with_objective(LatticeObjective::new(loss, targets)?))
    }

    /// Checks a call over hidden rows of sites or, for CTC, frames.
    ///
    /// # Errors
    /// Those of [`HeadCall::joint`].
    pub(crate) fn hidden(
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
        let row_source = HiddenRowSource::Stored { width, layout };
        Ok(HeadCallInputs { row_source, heads }.with_objective(objective))
    }

    /// Sizes that determine the bytes of the call.
    ///
    /// `caller_bytes` are additional bytes of its caller.
    pub(crate) fn sizes<'s>(&'s self, options: &'s Options, caller_bytes: usize) -> CallSizes<'s> {
        self.inputs.sizes(&self.objective, options, caller_bytes)
    }

    /// Number of heads.
    pub(crate) fn num_heads(&self, options: &Options) -> usize {
        self.inputs.num_heads(options)
    }

    /// Computes losses and gradients, one group at a time.
    pub(crate) fn sum(
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
    pub(crate) fn forward(
        &self,
        values: &InputValues<F>,
        options: &Options,
        caller_bytes: usize,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<ForwardResult<F>> {
        let plan = self.sizes(options, caller_bytes).all_at_once::<F>()?;
        buffers.apply_plan(&plan, self.num_heads(options), options)?;
        let group = self.group(values, &self.objective, self.utterances(), buffers)?;
        let state = group.forward(options, buffers)?;
        Ok(ForwardResult { indices: group.hidden_rows.into_indices(), state })
    }

    /// Computes the gradients of [`HeadCall::forward`].
    pub(crate) fn backward(
        &self,
        ForwardResult { indices, state }: ForwardResult<F>,
        values: &InputValues<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let hidden_rows = self.hidden_rows(values, self.utterances(), indices);
        let heads = self.inputs.heads.all_heads(values)?;
        let group = HeadCallGroup { hidden_rows, objective: &self.objective, heads };
        let mut gradients = self.zero_gradients(values)?;
        let (losses, skipped) = group.backward(state, weights, options, buffers, &mut gradients)?;
        Ok(LossOutput { losses, first_pass: None, gradients: self.named_gradients(gradients), skipped })
    }

    /// Range of all utterances.
    fn utterances(&self) -> Range<usize> {
        0..self.objective.site_targets().batch()
    }

    /// Objective of a range of utterances.
    pub(crate) fn objective_of(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        self.objective.part(utterances)
    }

    /// Creates the group of a range of utterances.
    ///
    /// # Errors
    /// A row with an infinite value.
    pub(crate) fn group<'c>(
        &'c self,
        values: &InputValues<'c, F>,
        objective: &'c LatticeObjective<'c>,
        utterances: Range<usize>,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<HeadCallGroup<'c, F>> {
        let (targets, spare) = (self.objective.site_targets(), std::mem::take(&mut buffers.sites.indices));
        let indices = match &self.inputs.row_source {
            HiddenRowSource::Joint(joint) => joint.row_indices(values, targets, utterances.clone(), spare)?,
            HiddenRowSource::Stored { layout, .. } => {
                stored_row_indices(*layout, targets, utterances.clone(), spare)
            }
        };
        let hidden_rows = self.hidden_rows(values, utterances, indices);
        Ok(HeadCallGroup { hidden_rows, objective, heads: self.inputs.heads.all_heads(values)? })
    }

    /// Hidden rows of a range of utterances.
    fn hidden_rows<'c>(
        &self,
        values: &InputValues<'c, F>,
        utterances: Range<usize>,
        indices: RowIndices,
    ) -> HiddenRows<'c, F> {
        match &self.inputs.row_source {
            HiddenRowSource::Joint(joint) => HiddenRows::Joint(JointHiddenRows::new(joint, values, indices)),
            HiddenRowSource::Stored { width, layout } => {
                let (hidden, targets) = (values.hidden, self.objective.site_targets());
                HiddenRows::Stored(StoredHiddenRows::new(
                    hidden, *width, *layout, targets, utterances, indices,
                ))
            }
        }
    }

    /// Zero gradients of each head; the first entry includes those of the input rows.
    fn zero_gradients(&self, values: &InputValues<F>) -> Result<Vec<NormalizerGradients<F>>> {
        let [encoded, predicted, hidden] =
            [values.encoded, values.predicted, values.hidden].map(|rows| kernels::zeros(rows.len()));
        let heads = self.inputs.heads.all_heads(values)?;
        let no_rows = RowGradients::default;
        let mut gradients: Vec<_> =
            heads.iter().map(|(_, head)| NormalizerGradients::zero(no_rows(), head)).collect();
        gradients[0].sites = RowGradients { encoded, predicted, hidden };
        Ok(gradients)
    }

    /// Gradients by the names of the inputs.
    fn named_gradients(&self, mut gradients: Vec<NormalizerGradients<F>>) -> Gradients<F> {
        let RowGradients { encoded, predicted, hidden } = std::mem::take(&mut gradients[0].sites);
        let [head, durations] = self.inputs.heads.join_gradients(gradients);
        Gradients { encoded, predicted, hidden, head, durations, ..Gradients::default() }
    }
}

impl<F: Real> HeadCallGroup<'_, F> {
    /// Targets of the group, with its sites.
    pub(crate) fn targets(&self) -> &Targets {
        self.objective.site_targets()
    }

    /// Computes the losses and the state for their gradients.
    pub(crate) fn forward(
        &self,
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LatticeState<F>> {
        let mut outputs = Vec::with_capacity(3);
        for (index, &(role, ref head)) in self.heads.iter().enumerate() {
            let selection = self.objective.selection(role, buffers.sites.take_selection(index))?;
            let workspace = &mut buffers.normalizers[index];
            let normalized = panda_core::forward(&self.hidden_rows, head, &selection, workspace)
                .map_err(|error| role.convert_error(error, self.targets().lattices()))?;
            outputs.push(HeadOutput { role, selection, normalized });
        }
        LatticeState::forward(outputs, self.objective, options, buffers)
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// Those of the input rows are in the first entry. Returns the losses and the skipped sites;
    /// all vectors return to the buffers.
    pub(crate) fn backward(
        self,
        mut state: LatticeState<F>,
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
        gradients: &mut [NormalizerGradients<F>],
    ) -> Result<(Vec<f64>, SkippedSites)> {
        let Self { hidden_rows, heads, .. } = &self;
        let (lattices, mut active_sites) = (self.targets().lattices(), 0);
        // Gradients of each head and of the input rows.
        for (index, (output, adjoints)) in state.backward(lattices, options, weights)?.into_iter().enumerate()
        {
            let HeadOutput { selection, normalized, .. } = output;
            // Each head in turn adds to the gradients of the input rows.
            gradients[index].sites = std::mem::take(&mut gradients[0].sites);
            let (_, head) = &heads[index];
            let arguments =
                BackwardInputs { sites: hidden_rows, head, selection, normalized, adjoints: &adjoints };
            let outcome =
                panda_core::backward(arguments, &mut buffers.normalizers[index], &mut gradients[index]);
            gradients[0].sites = std::mem::take(&mut gradients[index].sites);
            active_sites = active_sites.max(outcome.map_err(|error| Error::at_site(error, lattices))?);
        }
        // Number of skipped sites, and bounds on the error of the gradients.
        let skipped = state.skipped_mass(weights).map_or_else(SkippedSites::default, |mass| {
            let max_weight = heads.iter().map(|(_, head)| head.max_abs_weight()).fold(0.0, f64::max);
            let (max_hidden, max_slope) = (hidden_rows.max_abs(), hidden_rows.max_slope());
            SkippedSites::new(mass, state.gradient_bound(), max_hidden, max_slope * max_weight)
        });
        let skipped =
            SkippedSites { zero_sites: hidden_rows.len() - active_sites - skipped.sites, ..skipped };
        let losses = state.release(buffers);
        self.release(buffers);
        Ok((losses, skipped))
    }

    /// Returns the row indices of the sites to the buffers.
    pub(crate) fn release(self, buffers: &mut SessionBuffers<F>) {
        buffers.sites.indices = self.hidden_rows.into_indices();
    }
}
