//! Tables of error rates and of the most frequent errors.
use recognizer::Metric;
use recognizer::{BadItems, Score, Transcript};

use crate::edits::{EditPair, confusions};
use crate::html::{count, escape, interval, percent};

/// Kinds of errors that are listed.
const KINDS: usize = 20;

/// A row a part, which a script sorts by any column.
pub fn scores(caption: &str, first: &str, rows: &[(String, Score)]) -> String {
    let over = rows.iter().any(|(_, score)| score.over_speakers.is_some());
    let wide = |rate: &str| match over {
        true => format!("<th scope=\"col\">{rate} 95 % over speakers</th>"),
        false => String::new(),
    };
    let body: String = rows.iter().map(|(name, score)| row(name, score, over)).collect();
    format!(
        "<div class=\"wide\"><table class=\"sort\"><caption>{}</caption><thead><tr><th scope=\"col\">{}</th>\
         <th scope=\"col\">utterances</th><th scope=\"col\">words</th>\
         <th scope=\"col\">WER</th><th scope=\"col\">95 %</th>{}\
         <th scope=\"col\">CER</th><th scope=\"col\">95 %</th>{}\
         <th scope=\"col\" title=\"words replaced by others\">sub</th><th scope=\"col\" title=\"words lost\">del</th>\
         <th scope=\"col\" title=\"words out of nowhere\">ins</th></tr></thead><tbody>{body}</tbody></table></div>\n",
        escape(caption),
        escape(first),
        wide("WER"),
        wide("CER"),
    )
}

fn row(name: &str, score: &Score, over: bool) -> String {
    let number = |value: usize| format!("<td data-v=\"{value}\">{}</td>", count(value));
    let rate = |value: f64| format!("<td data-v=\"{value}\"><b>{}</b></td>", percent(value));
    let range = |ends: (f64, f64)| format!("<td data-v=\"{}\">{}</td>", ends.0, interval(ends));
    let of_speakers = |ends: Option<(f64, f64)>| match (over, ends) {
        (true, Some(ends)) => range(ends),
        (true, None) => "<td data-v=\"-1\"></td>".to_owned(),
        (false, _) => String::new(),
    };
    let speakers = score.over_speakers.as_ref();
    [
        format!("<tr><th scope=\"row\">{}</th>", escape(name)),
        number(score.utterances),
        number(score.words),
        rate(score.wer),
        range(score.interval),
        of_speakers(speakers.map(|over| over.interval)),
        rate(score.cer),
        range(score.cer_interval),
        of_speakers(speakers.map(|over| over.cer_interval)),
        number(score.substitutions),
        number(score.deletions),
        number(score.insertions),
        "</tr>".to_owned(),
    ]
    .concat()
}

/// A row for each bad item of a set: its id and what is wrong with it.
pub fn bad_items(set: &str, items: &BadItems) -> String {
    let row = |id: &str, what: &str, reason: &str| {
        format!("<tr><th scope=\"row\">{}</th><td>{what}</td><td>{}</td></tr>", escape(id), escape(reason))
    };
    let left_out = items.left_out.iter().map(|one| row(&one.id, "left out", &one.reason));
    let lengths = items.other_length.iter().map(|one| {
        let (found, expected) = (one.found_seconds, one.expected_seconds);
        row(&one.id, "used as it is", &format!("{found:.2} s instead of {expected:.2} s"))
    });
    let rows: Vec<String> = left_out.chain(lengths).collect();
    let open = if rows.len() <= KINDS { " open" } else { "" };
    format!(
        "<details{open}><summary>{}: {} left out, {} of another length than the manifest says</summary><div class=\"wide\">\
         <table class=\"text\"><thead><tr><th scope=\"col\">utterance</th><th scope=\"col\"></th>\
         <th scope=\"col\">reason</th></tr></thead><tbody>{}</tbody></table></div></details>\n",
        escape(set),
        count(items.left_out.len()),
        count(items.other_length.len()),
        rows.concat(),
    )
}

/// Which words or characters were taken for which, most frequent first.
pub fn frequent(transcripts: &[Transcript], metric: Metric) -> String {
    let found = confusions(transcripts, metric);
    if found.is_empty() {
        return String::new();
    }
    let unit = |unit: &Option<String>| match unit {
        Some(unit) => format!("<td>{}</td>", escape(unit)),
        None => "<td class=\"none\">—</td>".to_owned(),
    };
    let row = |(EditPair { said, heard }, times): &(EditPair, usize)| {
        let (class, kind) = match (said, heard) {
            (Some(_), Some(_)) => ("s", "substitution"),
            (Some(_), None) => ("d", "deletion"),
            _ => ("i", "insertion"),
        };
        format!(
            "<tr><td data-v=\"{times}\">{}</td>{}{}<td><span class=\"{class}\">{kind}</span></td></tr>",
            count(*times),
            unit(said),
            unit(heard),
        )
    };
    let rows: String = found.iter().take(KINDS).map(row).collect();
    let caption = match found.len() > KINDS {
        true => format!("The {KINDS} most frequent of {} kinds of errors", count(found.len())),
        false => "All kinds of errors".to_owned(),
    };
    format!(
        "<div class=\"wide\"><table class=\"sort text\"><caption>{caption}</caption><thead><tr><th scope=\"col\">times</th>\
         <th scope=\"col\">said</th><th scope=\"col\">heard</th><th scope=\"col\">kind</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>\n"
    )
}
