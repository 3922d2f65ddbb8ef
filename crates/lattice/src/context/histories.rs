//! Pruned n-gram contexts, which remember the label histories of a list.
use std::collections::HashMap;

use super::NextStateTable;
use crate::{Error, Result};

/// Returns the histories of the states of [`NextStateTable::from_histories`].
///
/// They are the given strings and all their prefixes, each once, ordered by length, then
/// lexicographically, oldest label first. State 0 is the empty string.
///
/// # Errors
/// A label out of range; the error reports the index of the string as the utterance.
pub fn histories(vocabulary: usize, strings: &[Vec<u32>]) -> Result<Vec<Vec<u32>>> {
    let mut prefixes = vec![&[][..]];
    for (utterance, string) in strings.iter().enumerate() {
        if let Some(position) = string.iter().position(|&label| label == 0 || label as usize > vocabulary) {
            let label = string[position].into();
            return Err(Error::Label { utterance, position, vocabulary, found: label });
        }
        prefixes.extend((1..=string.len()).map(|length| &string[..length]));
    }
    prefixes.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    prefixes.dedup();
    Ok(prefixes.into_iter().map(<[u32]>::to_vec).collect())
}

impl NextStateTable {
    /// Creates a pruned n-gram from its histories, oldest label first.
    ///
    /// A state is the longest suffix of the label sequence that is one of the histories or a prefix
    /// of one. A pruned language model has far fewer histories than a full n-gram has states.
    ///
    /// ```text
    /// δ(h, y) = the longest suffix of h y among the states
    /// ```
    /// With all strings of length n it equals [`FullNGram`](super::FullNGram), state by state;
    /// [`histories`] lists the history of each state. (Aho and Corasick 1975; prefixes are states
    /// so that every history can be reached.)
    ///
    /// ```
    /// use lattice::{Context, NextStateTable, context};
    /// let pruned = NextStateTable::from_histories(3, &[vec![1, 2], vec![3]])?; // "", 1, 3, 1 2
    /// assert_eq!(context::walk_states(&pruned, &[3, 1, 2, 2])?, [0, 2, 1, 3, 0]);
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// No labels, a label out of range, or more than 2^31 states.
    ///
    /// # Cost
    /// O(C V + the total length of all strings).
    pub fn from_histories(vocabulary: usize, strings: &[Vec<u32>]) -> Result<Self> {
        let states = histories(vocabulary, strings)?;
        let state_of_history: HashMap<&[u32], usize> = states.iter().map(Vec::as_slice).zip(0..).collect();
        let mut table: Vec<i64> = Vec::with_capacity(states.len().saturating_mul(vocabulary));
        // State of the longest proper suffix of each history; suffixes come first.
        let mut suffix_states = vec![0usize; states.len()];
        for (state, history) in states.iter().enumerate() {
            if let [prefix @ .., last_label] = &history[..] {
                let parent = state_of_history[prefix];
                if parent > 0 {
                    suffix_states[state] =
                        table[suffix_states[parent] * vocabulary + *last_label as usize - 1] as usize;
                }
            }
            let fallback_row = suffix_states[state] * vocabulary;
            let mut extended = history.clone();
            for label in 1..=vocabulary {
                extended.push(label as u32);
                let next = match state_of_history.get(&extended[..]) {
                    Some(&next) => next as i64,
                    None if state == 0 => 0,
                    None => table[fallback_row + label - 1],
                };
                table.push(next);
                extended.pop();
            }
        }
        Self::new(&table, states.len(), vocabulary)
    }
}
