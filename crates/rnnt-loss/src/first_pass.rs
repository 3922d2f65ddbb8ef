//! Runs the first pass of pruned transducer training within a budget.
//!
//! The simple joiner adds a frame score and a label score per class. Its loss and posteriors over
//! the whole lattice, which the crate `pruned` computes, select the sites (lattice nodes) of the
//! second pass. This module plans the groups of utterances that are processed together, and
//! converts targets, options and errors from one crate to the other.
//!
//! ```text
//! budget >= targets of the call + first pass of a group (of all, in `forward`) + second pass
//! ```
//!
//! The budget includes both passes, as the session keeps the buffers of both from call to call.
use std::ops::Range;

use ::pruned::{
    Batch, FirstPass, PassScratch, Plan, Ranges, ScoreSource, Side, Unigram, Workspace, first_pass_with,
};
use panda_core::Real;

use crate::{
    Error, Layout, Loss, Options, PrunedInputs, PruningOutput, Result, SimpleGradient, SimpleInputs, Targets,
};

/// Checked targets and options of a first pass.
pub(crate) struct FirstPassCall {
    batch: Batch,
    options: ::pruned::Options,
    /// Label positions that each frame retains.
    s_range: usize,
}

/// Blocking of the first pass.
pub(crate) struct FirstPassPlan {
    plan: Plan,
    /// Groups of utterances that are processed together.
    pub groups: Vec<Range<usize>>,
    /// Largest scratch memory of a group, by buffer.
    pub group_scratch: PassScratch,
    /// Most bytes of the pass.
    pub bytes: usize,
}

/// Most utterances of a group.
const MAX_GROUP_UTTERANCES: usize = 64;
/// Upper bound on an utterance's bytes in three copies of targets.
///
/// They are those of the batch, of a group, and of the retained sites.
const UTTERANCE_BYTES: usize = 1024;
/// Bytes of a label in these copies.
const LABEL_BYTES: usize = 40;
/// Bytes of a frame in these copies, including bands.
const FRAME_BYTES: usize = 64;

impl FirstPassCall {
    /// Checks the inputs of the first pass.
    ///
    /// # Errors
    /// A loss without a first pass; targets or options that are incompatible with one.
    pub(crate) fn new<F: Real>(
        options: &Options,
        inputs: &PrunedInputs<F>,
        loss: &Loss,
        targets: &Targets,
    ) -> Result<Self> {
        let Loss::Pruned { topology, pruning, .. } = loss else {
            let expected = "no simple joiner, as the loss is not pruned";
            return Err(Error::Inputs { expected, found: "a simple joiner" });
        };
        inputs.scales.check()?;
        if !targets.lattices().is_full() {
            return Err(Error::incompatible(
                "targets.retained",
                "with pruning, which selects the sites",
                "bands",
            ));
        }
        let layout = inputs.joint.layout;
        layout.check(targets)?;
        let options = ::pruned::Options {
            topology: topology.clone(),
            lm_only_scale: pruning.lm_only_scale,
            am_only_scale: pruning.am_only_scale,
            unigram: pruning.unigram,
            delay_penalty: options.delay_penalty,
            fastemit: options.fastemit,
        };
        let batch = first_pass_batch(targets, layout)?;
        let [frame_rows, label_rows, classes] = match &inputs.simple {
            SimpleInputs::Matrices(source) => matrix_sizes(source),
            SimpleInputs::Heads(source) => matrix_sizes(source),
        };
        batch.check(frame_rows, label_rows, classes)?;
        Ok(Self { batch, options, s_range: pruning.s_range })
    }

    /// Targets with the shapes of the retained sites, before these are known.
    pub(crate) fn retained_shapes(&self, targets: &Targets) -> Result<Targets> {
        let ranges = Ranges::with_zero_starts(targets.lattices(), &self.options.topology, self.s_range)?;
        retained_targets(targets, &ranges)
    }

    /// The best plan within a number of bytes, or the smallest plan.
    pub(crate) fn plan<F: Real>(
        &self,
        simple: &SimpleInputs<F>,
        bytes: usize,
        all_at_once: bool,
    ) -> FirstPassPlan {
        match simple {
            SimpleInputs::Matrices(source) => self.plan_source(source, bytes, all_at_once),
            SimpleInputs::Heads(source) => self.plan_source(source, bytes, all_at_once),
        }
    }

