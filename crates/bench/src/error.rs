//! What can go wrong in a benchmark.
use std::path::PathBuf;

/// A benchmark that cannot be run, or whose outcome cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument outside its range.
    #[error("{argument}: expected {expected}, found {found}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value.
        found: String,
    },
    /// A process for a case that could not be started or watched.
    #[error("{case}, {system}: could not {action}: {source}")]
    Process {
        /// The case.
        case: String,
        /// The system.
        system: String,
        /// What was being done.
        action: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A process that failed for another reason than memory.
    #[error("{case}, {system}: expected a measurement, found: {found}")]
    Case {
        /// The case.
        case: String,
        /// The system.
        system: String,
        /// Its last words.
        found: String,
    },
    /// A file that could not be read or written.
    #[error("{}: could not {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Gradients of two systems that do not have the same shape.
    #[error("gradient of {tensor}: expected {expected} values in either system, found {found}")]
    Gradients {
        /// The tensor.
        tensor: String,
        /// Values of the rival.
        expected: u64,
        /// Values of the other.
        found: u64,
    },
    /// A search that finds other labels than the one that is the definition.
    #[error("utterance {utterance}: expected (label, frame, duration) {expected}, found {found}")]
    Labels {
        /// The utterance.
        utterance: usize,
        /// Labels of the definition.
        expected: String,
        /// Labels of the search.
        found: String,
    },
    /// A best path above the sum of all paths, or below any.
    #[error("utterance {utterance}: expected a best path of {expected}, found {found}")]
    BestPath {
        /// Index of the utterance.
        utterance: usize,
        /// What it may weigh, and how many frames it has.
        expected: String,
        /// What it weighs, and how many it has.
        found: String,
    },
    /// A case description or an answer that is no valid JSON.
    #[error("{what}: {source}")]
    Json {
        /// Which.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The picture could not be drawn.
    #[error("the picture could not be drawn: {found}")]
    Plot {
        /// What the drawing library said.
        found: String,
    },
    /// An invalid variable of the environment.
    #[error("{0}")]
    Environment(String),
    /// Signals cannot be watched.
    #[error("cannot watch for signals: {0}")]
    Signal(#[source] std::io::Error),
    /// The user stopped the suite.
    #[error("stopped; nothing was written")]
    Stopped,
    /// Our loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// Our first pass.
    #[error(transparent)]
    FirstPass(#[from] pruned::Error),
    /// Our decoders.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
    /// Our lattices.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
    /// Our recognition lattices.
    #[error(transparent)]
    Recognition(#[from] lattice::Error),
    /// The dense loss.
    #[error(transparent)]
    Dense(#[from] oracle::Error),
    /// Tensors of the dense loss.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A trained model.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// A manifest.
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

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A file error, for `map_err`.
    pub fn file(path: &std::path::Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, action, source }
    }
}
