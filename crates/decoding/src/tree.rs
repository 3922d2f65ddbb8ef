//! Labels of an utterance's hypotheses as a tree: what they share is kept once.
use serde::{Deserialize, Serialize};

use crate::DecodedToken;

/// The node before any label.
pub(crate) const ROOT: u32 = u32::MAX;
/// Nodes above which it pays to look for dead ones.
const FEW: usize = 256;

/// A label behind its parent's.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LabelNode {
    parent: u32,
    emitted: DecodedToken,
    sequence: Sequence,
}

/// What tells most label sequences apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Sequence {
    pub len: usize,
    pub hash: u64,
}

impl Sequence {
    pub fn then(self, label: u32) -> Self {
        let mixed = (self.hash ^ u64::from(label)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { len: self.len.saturating_add(1), hash: mixed ^ (mixed >> 29) }
    }
}

/// Nodes in the order in which they came: parents before children.
///
/// Several nodes may stand for the same labels, with other times. Hypotheses hold nodes; what no hypothesis leads to is dead, and
/// [`Tree::sweep`] takes it out.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tree {
    nodes: Vec<LabelNode>,
    /// Labels before the root, which all hypotheses share and somebody has taken.
    taken: Sequence,
    /// Nodes after the last sweep.
    #[serde(skip)]
    live: usize,
    #[serde(skip)]
    moved: Vec<u32>,
}

impl Tree {
    pub fn clear(&mut self) {
        self.nodes.clear();
        (self.taken, self.live) = (Sequence::default(), 0);
    }

    pub fn clone_from(&mut self, other: &Tree) {
        self.nodes.clone_from(&other.nodes);
        (self.taken, self.live) = (other.taken, other.live);
    }

    pub fn push(&mut self, parent: u32, emitted: DecodedToken) -> u32 {
        let sequence = self.sequence(parent).then(emitted.label);
        self.nodes.push(LabelNode { parent, emitted, sequence });
        (self.nodes.len() - 1) as u32
    }

    pub fn sequence(&self, node: u32) -> Sequence {
        self.nodes.get(node as usize).map_or(self.taken, |node| node.sequence)
    }

    /// The last label and the node before it; none at the root.
    pub fn last(&self, node: u32) -> Option<(u32, u32)> {
        self.nodes.get(node as usize).map(|node| (node.emitted.label, node.parent))
    }

    /// Whether two nodes stand for the same labels.
    pub fn same(&self, mut a: u32, mut b: u32) -> bool {
        if self.sequence(a) != self.sequence(b) {
            return false;
        }
        // A hash may be wrong.
        while a != b {
            match (self.last(a), self.last(b)) {
                (Some((label, above)), Some((other, beside))) if label == other => (a, b) = (above, beside),
                _ => return false,
            }
        }
        true
    }

    /// Whether a node stands for the labels of another and one more.
    pub fn is_child(&self, node: u32, parent: u32, label: u32) -> bool {
        self.sequence(node) == self.sequence(parent).then(label)
            && self.last(node).is_some_and(|(last, above)| last == label && self.same(above, parent))
    }

    /// The labels behind the root that a node stands for.
    pub fn labels(&self, node: u32) -> Vec<DecodedToken> {
        let mut labels = Vec::with_capacity(self.sequence(node).len - self.taken.len);
        let mut at = node;
        while let Some(node) = self.nodes.get(at as usize) {
            labels.push(node.emitted);
            at = node.parent;
        }
        labels.reverse();
        labels
    }

    /// Whether there may be more dead nodes than live ones.
    pub fn is_overgrown(&self) -> bool {
        self.nodes.len() > 2 * self.live + FEW
    }

    /// Begins a sweep: marks come next.
    pub fn unmark(&mut self) {
        self.moved.clear();
        self.moved.resize(self.nodes.len(), 0);
    }

    /// Says that a hypothesis holds a node.
    pub fn mark(&mut self, mut node: u32) {
        while let Some(mark) = self.moved.get_mut(node as usize)
            && *mark == 0
        {
            *mark = 1;
            node = self.nodes[node as usize].parent;
        }
    }

    /// Takes out what is not marked; [`Tree::moved`] says where a marked node has gone.
    pub fn sweep(&mut self) {
        let mut kept = 0;
        for at in 0..self.nodes.len() {
            if self.moved[at] == 1 {
                self.nodes.swap(kept, at);
                let parent = self.nodes[kept].parent;
                self.nodes[kept].parent = self.moved(parent);
                self.moved[at] = kept as u32;
                kept += 1;
            }
        }
        self.nodes.truncate(kept);
        self.live = kept;
    }

