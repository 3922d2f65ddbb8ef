//! Bit-parallel Levenshtein alignment: 64 reference units at a time.
//!
//! Myers 1999, "A fast bit-vector algorithm for approximate string matching based on dynamic
//! programming", in blocks as by Hyyrö 2003. `e[i, j]` is the number of errors of the first `i`
//! reference units against the first `j` hypothesis units. A *strip* is 64 rows of that table; each
//! column stores the signs of its differences as bits.

use super::Edit;

/// Rows of a strip.
const ROWS: usize = 64;
/// Bytes of rows saved for the traceback; beyond this limit, rows are recomputed.
const MAX_SAVED_BYTES: usize = 64 << 20;

/// Signs of `e[i, j] - e[i, j-1]` for one `i`; bit `j % 64` of word `j / 64` is column `j + 1`.
#[derive(Clone)]
struct BitRow {
    plus: Vec<u64>,
    minus: Vec<u64>,
}

impl BitRow {
    /// Returns row 0, in which each unit is an insertion.
    fn new(columns: usize) -> Self {
        let words = columns.div_ceil(64);
        Self { plus: vec![!0; words], minus: vec![0; words] }
    }

    /// Replaces the row above a strip by the row below it.
    ///
    /// `visit` receives a column, the bits where `e[i, j] = e[i-1, j-1]`, and the bits where `e[i,
    /// j] = e[i-1, j] + 1`. `masks` has a zero for each unit. Rows beyond the end of a short strip
    /// have no meaning.
    fn advance(
        &mut self,
        strip: &[u32],
        hypothesis: &[u32],
        masks: &mut [u64],
        mut visit: impl FnMut(usize, u64, u64),
    ) {
        for (row, &unit) in strip.iter().enumerate() {
            masks[unit as usize] |= 1 << row;
        }
        // `plus`, `minus`: signs of `e[i, j] - e[i-1, j]` in column j, one bit per row of the
        // strip; `h_plus`, `h_minus`: signs of `e[i, j] - e[i, j-1]`.
        let (mut plus, mut minus) = (!0_u64, 0_u64);
        for (word, units) in hypothesis.chunks(64).enumerate() {
            let (above_plus, above_minus) = (self.plus[word], self.minus[word]);
            let (mut below_plus, mut below_minus) = (0, 0);
            for (bit, &unit) in units.iter().enumerate() {
                let (in_plus, in_minus) = ((above_plus >> bit) & 1, (above_minus >> bit) & 1);
                let equal = masks[unit as usize];
                let vertical = equal | minus;
                let equal = equal | in_minus;
                let horizontal = ((equal & plus).wrapping_add(plus) ^ plus) | equal;
                let (h_plus, h_minus) = (minus | !(horizontal | plus), plus & horizontal);
                below_plus |= (h_plus >> 63) << bit;
                below_minus |= (h_minus >> 63) << bit;
                let (h_plus, h_minus) = (h_plus << 1 | in_plus, h_minus << 1 | in_minus);
                (plus, minus) = (h_minus | !(vertical | h_plus), h_plus & vertical);
                visit(64 * word + bit, horizontal | vertical, plus);
            }
            (self.plus[word], self.minus[word]) = (below_plus, below_minus);
        }
        strip.iter().for_each(|&unit| masks[unit as usize] = 0);
    }
}

/// Returns the alignment with the fewest errors; all units are below `num_units`.
pub(super) fn edits(reference: &[u32], hypothesis: &[u32], num_units: usize) -> Vec<Edit> {
    let strips = reference.len().div_ceil(ROWS);
    let interval = if strips * hypothesis.len() / 4 <= MAX_SAVED_BYTES { 1 } else { strips.isqrt() };
    edits_with(reference, hypothesis, num_units, interval)
}

