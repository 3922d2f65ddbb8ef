//! Aho-Corasick automaton for phrase boosting (contextual biasing).
//!
//! A state is the longest suffix of the labels that is a prefix of a phrase. The trie computes the
//! bonus of each state, then becomes the flat arrays of `PhraseBooster`. The final (earned) bonus
//! is that of complete phrases, the advance that of an open prefix.
use std::collections::{HashMap, VecDeque};

use super::{AFTER_BOUNDARY, Phrase, PhraseBooster, WITHIN_WORD, WordBoundaries, bonus};

/// A prefix of phrases.
#[derive(Default)]
struct TrieNode {
    /// Node of each next class.
    children: HashMap<u32, usize>,
    /// Bonus of the phrase that equals this prefix.
    phrase_bonus: Option<f32>,
    /// Largest advance on the bonus of a longer phrase.
    longer_advance: f32,
    /// Bonus of the longest phrase within this prefix, at a boundary.
    earned: f32,
    /// Added to `earned` if a word boundary follows.
    gain: f32,
    /// Sum of `gain` over this prefix and its suffixes.
    completed: f32,
    /// Bonus paid in advance.
    advance: f32,
    /// Whether a word boundary always follows.
    is_open: bool,
    /// The longest proper suffix that is a phrase prefix at a boundary.
    fail: usize,
}

/// An arc: class, next state, and final bonus.
#[derive(Clone, Copy)]
struct TrieArc {
    class: u32,
    next: usize,
    earned: f32,
}

/// Prefixes of phrases; the first two nodes are empty prefixes.
pub(super) struct Trie<'a> {
    nodes: Vec<TrieNode>,
    /// Nodes by depth, with their parents and classes.
    order: Vec<(usize, u32, usize)>,
    /// Word boundaries around each label; none for other classes.
    classes: &'a [Option<WordBoundaries>],
}

impl<'a> Trie<'a> {
    /// Builds the trie of phrases whose tokens are all labels.
    pub fn new(phrases: &[Phrase], classes: &'a [Option<WordBoundaries>], depth_scaling: f32) -> Self {
        let roots = vec![TrieNode { is_open: true, ..TrieNode::default() }, TrieNode::default()];
        let mut trie = Trie { nodes: roots, order: Vec::new(), classes };
        phrases.iter().for_each(|phrase| trie.insert(phrase, depth_scaling));
        trie.link();
        trie
    }

    /// Word boundaries around a label.
    fn boundaries(&self, class: u32) -> WordBoundaries {
        self.classes.get(class as usize).copied().flatten().unwrap_or(WordBoundaries::BOTH)
    }

    /// Adds the nodes of a phrase.
    fn insert(&mut self, phrase: &Phrase, depth_scaling: f32) {
        let mut index = AFTER_BOUNDARY;
        for (depth, &class) in (1..).zip(&phrase.tokens) {
            let new_node = self.nodes.len();
            index = *self.nodes[index].children.entry(class).or_insert(new_node);
            if index == new_node {
                self.nodes.push(TrieNode { longer_advance: f32::NEG_INFINITY, ..TrieNode::default() });
            }
            if depth < phrase.tokens.len() {
                let share = depth as f32 / phrase.tokens.len() as f32;
                let node = &mut self.nodes[index];
                node.longer_advance = node.longer_advance.max(share * bonus(phrase, depth, depth_scaling));
            }
        }
        let total = bonus(phrase, phrase.tokens.len(), depth_scaling);
        let node = &mut self.nodes[index];
        node.phrase_bonus = Some(node.phrase_bonus.map_or(total, |other| other.max(total)));
    }

    /// Computes fail arcs and bonuses, shorter prefixes first.
    fn link(&mut self) {
        let mut queue = VecDeque::from([AFTER_BOUNDARY]);
        while let Some(parent) = queue.pop_front() {
            let mut children: Vec<(u32, usize)> =
                self.nodes[parent].children.iter().map(|(&class, &child)| (class, child)).collect();
            children.sort_unstable();
            for (class, index) in children {
                let WordBoundaries { before, after } = self.boundaries(class);
                let (fail, earned) = if parent == AFTER_BOUNDARY {
                    (root(after), 0.0)
                } else {
                    let TrieNode { phrase_bonus, earned, is_open, fail, .. } = self.nodes[parent];
                    let ended_phrase = phrase_bonus.filter(|_| before || is_open);
                    (self.follow(fail, class), ended_phrase.unwrap_or(earned))
                };
                let completed = self.nodes[fail].completed;
                let node = &mut self.nodes[index];
                node.fail = fail;
                node.is_open = after;
                node.earned = node.phrase_bonus.filter(|_| after).unwrap_or(earned);
                node.gain = node.phrase_bonus.map_or(0.0, |total| total - node.earned);
                node.completed = node.gain + completed;
                node.advance = node.gain.max(node.longer_advance - node.earned).max(0.0);
                self.order.push((parent, class, index));
                queue.push_back(index);
            }
        }
    }

