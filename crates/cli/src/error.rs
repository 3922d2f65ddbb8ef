//! What can go wrong in a command.
/// Errors of the program; the message is what the user sees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Training, a checkpoint or a recipe.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// Audio or a manifest.
    #[error(transparent)]
    Speech(#[from] speech::Error),
    /// The loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// A folder of golden cases.
    #[error(transparent)]
    Verify(#[from] crate::verify::VerifyError),
    /// A benchmark.
    #[error(transparent)]
    Bench(#[from] bench::BenchError),
    /// The handler of Ctrl-C could not be set.
    #[error("cannot watch for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}

/// A result with this program's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
