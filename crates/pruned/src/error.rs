//! Errors of the pruned transducer's first pass: invalid arguments of a call.
use kernels::ShortFloat;
use rnnt_dp::Topology;

use crate::Side;

/// An invalid argument of a call.
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
    /// The frames and labels of a source have different numbers of classes.
    #[error("classes: expected {frames} for the labels, as for the frames, found {labels}")]
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
        /// Number of classes.
        classes: usize,
    },
    /// The blank lies outside the classes.
    #[error("blank: expected a class below {classes}, found {blank}")]
    BlankOutOfRange {
        /// The blank given.
        blank: u32,
        /// Number of classes.
        classes: usize,
    },
    /// The rows of an utterance overlap those of the previous one.
    #[error("{side} rows: utterance {utterance}: expected a first row of at least {expected}, found {found}")]
    Overlap {
        /// Which rows.
        side: Side,
        /// Index in the batch.
        utterance: usize,
        /// The first row after the previous utterance.
        expected: usize,
        /// The first row given.
        found: usize,
    },
    /// The rows of an utterance exceed the matrix.
    #[error("{side} rows: utterance {utterance}: expected at least {needed} rows, found {found}")]
    TooFewRows {
        /// Which rows.
        side: Side,
        /// Index in the batch.
        utterance: usize,
        /// Number of rows that the utterance requires.
        needed: usize,
        /// Number of rows of the matrix.
        found: usize,
    },
    /// An option is out of range.
    #[error("`{argument}`: expected {expected}, found {found}", found = ShortFloat(*found))]
    Option {
        /// Name of the option.
        argument: &'static str,
        /// Description of valid values.
        expected: &'static str,
        /// The value given.
        found: f64,
    },
    /// A score is NaN or +inf.
    #[error(
        "utterance {utterance}, {side} row {row}, class {class}: expected a finite score or -inf, found {value}",
        value = ShortFloat(*value)
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
    /// A padding row has no finite average.
    ///
    /// [`Unigram::AllRows`](crate::Unigram::AllRows) includes padding.
    #[error(
        "label row {row}: expected finite scores or -inf, at least one finite: \
        a unigram over all rows includes padding"
    )]
    Padding {
        /// Index among all label rows.
        row: usize,
    },
    /// No class has a finite score in both rows of a site.
    #[error(
        "utterance {utterance}, frame {frame}, label position {position}: \
        expected a class with a finite score, found -inf for all"
    )]
    AllMasked {
        /// Index in the batch.
        utterance: usize,
        /// Frame index.
        frame: usize,
        /// Label position.
        position: usize,
    },
    /// A weight of a linear layer is NaN or infinite.
    #[error("`{argument}`: class {class}: expected finite weights, found {value}", value = ShortFloat(*value))]
    Weight {
        /// Name of the argument.
        argument: &'static str,
        /// The first such class.
        class: usize,
        /// The value found.
        value: f64,
    },
    /// Bands are requested for lattices that are bands already.
    #[error("`lattices`: expected complete lattices, found bands")]
    Banded,
    /// The weight of an utterance is not finite.
    #[error("weights: utterance {utterance}: expected a finite number, found {found}", found = ShortFloat(*found))]
    UtteranceWeight {
        /// Index in the batch.
        utterance: usize,
        /// The weight given.
        found: f64,
    },
    /// The first pass does not support the topology.
    #[error("topology: expected a blank of one frame and a label of none or one, found {found}")]
    Topology {
        /// The topology given.
        found: Box<Topology>,
    },
    /// Bands of this width contain no path.
    #[error("s_range: expected at least {needed} for the {topology} topology, found {found}")]
    Range {
        /// The topology.
        topology: Box<Topology>,
        /// Minimum width for the topology.
        needed: usize,
        /// The width given.
        found: usize,
    },
    /// An occupancy is NaN or infinite.
    #[error("occupancies: utterance {utterance}: expected finite numbers, found {found}", found = ShortFloat(*found))]
    Occupancy {
        /// Index in the batch.
        utterance: usize,
        /// The value found.
        found: f64,
    },
    /// The memory is below the smallest plan of a batch.
    #[error("memory: expected at least {needed} bytes, found {found}")]
    Memory {
        /// Bytes of the smallest plan.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// An error of the lattice.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
}

impl Error {
    /// Adds `offset` to utterance numbers.
    ///
    /// It converts an error of a [part](crate::Batch::part) of a batch that starts at `offset`.
    pub fn with_utterance_offset(mut self, offset: usize) -> Self {
        match &mut self {
            Self::Score { utterance, .. }
            | Self::AllMasked { utterance, .. }
            | Self::UtteranceWeight { utterance, .. }
            | Self::Occupancy { utterance, .. }
            | Self::Lattice(
                rnnt_dp::Error::Emission { utterance, .. } | rnnt_dp::Error::Overflow { utterance, .. },
            ) => *utterance += offset,
            // Others name no utterance, or are found in the whole batch before it is divided.
            _ => {}
        }
        self
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Checks the length of an argument.
pub(crate) fn expect_len(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { argument, expected, found }) }
}
