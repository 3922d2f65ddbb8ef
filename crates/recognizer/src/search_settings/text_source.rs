//! `TextSource`: a text of an option, given in a file or as it is.
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A text of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextSource {
    /// The text of a file.
    File(PathBuf),
    /// The text, in UTF-8.
    Text(Vec<u8>),
}

impl TextSource {
    /// Returns the path of a file.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            TextSource::File(path) => Some(path),
            TextSource::Text(_) => None,
        }
    }

    /// Returns the name in errors: the path, or that of the option.
    pub(super) fn name(&self, option: &str) -> String {
        self.path().map_or_else(|| option.to_owned(), |path| path.display().to_string())
    }

    /// Returns the bytes of the text.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        match self {
            TextSource::File(path) => read_file(path),
            TextSource::Text(text) => Ok(text.clone()),
        }
    }

    /// Returns the text without a byte order mark.
    pub(super) fn read_text(&self, option: &str) -> Result<String> {
        let text = String::from_utf8(self.read()?)
            .map_err(|_| Error::shape(self.name(option), "UTF-8", "other bytes"))?;
        Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
    }
}

/// Reads a file of an option.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    Ok(speech::files::read_input(path).map_err(model::Error::io(path, "read the file"))?)
}
