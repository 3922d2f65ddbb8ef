//! Hypotheses of one utterance in a transducer beam search, and their candidates.
//!
//! A step of a search pushes candidates to [`BestCandidates`];
//! [`BeamUtterance::advance_hypotheses`] merges those with equal labels, which adds their
//! probabilities, and makes them the hypotheses of the next step.
use rnnt_dp::semiring::{Log, Semiring};
use serde::{Deserialize, Serialize};

use super::BeamOptions;
use crate::tree::LabelTree;
use crate::{DecodedToken, Fusion, TokenTable};

/// Value of `BeamHypothesis::row` until the row is computed.
pub(super) const NO_ROW: u32 = u32::MAX;

/// Next step of a hypothesis: a class and, with durations, a duration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Expansion {
    /// Increase of the hypothesis' log-probability.
    ///
    /// The sum of `log_prob`, `duration_log_prob` and `fused`.
    pub value: f64,
    /// Log-probability among the classes.
    pub log_prob: f64,
    /// Log-probability among the durations.
    pub duration_log_prob: f64,
    /// Fusion score.
    pub fused: f32,
    /// Score of the joint.
    pub logit: f32,
    pub class: u32,
    /// Index of the duration.
    pub duration: u32,
}

/// A hypothesis: labels, frame, and log-probability of its paths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct BeamHypothesis {
    /// Node of the newest label in the tree.
    pub node: u32,
    /// Index in [`HypothesisRows`](super::rows::HypothesisRows), or [`NO_ROW`].
    pub row: u32,
    /// Current frame, counted over all chunks.
    #[serde(rename = "time")]
    pub frame: usize,
    /// Number of labels on this frame.
    pub symbols: usize,
    /// Natural log-probability, with fusion scores.
    pub log_prob: f64,
}

/// A hypothesis with its next step; `None` keeps it unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Index of the hypothesis in `BeamUtterance::hyps`.
    pub hyp_index: usize,
    pub expansion: Option<Expansion>,
    /// Natural log-probability after the step, with fusion scores.
    pub log_prob: f64,
}

impl Candidate {
    /// The new label; none for a blank or an unchanged hypothesis.
    fn label(&self, token_table: &TokenTable) -> Option<u32> {
        self.expansion.as_ref().map(|expansion| expansion.class).filter(|&class| !token_table.is_blank(class))
    }
}

/// Position of a hypothesis: the frame, and the number of labels on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeamPosition {
    /// Frame, counted over all chunks.
    pub frame: usize,
    /// Number of labels on the frame.
    pub symbols: usize,
}

/// Hypotheses of an utterance.
#[derive(Debug, Default)]
pub(super) struct BeamUtterance {
    /// Index in the batch.
    pub index: usize,
    pub tree: LabelTree,
    pub hyps: Vec<BeamHypothesis>,
    /// Row of the parent of each hypothesis.
    pub parent_rows: Vec<u32>,
    /// Hypotheses that have finished the frame (mAES) or the utterance (ALSD).
    pub ended_hyps: Vec<BeamHypothesis>,
    /// Nodes of the hypotheses at the start of a frame (mAES).
    pub frame_nodes: Vec<u32>,
    /// Fusions of this utterance only, in addition to those of the search.
    pub fusion: Vec<Fusion>,
    /// First frame of this chunk, counted over all chunks.
    pub first_frame: usize,
    /// Frame after the last one of this chunk, counted over all chunks.
    pub end_frame: usize,
    /// Index of the utterance's first site in the list of the batch.
    pub first_site: usize,
    /// Index of each hypothesis' site in that list; hypotheses may share one (mALSD).
    pub site_of_hyp: Vec<u32>,
    /// Candidates of the current step.
    pub best_candidates: BestCandidates,
    /// Hypotheses of the next step, while candidates are merged.
    next_hyps: Vec<NextHypothesis>,
    /// Hashes of the label sequences of `next_hyps`.
    next_hashes: Vec<u64>,
}

/// The best candidates; ties in the order of insertion.
#[derive(Debug, Default)]
pub(super) struct BestCandidates {
    /// Log-probabilities of the candidates, best first.
    log_probs: Vec<f64>,
    /// Their indices in `candidates`, in the same order.
    indices: Vec<u32>,
    candidates: Vec<Candidate>,
    capacity: usize,
}

impl BestCandidates {
    pub(super) fn clear(&mut self, capacity: usize) {
        self.log_probs.clear();
        self.indices.clear();
        self.candidates.clear();
        self.capacity = capacity;
    }

