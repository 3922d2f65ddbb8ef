//! Full n-gram context of a recognition lattice: the last n labels.
use super::{Context, MAX_STATES, NextStates};
use crate::{Error, Result};

/// The context of the last n labels; its states are all strings of 0 to n labels.
///
/// States are ordered by length, then lexicographically, oldest label first.
///
/// ```text
/// V labels y; states p; δ(p, y): next state
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
    shorter_states: usize,
    /// V^(n-1), the number of distinct suffixes of full strings.
    suffix_count: usize,
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
        let (mut shorter_states, mut full_states) = (0usize, 1usize);
        for _ in 0..order {
            shorter_states += full_states;
            full_states = full_states.saturating_mul(vocabulary);
            if shorter_states + full_states.min(MAX_STATES) > MAX_STATES {
                let states = format!("Σ {vocabulary}^i for i = 0 to {order}");
                return Err(Error::States { argument: "order", limit: MAX_STATES, found: states });
            }
        }
        let suffix_count = full_states / if order == 0 { 1 } else { vocabulary };
        Ok(Self { vocabulary, order, states: shorter_states + full_states, shorter_states, suffix_count })
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
        let (mut shorter_states, mut states_of_length, mut length) = (0, 1, 0);
        while state >= shorter_states + states_of_length {
            (shorter_states, states_of_length, length) =
                (shorter_states + states_of_length, states_of_length * self.vocabulary, length + 1);
        }
        // The labels are the digits of the state's index among the states of equal length.
        let mut code = state - shorter_states;
        let mut labels = vec![0; length];
        for label in labels.iter_mut().rev() {
            (*label, code) = (code % self.vocabulary + 1, code / self.vocabulary);
        }
        labels
    }

    /// Returns the target of label 1.
    fn first_next_state(&self, state: usize) -> usize {
        match state.checked_sub(self.shorter_states) {
            None => state * self.vocabulary + 1,
            Some(full) => self.shorter_states + full % self.suffix_count * self.vocabulary,
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
            _ => self.first_next_state(state) + label - 1,
        }
    }

    fn next_states(&self, state: usize) -> NextStates<'_> {
        if self.order == 0 { NextStates::Same(0) } else { NextStates::Run(self.first_next_state(state)) }
    }
}
