//! Bonuses for phrases that are likely to be said.
mod list;

use std::collections::{HashMap, VecDeque};

pub use list::{PhraseError, read_phrases};

use crate::Automaton;

const ROOT: usize = 0;
/// Classes of a row of scores that are seen to at a time.
const BLOCK: usize = 64;

/// A sequence of class ids, and the bonus of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Phrase {
    /// Class ids.
    pub tokens: Vec<u32>,
    /// Bonus of a token, a natural logarithm; below 0 for what should not be said.
    pub score: f32,
}

/// An automaton over class ids that favours phrases (Aho and Corasick 1975, with scores as in icefall's context graph).
///
/// A phrase of m tokens with score s has the bonus B = Σ_{i=1..m} s · d_i, where d_1 = 1 and d_i is the depth scaling for later tokens:
/// 1 for the same bonus each; more favours going on with a phrase over beginning one.
///
/// **The sum over a path from start to [`finish`](Automaton::finish) is the sum, over all positions of the path, of the bonus of the longest phrase
/// that begins there and is there as a whole.** Each token of a phrase is paid for at once; what was paid for a phrase is taken back as
/// soon as it cannot be ended any more, by the same step that breaks it or by `finish`. Phrases may overlap and lie within one
/// another: both count. One that begins another adds nothing to it. Negative scores are not paid ahead.
///
/// A state is the longest end of what was said that begins a phrase. A step takes two binary searches; a row of scores one pass over the
/// listed arcs, and over the classes if there is something to take back. Memory 12 bytes a token of the list and 12 an arc: beside the
/// trie's, those that other phrases, begun within one, go on with.
///
/// ```
/// use decoding::{Automaton, Boost, Phrase};
///
/// // Of four classes the last is the blank.
/// let boost = Boost::new(&[Phrase { tokens: vec![0, 1], score: 1.5 }], &[true, true, true, false], 1.0)?;
/// let (first, state) = boost.step(boost.start(), 0);
/// let (wrong, _) = boost.step(state, 2);
/// assert_eq!((first, wrong, boost.finish(state)), (1.5, -1.5, -1.5));
/// # Ok::<(), decoding::PhraseError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Boost {
    /// Which classes are labels.
    labels: Vec<bool>,
    /// What has been paid ahead in each state.
    ahead: Vec<f32>,
    /// Of each state but the first, the arcs that do not lead on from the first; last those that do.
    arcs: Vec<u32>,
    arc_class: Vec<u32>,
    /// What is earned for good.
    arc_earned: Vec<f32>,
    arc_next: Vec<u32>,
}

impl Boost {
    /// An automaton of phrases over `labels.len()` classes, of which some are labels. If a phrase is there twice the
    /// higher score counts. Nothing is boosted by an empty list.
    ///
    /// # Errors
    /// [`PhraseError::Empty`], [`PhraseError::Class`] for a class that is no label, [`PhraseError::Score`] for a score or depth
    /// scaling that is not finite (or below 0), or so large that a sum is not; `line` is the index of the phrase, from 1.
    pub fn new(phrases: &[Phrase], labels: &[bool], depth_scaling: f32) -> Result<Self, PhraseError> {
        if !(depth_scaling.is_finite() && depth_scaling >= 0.0) {
            return Err(PhraseError::DepthScaling { found: depth_scaling });
        }
        let mut trie = Trie::new();
        for (line, phrase) in (1..).zip(phrases) {
            check(line, phrase, labels, depth_scaling)?;
            trie.insert(phrase, depth_scaling);
        }
        trie.settle();
        Ok(trie.flatten(labels))
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.ahead.len()
    }

    fn known(&self, state: u32) -> usize {
        if (state as usize) < self.states() { state as usize } else { ROOT }
    }

    /// Arcs of a state, and those of the first.
    fn arcs_of(&self, state: usize) -> [std::ops::Range<usize>; 2] {
        let of = |state: usize| self.arcs[state] as usize..self.arcs[state + 1] as usize;
        let own = if state == ROOT { 0..0 } else { of(state) };
        [own, of(ROOT)]
    }

    fn score(&self, state: usize, arc: usize) -> f32 {
        self.arc_earned[arc] + self.ahead[self.arc_next[arc] as usize] - self.ahead[state]
    }
}

impl Automaton for Boost {
    fn start(&self) -> u32 {
        ROOT as u32
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        if self.labels.get(class as usize) != Some(&true) {
            return (0.0, state);
        }
        let state = self.known(state);
        for arcs in self.arcs_of(state) {
            if let Ok(at) = self.arc_class[arcs.clone()].binary_search(&class) {
                let arc = arcs.start + at;
                return (self.score(state, arc), self.arc_next[arc]);
            }
        }
        (0.0 - self.ahead[state], ROOT as u32)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let state = self.known(state);
        let limit = scores.len().min(self.labels.len());
        let lost = weight * (0.0 - self.ahead[state]);
        // What the state leads on to has the last word.
        let [mut own, mut first] = self.arcs_of(state);
        for from in (0..limit).step_by(BLOCK) {
            let block = &mut scores[from..limit.min(from + BLOCK)];
            let mut before = [0.0; BLOCK];
            before[..block.len()].copy_from_slice(block);
            // Nothing to take back: the usual case.
            if lost != 0.0 {
                for (score, &label) in block.iter_mut().zip(&self.labels[from..]) {
                    *score += if label { lost } else { 0.0 };
                }
            }
            for arcs in [&mut first, &mut own] {
                while arcs.start < arcs.end && (self.arc_class[arcs.start] as usize) < from + block.len() {
                    let at = self.arc_class[arcs.start] as usize - from;
                    block[at] = before[at] + weight * self.score(state, arcs.start);
                    arcs.start += 1;
                }
            }
        }
    }