    /// Plans the pass over scores of one kind.
    fn plan_source<F: Real, S: ScoreSource<F>>(
        &self,
        source: &S,
        bytes: usize,
        all_at_once: bool,
    ) -> FirstPassPlan {
        let (lattices, count) = (self.batch.lattices(), self.batch.len());
        let utterance_bytes =
            |b| UTTERANCE_BYTES + LABEL_BYTES * lattices.num_labels(b) + FRAME_BYTES * lattices.num_frames(b);
        let target_bytes: usize = (0..count).map(utterance_bytes).sum();
        let available = bytes.saturating_sub(target_bytes);
        let plan_within_budget = |batch: &Batch| {
            Plan::within(source, batch, &self.options, available).unwrap_or_else(|_| Plan::minimal())
        };
        // One group: a pending loss, or a unigram over all rows, which requires all utterances.
        let has_global_unigram =
            self.options.am_only_scale != 0.0 && self.options.unigram == Unigram::AllRows;
        let scratch = |plan: Plan, batch: &Batch| plan.scratch(source, batch, &self.options);
        if all_at_once || has_global_unigram {
            let plan = plan_within_budget(&self.batch);
            let single_group = std::iter::once(0..count).collect();
            let group_scratch = scratch(plan, &self.batch);
            return FirstPassPlan {
                plan,
                groups: single_group,
                group_scratch,
                bytes: target_bytes.saturating_add(group_scratch.total().bytes()),
            };
        }
        // The smallest of the plans of single utterances; groups grow as far as they fit.
        let plans = (0..count).map(|b| plan_within_budget(&self.batch.part(b..b + 1)));
        let plan = plans.min().unwrap_or_else(Plan::minimal);
        let (mut groups, mut group_scratch): (Vec<Range<usize>>, _) =
            (Vec::with_capacity(count), PassScratch::default());
        for b in 0..count {
            if let Some(group) = groups.last_mut().filter(|group| group.len() < MAX_GROUP_UTTERANCES) {
                let extended = group_scratch.or(scratch(plan, &self.batch.part(group.start..b + 1)));
                if extended.total().bytes() <= available {
                    (group.end, group_scratch) = (b + 1, extended);
                    continue;
                }
            }
            groups.push(b..b + 1);
            group_scratch = group_scratch.or(scratch(plan, &self.batch.part(b..b + 1)));
        }
        FirstPassPlan {
            plan,
            groups,
            group_scratch,
            bytes: target_bytes.saturating_add(group_scratch.total().bytes()),
        }
    }

    /// Runs the first pass over all utterances.
    pub(crate) fn forward<F: Real>(
        &self,
        simple: &SimpleInputs<F>,
        plan: &FirstPassPlan,
        workspace: &mut Workspace<F>,
    ) -> Result<(FirstPass<F>, PruningOutput)> {
        let (batch, options, plan) = (&self.batch, &self.options, plan.plan);
        let pass = match simple {
            SimpleInputs::Matrices(source) => first_pass_with(source, batch, options, plan, workspace)?,
            SimpleInputs::Heads(source) => first_pass_with(source, batch, options, plan, workspace)?,
        };
        let ranges = pass.ranges(self.s_range)?;
        let output = PruningOutput { losses: pass.losses.clone(), ranges };
        Ok((pass, output))
    }

    /// Runs the first pass and its gradient, one group at a time.
    pub(crate) fn sum<F: Real>(
        &self,
        simple: &SimpleInputs<F>,
        plan: &FirstPassPlan,
        weights: &[f64],
        workspace: &mut Workspace<F>,
    ) -> Result<(SimpleGradient<F>, PruningOutput)> {
        Ok(match simple {
            SimpleInputs::Matrices(source) => {
                let (gradient, output) = self.sum_source(source, plan, weights, workspace)?;
                (SimpleGradient::Matrices(gradient), output)
            }
            SimpleInputs::Heads(source) => {
                let (gradient, output) = self.sum_source(source, plan, weights, workspace)?;
                (SimpleGradient::Heads(gradient), output)
            }
        })
    }

