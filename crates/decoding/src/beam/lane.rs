//! One utterance of a beam search.
use rnnt_dp::semiring::{Log, Semiring};
use serde::{Deserialize, Serialize};

use super::Beam;
use crate::tree::Tree;
use crate::{Emitted, Fusion, Rules};

/// The row of a hypothesis that has none yet.
pub(super) const FRESH: u32 = u32::MAX;

/// A class, and a duration if there are any, as the next step of a hypothesis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Entry {
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
pub(super) struct Hyp {
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
    pub entry: Option<Entry>,
    pub log_prob: f64,
}

/// Where a step leads: the frame, and the labels on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub time: usize,
    pub symbols: usize,
}

/// The hypotheses of an utterance.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub utterance: usize,
    pub tree: Tree,
    pub hyps: Vec<Hyp>,
    /// For each of them the row that it comes from.
    pub origins: Vec<u32>,
    /// Hypotheses that a search has put aside.
    pub aside: Vec<Hyp>,
    /// Nodes of the hypotheses at the start of a frame.
    pub starts: Vec<u32>,
    /// Automata of this utterance alone, behind those that all share.
    pub lists: Vec<Fusion>,
    /// Frames before this chunk, and up to its end.
    pub before: usize,
    pub end: usize,
    /// The first of its sites.
    pub first: usize,
    pub best: Best,
    next: Vec<Hyp>,
    next_origins: Vec<u32>,
}

/// The best candidates; equal ones in the order in which they come.
#[derive(Debug, Default)]
pub(super) struct Best {
    candidates: Vec<Candidate>,
    most: usize,
}

impl Best {
    pub fn clear(&mut self, most: usize) {
        self.candidates.clear();
        self.most = most;
    }

    /// Whether it is among the best so far; the impossible never is.
    pub fn offer(&mut self, candidate: Candidate) -> bool {
        let better = |other: &Candidate| other.log_prob < candidate.log_prob;
        let full = self.candidates.len() == self.most;
        if candidate.log_prob == f64::NEG_INFINITY || full && !self.candidates.last().is_some_and(better) {
            return false;
        }
        if full {
            self.candidates.pop();
        }
        let place = self.candidates.partition_point(|other| !better(other));
        self.candidates.insert(place, candidate);
        true
    }
}

impl Lane {
    /// The automata of this utterance.
    pub fn fusions<'a>(&'a self, options: &'a Beam) -> impl Iterator<Item = &'a Fusion> {
        options.fusion.iter().chain(&self.lists)
    }

    /// Takes the best candidates for the next hypotheses. Of those with equal labels that `meets` thinks at one place, the first keeps
    /// its times, and has the probability of all.
    pub fn choose(
        &mut self,
        rules: &Rules,
        place: impl Fn(&Hyp, &Entry) -> Place,
        meets: impl Fn(&Place, &Hyp) -> bool,
    ) {
        self.next.clear();
        self.next_origins.clear();
        let mut best = std::mem::take(&mut self.best);
        best.candidates.iter().for_each(|candidate| self.take(candidate, rules, &place, &meets));
        best.candidates.clear();
        self.best = best;
        std::mem::swap(&mut self.hyps, &mut self.next);
        std::mem::swap(&mut self.origins, &mut self.next_origins);
    }

    /// Keeps the best hypotheses, best first; equal ones in the order in which they are.
    pub fn keep_best(&mut self, width: usize) {
        let Self { hyps, origins, next, next_origins, .. } = self;
        let mut order: Vec<usize> = (0..hyps.len()).collect();
        order.sort_by(|&a, &b| hyps[b].log_prob.total_cmp(&hyps[a].log_prob));
        order.truncate(width);
        next.clear();
        next.extend(order.iter().map(|&at| hyps[at]));
        next_origins.clear();
        next_origins.extend(order.iter().map(|&at| origins[at]));
        std::mem::swap(hyps, next);
        std::mem::swap(origins, next_origins);
    }

    fn take(
        &mut self,
        candidate: &Candidate,
        rules: &Rules,
        place: &impl Fn(&Hyp, &Entry) -> Place,
        meets: &impl Fn(&Place, &Hyp) -> bool,
    ) {
        let from = self.hyps[candidate.hyp];
        let stays = Place { time: from.time, symbols: from.symbols };
        let to = candidate.entry.as_ref().map_or(stays, |entry| place(&from, entry));
        let label = candidate.entry.filter(|entry| !rules.is_blank(entry.class));
        let tree = &self.tree;
        let before = tree.sequence(from.node);
        let sequence = label.map_or(before, |entry| before.then(entry.class));
        let same = self.next.iter_mut().find(|other| {
            tree.sequence(other.node) == sequence
                && meets(&to, other)
                && match label {
                    Some(entry) => tree.is_child(other.node, from.node, entry.class),
                    None => tree.same(other.node, from.node),
                }
        });
        if let Some(same) = same {
            same.log_prob = Log::plus(same.log_prob, candidate.log_prob);
            if label.is_none() && same.row == FRESH {
                // Equal labels have equal rows.
                same.row = from.row;
            }
            return;
        }
        let (mut node, mut row) = (from.node, from.row);
        if let Some(entry) = label {
            node = self.tree.push(from.node, emitted(&entry, rules, from.time));
            row = FRESH;
        }
        let Place { time, symbols } = to;
        self.next.push(Hyp { node, row, time, symbols, log_prob: candidate.log_prob });
        self.next_origins.push(from.row);
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

/// A label as it is recorded.
pub(super) fn emitted(entry: &Entry, rules: &Rules, frame: usize) -> Emitted {
    let &Entry { log_prob, duration_log_prob, fused, logit, class, duration, .. } = entry;
    let duration = rules.frames(class, duration as usize);
    Emitted { label: class, frame, duration, log_prob, duration_log_prob, logit, fused, confidence: 1.0 }
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
        let hyps: Vec<usize> = best.candidates.iter().map(|candidate| candidate.hyp).collect();
        assert_eq!(hyps, [6, 1, 3]);
    }
}
