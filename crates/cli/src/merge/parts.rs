//! Reads and checks the parts of `panda merge`: outputs of sharded runs.
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use recognizer::{Alignments, Evaluation};

use super::part_kind::{IdLine, PartKind, ctm_fields, is_comment, lines, nonblank_lines};
use crate::error::{Error, Result};

/// Contents of the parts of a merge.
pub(super) enum MergeParts {
    /// Outputs of `evaluate --hypotheses`.
    Hypotheses(Vec<Evaluation>),
    /// Outputs of `align --json`.
    Alignments(Vec<Alignments>),
    /// Lines of another kind.
    Lines {
        /// Lines of each part.
        lines: Vec<Vec<String>>,
        /// Unique utterance ids of each part, if lines have ids.
        ids: Option<Vec<Vec<String>>>,
        /// True if the ids are manifest ids; CTM has replacements.
        has_manifest_ids: bool,
    },
}

impl MergeParts {
    /// Parses parts, which must have the same kind.
    ///
    /// Byte order marks are removed. Blank lines are removed except from texts, in which they are
    /// empty transcripts.
    ///
    /// # Errors
    /// [`Error::MergePart`] for a part of another kind; [`Error::MergePartLine`] for a line that
    /// does not have the kind of its part.
    pub(super) fn parse(paths: &[PathBuf], texts: &[String]) -> Result<Self> {
        let texts: Vec<&str> =
            texts.iter().map(|text| text.strip_prefix('\u{feff}').unwrap_or(text)).collect();
        let kind = detect_common_kind(paths, &texts)?;
        let parts = || paths.iter().zip(texts.iter().copied());
        match kind {
            PartKind::Hypotheses => {
                let read = |(path, text): (&PathBuf, &str)| {
                    Evaluation::read(text).map_err(|(line, error)| line_error(path, kind, line, &error))
                };
                parts().map(read).collect::<Result<_>>().map(MergeParts::Hypotheses)
            }
            PartKind::Alignments => parse_alignments(parts()).map(MergeParts::Alignments),
            PartKind::Json => {
                let ids = parts().map(|(path, text)| json_ids(path, text)).collect::<Result<_>>()?;
                Ok(MergeParts::Lines {
                    lines: all_nonblank_lines(&texts),
                    ids: Some(ids),
                    has_manifest_ids: true,
                })
            }
            PartKind::Ctm => {
                let ids = parts().map(|(path, text)| ctm_ids(path, text)).collect::<Result<_>>()?;
                Ok(MergeParts::Lines {
                    lines: all_nonblank_lines(&texts),
                    ids: Some(ids),
                    has_manifest_ids: false,
                })
            }
            PartKind::Text => {
                let lines = texts.iter().map(|text| lines(text).map(str::to_owned).collect());
                Ok(MergeParts::Lines { lines: lines.collect(), ids: None, has_manifest_ids: false })
            }
        }
    }

    /// Returns the utterance ids of each part; none for lines without ids.
    pub(super) fn ids(&self) -> Option<Vec<Vec<&str>>> {
        match self {
            MergeParts::Hypotheses(parts) => {
                let lists = parts.iter().map(|part| part.transcripts.iter());
                Some(lists.map(|list| list.map(|transcript| &*transcript.id).collect()).collect())
            }
            MergeParts::Alignments(parts) => {
                let lists = parts.iter().map(|part| part.utterances.iter());
                Some(lists.map(|list| list.map(|aligned| &*aligned.id).collect()).collect())
            }
            MergeParts::Lines { ids, .. } => {
                let ids = ids.as_ref()?.iter();
                Some(ids.map(|part| part.iter().map(String::as_str).collect()).collect())
            }
        }
    }

    /// Returns the ids of the utterances that each part excludes.
    ///
    /// Empty for lines, whose excluded utterances are in [`Self::ids`].
    pub(super) fn excluded(&self) -> Vec<Vec<&str>> {
        match self {
            MergeParts::Alignments(parts) => {
                let ids = parts.iter().map(|part| {
                    let without_path = part.without_path.iter().map(|id| &**id);
                    without_path.chain(part.bad.excluded.iter().map(|bad| &*bad.id)).collect()
                });
                ids.collect()
            }
            MergeParts::Hypotheses(parts) => {
                parts.iter().map(|part| part.bad.excluded.iter().map(|bad| &*bad.id).collect()).collect()
            }
            MergeParts::Lines { lines, .. } => vec![Vec::new(); lines.len()],
        }
    }
}

