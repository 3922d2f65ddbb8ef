//! One utterance of a beam search.
use rnnt_dp::semiring::{Log, Semiring};
use serde::{Deserialize, Serialize};

use super::BeamOptions;
use crate::tree::Tree;
use crate::{DecodedToken, Fusion, TokenTable};

/// The row of a hypothesis that has none yet.
pub(super) const FRESH: u32 = u32::MAX;

/// A class, and a duration if there are any, as the next step of a hypothesis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Extension {
    /// What it adds to a hypothesis: all of what follows.
    pub value: f64,
    /// Log-probability among the classes.
    pub log_prob: f64,
    /// Of the duration among the durations.
    pub duration_log_prob: f64,
    /// What automata add.
    pub fused: f32,
    /// The raw score.
    pub logit: f32,
    pub class: u32,
    /// Index of the duration.
    pub duration: u32,
}

/// A hypothesis: labels, a frame, and the log-probability of the paths that lead there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct BeamHypothesis {
    /// Its newest label in the tree.
    pub node: u32,
    /// What networks know of it.
    pub row: u32,
    /// The frame that it is at, counted over all chunks.
    pub time: usize,
    /// Labels on this frame.
    pub symbols: usize,
    pub log_prob: f64,
}

/// A hypothesis and its next step, if it is not to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub hyp: usize,
    pub entry: Option<Extension>,
    pub log_prob: f64,
}

impl Candidate {
    /// Its new label.
    fn label(&self, token_table: &TokenTable) -> Option<u32> {
        self.entry.as_ref().map(|entry| entry.class).filter(|&class| !token_table.is_blank(class))
    }
}

/// Where a step leads: the frame, and the labels on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeamPosition {
    pub time: usize,
    pub symbols: usize,
}

/// The hypotheses of an utterance.
#[derive(Debug, Default)]
pub(super) struct BeamUtterance {
    pub utterance: usize,
    pub tree: Tree,
    pub hyps: Vec<BeamHypothesis>,
    /// For each of them the row that it comes from.
    pub origins: Vec<u32>,
    /// Hypotheses that a search has put aside.
    pub aside: Vec<BeamHypothesis>,
    /// Nodes of the hypotheses at the start of a frame.
    pub starts: Vec<u32>,
    /// Automata of this utterance alone, behind those that all share.
    pub lists: Vec<Fusion>,
    /// Frames before this chunk, and up to its end.
    pub before: usize,
    pub end: usize,
    /// The first of its sites.
    pub first: usize,
    /// Sites of its hypotheses, where equal ones share a site.
    pub sites: Vec<u32>,
    pub best: Best,
    next: Vec<NextHypothesis>,
    /// Hashes of the labels of the next hypotheses.
    hashes: Vec<u64>,
}

/// The best candidates; equal ones in the order in which they come.
#[derive(Debug, Default)]
pub(super) struct Best {
    /// Log-probabilities of the candidates, best first.
    log_probs: Vec<f64>,
    /// Their places, in the same order.
    places: Vec<u32>,
    candidates: Vec<Candidate>,
    most: usize,
}

impl Best {
    pub fn clear(&mut self, most: usize) {
        self.log_probs.clear();
        self.places.clear();
        self.candidates.clear();
        self.most = most;
    }

    /// Whether it is among the best so far; the impossible never is.
    #[inline]
    pub fn offer(&mut self, candidate: Candidate) -> bool {
        let log_prob = candidate.log_prob;
        let is_full = self.log_probs.len() == self.most;
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
        let place = match self.places.pop_if(|_| is_full) {
            Some(place) => {
                self.candidates[place as usize] = candidate;
                place
            }
            None => {
                self.candidates.push(candidate);
                (self.candidates.len() - 1) as u32
            }
        };
        // A count has no branches that a processor predicts wrongly, as a binary search does.
        let rank = self.log_probs.iter().filter(|&&other| other >= log_prob).count();
        self.log_probs.insert(rank, log_prob);
        self.places.insert(rank, place);
    }
}

/// A next hypothesis whose label is not in the tree yet.
#[derive(Debug)]
struct NextHypothesis {
    /// The place of its candidate.
    candidate: u32,
    hyp: BeamHypothesis,
}

impl BeamUtterance {
    /// The automata of this utterance.
    pub fn fusions<'a>(&'a self, options: &'a BeamOptions) -> impl Iterator<Item = &'a Fusion> {
        options.fusion.iter().chain(&self.lists)
    }

    /// Takes the best candidates for the next hypotheses. Of those with equal labels that `meets` takes for one, the first keeps
    /// its times, and has the probability of all.
    pub fn choose(
        &mut self,
        token_table: &TokenTable,
        place: impl Fn(&BeamHypothesis, &Extension) -> BeamPosition,
        meets: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        self.merge(token_table, place, meets);
        self.replace_hypotheses(token_table);
    }

    /// The same, of which only the best stay, best first; equal ones in the order in which they come.
    pub fn choose_best(
        &mut self,
        token_table: &TokenTable,
        width: usize,
        place: impl Fn(&BeamHypothesis, &Extension) -> BeamPosition,
        meets: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        self.merge(token_table, place, meets);
        self.next.sort_by(|a, b| b.hyp.log_prob.total_cmp(&a.hyp.log_prob));
        self.next.truncate(width);
        self.replace_hypotheses(token_table);
    }

