//! The full n-gram context: the last n labels.
use super::{Context, NextStates};
use crate::{Error, Result};

/// The context of the last n labels; its states are all strings of 0 to n labels.
///
/// States are ordered by length, then lexicographically, oldest label first.
///
/// ```text
/// O = Σ_{i<n} V^i                                       states shorter than n
/// δ(p, y) = p V + y                                     p < O
/// δ(p, y) = O + ((p - O) mod V^(n-1)) V + (y - 1)       p >= O
/// ```
/// (Variani et al., arXiv 2205.13674; LAST, arXiv 2304.13134.)
///
/// ```
/// use lattice::{Context, FullNGram, context};
/// let bigrams = FullNGram::new(3, 2)?;
/// assert_eq!(bigrams.states(), 1 + 3 + 9);
/// assert_eq!(context::walk_states(&bigrams, &[2, 3, 1])?, [0, 2, 9, 10]);
/// # Ok::<(), lattice::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullNGram {
    vocabulary: usize,
    order: usize,
    states: usize,
    /// O, the number of histories with fewer than n labels.
    shorter: usize,
    /// V^(n-1), the number of distinct suffixes of full strings.
    suffixes: usize,
}

impl FullNGram {
    /// A context of at most `order` labels out of 1 to `vocabulary`.
    ///
    /// # Errors
    /// No labels, or more than 2^31 states.
    pub fn new(vocabulary: usize, order: usize) -> Result<Self> {
        if vocabulary == 0 {
            return Err(Error::shape("vocabulary", "at least 1 label", 0));
        }
        let limit = 1 << 31;
        let (mut shorter, mut full) = (0usize, 1usize);
        for _ in 0..order {
            shorter += full;
            full = full.saturating_mul(vocabulary);
            if shorter + full.min(limit) > limit {
                let states = format!("Σ {vocabulary}^i for i = 0 to {order}");
                return Err(Error::States { argument: "order", limit, found: states });
            }
        }
        let suffixes = full / if order == 0 { 1 } else { vocabulary };
        Ok(Self { vocabulary, order, states: shorter + full, shorter, suffixes })
    }

    /// n, the order of the n-gram.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Returns the labels of a state's history, oldest first.
    ///
    /// # Panics
    /// If the state does not exist.
    pub fn history(&self, state: usize) -> Vec<usize> {
        assert!(state < self.states, "`state`: expected a state below {}, found {state}", self.states);
        let (mut below, mut count, mut length) = (0, 1, 0);
        while state >= below + count {
            (below, count, length) = (below + count, count * self.vocabulary, length + 1);
        }
        let mut rest = state - below;
        let mut labels = vec![0; length];
        for label in labels.iter_mut().rev() {
            (*label, rest) = (rest % self.vocabulary + 1, rest / self.vocabulary);
        }
        labels
    }

    fn first(&self, state: usize) -> usize {
        match state.checked_sub(self.shorter) {
            None => state * self.vocabulary + 1,
            Some(full) => self.shorter + full % self.suffixes * self.vocabulary,
        }
    }
}

impl Context for FullNGram {
    fn states(&self) -> usize {
        self.states
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn next_state(&self, state: usize, label: usize) -> usize {
        assert!(
            state < self.states && label <= self.vocabulary,
            "state {state} or label {label} does not exist"
        );
        match (label, self.order) {
            (0, _) => state,
            (_, 0) => 0,
            _ => self.first(state) + label - 1,
        }
    }

    fn next_states(&self, state: usize) -> NextStates<'_> {
        if self.order == 0 { NextStates::Same(0) } else { NextStates::Run(self.first(state)) }
    }
}
