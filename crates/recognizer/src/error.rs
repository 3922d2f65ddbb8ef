//! Errors of recognition, alignment and evaluation.
use std::path::PathBuf;

use kernels::Excerpt;

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
        Excerpt(first_id),
        first_reason
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
        /// Id of the first excluded utterance.
        first_id: Box<str>,
        /// The reason why it is excluded.
        first_reason: Box<str>,
        /// Whether the first one has another sample rate and resampling is off.
        has_other_rate: bool,
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
    /// Options that the search does not use.
    #[error("{options}: expected {expected}, found {found}")]
    UnsupportedOption {
        /// Fields of [`SearchSettings`](crate::SearchSettings), separated by commas.
        options: &'static str,
        /// The searches that use them.
        expected: &'static str,
        /// The search.
        found: &'static str,
    },
    /// Options that the model's tokens do not match.
    #[error("{options}: {source}")]
    TokenOptions {
        /// Fields of [`SearchSettings`](crate::SearchSettings), separated by commas.
        options: &'static str,
        /// What does not match.
        source: Box<Error>,
    },
    /// An invalid language model.
    #[error("{}: {source}", path.display())]
    Ngram {
        /// ARPA file.
        path: PathBuf,
        /// What is wrong.
        source: decoding::ngram::Error,
    },
    /// An invalid list of phrases.
    #[error("{}{source}", path.as_ref().map_or(String::new(), |path| format!("{}: ", path.display())))]
    Phrases {
        /// File of the phrases, if any.
        path: Option<PathBuf>,
        /// What is wrong.
        source: decoding::PhraseError,
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

    /// Returns a closure for `map_err` that adds the names of options.
    pub(crate) fn token_options(options: &'static str) -> impl FnOnce(Self) -> Self {
        move |source| Error::TokenOptions { options, source: Box::new(source) }
    }
}
