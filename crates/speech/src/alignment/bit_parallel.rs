//! Bit-parallel alignment for word error rates: 64 reference units at a time.
//!
//! Myers 1999, "A fast bit-vector algorithm for approximate string matching based on dynamic
//! programming", in blocks as by Hyyrö 2003. `e[i, j]` is the number of errors of the first `i`
//! reference units against the first `j` hypothesis units. A *strip* is 64 rows of that
//! table. Words of 64 bits have the signs of the differences `e[i, j] - e[i-1, j]` (vertical) and
//! `e[i, j] - e[i, j-1]` (horizontal): `plus` for +1 and `minus` for -1.

use super::Edit;

/// Rows of a strip.
const STRIP_ROWS: usize = 64;
/// Bytes of rows saved for the traceback; beyond this limit, rows are recomputed.
const MAX_SAVED_BYTES: usize = 64 << 20;

/// A column of a strip for the traceback, one bit per row.
#[derive(Clone, Copy, Default)]
struct ColumnBits {
    /// `e[i, j] = e[i-1, j-1]`
    equals_diagonal: u64,
    /// `e[i, j] = e[i-1, j] + 1`
    vertical_plus: u64,
}

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
    /// `visit` receives each column with its [`ColumnBits`]. `match_masks` has a zero for each
    /// unit, before and after. Rows beyond the end of a short strip have no meaning.
    fn advance(
        &mut self,
        strip: &[u32],
        hypothesis: &[u32],
        match_masks: &mut [u64],
        mut visit: impl FnMut(usize, ColumnBits),
    ) {
        // Rows of the strip where each unit occurs.
        for (row, &unit) in strip.iter().enumerate() {
            match_masks[unit as usize] |= 1 << row;
        }
        // One bit per row of the strip; column 0 has a deletion in each row.
        let (mut vertical_plus, mut vertical_minus) = (!0_u64, 0_u64);
        for (word, units) in hypothesis.chunks(64).enumerate() {
            let (above_plus, above_minus) = (self.plus[word], self.minus[word]);
            let (mut below_plus, mut below_minus) = (0, 0);
            for (bit, &unit) in units.iter().enumerate() {
                let (in_plus, in_minus) = ((above_plus >> bit) & 1, (above_minus >> bit) & 1);
                let matches = match_masks[unit as usize];
                // Myers' Xv and Xh; their union is the rows with `e[i, j] = e[i-1, j-1]`.
                let x_vertical = matches | vertical_minus;
                let matches = matches | in_minus;
                let x_horizontal =
                    ((matches & vertical_plus).wrapping_add(vertical_plus) ^ vertical_plus) | matches;
                let (horizontal_plus, horizontal_minus) =
                    (vertical_minus | !(x_horizontal | vertical_plus), vertical_plus & x_horizontal);
                below_plus |= (horizontal_plus >> 63) << bit;
                below_minus |= (horizontal_minus >> 63) << bit;
                // The row above the strip enters at bit 0.
                let (horizontal_plus, horizontal_minus) =
                    (horizontal_plus << 1 | in_plus, horizontal_minus << 1 | in_minus);
                (vertical_plus, vertical_minus) =
                    (horizontal_minus | !(x_vertical | horizontal_plus), horizontal_plus & x_vertical);
                let bits = ColumnBits { equals_diagonal: x_horizontal | x_vertical, vertical_plus };
                visit(64 * word + bit, bits);
            }
            (self.plus[word], self.minus[word]) = (below_plus, below_minus);
        }
        strip.iter().for_each(|&unit| match_masks[unit as usize] = 0);
    }
}

/// Returns the alignment with the fewest errors; all units are below `num_units`.
pub(super) fn align(reference: &[u32], hypothesis: &[u32], num_units: usize) -> Vec<Edit> {
    let num_strips = reference.len().div_ceil(STRIP_ROWS);
    // A saved row has two bits, a quarter of a byte, per column.
    let saved_bytes = num_strips * hypothesis.len() / 4;
    let interval = if saved_bytes <= MAX_SAVED_BYTES { 1 } else { num_strips.isqrt() };
    align_saving_rows(reference, hypothesis, num_units, interval)
}

