//! Errors of recognition, alignment and evaluation.
use kernels::Excerpt;

use crate::bad_items::ExcludedUtterance;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of recognition; the message names the argument or file, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A list of utterances without any.
    #[error("{what}: expected at least one utterance, found none")]
    Empty {
        /// Which list.
        what: String,
    },
    /// More utterances that cannot be used than are allowed.
    #[error(
        "{set}: expected at most {allowed} of {of} utterances that cannot be used, found {bad}, the first of them {}: {}; max_bad in \
         [data] of the recipe, or --max-bad, is the share that may be left out",
        Excerpt(&first.id),
        first.reason
    )]
    TooManyBad {
        /// The set.
        set: String,
        /// Utterances that cannot be used.
        bad: usize,
        /// Utterances of the set.
        of: usize,
        /// How many may be left out.
        allowed: usize,
        /// The first of them.
        first: Box<ExcludedUtterance>,
    },
    /// A model that needs the whole utterance, where sound arrives in pieces.
    #[error(
        "streaming: expected a model that hears forward only, found {found}; train one with `bidirectional = false` (or, \
         a Conformer, with chunks) and `normalise = \"running\"`, as recipes/an4-streaming.toml does, or give this one overlapping windows of the sound"
    )]
    NotStreaming {
        /// What keeps it from that.
        found: String,
    },
    /// The state of a stream that is not one of this model's.
    #[error("state of a stream: expected {expected}, found {found}")]
    StreamState {
        /// What this model's have.
        expected: String,
        /// What it has.
        found: String,
    },
    /// A stream that was never opened, or that has ended.
    #[error("stream {id}: expected one that is open, found none; {open} are open")]
    NoStream {
        /// Its number.
        id: u64,
        /// How many there are.
        open: usize,
    },
    /// The stop flag became true before there was anything to save.
    #[error("stopped")]
    Stopped,
    /// An error of the model, its files or its input.
    #[error(transparent)]
    Model(#[from] model::Error),
}

model::convert_model_errors!(Error: candle_core::Error, rnnt_loss::Error, lattice::Error, speech::Error, decoding::Error);

impl Error {
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        model::Error::shape(argument, expected, found).into()
    }
}
