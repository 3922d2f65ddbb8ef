//! Which unit of a hypothesis stands for which of the reference.

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
/// Cost: O(N M) time and memory for N and M units.
///
/// ```
/// use speech::Edit::{Deletion, Match, Substitution};
/// let edits = speech::alignment(&["a", "b", "c"], &["a", "x"]);
/// assert_eq!(edits, [Match(0, 0), Deletion(1), Substitution(2, 1)]);
/// ```
pub fn alignment<T: PartialEq>(reference: &[T], heard: &[T]) -> Vec<Edit> {
    let wide = heard.len() + 1;
    // errors[i * wide + j]: of the first i units against the first j heard.
    let mut errors = vec![0u32; (reference.len() + 1) * wide];
    errors[..wide].iter_mut().zip(0..).for_each(|(of_none, j)| *of_none = j);
    for i in 1..=reference.len() {
        errors[i * wide] = i as u32;
        for j in 1..wide {
            let wrong = u32::from(reference[i - 1] != heard[j - 1]);
            let diagonal = errors[(i - 1) * wide + j - 1] + wrong;
            let above = errors[(i - 1) * wide + j] + 1;
            errors[i * wide + j] = diagonal.min(above).min(errors[i * wide + j - 1] + 1);
        }
    }
    let (mut i, mut j, mut edits) = (reference.len(), heard.len(), Vec::new());
    while i > 0 || j > 0 {
        let here = errors[i * wide + j];
        let same = i > 0 && j > 0 && reference[i - 1] == heard[j - 1];
        if i > 0 && j > 0 && errors[(i - 1) * wide + j - 1] + u32::from(!same) == here {
            (i, j) = (i - 1, j - 1);
            edits.push(if same { Edit::Match(i, j) } else { Edit::Substitution(i, j) });
        } else if i > 0 && errors[(i - 1) * wide + j] + 1 == here {
            i -= 1;
            edits.push(Edit::Deletion(i));
        } else {
            j -= 1;
            edits.push(Edit::Insertion(j));
        }
    }
    edits.reverse();
    edits
}
