//! What can go wrong while decoding.
use kernels::Brief;
use rnnt_dp::Topology;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// A decoding error; the message names the argument, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The frames do not divide into rows of the model's joint width.
    #[error("frames: expected whole rows of {width} values, found {found} values")]
    Frames {
        /// Joint width H of the model.
        width: usize,
        /// Number of values given.
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
    /// A big blank is no class, or the blank.
    #[error("big_blanks: expected a class below {classes} that is not the blank, found class {class}")]
    BigBlank {
        /// Its class id.
        class: u32,
        /// Number of classes C.
        classes: usize,
    },
    /// There are not as many big blanks as in the topology.
    #[error("big_blanks: expected {expected}, as the topology has them, found {found}")]
    BigBlanks {
        /// How many the topology has.
        expected: usize,
        /// How many classes there are.
        found: usize,
    },
    /// A topology in which a class does not say how to go on.
    #[error("topology: expected a blank and one token for labels, each a label with one arc, found {found}")]
    Topology {
        /// The topology of the model.
        found: Topology,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, found {found}", found = Brief(*found))]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it was.
        found: f64,
    },
    /// Weights or rows that do not fit together.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: String,
        /// What would have fitted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Lists that should have an entry for each utterance.
    #[error("{argument}: expected one for each of {expected} utterances, found {found}")]
    Count {
        /// Name of the argument.
        argument: &'static str,
        /// Number of utterances.
        expected: usize,
        /// Number of entries.
        found: usize,
    },
    /// An utterance that is longer than the padded batch.
    #[error("length of utterance {utterance}: expected at most {frames} frames, found {found}")]
    Length {
        /// The utterance.
        utterance: usize,
        /// Frames of the padded batch.
        frames: usize,
        /// Frames of the utterance.
        found: usize,
    },
    /// A stream's state that is invalid_scores, or another model's.
    #[error("stream: expected {expected}, found {found}")]
    Stream {
        /// What would have fitted.
        expected: String,
        /// What the state is.
        found: String,
    },
    /// An error about one utterance of a batch.
    #[error("utterance {utterance}: {source}")]
    Utterance {
        /// The utterance.
        utterance: usize,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The joint network gave a score that is NaN or +inf, or -inf for every class.
    #[error(
        "score of class {class} at frame {frame}: expected a number below +inf, and one above -inf at least, found {found}",
        found = Brief(f64::from(*found))
    )]
    Score {
        /// Frame index t.
        frame: usize,
        /// Class index; that of the first duration is C.
        class: usize,
        /// The offending score.
        found: f32,
    },
    /// A beam search that does not know what the classes of a model mean, or cannot do what was asked for.
    #[error("kind: {search} beam search knows no {found}")]
    Search {
        /// The search.
        search: &'static str,
        /// What it does not know.
        found: &'static str,
    },
    /// Language models, lists and the internal language model add NaN or +inf to a label.
    #[error("fused score of class {class}: expected a number below +inf, found {found}", found = Brief(f64::from(*found)))]
    Fused {
        /// The label.
        class: usize,
        /// The offending score.
        found: f32,
    },
    /// Language models and lists score the end of an utterance with NaN or +inf.
    #[error("score of an end: expected a number below +inf, found {found}", found = Brief(*found))]
    End {
        /// The offending score.
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
