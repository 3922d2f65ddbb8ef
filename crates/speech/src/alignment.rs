//! Which unit of a hypothesis stands for which of the reference.

mod bit_parallel;

use std::collections::HashMap;
use std::hash::Hash;

/// One step of an alignment, with places in reference and hypothesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The same unit in both.
    Match(usize, usize),
    /// A unit of the reference became another.
    Substitution(usize, usize),
    /// A unit of the reference is missing.
    Deletion(usize),
    /// A unit of the hypothesis is out of nowhere.
    Insertion(usize),
}

/// The alignment with the fewest errors, from the front to the end; its counts are those of [`crate::error_counts`], ties included.
///
/// `e[i, j] = min(e[i-1, j-1] + (r_i != h_j), e[i-1, j] + 1, e[i, j-1] + 1)` (Levenshtein), traced back from the end. Where several
/// give the minimum, the first of match or substitution, deletion, insertion is taken.
///
/// Cost: O(N M / 64) time for N and M units; at most about 64 MiB of memory in addition to O(N + M).
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
            let next = ids.len() as u32;
            *ids.entry(unit).or_insert(next)
        };
        units.iter().map(id).collect::<Vec<u32>>()
    });
    bit_parallel::edits(&reference, &hypothesis, ids.len())
}