    pub fn moved(&self, node: u32) -> u32 {
        self.moved.get(node as usize).copied().unwrap_or(ROOT)
    }

    /// Takes the labels out that lead to all of some nodes, in their order; they stand before the root then.
    pub fn take_shared(&mut self, nodes: &mut [u32]) -> Vec<DecodedToken> {
        self.unmark();
        nodes.iter().for_each(|&node| self.mark(node));
        self.sweep();
        nodes.iter_mut().for_each(|node| *node = self.moved(*node));
        let mut children = vec![0; self.nodes.len()];
        for node in &self.nodes {
            if let Some(count) = children.get_mut(node.parent as usize) {
                *count += 1;
            }
        }
        // Every leaf is held, so that a chain of only children from node 0 on leads to all of them.
        let alone =
            self.nodes.iter().filter(|node| node.parent == ROOT).count() == 1 && !nodes.contains(&ROOT);
        let mut shared = Vec::new();
        let mut next = alone.then_some(0);
        while let Some(at) = next {
            shared.push(self.nodes[at].emitted);
            self.taken = self.nodes[at].sequence;
            let goes_on = children[at] == 1 && !nodes.contains(&(at as u32));
            next = goes_on.then(|| self.nodes.iter().position(|node| node.parent == at as u32)).flatten();
            let before = at as u32;
            if next.is_none() {
                nodes.iter_mut().filter(|node| **node == before).for_each(|node| *node = ROOT);
                self.nodes
                    .iter_mut()
                    .filter(|node| node.parent == before)
                    .for_each(|node| node.parent = ROOT);
            }
        }
        if !shared.is_empty() {
            self.unmark();
            nodes.iter().for_each(|&node| self.mark(node));
            self.sweep();
            nodes.iter_mut().for_each(|node| *node = self.moved(*node));
        }
        shared
    }

    /// The node that stands for the first so many labels of another, or that one if it has no more.
    pub fn above(&self, mut node: u32, labels: usize) -> u32 {
        while self.sequence(node).len > labels {
            node = self.nodes[node as usize].parent;
        }
        node
    }

    /// Takes the labels out that lead to a node, from others that begin with the same; they stand before the root then.
    pub fn take_to(&mut self, goal: u32, nodes: &mut [u32]) -> Vec<DecodedToken> {
        let (taken, labels) = (self.sequence(goal), self.labels(goal));
        for node in &mut *nodes {
            match self.above(*node, taken.len + 1) {
                // There may be several nodes of the same labels.
                next if self.sequence(next).len > taken.len => self.nodes[next as usize].parent = ROOT,
                _ => *node = ROOT,
            }
        }
        self.taken = taken;
        self.unmark();
        nodes.iter().for_each(|&node| self.mark(node));
        self.sweep();
        nodes.iter_mut().for_each(|node| *node = self.moved(*node));
        labels
    }

    /// Whether a tree that came from outside is one, with labels below a limit.
    pub fn is_sound(&self, labels: usize) -> bool {
        self.nodes.iter().enumerate().all(|(at, node)| {
            let parent = node.parent == ROOT || (node.parent as usize) < at;
            let label = node.emitted.label;
            parent && (label as usize) < labels && node.sequence == self.sequence(node.parent).then(label)
        })
    }

    /// Whether a node is there, or the root.
    pub fn has(&self, node: u32) -> bool {
        node == ROOT || (node as usize) < self.nodes.len()
    }

