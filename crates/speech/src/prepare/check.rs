//! Checks transcripts, lengths and ids of corpora that are prepared.

use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::files::read_input_text;
use crate::{Error, Result};

/// Returns the error of a file or folder.
pub(super) fn path_error(path: &Path, expected: impl Into<String>, found: impl ToString) -> Error {
    Error::Corpus { path: path.into(), expected: expected.into(), found: found.to_string() }
}

/// Returns the error of a line.
pub(super) fn line_error(
    path: &Path,
    line: usize,
    expected: impl Into<String>,
    found: impl ToString,
) -> Error {
    let (expected, found) = (expected.into(), found.to_string());
    Error::CorpusLine { path: path.into(), line, expected, found }
}

/// Normalizes a transcript to lower case words separated by single spaces.
///
/// A transcript has at least one character; all are a to z, apostrophe or space.
pub(super) fn normalize_transcript(path: &Path, line: usize, transcript: &str) -> Result<String> {
    let text = transcript.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    if text.is_empty() {
        return Err(line_error(path, line, "a transcript", "no text"));
    }
    match text.chars().find(|character| !matches!(character, 'a'..='z' | '\'' | ' ')) {
        None => Ok(text),
        Some(character) => Err(line_error(
            path,
            line,
            "letters a to z, apostrophes and spaces",
            format!("{character:?} in {transcript:?}"),
        )),
    }
}

/// Checks that a length is plausible.
pub(super) fn check_seconds(path: &Path, samples: u64, rate: u32, range: &RangeInclusive<f64>) -> Result<()> {
    let seconds = samples as f64 / f64::from(rate);
    if range.contains(&seconds) {
        return Ok(());
    }
    let expected = format!("{} to {} seconds of sound", range.start(), range.end());
    Err(path_error(path, expected, format!("{seconds:.3} s")))
}

/// Checks the sample rate of a corpus.
pub(super) fn check_sample_rate(path: &Path, expected: u32, found: u32) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Error::FileRate { path: path.into(), expected, found }),
    }
}

/// Checks the number of utterances; an excerpt needs at least one.
pub(super) fn check_count(path: &Path, expected: usize, found: usize, is_excerpt: bool) -> Result<()> {
    match (found, is_excerpt) {
        (0, _) => Err(path_error(path, "utterances", "none")),
        (_, false) if found != expected => {
            Err(path_error(path, format!("{expected} utterances, unless it is an excerpt"), found))
        }
        _ => Ok(()),
    }
}

/// Returns the entries of a folder sorted by name, without hidden ones.
pub(super) fn list_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let io_error = |source| Error::Io { path: folder.into(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error)? {
        let entry = entry.map_err(io_error)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the non-blank lines of a text file with their numbers.
pub(super) fn read_lines(path: &Path) -> Result<Vec<(usize, String)>> {
    let text = read_input_text(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(number, line)| (number, line.trim().to_owned())).collect())
}

/// Returns whether a file has an extension, ignoring case.
pub(super) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Returns the file name without extension.
pub(super) fn file_stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The ids so far, with file and line.
#[derive(Default)]
pub(super) struct Ids(HashMap<String, (PathBuf, usize)>);

impl Ids {
    /// Adds an id, which must be new.
    pub fn insert(&mut self, id: &str, path: &Path, line: usize) -> Result<()> {
        match self.0.insert(id.to_owned(), (path.to_owned(), line)) {
            None => Ok(()),
            Some((first_path, first_line)) => {
                let duplicate = format!("`{id}` in {}:{first_line} too", first_path.display());
                Err(line_error(path, line, "ids that occur once", duplicate))
            }
        }
    }
}
