//! N-best list of a transducer beam search: merges equal label sequences and ranks them.
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rnnt_dp::semiring::{Log, Semiring};

use super::utterance::{BeamHypothesis, BeamUtterance};
use super::{BeamKind, BeamOptions, rows::HypothesisRows};
use crate::tree::{LabelTree, SequenceKey};
use crate::{DecodedToken, DecodingModel, Result};

/// The best label sequences of an utterance, best first.
///
/// Empty if every path is impossible, for example because a language model forbids all labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NBest {
    /// Hypotheses with different labels.
    pub hypotheses: Vec<RankedHypothesis>,
}

/// A label sequence with its score.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankedHypothesis {
    /// The labels, with the times of their best path.
    ///
    /// Log-probabilities include temperature and blank penalty.
    pub labels: Vec<DecodedToken>,
    /// Natural log-probability of all paths in the beam, plus fusion scores.
    pub log_prob: f64,
    /// Score that determines the order: the log-probability, optionally normalized by length.
    ///
    /// See [`BeamOptions::normalize_by_length`](crate::BeamOptions::normalize_by_length) and
    /// [`CtcBeamOptions::normalize_by_length`](crate::CtcBeamOptions::normalize_by_length).
    pub score: f64,
}

impl NBest {
    /// The best hypothesis.
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

/// Returns `log p`, or `log p / (labels + context)`; the context is 1 for ALSD and mALSD.
pub(super) fn ranking_score(
    hyp: &BeamHypothesis,
    tree: &LabelTree,
    model: &DecodingModel,
    options: &BeamOptions,
) -> f64 {
    if !options.normalize_by_length {
        return hyp.log_prob;
    }
    // As in the original implementations: k2 counts the initial context, NeMo one label.
    let context = match options.kind {
        BeamKind::Alsd { .. } | BeamKind::Malsd { .. } => 1,
        BeamKind::Modified | BeamKind::Maes { .. } => model.predictor().context(),
    };
    hyp.log_prob / (tree.sequence(hyp.node).len as f64 + context as f64)
}

/// Merges hypotheses with equal labels: adds their probabilities.
///
/// Times are those of the most probable one. The order is that of the most probable hypothesis of
/// each label sequence, before the addition.
pub(super) fn merge_equal(hyps: &[BeamHypothesis], tree: &LabelTree) -> Vec<BeamHypothesis> {
    let mut sorted = hyps.to_vec();
    sorted.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
    let mut distinct_hyps: Vec<BeamHypothesis> = Vec::with_capacity(sorted.len());
    // First index of each key; sequences whose hashes collide are compared one by one.
    let mut first_indices: HashMap<SequenceKey, usize> = HashMap::with_capacity(sorted.len());
    for hyp in sorted {
        let has_same_labels = |other: &BeamHypothesis| tree.is_same_sequence(other.node, hyp.node);
        let index = match first_indices.entry(tree.sequence(hyp.node)) {
            Entry::Vacant(vacant) => {
                vacant.insert(distinct_hyps.len());
                None
            }
            Entry::Occupied(first) if has_same_labels(&distinct_hyps[*first.get()]) => Some(*first.get()),
            Entry::Occupied(_) => distinct_hyps.iter().position(has_same_labels),
        };
        match index {
            Some(index) => {
                let sum = &mut distinct_hyps[index].log_prob;
                *sum = Log::plus(*sum, hyp.log_prob);
            }
            None => distinct_hyps.push(hyp),
        }
    }
    distinct_hyps
}

/// Returns the first hypothesis of [`rank`] without final scores.
pub(super) fn best_hypothesis(
    hyps: &[BeamHypothesis],
    tree: &LabelTree,
    model: &DecodingModel,
    options: &BeamOptions,
) -> Option<BeamHypothesis> {
    // `max_by` returns the last of equal elements; `rev` makes it the first.
    let by_score = |a: &BeamHypothesis, b: &BeamHypothesis| {
        ranking_score(a, tree, model, options).total_cmp(&ranking_score(b, tree, model, options))
    };
    merge_equal(hyps, tree).into_iter().rev().max_by(by_score)
}

/// Ranks the hypotheses of an utterance, optionally with final scores.
pub(super) fn rank(
    utterance: &BeamUtterance,
    rows: &HypothesisRows,
    model: &DecodingModel,
    options: &BeamOptions,
    add_end_scores: bool,
) -> Result<NBest> {
    let mut distinct_hyps = merge_equal(&utterance.hyps, &utterance.tree);
    if add_end_scores {
        for hyp in &mut distinct_hyps {
            hyp.log_prob += rows.final_score(utterance, options, hyp.row)?;
        }
        distinct_hyps.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
    }
    let score_of = |hyp: &BeamHypothesis| ranking_score(hyp, &utterance.tree, model, options);
    distinct_hyps.sort_by(|a, b| score_of(b).total_cmp(&score_of(a)));
    distinct_hyps.truncate(options.nbest);
    let to_ranked = |hyp: &BeamHypothesis| RankedHypothesis {
        labels: utterance.tree.labels(hyp.node),
        log_prob: hyp.log_prob,
        score: score_of(hyp),
    };
    Ok(NBest { hypotheses: distinct_hyps.iter().map(to_ranked).collect() })
}