    /// Labels before the root.
    pub fn taken(&self) -> usize {
        self.taken.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(tree: &mut Tree, parent: u32, labels: &[u32]) -> u32 {
        labels.iter().fold(parent, |parent, &label| {
            tree.push(parent, DecodedToken { label, ..DecodedToken::default() })
        })
    }

    fn ids(tree: &Tree, node: u32) -> Vec<u32> {
        tree.labels(node).iter().map(|emitted| emitted.label).collect()
    }

    #[test]
    fn equal_labels_are_equal_wherever_they_stand_and_a_hash_alone_is_not_believed() {
        let mut tree = Tree::default();
        let (a, b) = (grown(&mut tree, ROOT, &[3, 1, 2]), grown(&mut tree, ROOT, &[3, 1, 2]));
        let shorter = grown(&mut tree, ROOT, &[3, 1]);
        assert!(tree.same(a, b) && !tree.same(a, shorter) && tree.is_child(a, shorter, 2));
        assert!(!tree.is_child(a, shorter, 1) && !tree.is_child(shorter, a, 2));
        let other = grown(&mut tree, ROOT, &[7, 1, 2]);
        assert!(!tree.same(a, other));
        // A collision.
        for node in &mut tree.nodes {
            node.sequence.hash = 0;
        }
        assert!(tree.same(a, b) && !tree.same(a, other));
    }

    #[test]
    fn what_nobody_holds_goes_and_the_rest_stays_the_same() {
        let mut tree = Tree::default();
        let trunk = grown(&mut tree, ROOT, &[1, 2]);
        let dead = grown(&mut tree, trunk, &[9, 9]);
        let (mut a, mut b) = (grown(&mut tree, trunk, &[3]), grown(&mut tree, trunk, &[4, 5]));
        assert_eq!(ids(&tree, dead), [1, 2, 9, 9]);
        tree.unmark();
        [a, b].into_iter().for_each(|node| tree.mark(node));
        tree.sweep();
        (a, b) = (tree.moved(a), tree.moved(b));
        assert_eq!((ids(&tree, a), ids(&tree, b), tree.nodes.len()), (vec![1, 2, 3], vec![1, 2, 4, 5], 5));
        assert!(tree.is_sound(6) && !tree.is_sound(5) && tree.moved(ROOT) == ROOT);
    }

    #[test]
    fn labels_are_taken_from_all_that_begin_with_them_wherever_they_stand() {
        let mut tree = Tree::default();
        // The same two labels in chains of their own.
        let (a, b) = (grown(&mut tree, ROOT, &[1, 2, 3]), grown(&mut tree, ROOT, &[1, 2]));
        let c = grown(&mut tree, b, &[4, 5]);
        let dead = grown(&mut tree, ROOT, &[7]);
        assert_eq!(ids(&tree, dead), [7]);
        assert_eq!((tree.above(a, 2), tree.above(c, 9), tree.above(c, 0)), (1, c, ROOT));
        let mut nodes = [a, b, c];
        let taken: Vec<u32> = tree.take_to(b, &mut nodes).iter().map(|emitted| emitted.label).collect();
        assert_eq!((taken, tree.taken()), (vec![1, 2], 2));
        assert_eq!(nodes.map(|node| ids(&tree, node)), [vec![3], vec![], vec![4, 5]]);
        assert!(tree.is_sound(6) && tree.nodes.len() == 3);
        assert!(tree.take_to(ROOT, &mut nodes).is_empty() && tree.taken() == 2);
        assert_eq!(nodes.map(|node| ids(&tree, node)), [vec![3], vec![], vec![4, 5]]);
        let [a, ..] = nodes;
        assert_eq!((tree.take_to(a, &mut [a]).len(), tree.taken(), tree.nodes.len()), (1, 3, 0));
    }

    #[test]
    fn labels_that_all_share_are_taken_once() {
        for (held, shared) in [
            (vec![vec![1, 2, 3], vec![1, 2, 4]], vec![1, 2]),
            (vec![vec![1, 2, 3], vec![1, 2]], vec![1, 2]),
            (vec![vec![1, 2, 3], vec![]], vec![]),
            (vec![vec![1, 2], vec![2, 1]], vec![]),
            (vec![vec![5, 6, 7]], vec![5, 6, 7]),
        ] {
            // One node for each prefix.
            let mut tree = Tree::default();
            let mut nodes = Vec::new();
            for labels in &held {
                let mut at = ROOT;
                for &label in labels {
                    let known =
                        (0..tree.nodes.len() as u32).find(|&node| tree.last(node) == Some((label, at)));
                    at = known
                        .unwrap_or_else(|| tree.push(at, DecodedToken { label, ..DecodedToken::default() }));
                }
                nodes.push(at);
            }
            let sequences: Vec<Sequence> = nodes.iter().map(|&node| tree.sequence(node)).collect();
            let taken: Vec<u32> = tree.take_shared(&mut nodes).iter().map(|emitted| emitted.label).collect();
            assert_eq!(taken, shared);
            for ((node, labels), sequence) in nodes.iter().zip(&held).zip(sequences) {
                assert_eq!(ids(&tree, *node), labels[shared.len()..]);
                assert_eq!(tree.sequence(*node), sequence);
            }
            assert!(tree.taken() == shared.len() && tree.is_sound(8));
            assert_eq!(tree.take_shared(&mut nodes), []);
        }
    }
}
