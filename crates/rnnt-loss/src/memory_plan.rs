//! Predicts memory and floating-point operations of a transducer loss from its sizes.
use std::{borrow::Cow, fmt};

use panda_core::Real;
use panda_core::{Plan, Shape};

use crate::{
    Loss, Options, Result, Targets, budget::CallSizes, joint_hidden_rows::JointHiddenRows,
    objective::LatticeObjective,
};

/// Memory and floating-point operations of [`Session::sum`](crate::Session::sum).
///
/// It is for [`JointInputs`](crate::JointInputs) on padded tensors. Measured memory is at most
/// [`transient_bytes`](Self::transient_bytes), which is at most [`Options::budget`].
///
/// ```
/// use rnnt_loss::{MemoryPlan, Options, Targets};
/// let targets = Targets::new(0, vec![500; 1024], vec![vec![1; 100]; 1024])?;
/// let plan = MemoryPlan::new::<f32>(&targets, 1024, 4096, &Options::default())?;
/// assert!(plan.transient_bytes < 64 << 20 && plan.dense_bytes > 700 << 30);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// Number of utterances B.
    pub batch: usize,
    /// Sites, joint width, classes and selected classes of the batch.
    pub shape: Shape,
    /// Number of groups of utterances, which are processed one at a time.
    pub groups: usize,
    /// Sites of the largest group.
    pub group_sites: usize,
    /// Blocking of the largest group.
    pub plan: Plan<f32>,
    /// Bytes of padded rows and head; gradients take the same again.
    pub argument_bytes: usize,
    /// Bytes in addition to arguments and gradients.
    pub transient_bytes: usize,
    /// Bytes of the scores of all padded sites, for comparison.
    pub dense_bytes: usize,
    /// Floating-point operations of forward and backward.
    pub operations: u64,
}

impl MemoryPlan {
    /// Plans utterances of one length from sizes only.
    ///
    /// `has_dropout`: with dropout after the activation. It is assumed that pruning retains
    /// `s_range` positions of each frame, big blanks are the classes after the first two, and all
    /// labels are equal.
    ///
    /// # Errors
    /// Those of [`Targets::new`] and [`MemoryPlan::new`].
    pub fn for_shape<F: Real>(
        [batch, frames, labels]: [usize; 3],
        hidden: usize,
        classes: usize,
        options: &Options,
        has_dropout: bool,
    ) -> Result<Self> {
        let targets = Targets::new(1, vec![frames; batch], vec![vec![0; labels]; batch])?;
        let targets = match &options.loss {
            // The sites of the joint network; the simple joiner's memory is separate.
            Loss::Pruned { pruning, .. } => {
                let band = 0..pruning.s_range.min(labels + 1);
                targets.with_bands(vec![vec![band; frames]; batch])?
            }
            Loss::Transducer { topology, .. } => {
                targets.with_big_blanks((2..topology.num_tokens() as u32).collect())?
            }
            Loss::Tdt { .. } | Loss::Ctc => targets,
        };
        Self::with_dropout::<F>(&targets, hidden, classes, options, has_dropout)
    }

    /// Plans the loss of targets, with or without dropout.
    ///
    /// # Errors
    /// Targets that the loss does not support; a budget below the minimum.
    pub fn new<F: Real>(targets: &Targets, hidden: usize, classes: usize, options: &Options) -> Result<Self> {
        Self::with_dropout::<F>(targets, hidden, classes, options, true)
    }

    fn with_dropout<F: Real>(
        targets: &Targets,
        hidden: usize,
        classes: usize,
        options: &Options,
        has_dropout: bool,
    ) -> Result<Self> {
        let (lattices, element_bytes, batch) = (targets.lattices(), size_of::<F>(), targets.batch());
        // The plan of the call, as a session makes it.
        let objective = LatticeObjective::new(Cow::Borrowed(&options.loss), Cow::Borrowed(targets))?;
        let index_bytes = JointHiddenRows::<F>::index_bytes(has_dropout);
        let sizes = CallSizes {
            objective: &objective,
            options,
            hidden,
            classes,
            index_bytes,
            caller_bytes: 0,
            score_scratch: None,
        };
        let call = sizes.in_groups::<F>()?;
        // Operations of all groups, each with the plan of its token head.
        let shape_of = |sites| sizes.head_shapes(sites)[0].1;
        let plan_of = |shape| match (options.plan, call.head_budgets.first()) {
            (None, Some(&budget)) => {
                Ok(Plan::<F>::new(shape, options.precision, budget, options.keep_scores)?.to::<f32>())
            }
            (plan, _) => Ok(plan.unwrap_or_else(|| Plan::minimal(shape, options.precision))),
        };
        let (mut operations, mut group_sites) = (0u64, 0);
        for group in &call.groups {
            let sites = lattices.site_range(group.end - 1).end - lattices.site_range(group.start).start;
            let plan: Result<Plan<f32>> = plan_of(shape_of(sites));
            operations = operations.saturating_add(plan?.operations(shape_of(sites)));
            group_sites = group_sites.max(sites);
        }
        // Sizes of the padded tensors.
        let max_frames = (0..batch).map(|b| targets.frames(b)).max().unwrap_or(0);
        let max_positions = (0..batch).map(|b| targets.labels(b).len() + 1).max().unwrap_or(0);
        let rows = batch.saturating_mul(max_frames + max_positions);
        let argument_bytes = rows
            .saturating_mul(hidden)
            .saturating_add(classes.saturating_mul(hidden.saturating_add(1)))
            .saturating_mul(element_bytes);
        Ok(Self {
            batch,
            shape: shape_of(lattices.num_sites()),
            groups: call.groups.len(),
            group_sites,
            plan: plan_of(shape_of(group_sites))?,
            argument_bytes,
            transient_bytes: call.bytes,
            dense_bytes: batch
                .saturating_mul(max_frames)
                .saturating_mul(max_positions)
                .saturating_mul(classes)
                .saturating_mul(element_bytes),
            operations,
        })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        let Plan { wave_sites, block_sites, tile_classes, group_tiles, saved_scores, .. } = self.plan;
        let Shape { sites, hidden, classes, .. } = self.shape;
        writeln!(f, "loss of {} utterances: N = {sites}, H = {hidden}, C = {classes}", self.batch)?;
        writeln!(
            f,
            "  {} groups of at most {} sites; waves of {wave_sites} sites in blocks of {block_sites}, {group_tiles} tiles of {tile_classes} classes in flight",
            self.groups, self.group_sites
        )?;
        match saved_scores {
            0 => writeln!(f, "  all scores are recomputed")?,
            saved if saved >= self.group_sites => writeln!(f, "  all scores of a group are kept")?,
            saved => writeln!(f, "  scores of {saved} sites of a group are kept, the others recomputed")?,
        }
        writeln!(f, "  arguments {:>12.1} MB (frame rows, label rows, head)", mb(self.argument_bytes))?;
        writeln!(f, "  gradients {:>12.1} MB", mb(self.argument_bytes))?;
        writeln!(f, "  transient {:>12.1} MB", mb(self.transient_bytes))?;
        let total_bytes = self.argument_bytes.saturating_mul(2).saturating_add(self.transient_bytes);
        writeln!(f, "  total     {:>12.1} MB", mb(total_bytes))?;
        writeln!(f, "  all scores would be {:.1} MB, and their gradient as much", mb(self.dense_bytes))?;
        write!(f, "  {:.2} GFLOP forward and backward", self.operations as f64 / 1e9)
    }
}
