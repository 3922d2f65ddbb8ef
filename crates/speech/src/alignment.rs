//! Word alignment of a hypothesis with a reference (Levenshtein distance).

mod bit_parallel;

use std::collections::HashMap;
use std::hash::Hash;

/// One step of an alignment; the fields are positions in reference and hypothesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Reference and hypothesis have the same unit.
    Match(usize, usize),
    /// The hypothesis has another unit than the reference.
    Substitution(usize, usize),
    /// The hypothesis lacks a unit of the reference.
    Deletion(usize),
    /// The hypothesis has a unit that the reference lacks.
    Insertion(usize),
}

/// Aligns a hypothesis with a reference using the fewest edits, in order.
///
/// `e[i, j] = min(e[i-1, j-1] + (r_i != h_j), e[i-1, j] + 1, e[i, j-1] + 1)` (Levenshtein), traced
/// back from the end. On ties, match or substitution precedes deletion, and deletion precedes
/// insertion. The edit counts, ties included, are those of [`crate::error_counts`].
///
/// Cost: O(N M / 64) time for N and M units; at most about 64 MiB of memory in addition to O(N +
/// M).
///
/// ```
/// use speech::Edit::{Deletion, Match, Substitution};
/// let edits = speech::align(&["a", "b", "c"], &["a", "x"]);
/// assert_eq!(edits, [Match(0, 0), Deletion(1), Substitution(2, 1)]);
/// ```
pub fn align<T: Eq + Hash>(reference: &[T], hypothesis: &[T]) -> Vec<Edit> {
    let mut ids: HashMap<&T, u32> = HashMap::new();
    let [reference, hypothesis] = [reference, hypothesis].map(|units| {
        let id = |unit| {
            let next_id = ids.len() as u32;
            *ids.entry(unit).or_insert(next_id)
        };
        units.iter().map(id).collect::<Vec<u32>>()
    });
    bit_parallel::align(&reference, &hypothesis, ids.len())
}
