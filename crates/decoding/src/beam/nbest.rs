//! What a beam search has found.
use rnnt_dp::semiring::{Log, Semiring};

use super::lane::{Hyp, Lane};
use super::{Beam, BeamKind, rows::Rows};
use crate::tree::Tree;
use crate::{Emitted, Model, Result};

/// The best label sequences of an utterance, best first; none if every path is impossible (a language model that forbids all
/// labels, say). Those that only a second pass ([`ctc_rescore`](crate::ctc_rescore)) calls impossible stay, with -inf.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NBest {
    /// All different.
    pub hypotheses: Vec<Ranked>,
}

/// A label sequence with its probability.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranked {
    /// The labels, with times of the best of their paths when they were found. Log-probabilities are those that the search worked
    /// with: behind temperature and blank penalty.
    pub labels: Vec<Emitted>,
    /// Natural log-probability of all paths that the search has added up, with what automata, the internal language model and a second
    /// pass added.
    pub log_prob: f64,
    /// What the order is by: [`Self::log_prob`] over [`Self::divisor`].
    pub score: f64,
    /// The number of labels and of those that the search begins with ([`Beam::normalise`](crate::Beam::normalise)), or one more than
    /// that of labels ([`CtcBeam::normalise`](crate::CtcBeam::normalise)), if options say so; else 1.
    pub divisor: f64,
}

impl NBest {
    /// The best one.
    pub fn best(&self) -> Option<&Ranked> {
        self.hypotheses.first()
    }
}

impl Ranked {
    /// Label ids.
    pub fn ids(&self) -> Vec<u32> {
        self.labels.iter().map(|label| label.label).collect()
    }
}

/// What `log p` is divided by: `labels + context`, for ALSD and mALSD `labels + 1`; or 1.
fn divisor(hyp: &Hyp, tree: &Tree, (model, options): (&Model, &Beam)) -> f64 {
    // Each search as where it comes from: k2 counts the labels that its hypotheses begin with, NeMo one.
    let begin = match options.kind {
        BeamKind::Alsd { .. } | BeamKind::Malsd { .. } => 1,
        BeamKind::Modified | BeamKind::Maes { .. } => model.predictor().context(),
    };
    match options.normalise {
        true => tree.sequence(hyp.node).len as f64 + begin as f64,
        false => 1.0,
    }
}

/// `log p` over that.
pub(super) fn score(hyp: &Hyp, tree: &Tree, of: (&Model, &Beam)) -> f64 {
    hyp.log_prob / divisor(hyp, tree, of)
}

/// Hypotheses of equal labels as one, which has the times of the most probable; the most probable ones first.
fn merged(hyps: &[Hyp], tree: &Tree) -> Vec<Hyp> {
    let mut all = hyps.to_vec();
    all.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
    let mut different: Vec<Hyp> = Vec::with_capacity(all.len());
    for hyp in all {
        match different.iter_mut().find(|other| tree.same(other.node, hyp.node)) {
            Some(same) => same.log_prob = Log::plus(same.log_prob, hyp.log_prob),
            None => different.push(hyp),
        }
    }
    different
}

/// The one that [`rank`] has first, without scores of ends.
pub(super) fn best(hyps: &[Hyp], tree: &Tree, of: (&Model, &Beam)) -> Option<Hyp> {
    // The last of equal ones, behind which they come in order.
    let better = |a: &Hyp, b: &Hyp| score(a, tree, of).total_cmp(&score(b, tree, of));
    merged(hyps, tree).into_iter().rev().max_by(better)
}

/// Ranks a lane's hypotheses, with the scores of their ends or without.
pub(super) fn rank(lane: &Lane, rows: &Rows, of: (&Model, &Beam), ends: bool) -> Result<NBest> {
    let mut different = merged(&lane.hyps, &lane.tree);
    if ends {
        for hyp in &mut different {
            hyp.log_prob += rows.finish(lane, of.1, hyp.row)?;
        }
        different.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
    }
    different.sort_by(|a, b| score(b, &lane.tree, of).total_cmp(&score(a, &lane.tree, of)));
    different.truncate(of.1.nbest);
    let ranked = |hyp: &Hyp| Ranked {
        labels: lane.tree.labels(hyp.node),
        log_prob: hyp.log_prob,
        score: score(hyp, &lane.tree, of),
        divisor: divisor(hyp, &lane.tree, of),
    };
    Ok(NBest { hypotheses: different.iter().map(ranked).collect() })
}
