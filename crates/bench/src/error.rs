//! Error type of the `bench` program.
use std::path::PathBuf;

/// Error of a benchmark or of its outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Argument outside its range.
    #[error("{argument}: expected {expected}, found {found}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// Valid values.
        expected: &'static str,
        /// Given value.
        found: String,
    },
    /// Failure to start or watch a child process.
    #[error("{case}, {system}: could not {action}: {source}")]
    Process {
        /// Name of the case.
        case: String,
        /// Name of the system.
        system: String,
        /// Action that failed.
        action: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Child process that failed for another reason than memory.
    #[error("{case}, {system}: expected a measurement, found: {found}")]
    Case {
        /// Name of the case.
        case: String,
        /// Name of the system.
        system: String,
        /// Exit status and last line of standard error.
        found: String,
    },
    /// File that cannot be read or written.
    #[error("{}: could not {action}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Action that failed.
        action: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Gradients of different shapes in two systems.
    #[error("gradient of {tensor}: expected {expected} values as in the baseline, found {found}")]
    Gradients {
        /// Name of the tensor.
        tensor: String,
        /// Number of values in the baseline.
        expected: u64,
        /// Number of values in the other system.
        found: u64,
    },
    /// Search with other labels than the reference implementation.
    #[error("utterance {utterance}: expected (label, frame, duration) {expected}, found {found}")]
    Labels {
        /// Index of the utterance.
        utterance: usize,
        /// Labels of the reference.
        expected: String,
        /// Labels of the search.
        found: String,
    },
    /// Best path with an impossible weight.
    ///
    /// It is above the sum of all paths, below their mean, or not the sum of its arcs.
    #[error("utterance {utterance}: expected a best path of {expected}, found {found}")]
    BestPath {
        /// Index of the utterance.
        utterance: usize,
        /// Expected number of frames and range of the weight.
        expected: String,
        /// Number of frames and weight of the path.
        found: String,
    },
    /// Invalid JSON of a case description or of measurements.
    #[error("{what}: {source}")]
    Json {
        /// Name of the JSON text.
        what: &'static str,
        /// Error of the parser, with the position.
        source: serde_json::Error,
    },
    /// Error of the plotting library.
    #[error("could not draw the plot: {found}")]
    Plot {
        /// Message of the library.
        found: String,
    },
    /// Invalid environment variable.
    #[error("{0}")]
    Environment(String),
    /// Failure to install signal handlers.
    #[error("cannot watch for signals: {0}")]
    Signal(#[source] std::io::Error),
    /// Suite stopped by a signal.
    #[error("stopped; nothing was written")]
    Stopped,
    /// Error of the loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// Error of the first pass.
    #[error(transparent)]
    FirstPass(#[from] pruned::Error),
    /// Error of a decoder.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
    /// Error of lattices with given emissions.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
    /// Error of recognition lattices.
    #[error(transparent)]
    Recognition(#[from] lattice::Error),
    /// Error of the dense loss.
    #[error(transparent)]
    Dense(#[from] oracle::Error),
    /// Error of tensors of the dense loss.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Error of a trained model.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// Error of a manifest.
    #[error(transparent)]
    Speech(#[from] speech::Error),
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

/// Result with this program's [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: returns a function that adds path and action.
    pub(crate) fn file(path: &std::path::Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, action, source }
    }
}
