//! What can stop a verification before its first verdict.
use std::path::PathBuf;

use kernels::Excerpt;

/// A folder or a file of golden cases that cannot be read for what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
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
    /// The report cannot be written.
    #[error("the report could not be written: {0}")]
    Report(#[from] std::io::Error),
}

/// A result with [`VerifyError`].
pub type Result<T> = std::result::Result<T, VerifyError>;
