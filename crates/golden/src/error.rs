//! Errors of the crate `golden`: invalid files, and failures of the tested code.
use std::path::PathBuf;

use kernels::Excerpt;

/// Error of a folder or a file of golden cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Missing folder, or a file instead of a folder.
    #[error("{path}: expected a folder of golden cases: {source}")]
    Folder {
        /// Given path.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Folder without cases.
    #[error("{path}: expected golden cases (NAME.json next to NAME.safetensors), found none")]
    NoCases {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Unreadable or missing file of a case.
    #[error("{path}: expected a readable file of a golden case: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Sidecar that is not JSON or lacks a field.
    #[error("{path}: expected a sidecar with kind and options: {}", Excerpt(source))]
    Sidecar {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with the position.
        source: serde_json::Error,
    },
    /// Corrupt tensor file.
    #[error("{path}: expected a safetensors file: {source}")]
    Tensors {
        /// Path of the file.
        path: PathBuf,
        /// Error of the reader.
        source: safetensors::SafeTensorError,
    },
    /// Readable file whose contents do not fit its kind.
    #[error("{path}: {}: expected {}, found {}", Excerpt(argument), Excerpt(expected), Excerpt(found))]
    Case {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor or option.
        argument: String,
        /// Requirement of the kind.
        expected: String,
        /// Contents of the file.
        found: String,
    },
    /// Invalid environment variable.
    #[error("{}", Excerpt(_0))]
    Environment(String),
    /// Write error of the report.
    #[error("standard output: could not write: {0}")]
    Output(#[from] std::io::Error),
}

/// Error of the run of a case.
#[derive(Debug)]
pub(crate) enum RunError {
    /// Invalid case, which is neither a pass nor a failure.
    InvalidCase(Error),
    /// Error of the code under test on a valid case.
    Failed(String),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        RunError::InvalidCase(error)
    }
}

/// Converts errors of the crates under test to failures.
macro_rules! run_failures {
    ($($error:ty),*) => {$(
        impl From<$error> for RunError {
            fn from(error: $error) -> Self {
                RunError::Failed(error.to_string())
            }
        }
    )*};
}

run_failures!(lattice::Error, model::Error, rnnt_loss::Error, speech::Error, training::Error);

/// Result with this crate's [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;
