//! Errors of building, loading and running a model.
use std::path::{Path, PathBuf};

use kernels::Excerpt;
use speech::memory;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a model; the message names the argument or file, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, lengths or dtypes that do not fit together.
    #[error("{argument}: expected {expected}, found {}", Excerpt(found))]
    Shape {
        /// Name of the argument.
        argument: String,
        /// What would have fitted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A recipe that is no valid TOML, has an unknown key or misses one.
    #[error("recipe {}: {place}{message}", path.display())]
    RecipeSyntax {
        /// The recipe file.
        path: PathBuf,
        /// Line and column; empty if they are unknown.
        place: String,
        /// Key, what was expected, and the line.
        message: String,
    },
    /// A recipe key whose value is outside its range.
    #[error("recipe key {}: expected {expected}, found {}", Excerpt(key), Excerpt(found))]
    RecipeValue {
        /// Dotted name of the key.
        key: String,
        /// The allowed values.
        expected: String,
        /// The value.
        found: String,
    },
    /// A file that could not be read or written.
    #[error("{}: could not {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A checkpoint that is corrupt, truncated, or made by something else.
    #[error("checkpoint {}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Checkpoint {
        /// The checkpoint file.
        path: PathBuf,
        /// What a good one has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// Pretrained weights that do not fit the model.
    #[error("init.weights {}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Pretrained {
        /// The file.
        path: PathBuf,
        /// What would have fitted.
        expected: String,
        /// What it has.
        found: String,
    },
    /// A budget of the loss below what an utterance takes, or some together.
    #[error(
        "recipe key loss.budget: expected at least {smallest} bytes, the smallest cut of utterances {}, found {found}",
        names(utterances)
    )]
    LossBudget {
        /// Bytes of the smallest cut.
        smallest: usize,
        /// The budget.
        found: usize,
        /// Ids of the utterances.
        utterances: Vec<String>,
    },
    /// Something that takes more memory than there is.
    #[error("{what}: expected at most {}, which is what is available, found {}", memory::format_bytes(*available), memory::format_bytes(*bytes))]
    Memory {
        /// What asks for it, with the keys or the utterance that decide its size.
        what: String,
        /// What it takes.
        bytes: usize,
        /// What there is.
        available: usize,
    },
    /// Something wrong with what is inside of a file.
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

/// Names in quotes, each cut if it is long.
fn names(utterances: &[String]) -> String {
    let quoted: Vec<String> =
        utterances.iter().map(|id| Excerpt(format_args!("{id:?}")).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

impl Error {
    /// An argument that does not fit.
    pub fn shape(argument: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Shape { argument: argument.into(), expected: expected.into(), found: found.into() }
    }

    /// For `map_err`: attaches file and action to a system error.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// A checkpoint that does not fit.
    pub fn checkpoint(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Checkpoint { path: path.to_owned(), expected: expected.into(), found: found.into() }
    }

    /// Adds the utterances to the error of a loss whose budget is too small for them; other errors stay as they are.
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

    /// Fails if the system has fewer bytes available.
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

/// Converts the errors that [`Error`] wraps into another crate's error with a variant for [`Error`].
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
    fn what_is_not_there_is_refused_with_both_numbers() {
        Error::expect_memory(|| unreachable!(), 0).unwrap();
        let Some(available) = memory::available_bytes() else { return };
        assert!(available > 1 << 20, "{available}");
        let error = Error::expect_memory(|| "the model".to_owned(), usize::MAX).unwrap_err().to_string();
        assert!(error.starts_with("the model: expected at most "), "{error}");
        assert!(error.ends_with("found 17179869184.0 GiB"), "{error}");
    }
}
