//! Errors of the reference implementations (oracles).

/// The error type of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong length or shape.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// Expected length or shape.
        expected: String,
        /// Length or shape found.
        found: String,
    },
    /// A value is out of range.
    #[error("{argument}[{index}]: expected {expected}, found {found}")]
    Value {
        /// Name of the argument.
        argument: &'static str,
        /// Index in the argument: utterance, element or arc.
        index: usize,
        /// Expected values.
        expected: String,
        /// Value found.
        found: String,
    },
    /// The problem is too large for enumeration.
    #[error("{argument}: expected at most {limit}, found {found}")]
    TooLarge {
        /// Name of the quantity that is too large.
        argument: &'static str,
        /// Largest allowed number.
        limit: usize,
        /// Number found.
        found: f64,
    },
    /// A candle operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Creates [`Error::Shape`].
pub(crate) fn shape_error(argument: &'static str, expected: impl ToString, found: impl ToString) -> Error {
    Error::Shape { argument, expected: expected.to_string(), found: found.to_string() }
}

/// Creates [`Error::Value`].
pub(crate) fn value_error(
    argument: &'static str,
    index: usize,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::Value { argument, index, expected: expected.to_string(), found: found.to_string() }
}
