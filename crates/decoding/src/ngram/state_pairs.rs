//! `StatePairs`: pairs (trie node, n-gram context) as states of a word n-gram.
//!
//! A node is a prefix of words in the trie of [`WordNgram`](super::WordNgram). A scorer state is a
//! `u32`; there may be more pairs than that.
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Maps pairs (node, context) to numbers.
///
/// If the product of both counts fits into 32 bits, numbers are computed, without memory and locks.
/// Otherwise pairs with context 0 have fixed numbers, and others are registered on first use, up to
/// a limit. Numbers then depend on the order of registration, but the pair of a number does not
/// change. Beyond the limit a pair has the number of its node with context 0.
#[derive(Debug)]
pub(super) struct StatePairs {
    /// Number of nodes.
    nodes: u32,
    /// Number of contexts.
    contexts: u32,
    /// Pairs that were used; none if numbers are computed.
    registry: Option<PairRegistry>,
}

/// Pairs that are registered on first use.
#[derive(Debug)]
struct PairRegistry {
    /// Largest number of registered pairs.
    limit: usize,
    registered_pairs: RwLock<RegisteredPairs>,
}

/// Numbers of the registered pairs.
#[derive(Debug, Default)]
struct RegisteredPairs {
    /// Number of each pair.
    numbers: HashMap<(u32, u32), u32>,
    /// Pairs in the order of their numbers.
    pairs: Vec<(u32, u32)>,
    /// Look-ups of a pair beyond the limit.
    rejected_lookups: u64,
}

impl StatePairs {
    /// Computes numbers if they fit into 32 bits; otherwise registers `limit` pairs.
    pub(super) fn new(nodes: u32, contexts: u32, limit: usize) -> Self {
        match u64::from(nodes) * u64::from(contexts) <= 1 << 32 {
            true => Self { nodes, contexts, registry: None },
            false => Self::with_registry(nodes, contexts, limit),
        }
    }

    /// Registers pairs on first use.
    pub(super) fn with_registry(nodes: u32, contexts: u32, limit: usize) -> Self {
        let limit = limit.min((u32::MAX - nodes) as usize);
        Self { nodes, contexts, registry: Some(PairRegistry { limit, registered_pairs: RwLock::default() }) }
    }

    /// The number of a pair.
    pub(super) fn number(&self, node: u32, context: u32) -> u32 {
        let Some(registry) = &self.registry else { return context * self.nodes + node };
        if context == 0 {
            return node;
        }
        let pair = (node, context);
        // Writers cannot panic, so that a poisoned lock is still consistent.
        if let Some(&number) =
            registry.registered_pairs.read().unwrap_or_else(PoisonError::into_inner).numbers.get(&pair)
        {
            return number;
        }
        let mut registered = registry.registered_pairs.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = registered.numbers.get(&pair) {
            return number;
        }
        if registered.pairs.len() == registry.limit {
            registered.rejected_lookups += 1;
            return node;
        }
        let number = self.nodes + registered.pairs.len() as u32;
        registered.pairs.push(pair);
        registered.numbers.insert(pair, number);
        number
    }

    /// The pair of a number; (0, 0) for an unknown number.
    pub(super) fn pair(&self, number: u32) -> (u32, u32) {
        let pair = match &self.registry {
            None => (number % self.nodes, number / self.nodes),
            Some(_) if number < self.nodes => (number, 0),
            Some(registry) => {
                let registered = registry.registered_pairs.read().unwrap_or_else(PoisonError::into_inner);
                registered.pairs.get((number - self.nodes) as usize).copied().unwrap_or_default()
            }
        };
        if pair.1 < self.contexts { pair } else { (0, 0) }
    }

    /// Number of lookups of a pair beyond the limit.
    pub(super) fn rejected_lookups(&self) -> u64 {
        let lookups_of = |registry: &PairRegistry| {
            registry.registered_pairs.read().unwrap_or_else(PoisonError::into_inner).rejected_lookups
        };
        self.registry.as_ref().map_or(0, lookups_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_map_back_to_their_pairs() {
        // Computed; registered; registered with too small a limit.
        for (nodes, contexts, limit, capacity) in
            [(7, 5, 0, 35), (1 << 20, 1 << 20, 1000, 1000), (1 << 20, 1 << 20, 3, 3)]
        {
            let pairs = StatePairs::new(nodes, contexts, limit);
            let mut numbered_pairs = 0;
            for i in 0..35 {
                let pair = (i % 7, i / 7);
                let number = pairs.number(pair.0, pair.1);
                assert_eq!(number, pairs.number(pair.0, pair.1));
                let returned = pairs.pair(number);
                assert!(returned == pair || returned == (pair.0, 0), "{pair:?} {returned:?}");
                numbered_pairs += usize::from(returned == pair);
            }
            assert_eq!(numbered_pairs, 35.min(capacity + 7), "{nodes} {limit}");
            assert_eq!(pairs.rejected_lookups() > 0, capacity == 3);
            assert_eq!(pairs.pair(u32::MAX), (0, 0));
        }
    }
}
