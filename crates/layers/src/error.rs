//! `Error`: errors of layers.
use kernels::Excerpt;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a layer.
#[derive(Debug, thiserror::Error)]
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
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// An error of a packed layer for inference.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
}

impl Error {
    /// Creates the error of an argument that does not match.
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Error::Shape { argument: argument.into(), expected: expected.into(), found: found.into() }
    }
}