    /// Inserts a candidate if it is among the best; returns whether it was.
    ///
    /// Impossible candidates are never inserted.
    #[inline]
    pub(super) fn push(&mut self, candidate: Candidate) -> bool {
        let log_prob = candidate.log_prob;
        let is_full = self.log_probs.len() == self.capacity;
        let fits = !is_full || self.log_probs.last().is_some_and(|&worst| worst < log_prob);
        if log_prob == f64::NEG_INFINITY || !fits {
            return false;
        }
        self.insert(candidate, is_full);
        true
    }

    fn insert(&mut self, candidate: Candidate, is_full: bool) {
        let log_prob = candidate.log_prob;
        self.log_probs.pop_if(|_| is_full);
        let index = match self.indices.pop_if(|_| is_full) {
            Some(index) => {
                self.candidates[index as usize] = candidate;
                index
            }
            None => {
                self.candidates.push(candidate);
                (self.candidates.len() - 1) as u32
            }
        };
        // A count has no mispredicted branches, unlike a binary search.
        let rank = self.log_probs.iter().filter(|&&other| other >= log_prob).count();
        self.log_probs.insert(rank, log_prob);
        self.indices.insert(rank, index);
    }
}

/// A next hypothesis whose label is not yet in the tree.
#[derive(Debug)]
struct NextHypothesis {
    /// Index of its candidate in `BestCandidates::candidates`.
    candidate_index: u32,
    hyp: BeamHypothesis,
}

impl BeamUtterance {
    /// Fusions of the search and of this utterance.
    pub(super) fn fusions<'a>(&'a self, options: &'a BeamOptions) -> impl Iterator<Item = &'a Fusion> {
        options.fusion.iter().chain(&self.fusion)
    }

    /// Number of frames of this chunk.
    pub(super) fn frame_count(&self) -> usize {
        self.end_frame - self.first_frame
    }

    /// Makes the best candidates the next hypotheses.
    ///
    /// Candidates with equal labels that satisfy `is_mergeable` become one hypothesis, with the
    /// times of the best and the sum of the probabilities. `position` returns the position of a
    /// hypothesis after an expansion.
    pub(super) fn advance_hypotheses(
        &mut self,
        token_table: &TokenTable,
        position: impl Fn(&BeamHypothesis, &Expansion) -> BeamPosition,
        is_mergeable: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        self.merge_candidates(token_table, position, is_mergeable);
        self.replace_hypotheses(token_table);
    }

    /// [`Self::advance_hypotheses`] that keeps the best `width` hypotheses, best first.
    pub(super) fn advance_best_hypotheses(
        &mut self,
        token_table: &TokenTable,
        width: usize,
        position: impl Fn(&BeamHypothesis, &Expansion) -> BeamPosition,
        is_mergeable: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        self.merge_candidates(token_table, position, is_mergeable);
        self.next_hyps.sort_by(|a, b| b.hyp.log_prob.total_cmp(&a.hyp.log_prob));
        self.next_hyps.truncate(width);
        self.replace_hypotheses(token_table);
    }

    /// Merges candidates with equal labels, best first.
    fn merge_candidates(
        &mut self,
        token_table: &TokenTable,
        position: impl Fn(&BeamHypothesis, &Expansion) -> BeamPosition,
        is_mergeable: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        let Self { best_candidates, next_hyps, next_hashes, hyps, tree, .. } = self;
        next_hyps.clear();
        next_hashes.clear();
        for &candidate_index in &best_candidates.indices {
            // Labels and position to which the candidate leads.
            let candidate = &best_candidates.candidates[candidate_index as usize];
            let parent = &hyps[candidate.hyp_index];
            let current = BeamPosition { frame: parent.frame, symbols: parent.symbols };
            let new_position =
                candidate.expansion.as_ref().map_or(current, |expansion| position(parent, expansion));
            let label = candidate.label(token_table);
            let parent_sequence = tree.sequence(parent.node);
            let hash = label.map_or(parent_sequence, |label| parent_sequence.append(label)).hash;
            // Merge it with a better candidate of the same labels. A label may be the newest of one
            // candidate and already in the tree for the other.
            let is_equal = |other: &NextHypothesis| {
                let other_candidate = &best_candidates.candidates[other.candidate_index as usize];
                let other_parent = hyps[other_candidate.hyp_index].node;
                is_mergeable(&new_position, &other.hyp)
                    && match (label, other_candidate.label(token_table)) {
                        (Some(a), Some(b)) => a == b && tree.is_same_sequence(parent.node, other_parent),
                        (Some(a), None) => tree.is_child(other_parent, parent.node, a),
                        (None, Some(b)) => tree.is_child(parent.node, other_parent, b),
                        (None, None) => tree.is_same_sequence(parent.node, other_parent),
                    }
            };
            let equal_index = positions_of(next_hashes, hash).find(|&index| is_equal(&next_hyps[index]));
            if let Some(index) = equal_index {
                let hyp = &mut next_hyps[index].hyp;
                hyp.log_prob = Log::plus(hyp.log_prob, candidate.log_prob);
                if label.is_none() && hyp.row == NO_ROW {
                    // Equal labels have equal states: the row need not be computed.
                    hyp.row = parent.row;
                }
                continue;
            }
            // Otherwise it becomes a new hypothesis.
            let row = if label.is_some() { NO_ROW } else { parent.row };
            let BeamPosition { frame, symbols } = new_position;
            let hyp = BeamHypothesis { node: parent.node, row, frame, symbols, log_prob: candidate.log_prob };
            next_hyps.push(NextHypothesis { candidate_index, hyp });
            next_hashes.push(hash);
        }
    }

