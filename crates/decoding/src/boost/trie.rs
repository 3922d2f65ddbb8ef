//! Aho-Corasick automaton for phrase boosting (contextual biasing).
//!
//! A state is the longest suffix of the labels that is a prefix of a phrase. The trie computes the
//! bonus of each state, then becomes the flat arrays of `PhraseBooster`. The final (earned) bonus
//! is that of complete phrases, the advance that of an open prefix.
use std::collections::{HashMap, VecDeque};

use super::{AFTER_BOUNDARY, Phrase, PhraseBooster, WITHIN_WORD, WordBoundaries, bonus};

/// Number of nodes that are empty prefixes: [`AFTER_BOUNDARY`] and [`WITHIN_WORD`].
const ROOTS: usize = 2;

/// A prefix of phrases.
#[derive(Default)]
struct TrieNode {
    /// Node of each next class.
    children: HashMap<u32, usize>,
    /// Bonus of the phrase that equals this prefix.
    phrase_bonus: Option<f32>,
    /// Largest advance on the bonus of a longer phrase.
    longer_advance: f32,
    /// Bonus of the longest complete phrase within this prefix, at a boundary.
    earned_bonus: f32,
    /// Added to `earned_bonus` if a word boundary follows.
    boundary_gain: f32,
    /// Sum of `boundary_gain` over this prefix and its suffixes.
    completed_bonus: f32,
    /// Bonus paid in advance.
    advance: f32,
    /// Whether a word boundary always follows the last label.
    ends_word: bool,
    /// The longest proper suffix that is a phrase prefix at a boundary.
    fail_state: usize,
}

/// An arc: class, next state, and final bonus.
#[derive(Clone, Copy)]
struct TrieArc {
    class: u32,
    next_state: usize,
    earned_bonus: f32,
}

/// Prefixes of phrases; the first two nodes are empty prefixes.
pub(super) struct Trie<'a> {
    nodes: Vec<TrieNode>,
    /// Indices of the nodes after the roots, shorter prefixes first.
    nodes_by_depth: Vec<usize>,
    /// Word boundaries around each label; none for other classes.
    classes: &'a [Option<WordBoundaries>],
}

