//! Error counts and error rates of words and characters.

use std::hash::Hash;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Range};

use serde::Serialize;

use crate::{Edit, UnicodeForm, align};

/// Largest alignment table of characters in cells; it takes a few seconds.
const MAX_TABLE_CELLS: u64 = 16_000_000_000;
/// Smallest alignment table, in cells, of a part of a longer text.
const MIN_PART_TABLE_CELLS: u64 = 1_000_000_000;

/// Edit counts against a reference, in words or characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorCounts {
    /// Units replaced by another unit.
    pub substitutions: usize,
    /// Reference units without a counterpart.
    pub deletions: usize,
    /// Hypothesis units without a counterpart.
    pub insertions: usize,
    /// Reference units.
    pub total: usize,
}

impl ErrorCounts {
    /// Returns the sum of substitutions, deletions and insertions.
    pub fn errors(&self) -> usize {
        self.substitutions + self.deletions + self.insertions
    }

    /// Returns the error rate `(S + D + I) / N`.
    ///
    /// With an empty reference (N = 0) the rate is 0 if the hypothesis is empty too, otherwise
    /// infinite.
    pub fn rate(&self) -> f64 {
        match (self.errors(), self.total) {
            (0, 0) => 0.0,
            (errors, total) => errors as f64 / total as f64,
        }
    }
}

impl Add for ErrorCounts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            substitutions: self.substitutions + other.substitutions,
            deletions: self.deletions + other.deletions,
            insertions: self.insertions + other.insertions,
            total: self.total + other.total,
        }
    }
}

impl AddAssign for ErrorCounts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for ErrorCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

impl<'a> Sum<&'a ErrorCounts> for ErrorCounts {
    fn sum<I: Iterator<Item = &'a Self>>(counts: I) -> Self {
        counts.copied().sum()
    }
}

/// Splits a text at white space.
pub fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Returns the characters of a text without white space (`White_Space`).
///
/// Characters are Unicode scalar values. Nothing is normalized and no graphemes are joined: a
/// letter and a combining mark are two characters; [`character_errors`] composes both texts (NFC)
/// first. As white space does not count, texts in scripts without spaces have the same rate with
/// any segmentation into words; programs that count the spaces report other rates.
pub fn characters(text: &str) -> Vec<char> {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Counts the fewest errors between the [`words`] of two texts.
///
/// Both texts are compared in NFC, so that canonically equivalent words are equal; see
/// [`error_counts`].
///
/// ```
/// let e = speech::word_errors("one two three", "one too three four");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 3));
/// ```
pub fn word_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    let [reference, hypothesis] = [reference, hypothesis].map(|text| UnicodeForm::Nfc.apply(text));
    error_counts(&words(&reference), &words(&hypothesis))
}

/// Counts the fewest errors between the [`characters`] of two texts, in NFC.
///
/// Texts of more than about 126,000 characters (1.6e10 pairs) are cut at words that a word
/// alignment matches, so that their error count may be slightly larger than the minimum. See
/// [`error_counts`].
///
/// ```
/// let e = speech::character_errors("今天 天气", "今天天汽好");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 4));
/// ```
pub fn character_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    let [reference, hypothesis] = [reference, hypothesis].map(|text| UnicodeForm::Nfc.apply(text));
    let [reference_characters, hypothesis_characters] = [characters(&reference), characters(&hypothesis)];
    if reference_characters.len() as u64 * hypothesis_characters.len() as u64 <= MAX_TABLE_CELLS {
        return error_counts(&reference_characters, &hypothesis_characters);
    }
    character_errors_in_parts(&words(&reference), &words(&hypothesis), MIN_PART_TABLE_CELLS)
}

/// Counts the fewest errors between two sequences (Levenshtein).
///
/// The counts are those of [`align()`], which has the formula.
///
/// Cost: O(N M / 64) time for N and M units.
pub fn error_counts<T: Eq + Hash>(reference: &[T], hypothesis: &[T]) -> ErrorCounts {
    let mut counts = ErrorCounts { total: reference.len(), ..ErrorCounts::default() };
    for edit in align(reference, hypothesis) {
        match edit {
            Edit::Match(..) => {}
            Edit::Substitution(..) => counts.substitutions += 1,
            Edit::Deletion(_) => counts.deletions += 1,
            Edit::Insertion(_) => counts.insertions += 1,
        }
    }
    counts
}

