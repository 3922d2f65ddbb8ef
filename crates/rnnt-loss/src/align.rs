//! When a model emits the labels that it is given.
use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan};
use rnnt_dp::{Topology, best_path, confidences, expected_emission_frames};

use crate::{
    Element, Error, Joint, Loss, Options, Result, Session, Targets, call::Call, pruned::second_loss,
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

impl<F: Element> Session<F> {
    /// Best paths of sites `h(t,u) = act(encoded[t] + predicted[u])` under the heads of a loss over arcs; `None` for an utterance
    /// without a path.
    ///
    /// Kind of loss, activation, precision and budget are those of the options. Regularisers, σ, ω and dropout play no part:
    /// these are the model's own probabilities. Utterances go in groups, as in [`Session::sum`].
    ///
    /// # Shapes
    /// Those of [`Joint`]. Returns *B* alignments.
    ///
    /// # Errors
    /// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, a loss without arcs.
    ///
    /// # Cost
    /// 2 N H C floating-point operations, and memory as [`Options::budget`] says.
    ///
    /// ```
    /// use rnnt_loss::{Head, Joint, Options, Session, Targets};
    /// let (encoded, predicted) = ([0.0f32, 2.0, 0.0], [0.0; 2]); // T = 3, U = 1, H = 1: the second frame says "label"
    /// let weight = [-4.0, 4.0]; // C = 2
    /// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
    /// let joint = Joint::new(&encoded, &predicted, Head::new(&weight, None, 1)?);
    /// let found = Session::new(&Options::default())?.align(&joint, &targets)?;
    /// let token = found[0].as_ref().unwrap().tokens[0];
    /// assert_eq!((token.label, token.frame), (1, 1));
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    pub fn align(&self, joint: &Joint<F>, targets: &Targets) -> Result<Vec<Option<Alignment>>> {
        F::look(self).align(joint, targets)
    }
}

/// [`Session::align`]
pub(crate) fn alignments<F: Real>(
    of: &Options,
    joint: &Joint<F>,
    targets: &Targets,
) -> Result<Vec<Option<Alignment>>> {
    // The model's own probabilities, and no backward pass to keep scores for.
    let options = Options {
        loss: plain(&of.loss),
        activation: of.activation,
        precision: of.precision,
        budget: if of.budget < DEFAULT_BUDGET { of.budget } else { usize::MAX },
        keep_scores: false,
        plan: of.plan.map(|plan| Plan { kept: 0, ..plan }),
        ..Options::default()
    };
    let (mut session, targets) = (Session::new(&options)?, targets.unweighted());
    let joint = Joint { dropout: None, ..*joint };
    let call = Call::joint(&joint, &options.loss, &targets, &options)?;
    let Some(topology) = options.loss.topology() else { unreachable!("a joint has arcs") };
    let plan = call.sizes(&options, 0).in_groups::<F>()?;
    session.keep_to(&plan, call.heads.list()?.len())?;
    let mut found = Vec::with_capacity(targets.batch());
    for group in plan.groups {
        let first = group.start;
        let of_group = align_group(&mut session, &call, topology, group);
        found.extend(of_group.map_err(|error: Error| error.in_group(first))?);
    }
    Ok(found)
}

fn align_group<F: Real>(
    session: &mut Session<F>,
    call: &Call<F>,
    topology: &Topology,
    group: std::ops::Range<usize>,
) -> Result<Vec<Option<Alignment>>> {
    let group = call.group(group, session)?;
    let targets = group.objective.sites();
    let lattices = targets.lattices();
    let between = group.forward(session)?;
    let (losses, emissions, adjoints) = (between.losses(), between.emissions(), between.adjoints());
    let paths = best_path(lattices, topology, &emissions)?;
    let confidences = confidences(lattices, topology, adjoints, &paths)?;
    let expected = expected_emission_frames(lattices, topology, adjoints)?;
    let one = |utterance: usize| {
        let steps = paths[utterance].emitting(topology).zip(targets.labels(utterance));
        let times = confidences[utterance].iter().zip(&expected[utterance]);
        let tokens = steps.zip(times).map(|((step, &label), (&confidence, &expected_frame))| {
            let (frame, log_prob) = (step.site.frame, step.log_prob);
            AlignedToken { label, frame, log_prob, confidence, expected_frame }
        });
        let (log_prob, loss) = (paths[utterance].log_prob, losses[utterance]);
        loss.is_finite().then(|| Alignment { tokens: tokens.collect(), log_prob, loss })
    };
    let found = (0..lattices.batch()).map(one).collect();
    drop(emissions);
    between.close(&mut session.normalisers, &mut session.compact);
    group.close(session);
    Ok(found)
}

/// The same arcs without what training alone wants.
fn plain(loss: &Loss) -> Loss {
    match second_loss(loss) {
        Loss::Transducer { topology, tokens, .. } => Loss::Transducer { topology, tokens, sigma: 0.0 },
        Loss::Tdt { topology, .. } => Loss::Tdt { topology, sigma: 0.0, omega: 0.0 },
        other => other,
    }
}

#[cfg(test)]
mod tests;
