//! Forced alignment: assigns each label of a known transcript to a frame.
//!
//! The alignment is the most probable path through the lattice; posteriors over all paths give
//! confidences and expected frames. Utterances are processed in groups that fit into the budget.
use std::{borrow::Cow, ops::Range};

use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan};
use rnnt_dp::{Topology, best_path, confidences, expected_emission_frames};

use crate::{
    Error, Inputs, JointInputs, Loss, Options, Result, Targets, budget::SessionBuffers, head_call::HeadCall,
    inputs::InputValues, pruned::second_pass_loss,
};

/// A label with its frame on the best path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlignedLabel {
    /// The label.
    pub label: u32,
    /// Frame at which the best path emits it.
    pub frame: usize,
    /// Log-probability of the arc that emits it.
    pub log_prob: f64,
    /// Posterior probability of its emission at this frame, over all paths.
    pub confidence: f64,
    /// Expected frame of its emission, over all paths.
    pub expected_frame: f64,
}

/// The best path of an utterance, label by label.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelAlignment {
    /// Aligned labels in order.
    pub labels: Vec<AlignedLabel>,
    /// Log-probability of the best path.
    pub log_prob: f64,
    /// `-log P` over all paths.
    pub loss: f64,
}

/// Implements [`Session::align`](crate::Session::align).
///
/// The result is `None` for an utterance without a path.
pub(crate) fn alignments<F: Real>(
    session_options: &Options,
    joint: &JointInputs<F>,
    targets: &Targets,
) -> Result<Vec<Option<LabelAlignment>>> {
    // Regularizers are off, so that probabilities are those of the model. No scores are kept, as
    // there is no backward pass. Without them, groups and waves are no larger than those of the
    // default budget, so only a budget below it is passed on: others must not fail for a single
    // long utterance.
    let (loss, topology) = without_regularization(&session_options.loss)?;
    let options = Options {
        loss,
        activation: session_options.activation,
        precision: session_options.precision,
        budget: if session_options.budget < DEFAULT_BUDGET { session_options.budget } else { usize::MAX },
        keep_scores: false,
        plan: session_options.plan.map(|plan| Plan { saved_scores: 0, ..plan }),
        ..Options::default()
    };
    let (mut buffers, targets) = (SessionBuffers::default(), targets.unweighted());
    let joint = JointInputs { dropout: None, ..*joint };
    let (loss, values) = (Cow::Borrowed(&options.loss), Inputs::from(joint).values());
    let call = HeadCall::joint(&joint, loss, Cow::Borrowed(&targets), &options)?;
    let plan = call.sizes(&options, 0).in_groups::<F>()?;
    buffers.apply_plan(&plan, call.num_heads(&options), &options)?;
    let mut alignments = Vec::with_capacity(targets.batch());
    for group in plan.groups {
        let first_utterance = group.start;
        let group_alignments = align_group(&call, &values, &topology, &options, group, &mut buffers);
        alignments.extend(group_alignments.map_err(|error: Error| error.in_group(first_utterance))?);
    }
    Ok(alignments)
}

/// Aligns a group of utterances; `None` for an utterance without a path.
fn align_group<F: Real>(
    call: &HeadCall<F>,
    values: &InputValues<F>,
    topology: &Topology,
    options: &Options,
    utterances: Range<usize>,
    buffers: &mut SessionBuffers<F>,
) -> Result<Vec<Option<LabelAlignment>>> {
    let objective = call.objective_of(utterances.clone());
    let group = call.group(values, &objective, utterances, buffers)?;
    let targets = group.targets();
    let lattices = targets.lattices();
    let state = group.forward(options, buffers)?;
    let (losses, emissions, adjoints) = (state.losses(), state.emissions(), state.adjoints());
    let paths = best_path(lattices, topology, &emissions)?;
    let confidences = confidences(lattices, topology, adjoints, &paths)?;
    let expected_frames = expected_emission_frames(lattices, topology, adjoints)?;
    let alignment = |utterance: usize| {
        let steps = paths[utterance].label_steps(topology).zip(targets.labels(utterance));
        let times = confidences[utterance].iter().zip(&expected_frames[utterance]);
        let labels = steps.zip(times).map(|((step, &label), (&confidence, &expected_frame))| {
            let (frame, log_prob) = (step.site.frame, step.log_prob);
            AlignedLabel { label, frame, log_prob, confidence, expected_frame }
        });
        let (log_prob, loss) = (paths[utterance].log_prob, losses[utterance]);
        loss.is_finite().then(|| LabelAlignment { labels: labels.collect(), log_prob, loss })
    };
    let alignments = (0..lattices.batch()).map(alignment).collect();
    drop(emissions);
    state.release(buffers);
    group.release(buffers);
    Ok(alignments)
}

/// Returns the loss with the same arcs, without regularization.
///
/// σ (logit under-normalization) and ω (share of the RNN-T loss in TDT) become 0.
fn without_regularization(loss: &Loss) -> Result<(Loss, Topology)> {
    // A pruned loss becomes the transducer loss of its second pass; other losses stay the same.
    match second_pass_loss(loss) {
        Loss::Transducer { topology, tokens, .. } => {
            Ok((Loss::Transducer { topology: topology.clone(), tokens, sigma: 0.0 }, topology))
        }
        Loss::Tdt { topology, .. } => {
            Ok((Loss::Tdt { topology: topology.clone(), sigma: 0.0, omega: 0.0 }, topology))
        }
        Loss::Pruned { .. } | Loss::Ctc => Err(Error::joint_with_ctc()),
    }
}
