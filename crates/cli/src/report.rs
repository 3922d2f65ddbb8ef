//! How an evaluation looks on the terminal.
use training::{Evaluation, Score};

/// One line for each subset and one for all.
pub fn lines(name: &str, evaluation: &Evaluation) -> Vec<String> {
    let mut rows: Vec<(String, &Score)> =
        evaluation.subsets.iter().map(|(subset, score)| (format!("{name} {subset}"), score)).collect();
    rows.push((name.to_owned(), &evaluation.overall));
    rows.iter().map(|(name, score)| line(name, score)).collect()
}

fn line(name: &str, score: &Score) -> String {
    let Score { wer, interval: (low, high), substitutions, deletions, insertions, words, utterances } = score;
    format!(
        "{name:<20} WER {:6.2} %  [{:.2}, {:.2}]  {substitutions} sub, {deletions} del, {insertions} ins \
         of {words} words in {utterances} utterances",
        100.0 * wer,
        100.0 * low,
        100.0 * high,
    )
}
