//! Word errors: Levenshtein alignment of words, and a bootstrap interval of the rate.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Counts of word errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WordErrors {
    /// Words replaced by another.
    pub substitutions: usize,
    /// Words of the reference without a counterpart.
    pub deletions: usize,
    /// Words of the hypothesis without a counterpart.
    pub insertions: usize,
    /// Words of the reference.
    pub words: usize,
}

impl WordErrors {
    /// Substitutions, deletions and insertions together.
    pub fn errors(&self) -> usize {
        self.substitutions + self.deletions + self.insertions
    }

    /// Word error rate: `(S + D + I) / N`.
    ///
    /// With an empty reference (N = 0) it is 0 if the hypothesis is empty too, else infinite.
    pub fn rate(&self) -> f64 {
        match (self.errors(), self.words) {
            (0, 0) => 0.0,
            (errors, words) => errors as f64 / words as f64,
        }
    }
}

impl Add for WordErrors {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            substitutions: self.substitutions + other.substitutions,
            deletions: self.deletions + other.deletions,
            insertions: self.insertions + other.insertions,
            words: self.words + other.words,
        }
    }
}

impl AddAssign for WordErrors {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for WordErrors {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

impl<'a> Sum<&'a WordErrors> for WordErrors {
    fn sum<I: Iterator<Item = &'a Self>>(counts: I) -> Self {
        counts.copied().sum()
    }
}

/// Fewest word errors that turn the reference into the hypothesis; words are what white space separates.
///
/// `e[i, j] = min(e[i-1, j-1] + (r_i != h_j), e[i-1, j] + 1, e[i, j-1] + 1)`. Where several give the minimum, the first of
/// match or substitution, deletion, insertion is taken, from the front of the texts on, so that the counts are unique.
///
/// Cost: O(N M) time, O(M) memory for N and M words.
///
/// ```
/// let e = speech::word_errors("one two three", "one too three four");
/// assert_eq!((e.substitutions, e.deletions, e.insertions, e.words), (1, 0, 1, 3));
/// ```
pub fn word_errors(reference: &str, hypothesis: &str) -> WordErrors {
    let heard: Vec<&str> = hypothesis.split_whitespace().collect();
    let insertions = |insertions| WordErrors { insertions, ..WordErrors::default() };
    // row[j]: errors of the words so far against the first j words heard.
    let mut row: Vec<WordErrors> = (0..=heard.len()).map(insertions).collect();
    for (i, word) in reference.split_whitespace().enumerate() {
        let words = i + 1;
        let mut diagonal = row[0];
        row[0] = WordErrors { deletions: words, words, ..WordErrors::default() };
        for (j, other) in heard.iter().enumerate() {
            let (above, left) = (row[j + 1], row[j]);
            let wrong = usize::from(word != *other);
            let substitution =
                WordErrors { substitutions: diagonal.substitutions + wrong, words, ..diagonal };
            let deletion = WordErrors { deletions: above.deletions + 1, words, ..above };
            let insertion = WordErrors { insertions: left.insertions + 1, ..left };
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

/// 95 % interval of the word error rate: the 2.5 and 97.5 percentiles over resampled sets of utterances.
///
/// Each of `resamples` sets draws as many utterances as there are, with replacement (Bisani and Ney 2004); the same seed gives the
/// same interval. Percentiles are order statistics, without interpolation. Without utterances or resamples, both ends are the plain
/// rate.
///
/// Cost: O(resamples × utterances).
///
/// ```
/// let utterances = [("one", "one"), ("two", "too")].map(|(r, h)| speech::word_errors(r, h));
/// assert_eq!(speech::bootstrap_interval(&utterances, 1000, 7), (0.0, 1.0));
/// ```
pub fn bootstrap_interval(per_utterance: &[WordErrors], resamples: usize, seed: u64) -> (f64, f64) {
    let count = per_utterance.len();
    if count == 0 || resamples == 0 {
        let rate = per_utterance.iter().sum::<WordErrors>().rate();
        return (rate, rate);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw =
        || (0..count).map(|_| per_utterance[rng.random_range(0..count)]).sum::<WordErrors>().rate();
    let mut rates: Vec<f64> = (0..resamples).map(|_| draw()).collect();
    rates.sort_by(f64::total_cmp);
    let percentile = |p: f64| rates[((p * resamples as f64) as usize).min(resamples - 1)];
    (percentile(0.025), percentile(0.975))
}
