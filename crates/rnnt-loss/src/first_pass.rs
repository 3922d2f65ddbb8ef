//! The first pass of pruned training in a number of bytes.
//!
//! ```text
//! budget >= lists of the call + first pass of a group (of all, where its gradient waits) + second pass
//! ```
//!
//! The session's buffers stay from call to call, so that both passes are there at once.
use std::ops::Range;

use ::pruned::{
    Batch, FirstPass, PassScratch, Plan, Ranges, Side, Source, Unigram, Workspace, first_pass_with,
};
use panda_core::Real;

use crate::{
    Error, Layout, Loss, Options, PrunedJoint, PruningOutput, Result, Simple, SimpleGradient, Targets,
};

/// What the first pass is asked for.
pub(crate) struct PruningPass {
    batch: Batch,
    options: ::pruned::Options,
    s_range: usize,
}

/// How it is cut, and its bytes at most.
pub(crate) struct FirstPlan {
    plan: Plan,
    /// Utterances that go through it together where its gradient does not wait.
    pub groups: Vec<Range<usize>>,
    /// Of a group, whichever takes the most of each buffer.
    pub of_group: PassScratch,
    pub bytes: usize,
}

/// Utterances of a group, at most.
const UTTERANCES: usize = 64;
/// Bytes of the lists of a call: of its utterances in batch, part and retained targets, and of a frame in bands on their way.
const OF_UTTERANCE: usize = 1024;
const OF_LABEL: usize = 40;
const OF_FRAME: usize = 64;

