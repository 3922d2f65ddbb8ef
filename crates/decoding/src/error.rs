//! Errors of decoding: transducer and CTC search, models, streams.
use kernels::ShortFloat;
use rnnt_dp::Topology;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of decoding; its message names the argument, expected and found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of values is not a multiple of the row width.
    #[error("frames: expected whole rows of {width} values, found {found} values")]
    Frames {
        /// Width of a row.
        width: usize,
        /// Number of values.
        found: usize,
    },
    /// The blank id is not one of the model's classes.
    #[error("blank: expected a class below {classes}, found {blank}")]
    Blank {
        /// Blank id of the model.
        blank: u32,
        /// Number of classes C.
        classes: usize,
    },
    /// A big blank is not a class, or equals the blank.
    #[error("big_blanks: expected a class below {classes} that is not the blank, found class {class}")]
    BigBlank {
        /// Class id of the big blank.
        class: u32,
        /// Number of classes C.
        classes: usize,
    },
    /// The number of big blanks differs from the topology's.
    #[error("big_blanks: expected {expected}, as the topology has them, found {found}")]
    BigBlanks {
        /// Big blanks of the topology.
        expected: usize,
        /// Classes given as big blanks.
        found: usize,
    },
    /// The topology does not define how far each class advances.
    #[error("topology: expected a blank and one token for labels, each a label with one arc, found {found}")]
    Topology {
        /// The topology of the model.
        found: Topology,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, found {found}", found = ShortFloat(*found))]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The value given.
        found: f64,
    },
    /// Weights or rows whose shapes do not match.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: String,
        /// The expected shape.
        expected: String,
        /// The shape given.
        found: String,
    },
    /// A list does not have one entry per utterance.
    #[error("{argument}: expected one for each of {expected} utterances, found {found}")]
    Count {
        /// Name of the argument.
        argument: &'static str,
        /// Number of utterances.
        expected: usize,
        /// Number of entries.
        found: usize,
    },
    /// An utterance is longer than the padded batch.
    #[error("length of utterance {utterance}: expected at most {frames} frames, found {found}")]
    Length {
        /// The utterance.
        utterance: usize,
        /// Frames of the padded batch.
        frames: usize,
        /// Frames of the utterance.
        found: usize,
    },
    /// The state of a stream is damaged or belongs to another model.
    #[error("stream: expected {expected}, found {found}")]
    Stream {
        /// The expected state.
        expected: String,
        /// The state given.
        found: String,
    },
    /// An error about one utterance of a batch.
    #[error("utterance {utterance}: {source}")]
    Utterance {
        /// The utterance.
        utterance: usize,
        /// The error.
        source: Box<Error>,
    },
    /// A joint score is NaN or +inf, or all are -inf.
    #[error(
        "score of class {class} at frame {frame}: expected a number below +inf, and one above -inf at least, found {found}",
        found = ShortFloat(f64::from(*found))
    )]
    Score {
        /// Frame index t.
        frame: usize,
        /// Class index; C is the first duration.
        class: usize,
        /// The invalid score.
        found: f32,
    },
    /// A beam search does not support the model or the request.
    #[error("kind: {search} beam search does not support {found}; see the table of `BeamKind`")]
    Search {
        /// The search.
        search: &'static str,
        /// The unsupported feature.
        found: &'static str,
    },
    /// Fusion adds NaN or +inf to the score of a label.
    #[error("fused score of class {class}: expected a number below +inf, found {found}", found = ShortFloat(f64::from(*found)))]
    Fused {
        /// The label.
        class: usize,
        /// The invalid score.
        found: f32,
    },
    /// Fusion scores the end of an utterance with NaN or +inf.
    #[error("final fusion score: expected a number below +inf, found {found}", found = ShortFloat(*found))]
    End {
        /// The invalid score.
        found: f64,
    },
}

impl Error {
    pub(crate) fn shape(argument: &str, expected: String, found: impl ToString) -> Self {
        Error::Shape { argument: argument.to_owned(), expected, found: found.to_string() }
    }

    pub(crate) fn in_utterance(self, utterance: usize) -> Self {
        Error::Utterance { utterance, source: Box::new(self) }
    }
}
