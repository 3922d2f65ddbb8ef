//! Checks transcripts, lengths and ids of speech corpora that are prepared.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

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

/// Checks the number of utterances; with `allow_incomplete`, one is enough.
pub(super) fn check_count(path: &Path, expected: usize, found: usize, allow_incomplete: bool) -> Result<()> {
    match (found, allow_incomplete) {
        (0, _) => Err(path_error(path, "utterances", "none")),
        (_, false) if found != expected => {
            Err(path_error(path, format!("{expected} utterances, unless it is an excerpt"), found))
        }
        _ => Ok(()),
    }
}

/// The file and line of each id so far.
#[derive(Default)]
pub(super) struct IdLocations(HashMap<String, (PathBuf, usize)>);

impl IdLocations {
    /// Adds an id, which must be new.
    pub(super) fn insert(&mut self, id: &str, path: &Path, line: usize) -> Result<()> {
        match self.0.insert(id.to_owned(), (path.to_owned(), line)) {
            None => Ok(()),
            Some((first_path, first_line)) => {
                let duplicate = format!("`{id}` in {}:{first_line} too", first_path.display());
                Err(line_error(path, line, "ids that occur once", duplicate))
            }
        }
    }
}