/// Counts character errors in parts of at least `min_cells` table cells.
///
/// The texts are cut at words that a word alignment matches.
fn character_errors_in_parts(reference: &[&str], hypothesis: &[&str], min_cells: u64) -> ErrorCounts {
    let lengths = |words: &[&str]| -> Vec<u64> {
        let length = |word: &&str| word.chars().count() as u64;
        words.iter().map(length).collect()
    };
    let lengths = [lengths(reference), lengths(hypothesis)];
    let errors = |reference_range: Range<usize>, hypothesis_range: Range<usize>| {
        let characters = |words: &[&str]| words.iter().flat_map(|word| word.chars()).collect::<Vec<char>>();
        error_counts(&characters(&reference[reference_range]), &characters(&hypothesis[hypothesis_range]))
    };
    let mut counts = ErrorCounts::default();
    // First word of the part, the word after it, and its characters: [reference, hypothesis].
    let (mut part_start, mut part_end, mut part_characters) = ([0, 0], [0, 0], [0, 0]);
    for edit in align(reference, hypothesis) {
        // Adds the words of the edit to the part.
        let advances = match edit {
            Edit::Match(..) | Edit::Substitution(..) => [true, true],
            Edit::Deletion(_) => [true, false],
            Edit::Insertion(_) => [false, true],
        };
        for side in 0..2 {
            if advances[side] {
                part_characters[side] += lengths[side][part_end[side]];
                part_end[side] += 1;
            }
        }
        let part_cells = part_characters[0] * part_characters[1];
        // Without a matching word, cut anywhere.
        if part_cells >= min_cells && matches!(edit, Edit::Match(..)) || part_cells >= MAX_TABLE_CELLS {
            counts += errors(part_start[0]..part_end[0], part_start[1]..part_end[1]);
            (part_start, part_characters) = (part_end, [0, 0]);
        }
    }
    counts + errors(part_start[0]..reference.len(), part_start[1]..hypothesis.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_errors_of_the_whole() {
        let word = |k: usize| ["one", "two", "three", "four", "seven"][(k * k / 3 + k) % 5];
        let reference: Vec<&str> = (0..600).map(word).collect();
        let mut hypothesis = reference.clone();
        for index in [20, 150, 151, 333, 480] {
            hypothesis[index] = "tree";
            hypothesis.remove(index + 7);
            hypothesis.insert(index + 11, "on");
        }
        let full = character_errors(&reference.join(" "), &hypothesis.join(" "));
        for cells in [1, 100, 10_000, u64::MAX] {
            let parts = character_errors_in_parts(&reference, &hypothesis, cells);
            assert_eq!(parts.total, full.total);
            assert_eq!(parts.insertions + full.deletions, full.insertions + parts.deletions);
            let excess = parts.errors() - full.errors();
            assert!(excess <= 10, "{cells}: {parts:?} {full:?}");
        }
        assert_eq!(character_errors_in_parts(&[], &["ab"], 1).insertions, 2);
        assert_eq!(character_errors_in_parts(&["ab"], &[], 1).deletions, 2);
    }

    #[test]
    fn a_hundred_thousand_words_are_aligned() {
        let word = |k: usize| ["one", "two", "three", "four", "five", "six"][(k * k / 7 + k) % 6];
        let reference: Vec<&str> = (0..100_000).map(word).collect();
        let hypothesis: Vec<&str> = (0..100_000)
            .filter(|k| k % 50 != 0)
            .map(|k| if k % 20 == 7 { "zero" } else { word(k) })
            .collect();
        let (reference, hypothesis) = (reference.join(" "), hypothesis.join(" "));
        let words = word_errors(&reference, &hypothesis);
        assert_eq!((words.total, words.errors()), (100_000, 7000));
        let characters = character_errors(&reference, &hypothesis);
        assert!(characters.errors() > 7000 && characters.errors() < 40_000, "{characters:?}");
    }
}
