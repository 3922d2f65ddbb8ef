//! The one error type of the crate.
use kernels::Brief;
use rnnt_dp::Topology;

use crate::Side;

/// What can be wrong with a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong number of elements.
    #[error("`{argument}`: expected {expected} elements, found {found}")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Number of elements that the other arguments imply.
        expected: usize,
        /// Number of elements given.
        found: usize,
    },
    /// A dimension that must be positive is zero.
    #[error("`{argument}`: expected at least 1, found 0")]
    Zero {
        /// Name of the dimension.
        argument: &'static str,
    },
    /// Two parts of a source have different numbers of classes.
    #[error("classes: expected as many for the labels as for the frames ({frames}), found {labels}")]
    Classes {
        /// Classes of the frames' scores.
        frames: usize,
        /// Classes of the labels' scores.
        labels: usize,
    },
    /// A label is the blank.
    #[error(
        "labels: utterance {utterance}, position {position}: expected a label, found the blank ({blank})"
    )]
    BlankLabel {
        /// Index in the batch.
        utterance: usize,
        /// Index in the label sequence.
        position: usize,
        /// The blank id.
        blank: u32,
    },
    /// A label lies outside the classes.
    #[error(
        "labels: utterance {utterance}, position {position}: expected a class below {classes}, found {label}"
    )]
    LabelOutOfRange {
        /// Index in the batch.
        utterance: usize,
        /// Index in the label sequence.
        position: usize,
        /// The label given.
        label: u32,
        /// C
        classes: usize,
    },
    /// The blank lies outside the classes.
    #[error("blank: expected a class below {classes}, found {blank}")]
    BlankOutOfRange {
        /// The blank given.
        blank: u32,
        /// C
        classes: usize,
    },
    /// The rows of an utterance begin before those of the one before end.
    #[error("{side} rows: utterance {utterance}: expected a first row of at least {expected}, found {found}")]
    Overlap {
        /// Which rows.
        side: Side,
        /// Index in the batch.
        utterance: usize,
        /// The row behind the last one of the utterance before.
        expected: usize,
        /// The first row given.
        found: usize,
    },
    /// The rows of an utterance reach beyond those that there are.
    #[error("{side} rows: utterance {utterance} needs rows up to {needed}, but there are {found}")]
    TooFewRows {
        /// Which rows.
        side: Side,
        /// Index in the batch.
        utterance: usize,
        /// The row behind the last one that the utterance needs.
        needed: usize,
        /// Rows that there are.
        found: usize,
    },
    /// A scale, penalty or other option has a value that makes no sense.
    #[error("`{argument}`: expected {expected}, found {found}", found = Brief(*found))]
    Option {
        /// Name of the option.
        argument: &'static str,
        /// What would make sense.
        expected: &'static str,
        /// The value given.
        found: f64,
    },
    /// A score of a row that is read is NaN or +inf.
    #[error(
        "utterance {utterance}, {side} row {row}, class {class}: expected a finite score or -inf, found {value}",
        value = Brief(*value)
    )]
    Score {
        /// Which rows.
        side: Side,
        /// Index in the batch.
        utterance: usize,
        /// Index among the rows of the utterance.
        row: usize,
        /// The first such class.
        class: usize,
        /// The value found.
        value: f64,
    },
    /// A padding row that the average of [`Unigram::AllRows`](crate::Unigram::AllRows) takes in has no finite
    /// average.
    #[error(
        "label row {row}: a unigram over all rows needs finite scores or -inf, at least one finite, in padding too"
    )]
    Padding {
        /// Index among all label rows.
        row: usize,
    },
    /// No class has a finite score in both rows of a site.
    #[error("utterance {utterance}, frame {frame}, label position {position}: found -inf for every class")]
    AllMasked {
        /// Index in the batch.
        utterance: usize,
        /// t
        frame: usize,
        /// u
        position: usize,
    },
    /// A weight of a linear layer is NaN or infinite.
    #[error("`{argument}`: class {class}: expected finite weights, found {value}", value = Brief(*value))]
    Weight {
        /// Name of the argument.
        argument: &'static str,
        /// The first such class.
        class: usize,
        /// The value found.
        value: f64,
    },
    /// Bands are to be found in lattices of which only bands are left.
    #[error("`lattices`: expected whole ones, found bands of them")]
    Banded,
    /// The weight of an utterance is not finite.
    #[error("weights: utterance {utterance}: expected a finite number, found {found}", found = Brief(*found))]
    UtteranceWeight {
        /// Index in the batch.
        utterance: usize,
        /// The weight given.
        found: f64,
    },
    /// The topology has moves that the first pass does not know.
    #[error("topology: expected a blank of one frame and a label of none or one, found {found}")]
    Topology {
        /// The topology given.
        found: Box<Topology>,
    },
    /// Bands of so few label positions could keep no path.
    #[error("s_range: expected at least {needed} for the {topology} topology, found {found}")]
    Range {
        /// Which arcs there are.
        topology: Box<Topology>,
        /// The least width for them.
        needed: usize,
        /// The width given.
        found: usize,
    },
    /// An occupancy is NaN or infinite.
    #[error("occupancies: utterance {utterance}: expected finite numbers, found {found}", found = Brief(*found))]
    Occupancy {
        /// Index in the batch.
        utterance: usize,
        /// The value found.
        found: f64,
    },
    /// Fewer bytes than the smallest cut of a batch takes.
    #[error("memory: expected at least {needed} bytes, found {found}")]
    Memory {
        /// Bytes of the smallest cut.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// The lattice refused its arguments.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
}

impl Error {
    /// Counts utterances from the start of the batch, where a [part](crate::Batch::part) of it started with utterance `first`.
    pub fn in_part(mut self, first: usize) -> Self {
        match &mut self {
            Self::Score { utterance, .. }
            | Self::AllMasked { utterance, .. }
            | Self::UtteranceWeight { utterance, .. }
            | Self::Occupancy { utterance, .. }
            | Self::Lattice(
                rnnt_dp::Error::Emission { utterance, .. } | rnnt_dp::Error::Overflow { utterance, .. },
            ) => *utterance += first,
            _ => {}
        }
        self
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Compares a length with what the other arguments imply.
pub(crate) fn expect(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { argument, expected, found }) }
}
