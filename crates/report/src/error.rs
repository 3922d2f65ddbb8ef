//! What can go wrong with a report.
use std::path::{Path, PathBuf};

use kernels::Excerpt;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a report; the message names the file, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder without a run.
    #[error("{}: expected a run folder with recipe.toml, found none", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// A file that cannot be read.
    #[error("{}: could not read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Metrics that are no table.
    #[error("{}: expected a table with a header, found {}", path.display(), Excerpt(source))]
    Metrics {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: csv::Error,
    },
    /// A line of hypotheses that is none.
    #[error("{}:{line}: expected id, reference and hypothesis in JSON, found {}", path.display(), Excerpt(source))]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A recipe or a manifest.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// A plot that cannot be drawn.
    #[error("curve: {0}")]
    Plot(#[source] crate::plots::DrawError),
}

impl Error {
    /// For `map_err`: attaches the file to a system error.
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
