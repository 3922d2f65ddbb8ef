//! Section of a report: utterances with most errors, aligned texts and audio.
use std::collections::BTreeMap;

use recognizer::Metric;
use recognizer::Transcript;
use speech::{ErrorCounts, Utterance};

use crate::edits::{EditPair, align_texts};
use crate::html::{escape, format_percent};
use crate::recordings::Recordings;

/// Errors of an utterance by a metric.
fn error_counts(transcript: &Transcript, metric: Metric) -> ErrorCounts {
    match metric {
        Metric::Wer => transcript.errors,
        Metric::Cer => transcript.character_errors,
    }
}

/// Returns at most `max_count` utterances with errors, the worst first.
///
/// Sorted by the number of errors, then by the rate, then by the order of the set.
pub(crate) fn select_worst(transcripts: &[Transcript], metric: Metric, max_count: usize) -> Vec<&Transcript> {
    let worst = transcripts.iter().filter(|transcript| error_counts(transcript, metric).errors() > 0);
    let mut worst: Vec<&Transcript> = worst.collect();
    worst.sort_by(|a, b| {
        let (a, b) = (error_counts(a, metric), error_counts(b, metric));
        b.errors().cmp(&a.errors()).then(b.rate().total_cmp(&a.rate()))
    });
    worst.truncate(max_count);
    worst
}

/// Formats one utterance: error counts, aligned texts, and audio.
pub(crate) fn utterance_card(
    transcript: &Transcript,
    metric: Metric,
    utterances: Option<&BTreeMap<String, Utterance>>,
    recordings: Option<&mut Recordings>,
) -> String {
    let ErrorCounts { substitutions, deletions, insertions, total } = error_counts(transcript, metric);
    // Error counts: number, style class and name of each kind.
    let kinds = [(substitutions, "s", "sub"), (deletions, "d", "del"), (insertions, "i", "ins")];
    let counts: String = kinds
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, class, name)| format!(" <span class=\"{class}\">{count} {name}</span>"))
        .collect();
    let unit = if metric == Metric::Wer { "words" } else { "characters" };
    let tags: String = [&transcript.speaker, &transcript.subset]
        .into_iter()
        .flatten()
        .map(|tag| format!(" <span class=\"tag\">{}</span>", escape(tag)))
        .collect();
    // Texts, aligned if they are not too long, then audio.
    let texts = match align_texts(transcript, metric) {
        Some(pairs) => {
            format!("<p class=\"lines\">{}</p>", pairs.iter().map(aligned_column).collect::<String>())
        }
        None => format!("<p>{}</p><p>{}</p>", escape(&transcript.reference), escape(&transcript.hypothesis)),
    };
    let audio = match (utterances.and_then(|utterances| utterances.get(&transcript.id)), recordings) {
        (Some(utterance), Some(recordings)) => match recordings.data_uri(utterance) {
            Ok(Some(uri)) => format!("<audio controls preload=\"none\" src=\"{uri}\"></audio>"),
            Ok(None) => String::new(),
            Err(error) => format!("<p class=\"note\">{}</p>", escape(&error)),
        },
        _ => String::new(),
    };
    format!(
        "<article><h3><code>{}</code>{tags}</h3><p class=\"counts\"><b>{}</b> of {total} {unit}:{counts}</p>{texts}{audio}</article>\n",
        escape(&transcript.id),
        format_percent(error_counts(transcript, metric).rate()),
    )
}

/// Formats a column of an alignment, the reference above the hypothesis; a dash stands for none.
fn aligned_column(EditPair { reference, hypothesis }: &EditPair) -> String {
    let (class, title) = match (reference, hypothesis) {
        (Some(a), Some(b)) if a == b => ("m", "match"),
        (Some(_), Some(_)) => ("s", "substitution"),
        (Some(_), None) => ("d", "deletion"),
        _ => ("i", "insertion"),
    };
    let text = |unit: &Option<String>| unit.as_deref().map_or("—".to_owned(), escape);
    format!(
        "<span class=\"{class}\" title=\"{title}\"><span>{}</span> <span>{}</span></span> ",
        text(reference),
        text(hypothesis)
    )
}
