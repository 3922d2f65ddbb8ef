//! Reads folders and text files of speech corpora that are prepared.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::read_input_text;
use crate::{Error, Result};

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
