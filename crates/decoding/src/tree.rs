//! `LabelTree`: label sequences of the beam hypotheses of one utterance.
//!
//! Beam searches of transducers and CTC store only the newest node of a hypothesis; its labels are
//! those from the root to the node. Streams save the tree between chunks.
use serde::{Deserialize, Serialize};

use crate::DecodedToken;

/// The node before any label.
pub(crate) const ROOT: u32 = u32::MAX;
/// Odd multiplier that spreads the bits of a hash: 2^64 divided by the golden ratio.
///
/// Saved trees contain hashes: another value would make them invalid.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Shift that mixes high bits of a product into low ones.
///
/// Saved trees depend on it as well.
const HASH_SHIFT: u32 = 29;
/// Number of nodes up to which dead ones are not removed.
const MIN_NODES_TO_SWEEP: usize = 256;

/// A label after the label sequence of its parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LabelNode {
    /// Index of the parent, or [`ROOT`].
    parent: u32,
    #[serde(rename = "emitted")]
    token: DecodedToken,
    /// Key of the labels up to this one.
    ///
    /// Labels before the root are included.
    sequence: SequenceKey,
}

/// Length and hash of a label sequence; different sequences may have equal keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SequenceKey {
    pub len: usize,
    pub hash: u64,
}

impl SequenceKey {
    /// Key of the sequence followed by a label.
    pub(crate) fn append(self, label: u32) -> Self {
        // Adding 1 gives label 0 after hash 0 a hash other than 0.
        let mixed = (self.hash ^ u64::from(label)).wrapping_add(1).wrapping_mul(HASH_MULTIPLIER);
        Self { len: self.len.saturating_add(1), hash: mixed ^ (mixed >> HASH_SHIFT) }
    }
}

/// Tree of label sequences; nodes are in order of creation, parents before children.
///
/// It belongs to a transducer or CTC beam search over one utterance.
/// Several nodes may represent the same labels with different times. Hypotheses refer to nodes;
/// nodes that no hypothesis reaches are dead until [`LabelTree::sweep`] removes them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LabelTree {
    nodes: Vec<LabelNode>,
    /// Labels before the root, a common prefix that was removed.
    #[serde(rename = "taken")]
    removed_prefix: SequenceKey,
    /// Number of nodes after the last sweep.
    #[serde(skip)]
    live_nodes: usize,
    /// Before a sweep the mark of each node (1: live), afterward its new index.
    #[serde(skip)]
    marks: Vec<u32>,
}