/// Returns the common kind of the parts; parts that fit every kind are ignored.
///
/// A part of unknown lines takes the kind of the other parts, so that the error names its first
/// line.
fn detect_common_kind(paths: &[PathBuf], texts: &[&str]) -> Result<PartKind> {
    let mut first: Option<(PartKind, &Path)> = None;
    for (path, text) in paths.iter().zip(texts) {
        let is_unknown = |kind, path: &Path| {
            kind == PartKind::Text
                && path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("txt"))
        };
        match (PartKind::detect(path, text)?, first) {
            (None, _) => {}
            (Some(kind), None) => first = Some((kind, path)),
            (Some(kind), Some((common, _))) if kind == common || is_unknown(kind, path) => {}
            (Some(kind), Some((common, other))) if is_unknown(common, other) => first = Some((kind, path)),
            (Some(kind), Some((common, first))) => {
                return Err(Error::MergePart {
                    path: path.clone(),
                    expected: format!("{}, as in {}", common.name(), first.display()),
                    found: kind.name().to_owned(),
                });
            }
        }
    }
    // The parts have only lines about excluded utterances.
    let default = || {
        if texts.iter().any(|text| nonblank_lines(text).next().is_some()) {
            PartKind::Json
        } else {
            PartKind::Text
        }
    };
    Ok(first.map_or_else(default, |(kind, _)| kind))
}

fn all_nonblank_lines(texts: &[&str]) -> Vec<Vec<String>> {
    texts.iter().map(|text| nonblank_lines(text).map(|(_, line)| line.to_owned()).collect()).collect()
}

