//! Pruned n-grams: contexts that remember a given list of histories.
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
    let mut all = vec![&[][..]];
    for (utterance, string) in strings.iter().enumerate() {
        if let Some(position) = string.iter().position(|&label| label == 0 || label as usize > vocabulary) {
            let label = string[position].into();
            return Err(Error::Label { utterance, position, vocabulary, found: label });
        }
        all.extend((1..=string.len()).map(|length| &string[..length]));
    }
    all.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    all.dedup();
    Ok(all.into_iter().map(<[u32]>::to_vec).collect())
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
        let number: HashMap<&[u32], usize> = states.iter().map(Vec::as_slice).zip(0..).collect();
        let mut table: Vec<i64> = Vec::with_capacity(states.len().saturating_mul(vocabulary));
        // The longest shorter suffix of each state that is a state; suffixes come before.
        let mut shorter = vec![0usize; states.len()];
        for (state, history) in states.iter().enumerate() {
            if let [before @ .., last] = &history[..] {
                let parent = number[before];
                if parent > 0 {
                    shorter[state] = table[shorter[parent] * vocabulary + *last as usize - 1] as usize;
                }
            }
            let fallback = shorter[state] * vocabulary;
            let mut longer = history.clone();
            for label in 1..=vocabulary {
                longer.push(label as u32);
                let next = match number.get(&longer[..]) {
                    Some(&next) => next as i64,
                    None if state == 0 => 0,
                    None => table[fallback + label - 1],
                };
                table.push(next);
                longer.pop();
            }
        }
        Self::new(&table, states.len(), vocabulary)
    }
}
