//! Formats word and character error rates for the terminal (`evaluate`, `merge`, `train`).
use recognizer::{Evaluation, Score};

/// Minimum width of the column of names.
const MIN_NAME_WIDTH: usize = 20;

/// Formats the error rates of an evaluation, one line per row.
///
/// Rows: each subset, each speaker if `speakers`, the whole set, and the oracle of n-best lists.
pub(crate) fn format_scores(name: &str, evaluation: &Evaluation, speakers: bool) -> Vec<String> {
    let subsets = evaluation.subsets.iter().map(|(subset, score)| (format!("{name} {subset}"), score));
    let mut rows: Vec<(String, &Score)> = subsets.collect();
    if speakers {
        rows.extend(
            evaluation.speakers.iter().map(|(speaker, score)| (format!("{name} speaker {speaker}"), score)),
        );
    }
    rows.push((name.to_owned(), &evaluation.overall));
    let oracle = evaluation.oracle();
    rows.extend(oracle.iter().map(|score| (format!("{name} best of n-best"), score)));
    let width = rows.iter().map(|row| row.0.chars().count()).fold(MIN_NAME_WIDTH, usize::max);
    rows.iter().map(|(name, score)| format_score(&format!("{name:<width$}"), score)).collect()
}

/// Formats the error rates of a row with their confidence intervals.
fn format_score(name: &str, score: &Score) -> String {
    let Score { substitutions, deletions, insertions, words, utterances, .. } = score;
    let format_rate = |rate: f64, (low, high): (f64, f64)| {
        format!("{:6.2} %  [{:.2}, {:.2}]", 100.0 * rate, 100.0 * low, 100.0 * high)
    };
    format!(
        "{name} WER {}  CER {}  {substitutions} sub, {deletions} del, {insertions} ins of {words} words in \
         {utterances} utterances",
        format_rate(score.wer, score.wer_interval),
        format_rate(score.cer, score.cer_interval),
    )
}
