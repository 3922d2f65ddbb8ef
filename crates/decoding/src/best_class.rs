//! Best class and duration at one site, for greedy transducer search.
//!
//! A site is a frame after some labels. Its row of scores has C classes and D durations.
use kernels::Real;

use crate::{Error, TokenTable};

/// The best class at a site, and the best duration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct BestClass {
    pub class: u32,
    pub logit: f32,
    /// Natural log-probability among the classes.
    pub log_prob: f64,
    /// Index of the best duration; 0 without durations.
    pub duration: usize,
    /// Natural log-probability of the duration; 0 without durations.
    pub duration_log_prob: f64,
}

/// Returns the best class and duration of a row of scores `[C + D]`.
///
/// Ties go to the lower index. `None` if the scores are invalid; [`invalid_scores`] is the error.
pub(crate) fn best_class(scores: &[f32], token_table: &TokenTable) -> Option<BestClass> {
    let (tokens, durations) = scores.split_at(token_table.classes());
    let (class, log_prob) = best_index(tokens)?;
    let (duration, duration_log_prob) = if durations.is_empty() { (0, 0.0) } else { best_index(durations)? };
    Some(BestClass { class: class as u32, logit: tokens[class], log_prob, duration, duration_log_prob })
}

/// Returns index and log-probability of the largest score; none for invalid scores.
pub(crate) fn best_index(scores: &[f32]) -> Option<(usize, f64)> {
    // A NaN or +inf makes the sum NaN, and -inf everywhere makes it 0.
    let (max, sum) = f32::row_statistics(scores);
    (sum >= 1.0).then(|| (position(scores, max), -sum.ln()))
}

/// First index of a value that occurs in `scores`.
fn position(scores: &[f32], value: f32) -> usize {
    /// Scores that are compared together.
    const CHUNK_LEN: usize = 64;
    // Without an early exit inside a chunk, the compiler vectorizes the comparison.
    let contains = |chunk: &[f32]| chunk.iter().fold(false, |any, &score| any | (score == value));
    let chunk_start = scores.chunks(CHUNK_LEN).position(contains).unwrap_or(0) * CHUNK_LEN;
    chunk_start + scores[chunk_start..].iter().position(|&score| score == value).unwrap_or(0)
}

/// Returns the log-probability of a class under softmax.
pub(crate) fn log_prob(scores: &[f32], class: usize) -> f64 {
    let (max, sum) = f32::row_statistics(scores);
    f64::from(scores[class]) - f64::from(max) - sum.ln()
}

/// [`log_prob`] with every term in f64, as the reference.
pub(crate) fn exact_log_prob(scores: &[f32], class: usize) -> f64 {
    let target = f64::from(scores[class]);
    -scores.iter().map(|&score| (f64::from(score) - target).exp()).sum::<f64>().ln()
}

/// The error for scores that [`best_class`] rejects.
pub(crate) fn invalid_scores(scores: &[f32], token_table: &TokenTable, frame: usize) -> Error {
    let (tokens, durations) = scores.split_at(token_table.classes());
    let (scores, first_class) =
        if best_index(tokens).is_none() { (tokens, 0) } else { (durations, tokens.len()) };
    let invalid = scores.iter().position(|score| score.is_nan() || *score == f32::INFINITY).unwrap_or(0);
    Error::Score {
        frame,
        class: first_class + invalid,
        found: scores.get(invalid).copied().unwrap_or(f32::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_scores_is_best() {
        for count in [1, 2, 63, 64, 65, 200, 1025] {
            for index in [0, count / 2, count - 1] {
                let mut scores: Vec<f32> = (0..count).map(|i| (i as f32).sin()).collect();
                scores[index] = 3.0;
                scores[count - 1] = 3.0;
                let (position, log_prob) = best_index(&scores).unwrap();
                let sum: f64 = scores.iter().map(|&s| f64::from(s - 3.0).exp()).sum();
                assert_eq!(position, index);
                assert!((log_prob + sum.ln()).abs() < 1e-6);
                assert!((super::log_prob(&scores, index) - log_prob).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn invalid_scores_are_detected_at_any_index() {
        for count in [1, 16, 17, 70] {
            let token_table = TokenTable::new(count, 0, &[], &rnnt_dp::Topology::rnnt()).unwrap();
            for bad in [f32::NAN, f32::INFINITY] {
                for index in [0, count - 1] {
                    let mut scores = vec![0.5; count];
                    scores[index] = bad;
                    assert_eq!(best_class(&scores, &token_table), None, "{bad} at {index} of {count}");
                    let Error::Score { class, .. } = invalid_scores(&scores, &token_table, 0) else {
                        panic!()
                    };
                    assert_eq!(class, index);
                }
            }
            assert_eq!(best_index(&vec![f32::NEG_INFINITY; count]), None);
            let mut masked = vec![f32::NEG_INFINITY; count];
            masked[count - 1] = -80.0;
            assert_eq!(best_index(&masked), Some((count - 1, 0.0)));
        }
    }
}
