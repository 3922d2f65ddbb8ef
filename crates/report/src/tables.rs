//! HTML tables of the report: error rates, bad items, most frequent errors.
use recognizer::Metric;
use recognizer::{BadItems, Score, Transcript};

use crate::edits::{EditPair, count_errors};
use crate::html::{escape, format_count, format_interval, format_percent};

/// Maximum number of rows that are shown.
const MAX_ROWS: usize = 20;

/// Formats error rates, one row per part; a script sorts the table by any column.
///
/// `row_header` is the header of the first column.
pub(crate) fn score_table(caption: &str, row_header: &str, rows: &[(String, Score)]) -> String {
    let has_speakers = rows.iter().any(|(_, score)| score.over_speakers.is_some());
    let speaker_header = |rate: &str| match has_speakers {
        true => format!("<th scope=\"col\">{rate} 95 % over speakers</th>"),
        false => String::new(),
    };
    let body: String = rows.iter().map(|(name, score)| score_row(name, score, has_speakers)).collect();
    format!(
        "<div class=\"wide\"><table class=\"sort\"><caption>{}</caption><thead><tr><th scope=\"col\">{}</th>\
         <th scope=\"col\">utterances</th><th scope=\"col\">words</th>\
         <th scope=\"col\">WER</th><th scope=\"col\">95 %</th>{}\
         <th scope=\"col\">CER</th><th scope=\"col\">95 %</th>{}\
         <th scope=\"col\" title=\"substituted words\">sub</th><th scope=\"col\" title=\"deleted words\">del</th>\
         <th scope=\"col\" title=\"inserted words\">ins</th></tr></thead><tbody>{body}</tbody></table></div>\n",
        escape(caption),
        escape(row_header),
        speaker_header("WER"),
        speaker_header("CER"),
    )
}

/// Formats the row of one part: utterances, words, error rates with intervals, counts.
fn score_row(name: &str, score: &Score, has_speakers: bool) -> String {
    let number_cell = |value: usize| format!("<td data-v=\"{value}\">{}</td>", format_count(value));
    let rate_cell = |value: f64| format!("<td data-v=\"{value}\"><b>{}</b></td>", format_percent(value));
    let interval_cell =
        |ends: (f64, f64)| format!("<td data-v=\"{}\">{}</td>", ends.0, format_interval(ends));
    let speaker_cell = |ends: Option<(f64, f64)>| match (has_speakers, ends) {
        (true, Some(ends)) => interval_cell(ends),
        (true, None) => "<td data-v=\"-1\"></td>".to_owned(),
        (false, _) => String::new(),
    };
    let speakers = score.over_speakers.as_ref();
    [
        format!("<tr><th scope=\"row\">{}</th>", escape(name)),
        number_cell(score.utterances),
        number_cell(score.words),
        rate_cell(score.wer),
        interval_cell(score.wer_interval),
        speaker_cell(speakers.map(|speakers| speakers.wer_interval)),
        rate_cell(score.cer),
        interval_cell(score.cer_interval),
        speaker_cell(speakers.map(|speakers| speakers.cer_interval)),
        number_cell(score.substitutions),
        number_cell(score.deletions),
        number_cell(score.insertions),
        "</tr>".to_owned(),
    ]
    .concat()
}

/// Formats the bad items of a set: id, action and reason.
pub(crate) fn bad_item_table(set: &str, items: &BadItems) -> String {
    let row = |id: &str, action: &str, reason: &str| {
        format!("<tr><th scope=\"row\">{}</th><td>{action}</td><td>{}</td></tr>", escape(id), escape(reason))
    };
    let excluded = items.excluded.iter().map(|item| row(&item.id, "left out", &item.reason));
    let lengths = items.other_length.iter().map(|item| {
        let (actual, expected) = (item.found_seconds, item.expected_seconds);
        row(&item.id, "used", &format!("{actual:.2} s instead of {expected:.2} s"))
    });
    let rows: Vec<String> = excluded.chain(lengths).collect();
    let open = if rows.len() <= MAX_ROWS { " open" } else { "" };
    format!(
        "<details{open}><summary>{}: {} left out, {} with another length than in the manifest</summary><div class=\"wide\">\
         <table class=\"text\"><thead><tr><th scope=\"col\">utterance</th><th scope=\"col\">action</th>\
         <th scope=\"col\">reason</th></tr></thead><tbody>{}</tbody></table></div></details>\n",
        escape(set),
        format_count(items.excluded.len()),
        format_count(items.other_length.len()),
        rows.concat(),
    )
}

/// Formats the most frequent errors: reference, hypothesis and kind.
pub(crate) fn error_table(transcripts: &[Transcript], metric: Metric) -> String {
    let error_counts = count_errors(transcripts, metric);
    if error_counts.is_empty() {
        return String::new();
    }
    let unit = |unit: &Option<String>| match unit {
        Some(unit) => format!("<td>{}</td>", escape(unit)),
        None => "<td class=\"none\">—</td>".to_owned(),
    };
    let row = |(EditPair { reference, hypothesis }, count): &(EditPair, usize)| {
        let (class, kind) = match (reference, hypothesis) {
            (Some(_), Some(_)) => ("s", "substitution"),
            (Some(_), None) => ("d", "deletion"),
            _ => ("i", "insertion"),
        };
        format!(
            "<tr><td data-v=\"{count}\">{}</td>{}{}<td><span class=\"{class}\">{kind}</span></td></tr>",
            format_count(*count),
            unit(reference),
            unit(hypothesis),
        )
    };
    let rows: String = error_counts.iter().take(MAX_ROWS).map(row).collect();
    let caption = match error_counts.len() > MAX_ROWS {
        true => {
            format!("The {MAX_ROWS} most frequent of {} kinds of errors", format_count(error_counts.len()))
        }
        false => "All kinds of errors".to_owned(),
    };
    format!(
        "<div class=\"wide\"><table class=\"sort text\"><caption>{caption}</caption><thead><tr><th scope=\"col\">count</th>\
         <th scope=\"col\">reference</th><th scope=\"col\">hypothesis</th><th scope=\"col\">kind</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>\n"
    )
}