    /// Replaces the hypotheses by the next ones; their labels enter the tree.
    fn replace_hypotheses(&mut self, token_table: &TokenTable) {
        let Self { best_candidates, next_hyps, tree, hyps, parent_rows, .. } = self;
        parent_rows.clear();
        for NextHypothesis { candidate_index, hyp } in &mut *next_hyps {
            let candidate = &best_candidates.candidates[*candidate_index as usize];
            let parent = &hyps[candidate.hyp_index];
            if let Some(expansion) =
                candidate.expansion.filter(|expansion| !token_table.is_blank(expansion.class))
            {
                hyp.node = tree.push(parent.node, decoded_token(&expansion, token_table, parent.frame));
            }
            parent_rows.push(parent.row);
        }
        hyps.clear();
        hyps.extend(next_hyps.drain(..).map(|next| next.hyp));
        best_candidates.clear(0);
    }

    /// Removes dead labels from the tree if there may be many.
    pub(super) fn sweep_tree_if_large(&mut self) {
        if self.tree.may_have_many_dead_nodes() {
            self.sweep_tree();
        }
    }

    /// Removes dead labels from the tree.
    pub(super) fn sweep_tree(&mut self) {
        let Self { tree, hyps, ended_hyps, .. } = self;
        tree.unmark();
        hyps.iter().chain(&*ended_hyps).for_each(|hyp| tree.mark(hyp.node));
        tree.sweep();
        hyps.iter_mut().chain(ended_hyps).for_each(|hyp| hyp.node = tree.new_index(hyp.node));
    }
}

/// Positions of a hash in a list; blocks without it are skipped by one vectorized comparison.
fn positions_of(hashes: &[u64], hash: u64) -> impl Iterator<Item = usize> {
    /// Hashes that are compared together.
    const HASHES_PER_BLOCK: usize = 8;
    let contains = move |block: &[u64]| block.iter().fold(false, |any, &other| any | (other == hash));
    let blocks = hashes.chunks(HASHES_PER_BLOCK).enumerate().filter(move |(_, block)| contains(block));
    blocks.flat_map(move |(block_index, block)| {
        let positions = (0..block.len()).filter(move |&offset| block[offset] == hash);
        positions.map(move |offset| block_index * HASHES_PER_BLOCK + offset)
    })
}

/// Creates the record of a label that an expansion emits on `frame`.
pub(super) fn decoded_token(expansion: &Expansion, token_table: &TokenTable, frame: usize) -> DecodedToken {
    let &Expansion { log_prob, duration_log_prob, fused, logit, class, duration, .. } = expansion;
    let duration = token_table.frame_advance(class, duration as usize);
    DecodedToken { label: class, frame, duration, log_prob, duration_log_prob, logit, fused, confidence: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_candidates_are_sorted_and_ties_keep_the_first() {
        let mut best_candidates = BestCandidates::default();
        best_candidates.clear(3);
        let log_probs = [-3.0, -1.0, -2.0, -1.0, f64::NEG_INFINITY, -2.0, -0.5];
        let inserted: Vec<bool> = (0..log_probs.len())
            .map(|hyp_index| {
                let log_prob = log_probs[hyp_index];
                best_candidates.push(Candidate { hyp_index, expansion: None, log_prob })
            })
            .collect();
        assert_eq!(inserted, [true, true, true, true, false, false, true]);
        let hyp_of = |&index: &u32| best_candidates.candidates[index as usize].hyp_index;
        let hyp_indices: Vec<usize> = best_candidates.indices.iter().map(hyp_of).collect();
        assert_eq!(hyp_indices, [6, 1, 3]);
    }
}
