//! What is asked of every corpus.

use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::files::read_input_text;
use crate::{Error, Result};

/// The error of a file or folder.
pub(super) fn wrong(path: &Path, expected: impl Into<String>, found: impl ToString) -> Error {
    Error::Corpus { path: path.into(), expected: expected.into(), found: found.to_string() }
}

/// The error of a line.
pub(super) fn wrong_line(
    path: &Path,
    line: usize,
    expected: impl Into<String>,
    found: impl ToString,
) -> Error {
    let (expected, found) = (expected.into(), found.to_string());
    Error::CorpusLine { path: path.into(), line, expected, found }
}

/// A transcript in lower case, words separated by one space: at least one character, all of a to z, apostrophe and space.
pub(super) fn text(path: &Path, line: usize, said: &str) -> Result<String> {
    let text = said.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    if text.is_empty() {
        return Err(wrong_line(path, line, "a transcript", "no text"));
    }
    match text.chars().find(|c| !matches!(c, 'a'..='z' | '\'' | ' ')) {
        None => Ok(text),
        Some(c) => Err(wrong_line(
            path,
            line,
            "letters a to z, apostrophes and spaces",
            format!("{c:?} in {said:?}"),
        )),
    }
}

/// Lengths that make sense.
pub(super) fn seconds(path: &Path, samples: u64, rate: u32, range: &RangeInclusive<f64>) -> Result<()> {
    let seconds = samples as f64 / f64::from(rate);
    if range.contains(&seconds) {
        return Ok(());
    }
    let expected = format!("{} to {} seconds of sound", range.start(), range.end());
    Err(wrong(path, expected, format!("{seconds:.3} s")))
}

/// The rate that a corpus has.
pub(super) fn rate(path: &Path, expected: u32, found: u32) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Error::FileRate { path: path.into(), expected, found }),
    }
}

/// A number of utterances, unless it is an excerpt; at least one in any case.
pub(super) fn count(path: &Path, expected: usize, found: usize, excerpt: bool) -> Result<()> {
    match (found, excerpt) {
        (0, _) => Err(wrong(path, "utterances", "none")),
        (_, false) if found != expected => {
            Err(wrong(path, format!("{expected} utterances, unless it is an excerpt"), found))
        }
        _ => Ok(()),
    }
}

/// What is in a folder, sorted by name, without what begins with a dot.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: folder.into(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The lines of a text file that are not blank, with their numbers.
pub(super) fn lines(path: &Path) -> Result<Vec<(usize, String)>> {
    let text = read_input_text(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(number, line)| (number, line.trim().to_owned())).collect())
}

/// Whether a file has an ending, in whatever case.
pub(super) fn ends(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

/// Name of a file without its ending.
pub(super) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Ids that were met.
#[derive(Default)]
pub(super) struct Ids(HashMap<String, (PathBuf, usize)>);

impl Ids {
    /// Takes an id, which nobody may have yet.
    pub fn take(&mut self, id: &str, path: &Path, line: usize) -> Result<()> {
        match self.0.insert(id.to_owned(), (path.to_owned(), line)) {
            None => Ok(()),
            Some((other, first)) => {
                let found = format!("`{id}` in {}:{first} too", other.display());
                Err(wrong_line(path, line, "ids that occur once", found))
            }
        }
    }
}