impl<'a> Trie<'a> {
    /// Builds the trie of phrases whose tokens are all labels.
    pub(super) fn new(phrases: &[Phrase], classes: &'a [Option<WordBoundaries>], depth_scaling: f32) -> Self {
        let roots = vec![TrieNode { ends_word: true, ..TrieNode::default() }, TrieNode::default()];
        let mut trie = Trie { nodes: roots, nodes_by_depth: Vec::new(), classes };
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
                let (fail_state, earned_bonus) = if parent == AFTER_BOUNDARY {
                    (root(after), 0.0)
                } else {
                    let TrieNode { phrase_bonus, earned_bonus, ends_word, fail_state, .. } =
                        self.nodes[parent];
                    let ended_phrase = phrase_bonus.filter(|_| before || ends_word);
                    (self.follow(fail_state, class), ended_phrase.unwrap_or(earned_bonus))
                };
                let completed = self.nodes[fail_state].completed_bonus;
                let node = &mut self.nodes[index];
                node.fail_state = fail_state;
                node.ends_word = after;
                node.earned_bonus = node.phrase_bonus.filter(|_| after).unwrap_or(earned_bonus);
                node.boundary_gain = node.phrase_bonus.map_or(0.0, |total| total - node.earned_bonus);
                node.completed_bonus = node.boundary_gain + completed;
                node.advance = node.boundary_gain.max(node.longer_advance - node.earned_bonus).max(0.0);
                self.nodes_by_depth.push(index);
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
                (None, _) => state = self.nodes[state].fail_state,
            }
        }
    }

    /// Node of a first token after one of the first two nodes.
    fn begin(&self, root: usize, class: u32) -> Option<usize> {
        let is_boundary = root == AFTER_BOUNDARY || self.boundaries(class).before;
        self.nodes[AFTER_BOUNDARY].children.get(&class).copied().filter(|_| is_boundary)
    }

    /// Final bonus of a class in a state, over all suffixes.
    fn arc_bonus(&self, state: usize, class: u32, arcs: &[Vec<TrieArc>]) -> f32 {
        let first_token_bonus =
            |root| self.begin(root, class).map_or(0.0, |child| self.nodes[child].earned_bonus);
        if state == AFTER_BOUNDARY || state == WITHIN_WORD {
            return first_token_bonus(state);
        }
        if let Ok(index) = arcs[state].binary_search_by_key(&class, |arc| arc.class) {
            return arcs[state][index].earned_bonus;
        }
        let node = &self.nodes[state];
        let completed = if self.boundaries(class).before { node.completed_bonus } else { 0.0 };
        completed + first_token_bonus(root(node.ends_word))
    }

    /// Converts the trie to the arrays of a scorer.
    pub(super) fn flatten(self) -> PhraseBooster {
        // Arcs of the empty prefixes.
        let mut arcs: Vec<Vec<TrieArc>> = Vec::new();
        arcs.resize_with(self.nodes.len(), Vec::new);
        for state in [AFTER_BOUNDARY, WITHIN_WORD] {
            let first_tokens = self.nodes[AFTER_BOUNDARY].children.keys();
            let arc = |class| {
                let next_state = self.begin(state, class)?;
                Some(TrieArc { class, next_state, earned_bonus: self.nodes[next_state].earned_bonus })
            };
            arcs[state] = first_tokens.filter_map(|&class| arc(class)).collect();
        }
        // Shorter states first: a state inherits the arcs of its fail state, except those of the
        // first two.
        for &state in &self.nodes_by_depth {
            let node = &self.nodes[state];
            let mut next_states: HashMap<u32, usize> = match node.fail_state {
                AFTER_BOUNDARY | WITHIN_WORD => HashMap::new(),
                fail_state => arcs[fail_state].iter().map(|arc| (arc.class, arc.next_state)).collect(),
            };
            next_states.extend(node.children.iter().map(|(&class, &child)| (class, child)));
            let arc = |(class, next_state)| {
                let own_bonus = match node.children.get(&class) {
                    Some(&child) => self.nodes[child].earned_bonus - node.earned_bonus,
                    None if self.boundaries(class).before => node.boundary_gain,
                    None => 0.0,
                };
                let suffix_bonus = self.arc_bonus(node.fail_state, class, &arcs);
                TrieArc { class, next_state, earned_bonus: own_bonus + suffix_bonus }
            };
            // The suffixes of the child are separate prefixes with separate bonuses.
            let state_arcs: Vec<TrieArc> = next_states.into_iter().map(arc).collect();
            arcs[state] = state_arcs;
            arcs[state].sort_unstable_by_key(|arc| arc.class);
        }
        arcs[..ROOTS].iter_mut().for_each(|arcs| arcs.sort_unstable_by_key(|arc| arc.class));
        // Flat arrays.
        let mut offsets = vec![0];
        offsets.extend(arcs.iter().scan(0, |sum, list| {
            *sum += list.len() as u32;
            Some(*sum)
        }));
        let all_arcs = || arcs.iter().flatten();
        PhraseBooster {
            classes: self.classes.to_vec(),
            advances: self.nodes.iter().map(|node| node.advance).collect(),
            completed_bonuses: self.nodes.iter().map(|node| node.completed_bonus).collect(),
            ends_word: self.nodes.iter().map(|node| node.ends_word).collect(),
            arc_offsets: offsets,
            arc_classes: all_arcs().map(|arc| arc.class).collect(),
            arc_bonuses: all_arcs().map(|arc| arc.earned_bonus).collect(),
            arc_states: all_arcs().map(|arc| arc.next_state as u32).collect(),
        }
    }
}

/// Returns the empty prefix after a boundary or within a word.
pub(super) fn root(is_after_boundary: bool) -> usize {
    if is_after_boundary { AFTER_BOUNDARY } else { WITHIN_WORD }
}