/// Returns the ids of JSON lines; `--stream` writes several lines per utterance.
fn json_ids(path: &Path, text: &str) -> Result<Vec<String>> {
    let (mut ids, mut unique_ids) = (Vec::new(), HashSet::new());
    for (number, line) in nonblank_lines(text) {
        let IdLine { id, endpoint } =
            serde_json::from_str(line).map_err(|error| line_error(path, PartKind::Json, number, &error))?;
        if unique_ids.insert(id.clone()) || endpoint.is_none() {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Returns the unique recordings of CTM lines, with channels other than 1.
fn ctm_ids(path: &Path, text: &str) -> Result<Vec<String>> {
    let (mut ids, mut unique_ids) = (Vec::new(), HashSet::new());
    for (number, line) in nonblank_lines(text).filter(|(_, line)| !is_comment(line)) {
        let fields = ctm_fields(line).ok_or_else(|| {
            let shown = line.trim_end();
            Error::MergePartLine {
                path: path.to_owned(),
                line: number,
                expected: "a CTM line (recording channel start duration word [confidence])".into(),
                found: format!("{shown:?}"),
            }
        })?;
        if unique_ids.insert(fields) {
            ids.push(match fields {
                (id, "1") => id.to_owned(),
                (id, channel) => format!("{id}, channel {channel},"),
            });
        }
    }
    Ok(ids)
}

/// Parses alignments, which must have the same frame duration.
fn parse_alignments<'a>(parts: impl Iterator<Item = (&'a PathBuf, &'a str)>) -> Result<Vec<Alignments>> {
    let mut first: Option<(f64, &Path)> = None;
    let mut alignments: Vec<Option<Alignments>> = Vec::new();
    for (path, text) in parts {
        let nonblank = Some(text).filter(|text| !text.trim().is_empty());
        let parsed: Option<Alignments> =
            nonblank.map(serde_json::from_str).transpose().map_err(|error: serde_json::Error| {
                line_error(path, PartKind::Alignments, error.line(), &error)
            })?;
        if let Some(part) = &parsed {
            match first {
                None => first = Some((part.frame_seconds, path)),
                Some((seconds, first)) if seconds != part.frame_seconds => {
                    return Err(Error::MergePart {
                        path: path.clone(),
                        expected: format!("frames of {seconds} s, as in {}", first.display()),
                        found: format!("frames of {} s", part.frame_seconds),
                    });
                }
                Some(_) => {}
            }
        }
        alignments.push(parsed);
    }
    let seconds = first.map_or(0.0, |(seconds, _)| seconds);
    Ok(alignments.into_iter().map(|part| part.unwrap_or_else(|| Alignments::empty(seconds))).collect())
}

/// Returns an error about a line without the expected kind.
fn line_error(path: &Path, kind: PartKind, line: usize, error: &serde_json::Error) -> Error {
    // The parser counts lines from the start of its input, not of the file.
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    Error::MergePartLine {
        path: path.to_owned(),
        line,
        expected: kind.name().to_owned(),
        found: format!("another line: {message} at column {}", error.column()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[(&str, &str)]) -> Result<MergeParts> {
        let paths: Vec<PathBuf> = parts.iter().map(|(name, _)| name.into()).collect();
        let texts: Vec<String> = parts.iter().map(|(_, text)| (*text).to_owned()).collect();
        MergeParts::parse(&paths, &texts)
    }

    #[test]
    fn all_line_ends_are_read() {
        let lines = |parts: &[(&str, &str)]| match read(parts).unwrap() {
            MergeParts::Lines { lines, .. } => lines.concat(),
            _ => panic!("other parts"),
        };
        let ctm = ["u1 1 0.10 0.20 one 0.9", "u2 1 0.10 0.20 two 0.9"];
        let crlf = format!("\u{feff}{}\r\n", ctm[0]);
        for first in [ctm[0], &format!("{}\n", ctm[0]), &crlf, &format!("\r\n{}\n \n\n", ctm[0])] {
            for second in [ctm[1], &format!("\u{feff}{}\r\n", ctm[1])] {
                let merged = lines(&[("0.ctm", ""), ("1.ctm", first), ("2.ctm", " \n"), ("3.ctm", second)]);
                assert_eq!(merged, ctm, "{first:?} {second:?}");
            }
        }
        assert_eq!(lines(&[("1.txt", "one\n\n"), ("2.txt", ""), ("3.txt", "two")]), ["one", "", "two"]);
        assert_eq!(lines(&[("1.txt", "\n"), ("2.txt", "\r\n\r\n")]), ["", "", ""]);
        assert_eq!(lines(&[("1.json", "{\"id\": 1}"), ("2.json", "\n{\"id\": 2}\n")]).len(), 2);
    }

    #[test]
    fn unreadable_lines_are_named() {
        for (name, text, line) in [
            ("x.ctm", "u 1 0 1 one\nu 1 0 1", 2),
            ("x.ctm", "u 1 0 1 one 0.8265u2 1 0 1 two", 1),
            ("x.ctm", "\u{feff}u 1 0 1 one\n\nu 1 0 1 two\0", 3),
            ("x.json", "{\"id\": \"a\"}{\"id\": \"b\"}\n{\"id\": \"c\"}", 1),
            ("x.json", "{\"id\": \"a\"}\n\n{\"id\": null}", 3),
            ("x.json", "{\"id\": \"a\"}\nu", 2),
            ("x.jsonl", "{\"id\": 1, \"reference\": \"\", \"hypothesis\": \"\"}\n{\"id\": 2, \"refer", 2),
        ] {
            let error = read(&[("empty", ""), (name, text)]).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{name}:{line}: expected ")), "{error}");
            assert!(!error.contains("at line"), "{error}");
        }
        // An unreadable part takes the kind of the other parts, in any order.
        let ctm = "u 1 0 1 one";
        for (broken, good) in [("u 1 0", ctm), ("a\": 1}", "{\"id\": 1}"), ("one", "{\"id\": 1}")] {
            for parts in [[("x", broken), ("y", good)], [("y", good), ("x", broken)]] {
                let error = read(&parts).err().unwrap().to_string();
                assert!(error.starts_with("x:1: expected "), "{error}");
            }
            let error = read(&[("y", good), ("x.txt", broken)]).err().unwrap().to_string();
            assert!(error.starts_with("x.txt: expected ") && error.contains(", as in y"), "{error}");
        }
    }

    #[test]
    fn an_utterance_is_counted_once_a_part() {
        let ids = |parts: &[(&str, &str)]| {
            let parts = read(parts).unwrap();
            parts.ids().unwrap().concat().join("|")
        };
        let ctm = ";; made by hand\nu 1 0 1 a\nu 1 1 1 b\nu 2 0 1 a\nv 1 0 1 a\n";
        assert_eq!(ids(&[("x.ctm", ctm)]), "u|u, channel 2,|v");
        let events = r#"{"id": "a.wav", "words": [], "partial": "", "endpoint": false}"#;
        assert_eq!(ids(&[("x.json", &format!("{events}\n{events}\n"))]), "a.wav");
        assert_eq!(ids(&[("x.json", "{\"id\": 17}\n{\"id\": \"17\"}\n")]), "17|17");
        // Only excluded utterances.
        assert_eq!(ids(&[("x.jsonl", "{\"id\": \"a\", \"left_out\": \"gone\"}\n")]), "a");
    }
}