    /// Adds up the candidates that are one hypothesis.
    fn merge(
        &mut self,
        token_table: &TokenTable,
        place: impl Fn(&BeamHypothesis, &Extension) -> BeamPosition,
        meets: impl Fn(&BeamPosition, &BeamHypothesis) -> bool,
    ) {
        let Self { best, next, hashes, hyps, tree, .. } = self;
        next.clear();
        hashes.clear();
        for &at in &best.places {
            let candidate = &best.candidates[at as usize];
            let from = &hyps[candidate.hyp];
            let stays = BeamPosition { time: from.time, symbols: from.symbols };
            let to = candidate.entry.as_ref().map_or(stays, |entry| place(from, entry));
            let label = candidate.label(token_table);
            let before = tree.sequence(from.node);
            let hash = label.map_or(before, |label| before.then(label)).hash;
            let is_same = |other: &NextHypothesis| {
                let other_candidate = &best.candidates[other.candidate as usize];
                let other_from = hyps[other_candidate.hyp].node;
                meets(&to, &other.hyp)
                    && match (label, other_candidate.label(token_table)) {
                        (Some(a), Some(b)) => a == b && tree.same(from.node, other_from),
                        (Some(a), None) => tree.is_child(other_from, from.node, a),
                        (None, Some(b)) => tree.is_child(from.node, other_from, b),
                        (None, None) => tree.same(from.node, other_from),
                    }
            };
            let same = places_of(hashes, hash).find(|&at| is_same(&next[at]));
            if let Some(at) = same {
                let hyp = &mut next[at].hyp;
                hyp.log_prob = Log::plus(hyp.log_prob, candidate.log_prob);
                if label.is_none() && hyp.row == FRESH {
                    // Equal labels have equal rows.
                    hyp.row = from.row;
                }
                continue;
            }
            let row = if label.is_some() { FRESH } else { from.row };
            let BeamPosition { time, symbols } = to;
            let hyp = BeamHypothesis { node: from.node, row, time, symbols, log_prob: candidate.log_prob };
            next.push(NextHypothesis { candidate: at, hyp });
            hashes.push(hash);
        }
    }

    /// Makes the next hypotheses those of the lane.
    fn replace_hypotheses(&mut self, token_table: &TokenTable) {
        let Self { best, next, tree, hyps, origins, .. } = self;
        origins.clear();
        for NextHypothesis { candidate, hyp } in &mut *next {
            let candidate = &best.candidates[*candidate as usize];
            let from = &hyps[candidate.hyp];
            if let Some(entry) = candidate.entry.filter(|entry| !token_table.is_blank(entry.class)) {
                hyp.node = tree.push(from.node, emitted(&entry, token_table, from.time));
            }
            origins.push(from.row);
        }
        hyps.clear();
        hyps.extend(next.drain(..).map(|next| next.hyp));
        best.clear(0);
    }

    /// Takes labels out of the tree that no hypothesis has any more, from time to time.
    pub fn prune(&mut self) {
        if self.tree.is_overgrown() {
            self.sweep();
        }
    }

    pub fn sweep(&mut self) {
        let Self { tree, hyps, aside, .. } = self;
        tree.unmark();
        hyps.iter().chain(&*aside).for_each(|hyp| tree.mark(hyp.node));
        tree.sweep();
        hyps.iter_mut().chain(aside).for_each(|hyp| hyp.node = tree.moved(hyp.node));
    }
}

/// Places of a number in a list. Most blocks do not have it, and are compared as a whole.
fn places_of(all: &[u64], wanted: u64) -> impl Iterator<Item = usize> {
    const BLOCK: usize = 8;
    let has = move |block: &[u64]| block.iter().fold(false, |has, &other| has | (other == wanted));
    let blocks = all.chunks(BLOCK).enumerate().filter(move |(_, block)| has(block));
    blocks.flat_map(move |(number, block)| {
        let places = (0..block.len()).filter(move |&at| block[at] == wanted);
        places.map(move |at| number * BLOCK + at)
    })
}

/// A label as it is recorded.
pub(super) fn emitted(entry: &Extension, token_table: &TokenTable, frame: usize) -> DecodedToken {
    let &Extension { log_prob, duration_log_prob, fused, logit, class, duration, .. } = entry;
    let duration = token_table.frames(class, duration as usize);
    DecodedToken { label: class, frame, duration, log_prob, duration_log_prob, logit, fused, confidence: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_stay_in_order_and_the_first_of_equal_ones_wins() {
        let mut best = Best::default();
        best.clear(3);
        let offers = [-3.0, -1.0, -2.0, -1.0, f64::NEG_INFINITY, -2.0, -0.5];
        let taken: Vec<bool> = (0..offers.len())
            .map(|hyp| best.offer(Candidate { hyp, entry: None, log_prob: offers[hyp] }))
            .collect();
        assert_eq!(taken, [true, true, true, true, false, false, true]);
        let hyps: Vec<usize> = best.places.iter().map(|&at| best.candidates[at as usize].hyp).collect();
        assert_eq!(hyps, [6, 1, 3]);
    }
}
