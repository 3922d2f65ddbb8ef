//! Error counts of words and of characters, and the rate that they make.

use std::hash::Hash;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Range};

use serde::Serialize;

use crate::{Edit, UnicodeForm, align};

/// Pairs of characters that are aligned as a whole; more would take more than a few seconds.
const MAX_CELLS: u64 = 16_000_000_000;
/// Pairs of characters of a part of a longer text.
const PART_CELLS: u64 = 1_000_000_000;

/// Counts of errors against a reference, in words or in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorCounts {
    /// Units replaced by another.
    pub substitutions: usize,
    /// Units of the reference without a counterpart.
    pub deletions: usize,
    /// Units of the hypothesis without a counterpart.
    pub insertions: usize,
    /// Units of the reference.
    pub total: usize,
}

impl ErrorCounts {
    /// Substitutions, deletions and insertions together.
    pub fn errors(&self) -> usize {
        self.substitutions + self.deletions + self.insertions
    }

    /// Error rate: `(S + D + I) / N`.
    ///
    /// With an empty reference (N = 0) it is 0 if the hypothesis is empty too, else infinite.
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

/// The words of a text: what white space separates.
pub fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// The characters of a text: its Unicode scalar values that are not white space (`White_Space`), one by one.
///
/// Nothing is normalized and no graphemes are joined: a letter and a combining mark behind it are two; [`character_errors`] composes
/// both texts (NFC) first. As white space does not count, texts of scripts without spaces have the same rate however they are cut into words; programs that count the spaces between words
/// report other rates.
pub fn characters(text: &str) -> Vec<char> {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Fewest errors that turn the [`words`] of the reference into those of the hypothesis; see [`error_counts`].
///
/// Both texts are compared in NFC, so that canonically equivalent words are equal.
///
/// ```
/// let e = speech::word_errors("one two three", "one too three four");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 3));
/// ```
pub fn word_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    let [reference, hypothesis] = [reference, hypothesis].map(|text| UnicodeForm::Nfc.apply(text));
    error_counts(&words(&reference), &words(&hypothesis))
}

/// Fewest errors that turn the [`characters`] of the reference into those of the hypothesis, both in NFC; see [`error_counts`].
///
/// Texts of more than about 126,000 characters (1.6e10 pairs) are cut at words that an alignment of words matches, so that
/// their errors may be a few more than the fewest.
///
/// ```
/// let e = speech::character_errors("今天 天气", "今天天汽好");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 4));
/// ```
pub fn character_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    let [reference, hypothesis] = [reference, hypothesis].map(|text| UnicodeForm::Nfc.apply(text));
    let [units, others] = [characters(&reference), characters(&hypothesis)];
    if units.len() as u64 * others.len() as u64 <= MAX_CELLS {
        return error_counts(&units, &others);
    }
    errors_of_parts(&words(&reference), &words(&hypothesis), PART_CELLS)
}

/// Fewest errors that turn the reference into the hypothesis (Levenshtein): the counts of [`align()`], which has the formula.
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

/// Character errors of texts that are cut at words which an alignment of words matches, into parts of at least `cells` pairs of
/// characters.
fn errors_of_parts(reference: &[&str], hypothesis: &[&str], cells: u64) -> ErrorCounts {
    let lengths = |words: &[&str]| -> Vec<u64> {
        let length = |word: &&str| word.chars().count() as u64;
        words.iter().map(length).collect()
    };
    let lengths = [lengths(reference), lengths(hypothesis)];
    let errors = |a: Range<usize>, b: Range<usize>| {
        let characters = |words: &[&str]| words.iter().flat_map(|word| word.chars()).collect::<Vec<char>>();
        error_counts(&characters(&reference[a]), &characters(&hypothesis[b]))
    };
    let mut counts = ErrorCounts::default();
    // First words of the part, words behind it, and its characters.
    let (mut first, mut end, mut length) = ([0, 0], [0, 0], [0, 0]);
    for edit in align(reference, hypothesis) {
        let moved = match edit {
            Edit::Match(..) | Edit::Substitution(..) => [true, true],
            Edit::Deletion(_) => [true, false],
            Edit::Insertion(_) => [false, true],
        };
        for side in 0..2 {
            if moved[side] {
                length[side] += lengths[side][end[side]];
                end[side] += 1;
            }
        }
        let found = length[0] * length[1];
        // Without any equal word, anywhere is as good.
        if found >= cells && matches!(edit, Edit::Match(..)) || found >= MAX_CELLS {
            counts += errors(first[0]..end[0], first[1]..end[1]);
            (first, length) = (end, [0, 0]);
        }
    }
    counts + errors(first[0]..reference.len(), first[1]..hypothesis.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_errors_of_the_whole() {
        let word = |k: usize| ["one", "two", "three", "four", "seven"][(k * k / 3 + k) % 5];
        let reference: Vec<&str> = (0..600).map(word).collect();
        let mut hypothesis = reference.clone();
        for at in [20, 150, 151, 333, 480] {
            hypothesis[at] = "tree";
            hypothesis.remove(at + 7);
            hypothesis.insert(at + 11, "on");
        }
        let whole = character_errors(&reference.join(" "), &hypothesis.join(" "));
        for cells in [1, 100, 10_000, u64::MAX] {
            let parts = errors_of_parts(&reference, &hypothesis, cells);
            assert_eq!(parts.total, whole.total);
            assert_eq!(parts.insertions + whole.deletions, whole.insertions + parts.deletions);
            let more = parts.errors() - whole.errors();
            assert!(more <= 10, "{cells}: {parts:?} {whole:?}");
        }
        assert_eq!(errors_of_parts(&[], &["ab"], 1).insertions, 2);
        assert_eq!(errors_of_parts(&["ab"], &[], 1).deletions, 2);
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
