//! Door for alignments: when a model emits the labels that it is given.
use panda_core::{Head, JointSites, MemoryBudget, Plan, Real};
use rnnt_dp::{best_path, confidences, expected_emission_frames};

use crate::{
    Error, Layout, Options, Result, Targets, Workspace,
    engine::{Forward, groups},
    error::expect_rows,
    heads::Heads,
    objective::{Objective, Transducer},
};

/// A label and its place on the best path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlignedToken {
    /// The label.
    pub label: u32,
    /// Frame at which the best path emits it.
    pub frame: usize,
    /// Log-probability of the arc that emits it.
    pub log_prob: f64,
    /// Posterior probability, over all paths, that it is emitted at this frame.
    pub confidence: f64,
    /// Expected frame of its emission, over all paths.
    pub expected_frame: f64,
}

/// How an utterance is explained best.
#[derive(Debug, Clone, PartialEq)]
pub struct Alignment {
    /// The labels in their order.
    pub tokens: Vec<AlignedToken>,
    /// Log-probability of the best path.
    pub log_prob: f64,
    /// `-log P` over all paths.
    pub loss: f64,
}

/// Best paths of sites `h(t,u) = act(frames[t] + labels[u])` under a head, or under a token head and one of `durations`
/// (as for [`tdt_loss`](crate::tdt_loss)); `None` for an utterance without a path.
///
/// Topology, activation, factored blank, precision and budget are those of the options. Regularisers play no part:
/// these are the model's own probabilities. Utterances go in groups, as in [`projected_loss`](crate::projected_loss()).
///
/// # Shapes
/// `frames` *rows x H* and `labels` *rows x H* in `layout`. Returns *B* alignments.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, a topology with other columns.
///
/// # Cost
/// 2 N H C floating-point operations, and memory as [`Options::budget`] says.
///
/// ```
/// use rnnt_loss::{Head, Layout, Options, Targets, align};
/// let (frames, labels) = ([0.0f32, 2.0, 0.0], [0.0; 2]); // T = 3, U = 1, H = 1: the second frame says "label"
/// let weight = [-4.0, 4.0]; // C = 2
/// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
/// let head = Head::new(&weight, None, 1)?;
/// let found = align(&frames, &labels, &head, None, Layout::Packed, &targets, &Options::default())?;
/// let token = found[0].as_ref().unwrap().tokens[0];
/// assert_eq!((token.label, token.frame), (1, 1));
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn align<F: Real>(
    frames: &[F],
    labels: &[F],
    head: &Head<F>,
    durations: Option<&Head<F>>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
) -> Result<Vec<Option<Alignment>>> {
    layout.check(targets)?;
    targets.check_classes(head.classes())?;
    expect_rows("frames", layout.frame_rows(targets).1, head.hidden(), frames.len())?;
    expect_rows("labels", layout.label_rows(targets).1, head.hidden(), labels.len())?;
    // The model's own probabilities, and no backward pass to keep scores for.
    let recompute = MemoryBudget::recompute();
    let fits = options.budget.limit() >= recompute.limit();
    let options = Options {
        activation: options.activation,
        topology: options.topology.clone(),
        factored_blank: options.factored_blank,
        precision: options.precision,
        budget: if fits { recompute } else { options.budget },
        plan: options.plan.map(|plan| Plan { kept: 0, ..plan }),
        ..Options::default()
    };
    let (heads, targets) = (Heads::new(head, durations, targets.blank(), &options)?, targets.unweighted());
    let objective = Transducer::new(&targets, heads.columns());
    Run { frames, labels, heads: &heads.list()?, objective, layout }.all(&options)
}

/// What stays the same from group to group.
struct Run<'a, F> {
    frames: &'a [F],
    labels: &'a [F],
    heads: &'a [Head<'a, F>],
    objective: Transducer<'a>,
    layout: Layout,
}

impl<F: Real> Run<'_, F> {
    fn all(&self, options: &Options) -> Result<Vec<Option<Alignment>>> {
        let mut workspace = Workspace::new(options)?;
        let mut found = Vec::with_capacity(self.objective.sites().batch());
        for group in groups(&self.objective, self.heads[0].classes(), size_of::<F>(), options) {
            let first = group.start;
            found.extend(self.group(group, &mut workspace).map_err(|error| error.in_group(first))?);
        }
        Ok(found)
    }

    fn group(
        &self,
        group: std::ops::Range<usize>,
        workspace: &mut Workspace<F>,
    ) -> Result<Vec<Option<Alignment>>> {
        let (part, topology) = (self.objective.part(group.clone()), workspace.options.topology.clone());
        let (lattices, topology) = (part.sites().lattices(), &topology);
        let (frame_of, label_of) = self.layout.joint_rows(self.objective.sites(), group);
        let (width, activation) = (self.heads[0].hidden(), workspace.options.activation);
        let sites = JointSites::new(self.frames, self.labels, &frame_of, &label_of, width, activation)
            .map_err(|error| Error::at_site(error, lattices))?;
        let forward = Forward::new(&sites, self.heads, &part, workspace)?;
        let (losses, emissions, adjoints) = (forward.losses(), forward.emissions(), forward.adjoints());
        let paths = best_path(lattices, topology, &emissions)?;
        let confidences = confidences(lattices, topology, adjoints, &paths)?;
        let expected = expected_emission_frames(lattices, topology, adjoints)?;
        let one = |utterance: usize| {
            let steps = paths[utterance].emitting(topology).zip(part.sites().labels(utterance));
            let times = confidences[utterance].iter().zip(&expected[utterance]);
            let tokens = steps.zip(times).map(|((step, &label), (&confidence, &expected_frame))| {
                let (frame, log_prob) = (step.site.frame, step.log_prob);
                AlignedToken { label, frame, log_prob, confidence, expected_frame }
            });
            let (log_prob, loss) = (paths[utterance].log_prob, losses[utterance]);
            loss.is_finite().then(|| Alignment { tokens: tokens.collect(), log_prob, loss })
        };
        Ok((0..lattices.batch()).map(one).collect())
    }
}

#[cfg(test)]
mod tests;
