//! Error counts of words and of characters, and the rate that they make.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::Serialize;

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
/// Nothing is normalised and no graphemes are joined: a letter and a combining mark behind it are two. As white space does not count,
/// texts of scripts without spaces have the same rate however they are cut into words; programs that count the spaces between words
/// report other rates.
pub fn characters(text: &str) -> Vec<char> {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Fewest errors that turn the [`words`] of the reference into those of the hypothesis; see [`error_counts`].
///
/// ```
/// let e = speech::word_errors("one two three", "one too three four");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 3));
/// ```
pub fn word_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    error_counts(&words(reference), &words(hypothesis))
}

/// Fewest errors that turn the [`characters`] of the reference into those of the hypothesis; see [`error_counts`].
///
/// ```
/// let e = speech::character_errors("今天 天气", "今天天汽好");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.total), (1, 0, 1, 4));
/// ```
pub fn character_errors(reference: &str, hypothesis: &str) -> ErrorCounts {
    error_counts(&characters(reference), &characters(hypothesis))
}

/// Fewest errors that turn the reference into the hypothesis (Levenshtein).
///
/// `e[i, j] = min(e[i-1, j-1] + (r_i != h_j), e[i-1, j] + 1, e[i, j-1] + 1)`. Where several give the minimum, the first of
/// match or substitution, deletion, insertion is taken, so that the counts are unique; they are those of
/// [`alignment`](crate::alignment()).
///
/// Cost: O(N M) time, O(M) memory for N and M units.
pub fn error_counts<T: PartialEq>(reference: &[T], heard: &[T]) -> ErrorCounts {
    let insertions = |insertions| ErrorCounts { insertions, ..ErrorCounts::default() };
    // row[j]: errors of the units so far against the first j units heard.
    let mut row: Vec<ErrorCounts> = (0..=heard.len()).map(insertions).collect();
    for (i, unit) in reference.iter().enumerate() {
        let total = i + 1;
        let mut diagonal = row[0];
        row[0] = ErrorCounts { deletions: total, total, ..ErrorCounts::default() };
        for (j, other) in heard.iter().enumerate() {
            let (above, left) = (row[j + 1], row[j]);
            let wrong = usize::from(unit != other);
            let substitution =
                ErrorCounts { substitutions: diagonal.substitutions + wrong, total, ..diagonal };
            let deletion = ErrorCounts { deletions: above.deletions + 1, total, ..above };
            let insertion = ErrorCounts { insertions: left.insertions + 1, ..left };
            let mut best = substitution;
            for other in [deletion, insertion] {
                if other.errors() < best.errors() {
                    best = other;
                }
            }
            diagonal = above;
            row[j + 1] = best;
        }
    }
    row[heard.len()]
}