impl LabelTree {
    /// Removes all labels.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        (self.removed_prefix, self.live_nodes) = (SequenceKey::default(), 0);
    }

    /// Copies another tree; memory is kept.
    pub(crate) fn clone_from(&mut self, other: &LabelTree) {
        self.nodes.clone_from(&other.nodes);
        (self.removed_prefix, self.live_nodes) = (other.removed_prefix, other.live_nodes);
    }

    /// Adds a label after a node and returns the new node.
    pub(crate) fn push(&mut self, parent: u32, token: DecodedToken) -> u32 {
        let sequence = self.sequence(parent).append(token.label);
        self.nodes.push(LabelNode { parent, token, sequence });
        (self.nodes.len() - 1) as u32
    }

    /// Key of a node's sequence, including the labels before the root.
    pub(crate) fn sequence(&self, node: u32) -> SequenceKey {
        self.nodes.get(node as usize).map_or(self.removed_prefix, |node| node.sequence)
    }

    /// The last label and the node before it; none at the root.
    pub(crate) fn last(&self, node: u32) -> Option<(u32, u32)> {
        self.nodes.get(node as usize).map(|node| (node.token.label, node.parent))
    }

    /// Returns whether two nodes represent the same labels.
    pub(crate) fn is_same_sequence(&self, mut a: u32, mut b: u32) -> bool {
        if self.sequence(a) != self.sequence(b) {
            return false;
        }
        // Hashes may collide.
        while a != b {
            match (self.last(a), self.last(b)) {
                (Some((label, parent)), Some((other, other_parent))) if label == other => {
                    (a, b) = (parent, other_parent);
                }
                _ => return false,
            }
        }
        true
    }

    /// Returns whether a node represents the labels of `parent` followed by `label`.
    pub(crate) fn is_child(&self, node: u32, parent: u32, label: u32) -> bool {
        self.sequence(node) == self.sequence(parent).append(label)
            && self
                .last(node)
                .is_some_and(|(last, prefix)| last == label && self.is_same_sequence(prefix, parent))
    }

    /// Labels from the root to a node.
    pub(crate) fn labels(&self, node: u32) -> Vec<DecodedToken> {
        let mut labels = Vec::with_capacity(self.sequence(node).len - self.removed_prefix.len);
        let mut current = node;
        while let Some(node) = self.nodes.get(current as usize) {
            labels.push(node.token);
            current = node.parent;
        }
        labels.reverse();
        labels
    }

    /// Returns whether dead nodes may outnumber live ones.
    pub(crate) fn may_have_many_dead_nodes(&self) -> bool {
        self.nodes.len() > 2 * self.live_nodes + MIN_NODES_TO_SWEEP
    }

    /// Clears all marks, the first step of a sweep.
    pub(crate) fn unmark(&mut self) {
        self.marks.clear();
        self.marks.resize(self.nodes.len(), 0);
    }

    /// Marks a node and its ancestors as live.
    pub(crate) fn mark(&mut self, mut node: u32) {
        while let Some(mark) = self.marks.get_mut(node as usize)
            && *mark == 0
        {
            *mark = 1;
            node = self.nodes[node as usize].parent;
        }
    }

    /// Removes unmarked nodes; [`LabelTree::new_index`] returns the new index of a marked node.
    pub(crate) fn sweep(&mut self) {
        let mut count = 0;
        for index in 0..self.nodes.len() {
            if self.marks[index] == 1 {
                self.nodes.swap(count, index);
                let parent = self.nodes[count].parent;
                self.nodes[count].parent = self.new_index(parent);
                self.marks[index] = count as u32;
                count += 1;
            }
        }
        self.nodes.truncate(count);
        self.live_nodes = count;
    }

    /// Index of a node after a sweep.
    pub(crate) fn new_index(&self, node: u32) -> u32 {
        self.marks.get(node as usize).copied().unwrap_or(ROOT)
    }

    /// Removes the common prefix of nodes and returns its labels.
    pub(crate) fn take_common_prefix(&mut self, nodes: &mut [u32]) -> Vec<DecodedToken> {
        // Remove dead nodes, then count the children of each node.
        self.unmark();
        nodes.iter().for_each(|&node| self.mark(node));
        self.sweep();
        nodes.iter_mut().for_each(|node| *node = self.new_index(*node));
        let mut child_counts = vec![0; self.nodes.len()];
        for node in &self.nodes {
            if let Some(count) = child_counts.get_mut(node.parent as usize) {
                *count += 1;
            }
        }
        // Every leaf is one of `nodes`, so a chain of only children from node 0 precedes all of
        // them.
        let has_single_first_node =
            self.nodes.iter().filter(|node| node.parent == ROOT).count() == 1 && !nodes.contains(&ROOT);
        let mut shared_labels = Vec::new();
        let mut next = has_single_first_node.then_some(0);
        while let Some(index) = next {
            shared_labels.push(self.nodes[index].token);
            self.removed_prefix = self.nodes[index].sequence;
            let current = index as u32;
            let is_shared = child_counts[index] == 1 && !nodes.contains(&current);
            next = is_shared.then(|| self.nodes.iter().position(|node| node.parent == current)).flatten();
            // The last shared node becomes the root.
            if next.is_none() {
                nodes.iter_mut().filter(|node| **node == current).for_each(|node| *node = ROOT);
                self.nodes
                    .iter_mut()
                    .filter(|node| node.parent == current)
                    .for_each(|node| node.parent = ROOT);
            }
        }
        if !shared_labels.is_empty() {
            self.unmark();
            nodes.iter().for_each(|&node| self.mark(node));
            self.sweep();
            nodes.iter_mut().for_each(|node| *node = self.new_index(*node));
        }
        shared_labels
    }

    /// Nearest ancestor with at most `max_len` labels, or the node itself.
    ///
    /// Labels before the root count.
    pub(crate) fn ancestor_at(&self, mut node: u32, max_len: usize) -> u32 {
        while self.sequence(node).len > max_len {
            node = self.nodes[node as usize].parent;
        }
        node
    }

    /// Removes and returns the labels of `prefix`, a prefix of all `nodes`.
    pub(crate) fn take_prefix(&mut self, prefix: u32, nodes: &mut [u32]) -> Vec<DecodedToken> {
        let (prefix_key, labels) = (self.sequence(prefix), self.labels(prefix));
        for node in &mut *nodes {
            match self.ancestor_at(*node, prefix_key.len + 1) {
                // Several nodes may represent the same labels.
                next if self.sequence(next).len > prefix_key.len => self.nodes[next as usize].parent = ROOT,
                _ => *node = ROOT,
            }
        }
        self.removed_prefix = prefix_key;
        self.unmark();
        nodes.iter().for_each(|&node| self.mark(node));
        self.sweep();
        nodes.iter_mut().for_each(|node| *node = self.new_index(*node));
        labels
    }

    /// Returns whether a deserialized tree is consistent.
    ///
    /// Parents must precede their children, labels be below `vocabulary_size`, and keys be those of
    /// the labels.
    pub(crate) fn is_valid(&self, vocabulary_size: usize) -> bool {
        self.nodes.iter().enumerate().all(|(index, node)| {
            let is_parent_valid = node.parent == ROOT || (node.parent as usize) < index;
            let label = node.token.label;
            is_parent_valid
                && (label as usize) < vocabulary_size
                && node.sequence == self.sequence(node.parent).append(label)
        })
    }

    /// Returns whether a node exists or is the root.
    pub(crate) fn contains(&self, node: u32) -> bool {
        node == ROOT || (node as usize) < self.nodes.len()
    }

    /// Number of labels before the root.
    pub(crate) fn removed_labels(&self) -> usize {
        self.removed_prefix.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_chain(tree: &mut LabelTree, parent: u32, labels: &[u32]) -> u32 {
        labels.iter().fold(parent, |parent, &label| {
            tree.push(parent, DecodedToken { label, ..DecodedToken::default() })
        })
    }

    fn ids(tree: &LabelTree, node: u32) -> Vec<u32> {
        tree.labels(node).iter().map(|token| token.label).collect()
    }

    #[test]
    fn sequences_compare_by_labels_even_when_hashes_collide() {
        let mut tree = LabelTree::default();
        let (a, b) = (add_chain(&mut tree, ROOT, &[3, 1, 2]), add_chain(&mut tree, ROOT, &[3, 1, 2]));
        let shorter = add_chain(&mut tree, ROOT, &[3, 1]);
        assert!(
            tree.is_same_sequence(a, b) && !tree.is_same_sequence(a, shorter) && tree.is_child(a, shorter, 2)
        );
        assert!(!tree.is_child(a, shorter, 1) && !tree.is_child(shorter, a, 2));
        let different = add_chain(&mut tree, ROOT, &[7, 1, 2]);
        assert!(!tree.is_same_sequence(a, different));
        // A collision.
        for node in &mut tree.nodes {
            node.sequence.hash = 0;
        }
        assert!(tree.is_same_sequence(a, b) && !tree.is_same_sequence(a, different));
    }

    #[test]
    fn sweeping_removes_dead_nodes_only() {
        let mut tree = LabelTree::default();
        let trunk = add_chain(&mut tree, ROOT, &[1, 2]);
        let dead = add_chain(&mut tree, trunk, &[9, 9]);
        let (mut a, mut b) = (add_chain(&mut tree, trunk, &[3]), add_chain(&mut tree, trunk, &[4, 5]));
        assert_eq!(ids(&tree, dead), [1, 2, 9, 9]);
        tree.unmark();
        [a, b].into_iter().for_each(|node| tree.mark(node));
        tree.sweep();
        (a, b) = (tree.new_index(a), tree.new_index(b));
        assert_eq!((ids(&tree, a), ids(&tree, b), tree.nodes.len()), (vec![1, 2, 3], vec![1, 2, 4, 5], 5));
        assert!(tree.is_valid(6) && !tree.is_valid(5) && tree.new_index(ROOT) == ROOT);
    }

    #[test]
    fn a_prefix_is_removed_from_all_nodes_that_begin_with_it() {
        let mut tree = LabelTree::default();
        // The same two labels in separate chains.
        let (a, b) = (add_chain(&mut tree, ROOT, &[1, 2, 3]), add_chain(&mut tree, ROOT, &[1, 2]));
        let c = add_chain(&mut tree, b, &[4, 5]);
        let dead = add_chain(&mut tree, ROOT, &[7]);
        assert_eq!(ids(&tree, dead), [7]);
        assert_eq!((tree.ancestor_at(a, 2), tree.ancestor_at(c, 9), tree.ancestor_at(c, 0)), (1, c, ROOT));
        let mut nodes = [a, b, c];
        let taken: Vec<u32> = tree.take_prefix(b, &mut nodes).iter().map(|token| token.label).collect();
        assert_eq!((taken, tree.removed_labels()), (vec![1, 2], 2));
        assert_eq!(nodes.map(|node| ids(&tree, node)), [vec![3], vec![], vec![4, 5]]);
        assert!(tree.is_valid(6) && tree.nodes.len() == 3);
        assert!(tree.take_prefix(ROOT, &mut nodes).is_empty() && tree.removed_labels() == 2);
        assert_eq!(nodes.map(|node| ids(&tree, node)), [vec![3], vec![], vec![4, 5]]);
        let [a, ..] = nodes;
        assert_eq!((tree.take_prefix(a, &mut [a]).len(), tree.removed_labels(), tree.nodes.len()), (1, 3, 0));
    }

    #[test]
    fn a_common_prefix_is_removed_once() {
        for (sequences, shared) in [
            (vec![vec![1, 2, 3], vec![1, 2, 4]], vec![1, 2]),
            (vec![vec![1, 2, 3], vec![1, 2]], vec![1, 2]),
            (vec![vec![1, 2, 3], vec![]], vec![]),
            (vec![vec![1, 2], vec![2, 1]], vec![]),
            (vec![vec![5, 6, 7]], vec![5, 6, 7]),
        ] {
            // One node for each prefix.
            let mut tree = LabelTree::default();
            let mut nodes = Vec::new();
            for labels in &sequences {
                let mut node = ROOT;
                for &label in labels {
                    let existing =
                        (0..tree.nodes.len() as u32).find(|&child| tree.last(child) == Some((label, node)));
                    node = existing.unwrap_or_else(|| {
                        tree.push(node, DecodedToken { label, ..DecodedToken::default() })
                    });
                }
                nodes.push(node);
            }
            let keys: Vec<SequenceKey> = nodes.iter().map(|&node| tree.sequence(node)).collect();
            let taken: Vec<u32> =
                tree.take_common_prefix(&mut nodes).iter().map(|token| token.label).collect();
            assert_eq!(taken, shared);
            for ((node, labels), key) in nodes.iter().zip(&sequences).zip(keys) {
                assert_eq!(ids(&tree, *node), labels[shared.len()..]);
                assert_eq!(tree.sequence(*node), key);
            }
            assert!(tree.removed_labels() == shared.len() && tree.is_valid(8));
            assert_eq!(tree.take_common_prefix(&mut nodes), []);
        }
    }
}
