//! States of two automata in one number.
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Numbers of pairs (node, context).
///
/// Where the product fits into 32 bits a pair's number is computed: nothing is kept and nothing is locked. Else the pairs with context 0
/// have numbers of their own from the start, and others get theirs when they are first met, up to a limit. Numbers
/// then depend on who came first, but what they stand for does not. Beyond the limit a pair is numbered as that of its node with context 0.
#[derive(Debug)]
pub(super) struct Pairs {
    nodes: u32,
    contexts: u32,
    met: Option<Met>,
}

#[derive(Debug)]
struct Met {
    limit: usize,
    known: RwLock<SeenPairs>,
}

#[derive(Debug, Default)]
struct SeenPairs {
    numbers: HashMap<(u32, u32), u32>,
    pairs: Vec<(u32, u32)>,
    refused: u64,
}

impl Pairs {
    /// `limit` pairs are kept at most, where pairs have to be kept.
    pub fn new(nodes: u32, contexts: u32, limit: usize) -> Self {
        match u64::from(nodes) * u64::from(contexts) <= 1 << 32 {
            true => Self { nodes, contexts, met: None },
            false => Self::kept(nodes, contexts, limit),
        }
    }

    /// Pairs that are kept.
    pub fn kept(nodes: u32, contexts: u32, limit: usize) -> Self {
        let limit = limit.min((u32::MAX - nodes) as usize);
        Self { nodes, contexts, met: Some(Met { limit, known: RwLock::default() }) }
    }

    /// The number of a pair.
    pub fn number(&self, node: u32, context: u32) -> u32 {
        let Some(met) = &self.met else { return context * self.nodes + node };
        if context == 0 {
            return node;
        }
        let pair = (node, context);
        // Nothing can panic while it is written.
        if let Some(&number) = met.known.read().unwrap_or_else(PoisonError::into_inner).numbers.get(&pair) {
            return number;
        }
        let mut known = met.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(&pair) {
            return number;
        }
        if known.pairs.len() == met.limit {
            known.refused += 1;
            return node;
        }
        let number = self.nodes + known.pairs.len() as u32;
        known.pairs.push(pair);
        known.numbers.insert(pair, number);
        number
    }

    /// The pair of a number; (0, 0) of one that was never given.
    pub fn pair(&self, number: u32) -> (u32, u32) {
        let pair = match &self.met {
            None => (number % self.nodes, number / self.nodes),
            Some(_) if number < self.nodes => (number, 0),
            Some(met) => {
                let known = met.known.read().unwrap_or_else(PoisonError::into_inner);
                known.pairs.get((number - self.nodes) as usize).copied().unwrap_or_default()
            }
        };
        if pair.1 < self.contexts { pair } else { (0, 0) }
    }

    /// How many times a pair was refused its number.
    pub fn refused(&self) -> u64 {
        let refused = |met: &Met| met.known.read().unwrap_or_else(PoisonError::into_inner).refused;
        self.met.as_ref().map_or(0, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back() {
        // Computed; kept; kept without room.
        for (nodes, contexts, limit, room) in
            [(7, 5, 0, 35), (1 << 20, 1 << 20, 1000, 1000), (1 << 20, 1 << 20, 3, 3)]
        {
            let pairs = Pairs::new(nodes, contexts, limit);
            let mut kept = 0;
            for i in 0..35 {
                let pair = (i % 7, i / 7);
                let number = pairs.number(pair.0, pair.1);
                assert_eq!(number, pairs.number(pair.0, pair.1));
                let back = pairs.pair(number);
                assert!(back == pair || back == (pair.0, 0), "{pair:?} {back:?}");
                kept += usize::from(back == pair);
            }
            assert_eq!(kept, 35.min(room + 7), "{nodes} {limit}");
            assert_eq!(pairs.refused() > 0, room == 3);
            assert_eq!(pairs.pair(u32::MAX), (0, 0));
        }
    }
}