    fn finish(&self, state: u32) -> f32 {
        0.0 - self.ahead[self.known(state)]
    }
}

fn check(line: usize, phrase: &Phrase, labels: &[bool], depth_scaling: f32) -> Result<(), PhraseError> {
    if phrase.tokens.is_empty() {
        return Err(PhraseError::Empty { line });
    }
    let class = phrase.tokens.iter().find(|&&class| labels.get(class as usize) != Some(&true));
    if let Some(&class) = class {
        return Err(PhraseError::Class { line, class, classes: labels.len() });
    }
    // Room for a sum of many.
    let bonus = bonus(phrase, phrase.tokens.len(), depth_scaling);
    if !(bonus.is_finite() && phrase.score.abs() <= LARGEST && bonus.abs() <= LARGEST) {
        return Err(PhraseError::Score { line, found: phrase.score.to_string() });
    }
    Ok(())
}

/// Largest score and bonus; sums of many stay finite.
const LARGEST: f32 = 1e9;

/// Bonus of the first `length` tokens.
fn bonus(phrase: &Phrase, length: usize, depth_scaling: f32) -> f32 {
    match length {
        0 => 0.0,
        _ => phrase.score * (1.0 + depth_scaling * (length - 1) as f32),
    }
}

#[derive(Default)]
struct Node {
    children: HashMap<u32, usize>,
    /// Bonus of the phrase that ends here.
    whole: Option<f32>,
    /// Most that the phrases on their way here have earned so far.
    begun: f32,
    /// Earned for good when it is reached, by itself and by the phrases within it that end with it.
    earned: f32,
    /// What is paid ahead.
    ahead: f32,
    /// The longest proper end of it that begins a phrase.
    fail: usize,
}

struct Trie {
    nodes: Vec<Node>,
    /// Nodes by depth, without the root, with parent and class.
    order: Vec<(usize, u32, usize)>,
}

impl Trie {
    fn new() -> Self {
        Self { nodes: vec![Node::default()], order: Vec::new() }
    }

    fn insert(&mut self, phrase: &Phrase, depth_scaling: f32) {
        let mut at = ROOT;
        for (depth, &class) in (1..).zip(&phrase.tokens) {
            let new = self.nodes.len();
            at = *self.nodes[at].children.entry(class).or_insert(new);
            if at == new {
                self.nodes.push(Node { begun: f32::NEG_INFINITY, ..Node::default() });
            }
            if depth < phrase.tokens.len() {
                let node = &mut self.nodes[at];
                node.begun = node.begun.max(bonus(phrase, depth, depth_scaling));
            }
        }
        let whole = bonus(phrase, phrase.tokens.len(), depth_scaling);
        let node = &mut self.nodes[at];
        node.whole = Some(node.whole.map_or(whole, |other| other.max(whole)));
    }

    /// Fail arcs and scores, shorter beginnings first.
    fn settle(&mut self) {
        // A node, and the bonus of the longest phrase that begins it.
        let mut queue = VecDeque::from([(ROOT, 0.0)]);
        while let Some((parent, kept)) = queue.pop_front() {
            let mut children: Vec<(u32, usize)> =
                self.nodes[parent].children.iter().map(|(&class, &at)| (class, at)).collect();
            children.sort_unstable();
            for (class, at) in children {
                let fail = if parent == ROOT { ROOT } else { self.fall(self.nodes[parent].fail, class) };
                let now = self.nodes[at].whole.unwrap_or(kept);
                let below = self.nodes[fail].earned;
                let node = &mut self.nodes[at];
                node.fail = fail;
                node.earned = now - kept + below;
                node.ahead = (node.begun - now).max(0.0);
                self.order.push((parent, class, at));
                queue.push_back((at, now));
            }
        }
    }

    /// Where a class leads from a state, whose fail arcs are known.
    fn fall(&self, mut state: usize, class: u32) -> usize {
        loop {
            match self.nodes[state].children.get(&class) {
                Some(&at) => return at,
                None if state == ROOT => return ROOT,
                None => state = self.nodes[state].fail,
            }
        }
    }

    fn flatten(self, labels: &[bool]) -> Boost {
        // The classes that lead on from a state or from its ends but the empty one; shorter states first.
        let mut onward: Vec<Vec<(u32, usize)>> = vec![Vec::new(); self.nodes.len()];
        for at in [ROOT].into_iter().chain(self.order.iter().map(|&(.., at)| at)) {
            let node = &self.nodes[at];
            let mut arcs: Vec<(u32, usize)> = node.children.iter().map(|(&class, &to)| (class, to)).collect();
            if node.fail != ROOT {
                let shorter = &onward[node.fail];
                arcs.extend(shorter.iter().filter(|(class, _)| !node.children.contains_key(class)));
            }
            arcs.sort_unstable();
            onward[at] = arcs;
        }
        let mut arcs = vec![0];
        arcs.extend(onward.iter().scan(0, |sum, list| {
            *sum += list.len() as u32;
            Some(*sum)
        }));
        let all = || onward.iter().flatten();
        Boost {
            labels: labels.to_vec(),
            ahead: self.nodes.iter().map(|node| node.ahead).collect(),
            arcs,
            arc_class: all().map(|&(class, _)| class).collect(),
            arc_earned: all().map(|&(_, to)| self.nodes[to].earned).collect(),
            arc_next: all().map(|&(_, to)| to as u32).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