impl PruningPass {
    /// # Errors
    /// A loss without a first pass, targets or options that do not go with one.
    pub fn new<F: Real>(
        options: &Options,
        inputs: &PrunedJoint<F>,
        loss: &Loss,
        targets: &Targets,
    ) -> Result<Self> {
        let Loss::Pruned { topology, pruning, .. } = loss else {
            let expected = "those of the loss, which has no first pass";
            return Err(Error::Inputs { expected, found: "a trivial joiner" });
        };
        inputs.scales.check()?;
        if !targets.lattices().is_full() {
            return Err(Error::misplaced("targets.retained", "where pruning chooses the sites", "bands"));
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
        let batch = batch(targets, layout)?;
        let [frames, labels, classes] = match &inputs.simple {
            Simple::Matrices(source) => sizes(source),
            Simple::Heads(source) => sizes(source),
        };
        batch.check(frames, labels, classes)?;
        Ok(Self { batch, options, s_range: pruning.s_range })
    }

    /// As many sites as will be retained, before it is known which.
    pub fn shapes(&self, targets: &Targets) -> Result<Targets> {
        let ranges = Ranges::with_zero_starts(targets.lattices(), &self.options.topology, self.s_range)?;
        retained(targets, &ranges)
    }

    /// The best cut within some bytes, or the smallest where they are too few.
    pub fn plan<F: Real>(&self, simple: &Simple<F>, bytes: usize, whole: bool) -> FirstPlan {
        match simple {
            Simple::Matrices(source) => self.plan_of(source, bytes, whole),
            Simple::Heads(source) => self.plan_of(source, bytes, whole),
        }
    }

    fn plan_of<F: Real, S: Source<F>>(&self, source: &S, bytes: usize, whole: bool) -> FirstPlan {
        let (lattices, count) = (self.batch.lattices(), self.batch.len());
        let lists = |b| OF_UTTERANCE + OF_LABEL * lattices.labels(b) + OF_FRAME * lattices.frames(b);
        let lists: usize = (0..count).map(lists).sum();
        let room = bytes.saturating_sub(lists);
        let within = |batch: &Batch| {
            Plan::within(source, batch, &self.options, room).unwrap_or_else(|_| Plan::minimal())
        };
        // A unigram of all rows is one for all utterances.
        let mixed = self.options.am_only_scale != 0.0 && self.options.unigram == Unigram::AllRows;
        let most = |plan: Plan, batch: &Batch| plan.scratch(source, batch, &self.options);
        if whole || mixed {
            let plan = within(&self.batch);
            let all = std::iter::once(0..count).collect();
            let of_group = most(plan, &self.batch);
            return FirstPlan {
                plan,
                groups: all,
                of_group,
                bytes: lists.saturating_add(of_group.total().bytes()),
            };
        }
        let alone = (0..count).map(|b| within(&self.batch.part(b..b + 1)));
        let plan = alone.min().unwrap_or_else(Plan::minimal);
        let (mut groups, mut of_group): (Vec<Range<usize>>, _) =
            (Vec::with_capacity(count), PassScratch::default());
        for b in 0..count {
            if let Some(group) = groups.last_mut().filter(|group| group.len() < UTTERANCES) {
                let with = of_group.or(most(plan, &self.batch.part(group.start..b + 1)));
                if with.total().bytes() <= room {
                    (group.end, of_group) = (b + 1, with);
                    continue;
                }
            }
            groups.push(b..b + 1);
            of_group = of_group.or(most(plan, &self.batch.part(b..b + 1)));
        }
        FirstPlan { plan, groups, of_group, bytes: lists.saturating_add(of_group.total().bytes()) }
    }

    /// First pass of all utterances, and what it found.
    pub fn run<F: Real>(
        &self,
        simple: &Simple<F>,
        plan: &FirstPlan,
        workspace: &mut Workspace<F>,
    ) -> Result<(FirstPass<F>, PruningOutput)> {
        let (batch, options, plan) = (&self.batch, &self.options, plan.plan);
        let pass = match simple {
            Simple::Matrices(source) => first_pass_with(source, batch, options, plan, workspace)?,
            Simple::Heads(source) => first_pass_with(source, batch, options, plan, workspace)?,
        };
        let ranges = pass.ranges(self.s_range)?;
        let found = PruningOutput { losses: pass.losses.clone(), ranges };
        Ok((pass, found))
    }

    /// What first passes of group after group find, and their gradient.
    pub fn sum<F: Real>(
        &self,
        simple: &Simple<F>,
        plan: &FirstPlan,
        weights: &[f64],
        workspace: &mut Workspace<F>,
    ) -> Result<(SimpleGradient<F>, PruningOutput)> {
        Ok(match simple {
            Simple::Matrices(source) => {
                let (gradient, found) = self.sum_of(source, plan, weights, workspace)?;
                (SimpleGradient::Matrices(gradient), found)
            }
            Simple::Heads(source) => {
                let (gradient, found) = self.sum_of(source, plan, weights, workspace)?;
                (SimpleGradient::Heads(gradient), found)
            }
        })
    }

    fn sum_of<F: Real, S: Source<F>>(
        &self,
        source: &S,
        plan: &FirstPlan,
        weights: &[f64],
        workspace: &mut Workspace<F>,
    ) -> Result<(S::Gradient, PruningOutput)> {
        let mut gradient = source.zero_gradient();
        let mut losses = Vec::with_capacity(self.batch.len());
        let mut ranges = Vec::with_capacity(plan.groups.len());
        for group in &plan.groups {
            let mut of_group = || {
                let batch = self.batch.part(group.clone());
                let pass = first_pass_with(source, &batch, &self.options, plan.plan, workspace)?;
                ranges.push(pass.ranges(self.s_range)?);
                losses.extend_from_slice(&pass.losses);
                pass.backward_into(source, &weights[group.clone()], &mut gradient, workspace)?;
                workspace.recycle(pass);
                Ok(())
            };
            of_group().map_err(|error: ::pruned::Error| named(error.with_utterance_offset(group.start)))?;
        }
        Ok((gradient, PruningOutput { losses, ranges: Ranges::concat(&ranges) }))
    }
}

/// Gradient of the trivial joiner under weights of the utterances; the pass is the workspace's again.
pub(crate) fn pull_back<F: Real>(
    pass: FirstPass<F>,
    simple: &Simple<F>,
    weights: &[f64],
    workspace: &mut Workspace<F>,
) -> Result<SimpleGradient<F>> {
    let gradient = match simple {
        Simple::Matrices(source) => SimpleGradient::Matrices(gradient(&pass, source, weights, workspace)?),
        Simple::Heads(source) => SimpleGradient::Heads(gradient(&pass, source, weights, workspace)?),
    };
    workspace.recycle(pass);
    Ok(gradient)
}

fn gradient<F: Real, S: Source<F>>(
    pass: &FirstPass<F>,
    source: &S,
    weights: &[f64],
    workspace: &mut Workspace<F>,
) -> Result<S::Gradient> {
    let mut gradient = source.zero_gradient();
    pass.backward_into(source, weights, &mut gradient, workspace).map_err(named)?;
    Ok(gradient)
}

/// Rows of frames and labels, and classes.
fn sizes<F: Real>(source: &impl Source<F>) -> [usize; 3] {
    [source.rows(Side::Frames), source.rows(Side::Labels), source.classes()]
}

/// Weights are the call's.
fn named(error: ::pruned::Error) -> Error {
    match error {
        ::pruned::Error::UtteranceWeight { utterance, found } => Error::Weight { utterance, found },
        other => other.into(),
    }
}

/// The batch of the first pass.
fn batch(targets: &Targets, layout: Layout) -> Result<Batch> {
    let each = 0..targets.batch();
    let frames = each.clone().map(|b| targets.frames(b)).collect();
    let labels = each.map(|b| targets.labels(b).to_vec()).collect();
    let batch = match layout {
        Layout::Packed => Batch::packed(targets.blank(), frames, labels)?,
        Layout::Padded { frames: most, positions } => {
            Batch::padded(targets.blank(), frames, labels, most, positions)?
        }
    };
    let weights = |b: usize| targets.token_weights(b).to_vec();
    match (0..targets.batch()).all(|b| targets.token_weights(b).is_empty()) {
        true => Ok(batch),
        false => Ok(batch.with_token_weights((0..targets.batch()).map(weights).collect())?),
    }
}

/// The sites that some ranges keep.
pub(crate) fn retained(targets: &Targets, ranges: &Ranges) -> Result<Targets> {
    let bands = |b: usize| (0..targets.frames(b)).map(|frame| ranges.band(b, frame)).collect();
    targets.retained((0..targets.batch()).map(bands).collect())
}