/// [`align`] with one saved row in every `interval` strips.
fn align_saving_rows(reference: &[u32], hypothesis: &[u32], num_units: usize, interval: usize) -> Vec<Edit> {
    let strips: Vec<&[u32]> = reference.chunks(STRIP_ROWS).collect();
    let mut match_masks = vec![0; num_units];
    // Forward: the row above every `interval`-th strip.
    let mut row = BitRow::new(hypothesis.len());
    let mut saved_rows = Vec::new();
    for (index, strip) in strips.iter().enumerate() {
        if index % interval == 0 {
            saved_rows.push(row.clone());
        }
        if index + 1 < strips.len() {
            row.advance(strip, hypothesis, &mut match_masks, |_, _| {});
        }
    }
    // Backward from the end: the rows of a group of strips are recomputed from the saved one, and
    // the bits of one strip at a time give the edits.
    let (mut i, mut j) = (reference.len(), hypothesis.len());
    let (mut edits, mut column_bits) = (Vec::with_capacity(i.max(j)), vec![ColumnBits::default(); j]);
    for (group, (strips, saved_row)) in strips.chunks(interval).zip(saved_rows).enumerate().rev() {
        let mut rows = vec![saved_row];
        for (index, strip) in strips[..strips.len() - 1].iter().enumerate() {
            let mut next_row = rows[index].clone();
            next_row.advance(strip, &hypothesis[..j], &mut match_masks, |_, _| {});
            rows.push(next_row);
        }
        for (index, mut row) in rows.into_iter().enumerate().rev() {
            let first_row = STRIP_ROWS * (group * interval + index);
            row.advance(strips[index], &hypothesis[..j], &mut match_masks, |column, bits| {
                column_bits[column] = bits;
            });
            while i > first_row {
                let bit = i - 1 - first_row;
                let is_set = |bits: u64| (bits >> bit) & 1 == 1;
                if j > 0 && reference[i - 1] == hypothesis[j - 1] {
                    (i, j) = (i - 1, j - 1);
                    edits.push(Edit::Match(i, j));
                } else if j > 0 && !is_set(column_bits[j - 1].equals_diagonal) {
                    (i, j) = (i - 1, j - 1);
                    edits.push(Edit::Substitution(i, j));
                } else if j == 0 || is_set(column_bits[j - 1].vertical_plus) {
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
    fn align_by_full_table(reference: &[u32], hypothesis: &[u32]) -> Vec<Edit> {
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
            num_units in 1_u32..6,
            reference in prop::collection::vec(0_u32..6, 0..300),
            hypothesis in prop::collection::vec(0_u32..6, 0..300),
        ) {
            let [reference, hypothesis] = [reference, hypothesis].map(|units| units.iter().map(|unit| unit % num_units).collect::<Vec<u32>>());
            let expected = align_by_full_table(&reference, &hypothesis);
            for interval in 1..4 {
                prop_assert_eq!(&align_saving_rows(&reference, &hypothesis, num_units as usize, interval), &expected);
            }
        }

        #[test]
        fn edits_of_similar_texts_match_the_full_table(
            reference in prop::collection::vec(0_u32..50, 60..400),
            changes in prop::collection::vec((0_usize..400, 0_u32..50, 0_usize..3), 0..30),
        ) {
            let mut hypothesis = reference.clone();
            for (index, unit, kind) in changes {
                let index = index % hypothesis.len();
                match kind {
                    0 => hypothesis[index] = unit,
                    1 => hypothesis.insert(index, unit),
                    _ if hypothesis.len() > 1 => drop(hypothesis.remove(index)),
                    _ => {}
                }
            }
            prop_assert_eq!(align_saving_rows(&reference, &hypothesis, 50, 2), align_by_full_table(&reference, &hypothesis));
        }
    }
}