    /// Runs the pass over scores of one kind; the gradient is that of `Σ_b weights[b] loss[b]`.
    fn sum_source<F: Real, S: ScoreSource<F>>(
        &self,
        source: &S,
        plan: &FirstPassPlan,
        weights: &[f64],
        workspace: &mut Workspace<F>,
    ) -> Result<(S::Gradient, PruningOutput)> {
        let mut gradient = source.zero_gradient();
        let mut losses = Vec::with_capacity(self.batch.len());
        let mut ranges = Vec::with_capacity(plan.groups.len());
        for group in &plan.groups {
            let mut run_group = || {
                let batch = self.batch.part(group.clone());
                let pass = first_pass_with(source, &batch, &self.options, plan.plan, workspace)?;
                ranges.push(pass.ranges(self.s_range)?);
                losses.extend_from_slice(&pass.losses);
                pass.backward_into(source, &weights[group.clone()], &mut gradient, workspace)?;
                workspace.recycle(pass);
                Ok(())
            };
            run_group().map_err(|error: ::pruned::Error| {
                convert_weight_error(error.with_utterance_offset(group.start))
            })?;
        }
        Ok((gradient, PruningOutput { losses, ranges: Ranges::concat(&ranges) }))
    }
}

/// Computes the gradient of the simple joiner; the buffers of the pass return to the workspace.
pub(crate) fn first_pass_backward<F: Real>(
    pass: FirstPass<F>,
    simple: &SimpleInputs<F>,
    weights: &[f64],
    workspace: &mut Workspace<F>,
) -> Result<SimpleGradient<F>> {
    let gradient = match simple {
        SimpleInputs::Matrices(source) => {
            SimpleGradient::Matrices(source_gradient(&pass, source, weights, workspace)?)
        }
        SimpleInputs::Heads(source) => {
            SimpleGradient::Heads(source_gradient(&pass, source, weights, workspace)?)
        }
    };
    workspace.recycle(pass);
    Ok(gradient)
}

/// Gradient of scores of one kind.
fn source_gradient<F: Real, S: ScoreSource<F>>(
    pass: &FirstPass<F>,
    source: &S,
    weights: &[f64],
    workspace: &mut Workspace<F>,
) -> Result<S::Gradient> {
    let mut gradient = source.zero_gradient();
    pass.backward_into(source, weights, &mut gradient, workspace).map_err(convert_weight_error)?;
    Ok(gradient)
}

/// Numbers of frame rows, label rows and classes.
fn matrix_sizes<F: Real>(source: &impl ScoreSource<F>) -> [usize; 3] {
    [source.rows(Side::Frames), source.rows(Side::Labels), source.classes()]
}

/// Reports the weight of an utterance as that of the call.
fn convert_weight_error(error: ::pruned::Error) -> Error {
    match error {
        ::pruned::Error::UtteranceWeight { utterance, found } => Error::Weight { utterance, found },
        other => other.into(),
    }
}

/// Creates the batch of the first pass.
fn first_pass_batch(targets: &Targets, layout: Layout) -> Result<Batch> {
    let utterances = 0..targets.batch();
    let frames = utterances.clone().map(|b| targets.frames(b)).collect();
    let labels = utterances.map(|b| targets.labels(b).to_vec()).collect();
    let batch = match layout {
        Layout::Packed => Batch::packed(targets.blank(), frames, labels)?,
        Layout::Padded { frames: padded, positions } => {
            Batch::padded(targets.blank(), frames, labels, padded, positions)?
        }
    };
    let weights = |b: usize| targets.token_weights(b).to_vec();
    match (0..targets.batch()).all(|b| targets.token_weights(b).is_empty()) {
        true => Ok(batch),
        false => Ok(batch.with_token_weights((0..targets.batch()).map(weights).collect())?),
    }
}

/// Targets with the sites that ranges retain.
pub(crate) fn retained_targets(targets: &Targets, ranges: &Ranges) -> Result<Targets> {
    let bands = |b: usize| (0..targets.frames(b)).map(|frame| ranges.band(b, frame)).collect();
    targets.with_bands((0..targets.batch()).map(bands).collect())
}
