//! Splits a text into pieces by merging adjacent symbols.
//!
//! This is byte-pair encoding over characters.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::model_file::{Algorithm, PieceRole};
use super::{Segment, SentencePiece};

/// A run of characters that is merged into one piece so far; empty if it was merged into another.
struct Symbol {
    begin: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
    /// Whether this is a user-defined piece, which is never merged.
    is_frozen: bool,
}

/// A possible merge of a symbol with the next one.
#[derive(PartialEq, Eq)]
struct SymbolMerge {
    priority: Priority,
    left: Reverse<usize>,
    right: usize,
    /// Length of the merged symbol; another one if either was merged meanwhile.
    length: usize,
}

/// The score of the piece that a merge creates.
#[derive(Clone, Copy)]
struct Priority(f32);

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Priority {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Priority {}

impl Ord for SymbolMerge {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |merge: &SymbolMerge| (merge.priority, merge.left, merge.length, merge.right);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for SymbolMerge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SentencePiece {
    /// Merges the characters of a normalized text.
    ///
    /// The merge with the highest score is first, ties from left to right. Unused pieces are split
    /// again into the symbols that they were merged from. For models of characters, nothing is
    /// merged.
    ///
    /// Cost: O(n log n) time, O(n) memory.
    pub(super) fn merge_pieces<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut symbols = self.initial_symbols(text);
        let (mut merges, mut unused_splits) = (BinaryHeap::new(), HashMap::new());
        let mut add_merge =
            |symbols: &[Symbol], merges: &mut BinaryHeap<SymbolMerge>, left: usize, right: usize| {
                let (first, second) = (&symbols[left], &symbols[right]);
                let merged = &text[first.begin..second.end];
                let id = self.ordinary.id(merged).filter(|_| !first.is_frozen && !second.is_frozen);
                let Some(piece) = id.map(|id| &self.pieces[id as usize]) else { return };
                if piece.role == PieceRole::Unused {
                    unused_splits.insert(merged, first.end - first.begin);
                }
                // Adding 0 makes a negative zero positive.
                let priority = Priority(piece.score + 0.0);
                merges.push(SymbolMerge { priority, left: Reverse(left), right, length: merged.len() });
            };
        if self.algorithm == Algorithm::BytePairs {
            (1..symbols.len()).for_each(|right| add_merge(&symbols, &mut merges, right - 1, right));
        }
        while let Some(SymbolMerge { left: Reverse(left), right, length, .. }) = merges.pop() {
            let is_current = [left, right].iter().all(|&i| symbols[i].begin < symbols[i].end)
                && symbols[right].end - symbols[left].begin == length;
            if !is_current {
                continue;
            }
            let next = symbols[right].next;
            symbols[left].end = symbols[right].end;
            symbols[left].next = next;
            symbols[right].begin = symbols[right].end;
            if let Some(previous) = symbols[left].previous {
                add_merge(&symbols, &mut merges, previous, left);
            }
            if let Some(next) = next {
                symbols[next].previous = Some(left);
                add_merge(&symbols, &mut merges, left, next);
            }
        }
        let merged = symbols.iter().filter(|symbol| symbol.begin < symbol.end);
        let mut segments = Vec::new();
        // The rest of a symbol that is split again is on the stack.
        let mut stack = Vec::new();
        for symbol in merged {
            stack.push(&text[symbol.begin..symbol.end]);
            while let Some(part) = stack.pop() {
                let id = self.piece_id(part);
                match unused_splits.get(part).filter(|_| self.pieces[id as usize].role == PieceRole::Unused) {
                    Some(&length) => stack.extend([&part[length..], &part[..length]]),
                    None => segments.push((part, id)),
                }
            }
        }
        segments
    }

    /// Returns the characters and user-defined pieces of a text.
    fn initial_symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut begin = 0;
        while let Some(first) = text[begin..].chars().next() {
            let user_defined = self.normalizer.user_defined_prefix(&text[begin..]);
            let end = begin + user_defined.unwrap_or(first.len_utf8());
            let index = symbols.len();
            if let Some(last) = symbols.last_mut() {
                last.next = Some(index);
            }
            symbols.push(Symbol {
                begin,
                end,
                previous: index.checked_sub(1),
                next: None,
                is_frozen: user_defined.is_some(),
            });
            begin = end;
        }
        symbols
    }
}
