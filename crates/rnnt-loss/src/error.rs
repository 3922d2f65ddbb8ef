//! The one error type of the crate.
use rnnt_dp::{Lattices, Site};

/// What can be wrong with a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The label sequences and the frame counts disagree about the batch size.
    #[error("labels: expected one sequence for each of {expected} utterances, found {found}")]
    Batch {
        /// Number of frame counts.
        expected: usize,
        /// Number of label sequences.
        found: usize,
    },
    /// A label is the blank.
    #[error("labels: utterance {utterance}, position {position}: expected a label, found the blank ({blank})")]
    BlankLabel {
        /// Index in the batch.
        utterance: usize,
        /// Index in the label sequence.
        position: usize,
        /// The blank id.
        blank: u32,
    },
    /// A label or the blank lies outside the classes.
    #[error("labels: utterance {utterance}, position {position}: expected a class below {classes}, found {label}")]
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
    /// An utterance is longer than the tensor that holds it.
    #[error("{argument}: utterance {utterance} needs {needed} rows, but the tensor has {found}")]
    TooLong {
        /// Which tensor.
        argument: &'static str,
        /// Index in the batch.
        utterance: usize,
        /// Rows that the utterance needs.
        needed: usize,
        /// Rows that there are for each utterance.
        found: usize,
    },
    /// An argument has the wrong number of elements or a tensor the wrong shape.
    #[error("`{argument}`: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// What the other arguments imply.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The scores at a site hold NaN or +inf, or are all -inf.
    #[error("utterance {utterance}, frame {frame}, label position {label}: expected scores that are finite or -inf with at least one finite, found {found}")]
    Scores {
        /// Index in the batch.
        utterance: usize,
        /// t
        frame: usize,
        /// u
        label: usize,
        /// What was found instead.
        found: &'static str,
    },
    /// The selected normaliser refused its arguments.
    #[error(transparent)]
    Normaliser(panda_core::Error),
    /// The lattice refused its arguments.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Says where in its utterance a bad site is.
    pub(crate) fn at_site(error: panda_core::Error, lattices: &Lattices) -> Self {
        let (site, found) = match error {
            panda_core::Error::NotFinite { site } => (site, "NaN or +inf"),
            panda_core::Error::AllMasked { site } => (site, "-inf for every class"),
            other => return Self::Normaliser(other),
        };
        let utterance = (0..lattices.batch()).find(|&b| lattices.range(b).contains(&site)).unwrap_or_default();
        let place = lattices.sites_of(utterance).nth(site - lattices.range(utterance).start);
        let Site { frame, label } = place.unwrap_or(Site { frame: 0, label: 0 });
        Self::Scores { utterance, frame, label, found }
    }
}

pub(crate) fn expect_len(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: format!("{expected} elements"), found: format!("{found} elements") })
}

/// Errors of the other rooms where no site is involved.
impl From<panda_core::Error> for Error {
    fn from(error: panda_core::Error) -> Self {
        Self::Normaliser(error)
    }
}