    /// Next state of a class from a state with its fail arcs.
    fn follow(&self, mut state: usize, class: u32) -> usize {
        loop {
            let child = match state {
                WITHIN_WORD | AFTER_BOUNDARY => self.begin(state, class),
                _ => self.nodes[state].children.get(&class).copied(),
            };
            match (child, state) {
                (Some(child), _) => return child,
                (None, WITHIN_WORD | AFTER_BOUNDARY) => return root(self.boundaries(class).after),
                (None, _) => state = self.nodes[state].fail,
            }
        }
    }

    /// Node of a first token after one of the first two nodes.
    fn begin(&self, root: usize, class: u32) -> Option<usize> {
        let is_boundary = root == AFTER_BOUNDARY || self.boundaries(class).before;
        self.nodes[AFTER_BOUNDARY].children.get(&class).copied().filter(|_| is_boundary)
    }

    /// Final bonus of a class in a state, over all suffixes.
    fn earned_bonus(&self, state: usize, class: u32, arcs: &[Vec<TrieArc>]) -> f32 {
        let first_token_bonus = |root| self.begin(root, class).map_or(0.0, |child| self.nodes[child].earned);
        if state == AFTER_BOUNDARY || state == WITHIN_WORD {
            return first_token_bonus(state);
        }
        if let Ok(index) = arcs[state].binary_search_by_key(&class, |arc| arc.class) {
            return arcs[state][index].earned;
        }
        let node = &self.nodes[state];
        let completed = if self.boundaries(class).before { node.completed } else { 0.0 };
        completed + first_token_bonus(root(node.is_open))
    }

    /// Converts the trie to the arrays of a scorer.
    pub fn flatten(self) -> PhraseBooster {
        // Arcs of the empty prefixes.
        let mut arcs: Vec<Vec<TrieArc>> = Vec::new();
        arcs.resize_with(self.nodes.len(), Vec::new);
        for state in [AFTER_BOUNDARY, WITHIN_WORD] {
            let first_tokens = self.nodes[AFTER_BOUNDARY].children.keys();
            let arc = |class| {
                let next = self.begin(state, class)?;
                Some(TrieArc { class, next, earned: self.nodes[next].earned })
            };
            arcs[state] = first_tokens.filter_map(|&class| arc(class)).collect();
        }
        // Shorter states first: a state inherits the arcs of its fail state, except those of the
        // first two.
        for &(.., state) in &self.order {
            let node = &self.nodes[state];
            let mut next: HashMap<u32, usize> = match node.fail {
                AFTER_BOUNDARY | WITHIN_WORD => HashMap::new(),
                fail => arcs[fail].iter().map(|arc| (arc.class, arc.next)).collect(),
            };
            next.extend(node.children.iter().map(|(&class, &child)| (class, child)));
            let arc = |(class, next)| {
                let own_bonus = match node.children.get(&class) {
                    Some(&child) => self.nodes[child].earned - node.earned,
                    None if self.boundaries(class).before => node.gain,
                    None => 0.0,
                };
                TrieArc { class, next, earned: own_bonus + self.earned_bonus(node.fail, class, &arcs) }
            };
            // The suffixes of the child are separate prefixes with separate bonuses.
            let state_arcs: Vec<TrieArc> = next.into_iter().map(arc).collect();
            arcs[state] = state_arcs;
            arcs[state].sort_unstable_by_key(|arc| arc.class);
        }
        arcs[..2].iter_mut().for_each(|arcs| arcs.sort_unstable_by_key(|arc| arc.class));
        // Flat arrays.
        let mut offsets = vec![0];
        offsets.extend(arcs.iter().scan(0, |sum, list| {
            *sum += list.len() as u32;
            Some(*sum)
        }));
        let all_arcs = || arcs.iter().flatten();
        PhraseBooster {
            classes: self.classes.to_vec(),
            advance: self.nodes.iter().map(|node| node.advance).collect(),
            completed: self.nodes.iter().map(|node| node.completed).collect(),
            is_open: self.nodes.iter().map(|node| node.is_open).collect(),
            arcs: offsets,
            arc_class: all_arcs().map(|arc| arc.class).collect(),
            arc_earned: all_arcs().map(|arc| arc.earned).collect(),
            arc_next: all_arcs().map(|arc| arc.next as u32).collect(),
        }
    }
}

/// The state of the empty prefix.
pub(super) fn root(is_open: bool) -> usize {
    if is_open { AFTER_BOUNDARY } else { WITHIN_WORD }
}
