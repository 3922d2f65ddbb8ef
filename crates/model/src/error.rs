//! `Error`: errors of building, loading and running a model.
use std::path::{Path, PathBuf};

use kernels::Excerpt;
use speech::memory;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a model, which names the argument or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, lengths or dtypes that do not match.
    #[error("{argument}: expected {expected}, found {}", Excerpt(found))]
    Shape {
        /// Name of the argument.
        argument: String,
        /// What is expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A recipe with invalid TOML, or with an unknown or missing key.
    #[error("recipe {}: {position}{message}", path.display())]
    RecipeSyntax {
        /// The recipe file.
        path: PathBuf,
        /// Line and column; empty if they are unknown.
        position: String,
        /// Key, what was expected, and the line.
        message: String,
    },
    /// A recipe key whose value is outside its range.
    #[error("recipe key {}: expected {expected}, found {}", Excerpt(key), Excerpt(found))]
    RecipeValue {
        /// Dotted name of the key.
        key: String,
        /// The valid values.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// A file that could not be read or written.
    #[error("{}: could not {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A checkpoint that is corrupt, truncated, or of another program.
    #[error("checkpoint {}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Checkpoint {
        /// The checkpoint file.
        path: PathBuf,
        /// What is expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A model that cannot be imported or exported.
    #[error("{}: {}: expected {}, found {}", path.display(), Excerpt(item), Excerpt(expected), Excerpt(found))]
    Conversion {
        /// The file or folder.
        path: PathBuf,
        /// Tensor, dotted key of the configuration, or part of the file.
        item: Box<str>,
        /// What is expected.
        expected: Box<str>,
        /// What was found.
        found: Box<str>,
    },
    /// Pretrained weights that do not match the model.
    #[error("init.weights {}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Pretrained {
        /// The file.
        path: PathBuf,
        /// What is expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A budget that is too small for the loss of an utterance.
    #[error(
        "recipe key loss.budget: expected at least {smallest} bytes, the smallest budget for utterances {}, found {found}",
        format_names(utterances)
    )]
    LossBudget {
        /// The smallest budget in bytes.
        smallest: usize,
        /// The budget.
        found: usize,
        /// Ids of the utterances.
        utterances: Vec<String>,
    },
    /// Something that needs more memory than is available.
    #[error("{what}: expected at most {}, the available memory, found {}", memory::format_bytes(*available), memory::format_bytes(*bytes))]
    Memory {
        /// What needs the memory, with the responsible keys or utterance.
        what: String,
        /// Bytes that it needs.
        bytes: usize,
        /// Bytes that are available.
        available: usize,
    },
    /// An error in the contents of a file.
    #[error("{}: {source}", path.display())]
    Inside {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<Error>,
    },
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// An error of the loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// An error of a recognition lattice.
    #[error(transparent)]
    Lattice(#[from] lattice::Error),
    /// An error of audio, features, tokens or manifests.
    #[error(transparent)]
    Speech(#[from] speech::Error),
    /// An error of the search.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
}

impl From<layers::Error> for Error {
    fn from(error: layers::Error) -> Self {
        match error {
            layers::Error::Shape { argument, expected, found } => Error::Shape { argument, expected, found },
            layers::Error::Candle(error) => Error::Candle(error),
            layers::Error::Decoding(error) => Error::Decoding(error),
        }
    }
}

/// Formats names in quotes, each abbreviated if it is long.
fn format_names(utterances: &[String]) -> String {
    let quoted: Vec<String> =
        utterances.iter().map(|id| Excerpt(format_args!("{id:?}")).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

impl Error {
    /// Creates the error of an argument that does not match.
    pub fn shape(argument: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Shape { argument: argument.into(), expected: expected.into(), found: found.into() }
    }

    /// Returns a closure for `map_err` that adds file and action.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// Creates the error of an invalid checkpoint.
    pub fn checkpoint(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Checkpoint { path: path.to_owned(), expected: expected.into(), found: found.into() }
    }

    /// Creates the error of a model of another toolkit.
    pub(crate) fn conversion(
        path: &Path,
        item: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let [item, expected, found]: [String; 3] = [item.into(), expected.into(), found.into()];
        Error::Conversion {
            path: path.to_owned(),
            item: item.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// Adds the utterances to an error about a budget; other errors are unchanged.
    #[must_use]
    pub fn with_utterances(self, utterances: impl FnOnce() -> Vec<String>) -> Self {
        match self {
            Error::Loss(rnnt_loss::Error::Budget { smallest, found })
            | Error::Lattice(lattice::Error::Budget { smallest, found }) => {
                Error::LossBudget { smallest, found, utterances: utterances() }
            }
            error => error,
        }
    }

    /// Checks that the system has this many bytes available.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn expect_memory(what: impl FnOnce() -> String, bytes: usize) -> Result<()> {
        match memory::available_bytes() {
            Some(available) if bytes > available => Err(Error::Memory { what: what(), bytes, available }),
            _ => Ok(()),
        }
    }
}

/// Lets `?` convert the errors that [`Error`] wraps into another crate's error.
///
/// That error must implement `From<Error>`.
#[macro_export]
macro_rules! convert_model_errors {
    ($error:ty: $($wrapped:ty),+) => {$(
        impl From<$wrapped> for $error {
            fn from(error: $wrapped) -> Self {
                $crate::Error::from(error).into()
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_is_available_is_an_error_with_both_sizes() {
        Error::expect_memory(|| unreachable!(), 0).unwrap();
        let Some(available) = memory::available_bytes() else { return };
        assert!(available > 1 << 20, "{available}");
        let error = Error::expect_memory(|| "the model".to_owned(), usize::MAX).unwrap_err().to_string();
        assert!(error.starts_with("the model: expected at most "), "{error}");
        assert!(error.ends_with("found 17179869184.0 GiB"), "{error}");
    }
}
