//! The utterances with most errors, to be read and listened to.
use std::collections::BTreeMap;

use recognizer::Metric;
use recognizer::Transcript;
use speech::{ErrorCounts, Utterance};

use crate::edits::{EditPair, pairs};
use crate::html::{escape, percent};
use crate::recordings::Recordings;

fn errors(one: &Transcript, metric: Metric) -> ErrorCounts {
    match metric {
        Metric::Wer => one.errors,
        Metric::Cer => one.character_errors,
    }
}

/// So many utterances with errors: most errors first, then the highest rate, then as in the set.
pub fn choose(transcripts: &[Transcript], metric: Metric, most: usize) -> Vec<&Transcript> {
    let wrong = transcripts.iter().filter(|one| errors(one, metric).errors() > 0);
    let mut wrong: Vec<&Transcript> = wrong.collect();
    wrong.sort_by(|a, b| {
        let (a, b) = (errors(a, metric), errors(b, metric));
        b.errors().cmp(&a.errors()).then(b.rate().total_cmp(&a.rate()))
    });
    wrong.truncate(most);
    wrong
}

/// One utterance: counts, both texts unit under unit, and its recording if there is one.
pub fn card(
    one: &Transcript,
    metric: Metric,
    utterances: Option<&BTreeMap<String, Utterance>>,
    recordings: Option<&mut Recordings>,
) -> String {
    let ErrorCounts { substitutions, deletions, insertions, total } = errors(one, metric);
    let counts = [(substitutions, "s", "sub"), (deletions, "d", "del"), (insertions, "i", "ins")];
    let counts = counts.iter().filter(|count| count.0 > 0);
    let counts: String = counts
        .map(|(count, class, name)| format!(" <span class=\"{class}\">{count} {name}</span>"))
        .collect();
    let unit = if metric == Metric::Wer { "words" } else { "characters" };
    let about: String = [("", &one.speaker), ("", &one.subset)]
        .iter()
        .filter_map(|(_, about)| about.as_ref())
        .map(|about| format!(" <span class=\"tag\">{}</span>", escape(about)))
        .collect();
    let texts = match pairs(one, metric) {
        Some(pairs) => format!("<p class=\"lines\">{}</p>", pairs.iter().map(column).collect::<String>()),
        None => format!("<p>{}</p><p>{}</p>", escape(&one.reference), escape(&one.hypothesis)),
    };
    let sound = match (utterances.and_then(|all| all.get(&one.id)), recordings) {
        (Some(utterance), Some(recordings)) => match recordings.uri(utterance) {
            Ok(Some(uri)) => format!("<audio controls preload=\"none\" src=\"{uri}\"></audio>"),
            Ok(None) => String::new(),
            Err(error) => format!("<p class=\"note\">{}</p>", escape(&error)),
        },
        _ => String::new(),
    };
    format!(
        "<article><h3><code>{}</code>{about}</h3><p class=\"counts\"><b>{}</b> of {total} {unit}:{counts}</p>{texts}{sound}</article>\n",
        escape(&one.id),
        percent(errors(one, metric).rate()),
    )
}

/// What was said above what was heard; a dash stands for nothing.
fn column(EditPair { said, heard }: &EditPair) -> String {
    let (class, title) = match (said, heard) {
        (Some(a), Some(b)) if a == b => ("m", "right"),
        (Some(_), Some(_)) => ("s", "substitution"),
        (Some(_), None) => ("d", "deletion"),
        _ => ("i", "insertion"),
    };
    let text = |unit: &Option<String>| unit.as_deref().map_or("—".to_owned(), escape);
    format!(
        "<span class=\"{class}\" title=\"{title}\"><span>{}</span> <span>{}</span></span> ",
        text(said),
        text(heard)
    )
}
