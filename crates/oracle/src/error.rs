//! What can be wrong with a request to an oracle.

/// The one error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong length or shape.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A value lies outside what the oracle can take.
    #[error("{argument}[{index}]: expected {expected}, found {found}")]
    Value {
        /// Name of the argument.
        argument: &'static str,
        /// Where in the argument: utterance, element or arc.
        index: usize,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The problem is too large to be solved slowly.
    #[error("{what}: at most {limit}, found {found}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The most that is taken.
        limit: usize,
        /// How many there are.
        found: f64,
    },
    /// A candle operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn shape(argument: &'static str, expected: impl ToString, found: impl ToString) -> Error {
    Error::Shape { argument, expected: expected.to_string(), found: found.to_string() }
}

pub(crate) fn value(
    argument: &'static str,
    index: usize,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::Value { argument, index, expected: expected.to_string(), found: found.to_string() }
}
