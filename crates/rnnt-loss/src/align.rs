//! When a model emits the labels that it is given.
use std::{borrow::Cow, ops::Range};

use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan};
use rnnt_dp::{Topology, best_path, confidences, expected_emission_frames};

use crate::{
    Error, Inputs, Joint, Loss, Options, Result, Targets, buffers::Buffers, head_call::HeadCall,
    inputs::Values, pruned::second_loss,
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

/// [`Session::align`](crate::Session::align)
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
    let (mut buffers, targets) = (Buffers::default(), targets.unweighted());
    let joint = Joint { dropout: None, ..*joint };
    let (loss, values) = (Cow::Borrowed(&options.loss), Inputs::from(joint).values());
    let call = HeadCall::joint(&joint, loss, Cow::Borrowed(&targets), &options)?;
    let Some(topology) = options.loss.topology() else { unreachable!("a joint has arcs") };
    let plan = call.sizes(&options, 0).in_groups::<F>()?;
    buffers.apply_plan(&plan, call.heads(&options), &options)?;
    let mut found = Vec::with_capacity(targets.batch());
    for group in plan.groups {
        let first = group.start;
        let of_group = align_group(&call, &values, (topology, &options), group, &mut buffers);
        found.extend(of_group.map_err(|error: Error| error.in_group(first))?);
    }
    Ok(found)
}

fn align_group<F: Real>(
    call: &HeadCall<F>,
    values: &Values<F>,
    (topology, options): (&Topology, &Options),
    utterances: Range<usize>,
    buffers: &mut Buffers<F>,
) -> Result<Vec<Option<Alignment>>> {
    let objective = call.part(utterances.clone());
    let group = call.group(values, &objective, utterances, buffers)?;
    let targets = group.targets();
    let lattices = targets.lattices();
    let state = group.forward(options, buffers)?;
    let (losses, emissions, adjoints) = (state.losses(), state.emissions(), state.adjoints());
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
    state.release(buffers);
    group.release(buffers);
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
