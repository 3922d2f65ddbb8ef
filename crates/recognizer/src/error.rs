//! Errors of recognition, alignment and evaluation.
use kernels::Excerpt;

use crate::bad_items::ExcludedUtterance;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of recognition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A list of utterances is empty.
    #[error("{what}: expected at least one utterance, found none")]
    Empty {
        /// The list.
        what: String,
    },
    /// More utterances cannot be used than are allowed.
    #[error(
        "{set}: expected at most {allowed} of {of} utterances that cannot be used, found {bad}, the first {}: {}; max_bad in \
         [data] of the recipe, or --max-bad, is the fraction that may be excluded",
        Excerpt(&first.id),
        first.reason
    )]
    TooManyBad {
        /// The set.
        set: String,
        /// Unusable utterances.
        bad: usize,
        /// Utterances of the set.
        of: usize,
        /// Unusable utterances allowed.
        allowed: usize,
        /// The first excluded utterance.
        first: Box<ExcludedUtterance>,
    },
    /// The model needs whole utterances and cannot stream.
    #[error(
        "streaming: expected a causal model, found {found}; train one with `bidirectional = false` (or, \
         a Conformer, with chunks) and `normalize = \"running\"`, as recipes/an4-streaming.toml does, or give this one overlapping windows of the audio"
    )]
    NotStreaming {
        /// The property that prevents streaming.
        found: String,
    },
    /// The state of a stream does not belong to the model.
    #[error("state of a stream: expected {expected}, found {found}")]
    StreamState {
        /// The state that the model expects.
        expected: String,
        /// The state.
        found: String,
    },
    /// A stream was never opened, or has ended.
    #[error("stream {id}: expected an open stream, found none with this id; {open} streams are open")]
    NoStream {
        /// The stream's number.
        id: u64,
        /// Number of open streams.
        open: usize,
    },
    /// The stop flag became true before there was anything to save.
    #[error("stopped")]
    Stopped,
    /// An error of the model, its files or its input.
    #[error(transparent)]
    Model(#[from] model::Error),
}

model::convert_model_errors!(Error: model::LayerError, candle_core::Error, rnnt_loss::Error, lattice::Error, speech::Error, decoding::Error);

impl Error {
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        model::Error::shape(argument, expected, found).into()
    }
}