/// [`edits`] with one saved row in every `interval` strips.
fn edits_with(reference: &[u32], hypothesis: &[u32], num_units: usize, interval: usize) -> Vec<Edit> {
    let strips: Vec<&[u32]> = reference.chunks(ROWS).collect();
    let mut masks = vec![0; num_units];
    let mut row = BitRow::new(hypothesis.len());
    let mut saved = Vec::new();
    for (index, strip) in strips.iter().enumerate() {
        if index % interval == 0 {
            saved.push(row.clone());
        }
        if index + 1 < strips.len() {
            row.advance(strip, hypothesis, &mut masks, |_, _, _| {});
        }
    }
    let (mut i, mut j) = (reference.len(), hypothesis.len());
    let (mut edits, mut steps) = (Vec::with_capacity(i.max(j)), vec![(0, 0); j]);
    for (group, (strips, above)) in strips.chunks(interval).zip(saved).enumerate().rev() {
        let mut rows = vec![above];
        for (index, strip) in strips[..strips.len() - 1].iter().enumerate() {
            let mut next = rows[index].clone();
            next.advance(strip, &hypothesis[..j], &mut masks, |_, _, _| {});
            rows.push(next);
        }
        for (index, mut row) in rows.into_iter().enumerate().rev() {
            let top = ROWS * (group * interval + index);
            row.advance(strips[index], &hypothesis[..j], &mut masks, |column, diagonal, down| {
                steps[column] = (diagonal, down);
            });
            while i > top {
                let bit = i - 1 - top;
                let is_set = |bits: u64| (bits >> bit) & 1 == 1;
                if j > 0 && reference[i - 1] == hypothesis[j - 1] {
                    (i, j) = (i - 1, j - 1);
                    edits.push(Edit::Match(i, j));
                } else if j > 0 && !is_set(steps[j - 1].0) {
                    (i, j) = (i - 1, j - 1);
                    edits.push(Edit::Substitution(i, j));
                } else if j == 0 || is_set(steps[j - 1].1) {
                    i -= 1;
                    edits.push(Edit::Deletion(i));
                } else {
                    j -= 1;
                    edits.push(Edit::Insertion(j));
                }
            }
        }
    }
    edits.extend((0..j).rev().map(Edit::Insertion));
    edits.reverse();
    edits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation with the full error table.
    fn edits_by_table(reference: &[u32], hypothesis: &[u32]) -> Vec<Edit> {
        let width = hypothesis.len() + 1;
        let mut errors = vec![0_u32; (reference.len() + 1) * width];
        errors[..width].iter_mut().zip(0..).for_each(|(error, j)| *error = j);
        for i in 1..=reference.len() {
            errors[i * width] = i as u32;
            for j in 1..width {
                let mismatch = u32::from(reference[i - 1] != hypothesis[j - 1]);
                let diagonal = errors[(i - 1) * width + j - 1] + mismatch;
                let above = errors[(i - 1) * width + j] + 1;
                errors[i * width + j] = diagonal.min(above).min(errors[i * width + j - 1] + 1);
            }
        }
        let (mut i, mut j, mut edits) = (reference.len(), hypothesis.len(), Vec::new());
        while i > 0 || j > 0 {
            let current = errors[i * width + j];
            let same = i > 0 && j > 0 && reference[i - 1] == hypothesis[j - 1];
            if i > 0 && j > 0 && errors[(i - 1) * width + j - 1] + u32::from(!same) == current {
                (i, j) = (i - 1, j - 1);
                edits.push(if same { Edit::Match(i, j) } else { Edit::Substitution(i, j) });
            } else if i > 0 && errors[(i - 1) * width + j] + 1 == current {
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

    proptest! {
        #[test]
        fn edits_match_the_full_table(
            distinct in 1_u32..6,
            a in prop::collection::vec(0_u32..6, 0..300),
            b in prop::collection::vec(0_u32..6, 0..300),
        ) {
            let [a, b] = [a, b].map(|units| units.iter().map(|unit| unit % distinct).collect::<Vec<u32>>());
            let expected = edits_by_table(&a, &b);
            for interval in 1..4 {
                prop_assert_eq!(&edits_with(&a, &b, distinct as usize, interval), &expected);
            }
        }

        #[test]
        fn edits_of_similar_texts_match_the_full_table(
            a in prop::collection::vec(0_u32..50, 60..400),
            changes in prop::collection::vec((0_usize..400, 0_u32..50, 0_usize..3), 0..30),
        ) {
            let mut b = a.clone();
            for (at, unit, kind) in changes {
                let at = at % b.len();
                match kind {
                    0 => b[at] = unit,
                    1 => b.insert(at, unit),
                    _ if b.len() > 1 => drop(b.remove(at)),
                    _ => {}
                }
            }
            prop_assert_eq!(edits_with(&a, &b, 50, 2), edits_by_table(&a, &b));
        }
    }
}
