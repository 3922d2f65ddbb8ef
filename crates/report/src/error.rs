//! Errors of reading a run folder and of writing its report.
use std::path::{Path, PathBuf};

use kernels::Excerpt;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Error of a report; the message names the file, expected and found contents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Folder without a run.
    #[error("{}: expected a run folder with recipe.toml, found none", path.display())]
    NoRun {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Unreadable file.
    #[error("{}: could not read: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Metrics file that is not a table.
    #[error("{}: expected a table with a header, found {}", path.display(), Excerpt(source))]
    Metrics {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with the position.
        source: csv::Error,
    },
    /// Invalid line of a hypotheses file.
    #[error("{}:{line}: expected id, reference and hypothesis in JSON, found {}", path.display(), Excerpt(source))]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// Error of a recipe or a manifest.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// Error of the plotting library.
    #[error("curve: {0}")]
    Plot(#[source] crate::plots::DrawError),
}

impl Error {
    /// For `map_err`: returns a function that adds the path.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        Error::Training(error.into())
    }
}

impl From<recognizer::Error> for Error {
    fn from(error: recognizer::Error) -> Self {
        Error::Training(error.into())
    }
}
