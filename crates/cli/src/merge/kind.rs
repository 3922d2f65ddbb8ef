//! The kind of a part, from its name and its lines.
use std::path::Path;

use recognizer::{Alignments, Transcript};

use crate::error::{Error, Result};

/// Lines of a part, without their ends.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    // The last line of a part that was cut may end in half an end.
    text.lines().map(|line| line.trim_end_matches('\r'))
}

/// Lines of a part that are not blank, with their numbers.
pub fn filled(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(lines(text)).filter(|(_, line)| !line.trim().is_empty())
}

/// What a part contains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PartKind {
    /// Lines of `evaluate --hypotheses`.
    Hypotheses,
    /// The object of `align --json`.
    Alignments,
    /// Objects with an id each, as `transcribe --format json` writes them.
    Json,
    /// Lines of a word each, with an id, a channel and times.
    Ctm,
    /// Any other lines.
    Text,
}

/// A line of `--format json`, as far as `merge` reads it.
#[derive(serde::Deserialize)]
pub struct IdLine {
    /// Id of the utterance.
    #[serde(deserialize_with = "speech::names::required_id")]
    pub id: String,
    /// Present in lines of `--stream`, of which an utterance has several.
    pub endpoint: Option<bool>,
}

/// A line about an utterance that could not be used.
#[derive(serde::Deserialize)]
struct LeftOutPart {
    #[serde(rename = "left_out")]
    _reason: String,
}

impl PartKind {
    /// The kind of a part; none if it has no line, or only lines about utterances that were left out, which fit all kinds.
    ///
    /// JSON is recognized by its lines, `.ctm` and `.txt` by the ending of the name; with another ending, a part is CTM if at least half
    /// of its lines are.
    pub fn of(path: &Path, text: &str) -> Result<Option<Self>> {
        let is_left_out = |line: &str| serde_json::from_str::<LeftOutPart>(line).is_ok();
        let mut lines = filled(text).filter(|(_, line)| !is_left_out(line));
        let Some((number, first)) = lines.next() else { return Ok(None) };
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let is_named = |endings: &[&str]| endings.iter().any(|&one| ending == one);
        let is_json_named = is_named(&["json", "jsonl"]) && lines.any(|(_, line)| line.starts_with('{'));
        if is_json_named || is_json_start(first) {
            let found = filled(text).filter(|(_, line)| !is_left_out(line)).find_map(|(_, line)| {
                let hypotheses = serde_json::from_str::<Transcript>(line).ok().map(|_| PartKind::Hypotheses);
                hypotheses.or_else(|| serde_json::from_str::<IdLine>(line).ok().map(|_| PartKind::Json))
            });
            let whole = || serde_json::from_str::<Alignments>(text).ok().map(|_| PartKind::Alignments);
            match found.or_else(whole) {
                None if is_named(&["txt"]) => return Ok(Some(PartKind::Text)),
                None => {
                    return Err(Error::PartLine {
                        path: path.to_owned(),
                        line: number,
                        expected: "hypotheses, alignments or lines with an id each, all of them".into(),
                        found: "JSON of another kind, or a piece of it".into(),
                    });
                }
                found => return Ok(found),
            }
        }
        let is_ctm = is_named(&["ctm"])
            || !is_named(&["txt"]) && {
                let lines = filled(text).filter(|(_, line)| !is_comment(line));
                let ctm = |(all, ctm), (_, line)| (all + 1, ctm + usize::from(ctm_fields(line).is_some()));
                let (all, ctm) = lines.fold((0, 0), ctm);
                ctm > 0 && 2 * ctm >= all
            };
        Ok(Some(if is_ctm { PartKind::Ctm } else { PartKind::Text }))
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            PartKind::Hypotheses => "hypotheses",
            PartKind::Alignments => "alignments",
            PartKind::Json => "JSON lines with an id each",
            PartKind::Ctm => "CTM",
            PartKind::Text => "other lines",
        }
    }
}

/// Whether a line begins an object; `{noise}` is a word.
fn is_json_start(line: &str) -> bool {
    let rest = line.trim_start().strip_prefix('{').map(str::trim_start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['"', '}']))
}

/// Whether a line of CTM is a comment.
pub fn is_comment(line: &str) -> bool {
    line.starts_with(";;")
}

/// Recording and channel of a line of CTM: `recording channel start duration word [confidence]`.
pub fn ctm_fields(line: &str) -> Option<(&str, &str)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |field: &&str| field.parse::<f64>().ok().filter(|number| number.is_finite());
    let is_time = |field| number(field).is_some_and(|seconds| seconds >= 0.0);
    let is_line = (5..=6).contains(&fields.len())
        && fields[2..4].iter().all(is_time)
        && fields[5..].iter().all(|field| number(field).is_some())
        && !line.trim().contains(|c: char| c.is_control() && c != '\t');
    is_line.then(|| (fields[0], fields[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_name_and_lines() {
        let kind = |name: &str, text: &str| PartKind::of(Path::new(name), text).unwrap();
        let ctm = "u1 1 0.10 0.20 one 0.9\n";
        for (name, text, expected) in [
            ("a.ctm", ctm, Some(PartKind::Ctm)),
            ("a", ctm, Some(PartKind::Ctm)),
            ("a.ctm", "u1 1 0.10\n", Some(PartKind::Ctm)),
            ("a.out", &format!("{ctm}u1 1 0.10\n"), Some(PartKind::Ctm)),
            ("a.out", ";; a comment\nu1 A 0 1 one\n", Some(PartKind::Ctm)),
            ("a.out", &format!("{ctm}one two\nthree\n"), Some(PartKind::Text)),
            // Transcripts of digits look like it.
            ("a.txt", "1 2 3 4 5\n", Some(PartKind::Text)),
            ("a.txt", "{noise} one\n", Some(PartKind::Text)),
            ("a", "{noise} one\n", Some(PartKind::Text)),
            ("a.txt", "{\"id\": 17}\n", Some(PartKind::Json)),
            ("a.json", "garbage\n{\"id\": \"a\"}\n", Some(PartKind::Json)),
            ("a", "{\"id\": \"a\", \"reference\": \"\", \"hypothesis\": \"\"}", Some(PartKind::Hypotheses)),
            ("a.json", "", None),
            ("a.ctm", " \r\n\n", None),
            ("a.json", "{\"id\": \"a\", \"left_out\": \"gone\"}", None),
        ] {
            assert_eq!(kind(name, text), expected, "{name}: {text:?}");
        }
        let error = PartKind::of(Path::new("a.json"), "\n{\"id\": \"a\", \"te").unwrap_err().to_string();
        assert!(error.starts_with("a.json:2: expected hypotheses"), "{error}");
    }

    #[test]
    fn lines_of_ctm_are_checked_by_field() {
        for line in ["u 1 0 1 w", "u A 0.1 1e-2 w 0.5", "\u{e9} 1 3 0.000 w -0.1", "u\t1  0 1 w\r"] {
            assert_eq!(ctm_fields(line).map(|(_, channel)| channel.len()), Some(1), "{line:?}");
        }
        for line in [
            "",
            "u",
            "u 1 0 1",
            "u 1 0 1 w 0.5 more",
            "u 1 x 1 w",
            "u 1 0 nan w",
            "u 1 -1 1 w",
            "u 1 0 inf w 0.5",
            "u 1 0 1 w high",
            "u1 1 0.1 0.2 one 0.8265u2 1 0.1 0.2 two",
            "u 1 0 1 w\0",
        ] {
            assert_eq!(ctm_fields(line), None, "{line:?}");
        }
    }
}
