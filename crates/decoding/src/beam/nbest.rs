//! What a beam search has found.
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rnnt_dp::semiring::{Log, Semiring};

use super::utterance::{BeamHypothesis, BeamUtterance};
use super::{BeamKind, BeamOptions, rows::HypothesisRows};
use crate::tree::{Sequence, Tree};
use crate::{DecodedToken, DecodingModel, Result};

/// The best label sequences of an utterance, best first; none if every path is impossible (a language model that forbids all
/// labels, say).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NBest {
    /// All different.
    pub hypotheses: Vec<RankedHypothesis>,
}

/// A label sequence with its probability.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankedHypothesis {
    /// The labels, with times of the best of their paths when they were found. Log-probabilities are those that the search worked
    /// with: behind temperature and blank penalty.
    pub labels: Vec<DecodedToken>,
    /// Natural log-probability of all paths that the search has added up, with what automata and the internal language model added.
    pub log_prob: f64,
    /// What the order is by: the log-probability, or that over a number of labels, if options say so
    /// ([`BeamOptions::normalize_by_length`](crate::BeamOptions::normalize_by_length), [`CtcBeamOptions::normalize_by_length`](crate::CtcBeamOptions::normalize_by_length)).
    pub score: f64,
}

impl NBest {
    /// The best one.
    pub fn best(&self) -> Option<&RankedHypothesis> {
        self.hypotheses.first()
    }
}

impl RankedHypothesis {
    /// Label ids.
    pub fn ids(&self) -> Vec<u32> {
        self.labels.iter().map(|label| label.label).collect()
    }
}

/// `log p`, or `log p / (labels + context)`, for ALSD and mALSD `log p / (labels + 1)`.
pub(super) fn score(
    hyp: &BeamHypothesis,
    tree: &Tree,
    (model, options): (&DecodingModel, &BeamOptions),
) -> f64 {
    if !options.normalize_by_length {
        return hyp.log_prob;
    }
    // Each search as where it comes from: k2 counts the labels that its hypotheses begin with, NeMo one.
    let begin = match options.kind {
        BeamKind::Alsd { .. } | BeamKind::Malsd { .. } => 1,
        BeamKind::Modified | BeamKind::Maes { .. } => model.predictor().context(),
    };
    hyp.log_prob / (tree.sequence(hyp.node).len as f64 + begin as f64)
}

/// Adds up hypotheses of equal labels: times of the most probable one, and the most probable ones first.
pub(super) fn merged(hyps: &[BeamHypothesis], tree: &Tree) -> Vec<BeamHypothesis> {
    let mut all = hyps.to_vec();
    all.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
    let mut different: Vec<BeamHypothesis> = Vec::with_capacity(all.len());
    // Of each sequence the first place; other labels with the same hash are looked for one by one.
    let mut places: HashMap<Sequence, usize> = HashMap::with_capacity(all.len());
    for hyp in all {
        let same = |other: &BeamHypothesis| tree.same(other.node, hyp.node);
        let place = match places.entry(tree.sequence(hyp.node)) {
            Entry::Vacant(vacant) => {
                vacant.insert(different.len());
                None
            }
            Entry::Occupied(place) if same(&different[*place.get()]) => Some(*place.get()),
            Entry::Occupied(_) => different.iter().position(same),
        };
        match place {
            Some(at) => different[at].log_prob = Log::plus(different[at].log_prob, hyp.log_prob),
            None => different.push(hyp),
        }
    }
    different
}

/// The one that [`rank`] has first, without scores of ends.
pub(super) fn best(
    hyps: &[BeamHypothesis],
    tree: &Tree,
    of: (&DecodingModel, &BeamOptions),
) -> Option<BeamHypothesis> {
    // The last of equal ones, behind which they come in order.
    let better = |a: &BeamHypothesis, b: &BeamHypothesis| score(a, tree, of).total_cmp(&score(b, tree, of));
    merged(hyps, tree).into_iter().rev().max_by(better)
}

/// Ranks a lane's hypotheses, with the scores of their ends or without.
pub(super) fn rank(
    lane: &BeamUtterance,
    rows: &HypothesisRows,
    of: (&DecodingModel, &BeamOptions),
    ends: bool,
) -> Result<NBest> {
    let mut different = merged(&lane.hyps, &lane.tree);
    if ends {
        for hyp in &mut different {
            hyp.log_prob += rows.finish(lane, of.1, hyp.row)?;
        }
        different.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
    }
    different.sort_by(|a, b| score(b, &lane.tree, of).total_cmp(&score(a, &lane.tree, of)));
    different.truncate(of.1.nbest);
    let ranked = |hyp: &BeamHypothesis| RankedHypothesis {
        labels: lane.tree.labels(hyp.node),
        log_prob: hyp.log_prob,
        score: score(hyp, &lane.tree, of),
    };
    Ok(NBest { hypotheses: different.iter().map(ranked).collect() })
}
