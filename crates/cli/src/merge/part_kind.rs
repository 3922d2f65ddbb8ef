//! Detects the contents of a part of `panda merge`: hypotheses, alignments, lines.
use std::path::Path;

use recognizer::{Alignments, Transcript};

use crate::error::{Error, Result};

/// Returns the lines of a part without line ends.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    // A truncated part may end between `\r` and `\n`.
    text.lines().map(|line| line.trim_end_matches('\r'))
}

/// Returns the nonblank lines of a part with their numbers, from 1.
pub(super) fn nonblank_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(lines(text)).filter(|(_, line)| !line.trim().is_empty())
}

/// Contents of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PartKind {
    /// Lines of `evaluate --hypotheses`.
    Hypotheses,
    /// Object of `align --json`.
    Alignments,
    /// Objects with an id, one per line, of `transcribe --format json`.
    Json,
    /// Lines with id, channel, times and word.
    Ctm,
    /// Any other lines.
    Text,
}

/// Line of `--format json`, reduced to the fields that `merge` reads.
#[derive(serde::Deserialize)]
pub(super) struct IdLine {
    /// Utterance id.
    #[serde(deserialize_with = "speech::names::required_id")]
    pub id: String,
    /// Present in lines of `--stream`, which has several lines per utterance.
    pub endpoint: Option<bool>,
}

/// Line about an excluded utterance.
#[derive(serde::Deserialize)]
struct ExcludedLine {
    #[serde(rename = "left_out")]
    _reason: String,
}

impl PartKind {
    /// Detects the kind of a part; returns none if it fits every kind.
    ///
    /// A part without lines, or with lines about excluded utterances only, fits every kind. JSON is
    /// detected from the lines, `.ctm` and `.txt` from the extension of the name. With another
    /// extension, a part is CTM if at least half of its lines are.
    pub(super) fn detect(path: &Path, text: &str) -> Result<Option<Self>> {
        let is_excluded = |line: &str| serde_json::from_str::<ExcludedLine>(line).is_ok();
        let mut lines = nonblank_lines(text).filter(|(_, line)| !is_excluded(line));
        let Some((number, first)) = lines.next() else { return Ok(None) };
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        let is_named = |extensions: &[&str]| extensions.iter().any(|&expected| extension == expected);
        // JSON: hypotheses and lines with ids, or one object of alignments.
        let is_json_named = is_named(&["json", "jsonl"]) && lines.any(|(_, line)| line.starts_with('{'));
        if is_json_named || is_json_start(first) {
            let kind = nonblank_lines(text).filter(|(_, line)| !is_excluded(line)).find_map(|(_, line)| {
                let hypotheses = serde_json::from_str::<Transcript>(line).ok().map(|_| PartKind::Hypotheses);
                hypotheses.or_else(|| serde_json::from_str::<IdLine>(line).ok().map(|_| PartKind::Json))
            });
            let as_object = || serde_json::from_str::<Alignments>(text).ok().map(|_| PartKind::Alignments);
            match kind.or_else(as_object) {
                None if is_named(&["txt"]) => return Ok(Some(PartKind::Text)),
                None => {
                    return Err(Error::MergePartLine {
                        path: path.to_owned(),
                        line: number,
                        expected: "hypotheses, alignments or JSON lines with an id".into(),
                        found: "other JSON, or incomplete JSON".into(),
                    });
                }
                kind => return Ok(kind),
            }
        }
        // CTM by name, or by at least half of the lines.
        let is_ctm = is_named(&["ctm"])
            || !is_named(&["txt"]) && {
                let lines = nonblank_lines(text).filter(|(_, line)| !is_comment(line));
                let count = |(line_count, ctm_count), (_, line)| {
                    (line_count + 1, ctm_count + usize::from(ctm_fields(line).is_some()))
                };
                let (line_count, ctm_count) = lines.fold((0, 0), count);
                ctm_count > 0 && 2 * ctm_count >= line_count
            };
        Ok(Some(if is_ctm { PartKind::Ctm } else { PartKind::Text }))
    }

    /// Returns the name of the kind in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            PartKind::Hypotheses => "hypotheses",
            PartKind::Alignments => "alignments",
            PartKind::Json => "JSON lines with an id",
            PartKind::Ctm => "CTM",
            PartKind::Text => "other lines",
        }
    }
}

/// Returns true if a line starts a JSON object; `{noise}` is a word.
fn is_json_start(line: &str) -> bool {
    let rest = line.trim_start().strip_prefix('{').map(str::trim_start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['"', '}']))
}

/// Returns true if a CTM line is a comment.
pub(super) fn is_comment(line: &str) -> bool {
    line.starts_with(";;")
}

/// Returns recording and channel of a CTM line; none if invalid.
///
/// The line is `recording channel start duration word [confidence]`.
pub(super) fn ctm_fields(line: &str) -> Option<(&str, &str)> {
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
    fn kinds_are_detected_from_name_and_lines() {
        let kind = |name: &str, text: &str| PartKind::detect(Path::new(name), text).unwrap();
        let ctm = "u1 1 0.10 0.20 one 0.9\n";
        for (name, text, expected) in [
            ("a.ctm", ctm, Some(PartKind::Ctm)),
            ("a", ctm, Some(PartKind::Ctm)),
            ("a.ctm", "u1 1 0.10\n", Some(PartKind::Ctm)),
            ("a.out", &format!("{ctm}u1 1 0.10\n"), Some(PartKind::Ctm)),
            ("a.out", ";; a comment\nu1 A 0 1 one\n", Some(PartKind::Ctm)),
            ("a.out", &format!("{ctm}one two\nthree\n"), Some(PartKind::Text)),
            // Transcripts of digits can look like CTM.
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
        let error = PartKind::detect(Path::new("a.json"), "\n{\"id\": \"a\", \"te").unwrap_err().to_string();
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
