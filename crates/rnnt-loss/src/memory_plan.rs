//! What a call will take, without running it.
use std::fmt;

use panda_core::{Plan, Real, Shape};

use crate::{
    Options, Targets,
    columns::Columns,
    engine::groups,
    objective::{Objective, Transducer},
};

/// Bytes and floating-point work of [`projected_loss`](crate::projected_loss) on padded tensors.
///
/// Small heads (durations, a factored blank, the mean of label smoothing) are not counted.
///
/// ```
/// use rnnt_loss::{MemoryPlan, Options, Targets};
/// let targets = Targets::new(0, vec![500; 1024], vec![vec![1; 100]; 1024])?;
/// let plan = MemoryPlan::new(&targets, 1024, 4096, 4, &Options::default());
/// assert!(plan.transient < 64 << 20 && plan.dense > 700 << 30);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// B
    pub batch: usize,
    /// The whole batch's N, H, C and S.
    pub shape: Shape,
    /// Groups of utterances that go one after the other.
    pub groups: usize,
    /// Sites of the largest group.
    pub group_sites: usize,
    /// The cut of the largest group.
    pub plan: Plan<f32>,
    /// Bytes of the padded frame and label rows and of the head.
    pub arguments: usize,
    /// Bytes of their gradients.
    pub gradients: usize,
    /// Bytes held beside arguments and gradients.
    pub transient: usize,
    /// Bytes that the scores of all padded sites would take.
    pub dense: usize,
    /// Floating-point operations of forward and backward.
    pub operations: u64,
}

impl MemoryPlan {
    /// The plan for elements of `element` bytes.
    pub fn new(targets: &Targets, hidden: usize, classes: usize, element: usize, options: &Options) -> Self {
        let lattices = targets.lattices();
        let shape_of = |sites| Shape { sites, hidden, classes, selected: targets.tokens() };
        let plan_of = |shape| match options.plan {
            Some(plan) => plan,
            None if element == 8 => plan_of_type::<f64>(shape, options),
            None => plan_of_type::<f32>(shape, options),
        };
        let columns = match options.topology.columns() - options.topology.tokens() {
            0 => Columns::Tokens,
            durations => Columns::TokensAndDurations(durations),
        };
        let objective = Transducer::new(targets, columns);
        let groups = groups(&objective, classes, element, options);
        let sites =
            groups.iter().map(|group| lattices.range(group.end - 1).end - lattices.range(group.start).start);
        let operations = sites.clone().map(|n| plan_of(shape_of(n)).operations(shape_of(n)));
        let operations = operations.fold(0, u64::saturating_add);
        let group_sites = sites.max().unwrap_or(0);
        let (shape, plan) = (shape_of(group_sites), plan_of(shape_of(group_sites)));
        let bytes = match element {
            8 => plan.to::<f64>().bytes(shape, options.precision),
            _ => plan.bytes(shape, options.precision),
        };
        let batch = targets.batch();
        let frames = (0..batch).map(|b| targets.frames(b)).max().unwrap_or(0);
        let positions = (0..batch).map(|b| targets.labels(b).len() + 1).max().unwrap_or(0);
        let rows = batch.saturating_mul(frames + positions);
        let arguments = rows
            .saturating_mul(hidden)
            .saturating_add(classes.saturating_mul(hidden.saturating_add(1)))
            .saturating_mul(element);
        Self {
            batch,
            shape: shape_of(lattices.sites()),
            groups: groups.len(),
            group_sites,
            plan,
            arguments,
            gradients: arguments.saturating_add(classes.saturating_mul(8 - element.min(8))),
            transient: bytes
                .saturating_add(group_sites.saturating_mul(objective.bytes()))
                .saturating_add(batch.saturating_mul(8)),
            dense: batch
                .saturating_mul(frames)
                .saturating_mul(positions)
                .saturating_mul(classes)
                .saturating_mul(element),
            operations,
        }
    }
}

/// The cut of a call; the smallest, where the budget is below it.
fn plan_of_type<F: Real>(shape: Shape, options: &Options) -> Plan<f32> {
    Plan::<F>::new(shape, options.precision, options.budget)
        .unwrap_or_else(|_| Plan::least(shape, options.precision))
        .to()
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        let Plan { wave, block, tile_classes, tiles, kept, .. } = self.plan;
        let Shape { sites, hidden, classes: all, .. } = self.shape;
        writeln!(f, "loss of {} utterances: N = {sites}, H = {hidden}, C = {all}", self.batch)?;
        writeln!(
            f,
            "  {} groups of at most {} sites; waves of {wave} sites in blocks of {block}, {tiles} tiles of {tile_classes} classes in flight",
            self.groups, self.group_sites
        )?;
        writeln!(
            f,
            "  scores of {} sites of a group are kept, the others recomputed",
            kept.min(self.group_sites)
        )?;
        writeln!(f, "  arguments {:>12.1} MB (frame rows, label rows, head)", mb(self.arguments))?;
        writeln!(f, "  gradients {:>12.1} MB", mb(self.gradients))?;
        writeln!(f, "  transient {:>12.1} MB", mb(self.transient))?;
        writeln!(f, "  all scores would be {:.1} MB", mb(self.dense))?;
        write!(f, "  {:.2} GFLOP forward and backward", self.operations as f64 / 1e9)
    }
}
