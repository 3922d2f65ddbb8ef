//! Errors of a verification, and refusals of a case.
use std::path::PathBuf;

use kernels::Excerpt;

/// A folder or a file of golden cases that cannot be read for what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder is missing or is no folder.
    #[error("{path}: expected a folder of golden cases: {source}")]
    Folder {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder holds no case.
    #[error("{path}: expected golden cases (NAME.json beside NAME.safetensors), found none")]
    NoCases {
        /// The folder.
        path: PathBuf,
    },
    /// A file of a case cannot be read, or its partner is missing.
    #[error("{path}: expected a readable file of a golden case: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A sidecar is no JSON or lacks a field.
    #[error("{path}: expected a sidecar with kind and options: {}", Excerpt(source))]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A tensor file is corrupt.
    #[error("{path}: expected a safetensors file: {source}")]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A file is sound, but not the case that its kind promises.
    #[error("{path}: {}: expected {}, found {}", Excerpt(argument), Excerpt(expected), Excerpt(found))]
    Case {
        /// The file.
        path: PathBuf,
        /// The tensor or option.
        argument: String,
        /// What the kind demands.
        expected: String,
        /// What there is.
        found: String,
    },
    /// An invalid variable of the environment.
    #[error("{}", Excerpt(_0))]
    Environment(String),
    /// The report cannot be written.
    #[error("standard output: could not write: {0}")]
    Output(#[from] std::io::Error),
}

/// Why a case has no outcome.
#[derive(Debug)]
pub enum Stop {
    /// The case is not what its sidecar says; nothing can be concluded.
    Case(Error),
    /// This workspace refuses a sound case, which is a failure.
    Refused(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Case(error)
    }
}

/// Errors of the crates under test are refusals.
macro_rules! refusals {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            fn from(error: $error) -> Self {
                Stop::Refused(error.to_string())
            }
        }
    )*};
}

refusals!(lattice::Error, model::Error, rnnt_loss::Error, speech::Error, training::Error);

/// A result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
