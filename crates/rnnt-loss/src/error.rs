//! The one error type of the crate.
use kernels::ShortFloat;
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
    /// A big blank is something else already.
    #[error(
        "big_blanks: position {position}: expected a class that is no label and no other blank, found {found}"
    )]
    BigBlank {
        /// Index in the list.
        position: usize,
        /// The class given.
        found: u32,
    },
    /// There is not one band for each frame.
    #[error("bands: utterance {utterance}: expected one for each of {expected} frames, found {found}")]
    Bands {
        /// Index in the batch.
        utterance: usize,
        /// T
        expected: usize,
        /// Bands given.
        found: usize,
    },
    /// The topology wants other columns than there are classes selected and durations.
    #[error("options.topology: expected {expected} columns ({made_of}), found {found}")]
    Columns {
        /// Columns that there are.
        expected: usize,
        /// What they are.
        made_of: &'static str,
        /// Columns of the topology.
        found: usize,
    },
    /// The duration head has other classes than the loss has durations.
    #[error("durations: expected a head of {expected} classes (0: none), found {found}")]
    Durations {
        /// Durations of the loss.
        expected: usize,
        /// Classes of the head.
        found: usize,
    },
    /// A share of units to be dropped is no such share.
    #[error("dropout.rate: expected a number from 0 to below 1, found {found}", found = ShortFloat(*found))]
    Dropout {
        /// The value given.
        found: f64,
    },
    /// A budget is below the smallest cut of a call.
    #[error("budget: expected at least {smallest} bytes, the smallest cut of this call, found {found}")]
    Budget {
        /// Bytes of the smallest cut.
        smallest: usize,
        /// The budget given.
        found: usize,
    },
    /// Inputs of a kind that the loss knows nothing to do with.
    #[error("inputs: expected {expected}, found {found}")]
    Inputs {
        /// What the loss takes.
        expected: &'static str,
        /// What was given.
        found: &'static str,
    },
    /// A label or the blank lies outside the classes.
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
    /// The layout has more rows than a `u32` can count.
    #[error("layout: {batch} utterances x {frames} frames x {positions} label positions are too many rows")]
    LayoutTooLarge {
        /// B
        batch: usize,
        /// Frames of the padded tensor.
        frames: usize,
        /// Label positions of the padded tensor.
        positions: usize,
    },
    /// The weight of an utterance is not finite.
    #[error("weights: utterance {utterance}: expected a finite number, found {found}", found = ShortFloat(*found))]
    Weight {
        /// Index in the batch.
        utterance: usize,
        /// The weight given.
        found: f64,
    },
    /// The share of the occupancy that may be left out is no such share.
    #[error("skip: expected a number from 0 to below 1, found {found}", found = ShortFloat(*found))]
    Skip {
        /// The value given.
        found: f64,
    },
    /// The factor of a regulariser makes no sense.
    #[error("`{argument}`: expected a number from 0 to {most}, found {found}", most = ShortFloat(*most), found = ShortFloat(*found))]
    Regulariser {
        /// Name of the option.
        argument: &'static str,
        /// The largest.
        most: f64,
        /// The value given.
        found: f64,
    },
    /// A door without a head of its own, or one that factors the blank, was asked to smooth labels.
    #[error("label_smoothing: expected a door that takes a head and no factored blank, found another")]
    Smoothing,
    /// A door that cannot do so was asked to factor the blank.
    #[error("factored_blank: expected a door that takes one head for all tokens, found another")]
    FactoredBlank,
    /// An option that does not go with another one, or with the loss that it was given to.
    #[error("{argument}: expected none {place}, found {found}")]
    Misplaced {
        /// Name of the argument.
        argument: &'static str,
        /// Where it has no meaning.
        place: &'static str,
        /// What was given.
        found: String,
    },
    /// An arc emits other labels than its column says.
    #[error(
        "options.topology: arc {arc}: expected {expected} labels, as column 1 alone is the label, found {found}"
    )]
    Arc {
        /// Index among the arcs.
        arc: usize,
        /// Labels of such an arc.
        expected: usize,
        /// Those of this one.
        found: usize,
    },
    /// The share of the plain loss is no share.
    #[error("omega: expected a number from 0 to 1, found {found}", found = ShortFloat(*found))]
    Omega {
        /// The value given.
        found: f64,
    },
    /// A loss that is to be reduced is NaN or -inf.
    #[error("losses: utterance {utterance}: expected a number or +inf, found {found}", found = ShortFloat(*found))]
    Loss {
        /// Index in the batch.
        utterance: usize,
        /// The loss given.
        found: f64,
    },
    /// The scores of a frame hold NaN or +inf, or are all -inf.
    #[error(
        "utterance {utterance}, frame {frame}: expected scores that are finite or -inf with at least one finite, found {found}"
    )]
    Frame {
        /// Index in the batch.
        utterance: usize,
        /// t
        frame: usize,
        /// What was found instead.
        found: &'static str,
    },
    /// The scores at a site hold NaN or +inf, or are all -inf.
    #[error(
        "utterance {utterance}, frame {frame}, label position {label}: expected scores that are finite or -inf with at least one finite, found {found}"
    )]
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
    /// The first pass of the pruned loss refused its arguments.
    #[error(transparent)]
    FirstPass(#[from] ::pruned::Error),
    /// The lattice refused its arguments.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
    /// A tensor operation failed.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A joint network's rows for a loss without arcs.
    pub(crate) fn joint_under_ctc() -> Self {
        Self::Inputs { expected: "rows or scores for CTC", found: "those of a joint network" }
    }

    pub(crate) fn misplaced(argument: &'static str, place: &'static str, found: impl ToString) -> Self {
        Self::Misplaced { argument, place, found: found.to_string() }
    }

    /// Counts utterances from the start of the batch, where a group started with utterance `first`.
    pub(crate) fn in_group(mut self, first: usize) -> Self {
        match &mut self {
            Self::Weight { utterance, .. }
            | Self::Scores { utterance, .. }
            | Self::Lattice(
                rnnt_dp::Error::Emission { utterance, .. } | rnnt_dp::Error::Overflow { utterance, .. },
            ) => *utterance += first,
            _ => {}
        }
        self
    }

    /// Says what it is that has only -inf.
    pub(crate) fn masked(mut self, what: &'static str) -> Self {
        if let Self::Scores { found, .. } = &mut self
            && *found == MASKED
        {
            *found = what;
        }
        self
    }

    /// Names places as the loss has them.
    pub(crate) fn of(self, loss: &crate::Loss) -> Self {
        if *loss == crate::Loss::Ctc { self.at_frame() } else { self }
    }

    /// Where sites are frames.
    fn at_frame(self) -> Self {
        match self {
            Self::Scores { utterance, frame, found, .. } => Self::Frame { utterance, frame, found },
            other => other,
        }
    }

    /// Says where in its utterance a bad site is.
    pub(crate) fn at_site(error: panda_core::Error, lattices: &Lattices) -> Self {
        let (site, found) = match bad_site(error) {
            Ok(bad) => bad,
            Err(other) => return Self::Normaliser(other),
        };
        let utterance =
            (0..lattices.batch()).find(|&b| lattices.site_range(b).contains(&site)).unwrap_or_default();
        let place = lattices.utterance_sites(utterance).nth(site - lattices.site_range(utterance).start);
        let Site { frame, label } = place.unwrap_or(Site { frame: 0, label: 0 });
        Self::Scores { utterance, frame, label, found }
    }
}

const MASKED: &str = "-inf for every class";

/// The site that an error of the normaliser is about, and what was found there.
pub(crate) fn bad_site(
    error: panda_core::Error,
) -> std::result::Result<(usize, &'static str), panda_core::Error> {
    match error {
        panda_core::Error::NotFinite { site } => Ok((site, "NaN or +inf")),
        panda_core::Error::AllMasked { site } => Ok((site, MASKED)),
        other => Err(other),
    }
}

/// Fails unless a matrix of `rows x width` elements was given.
pub(crate) fn expect_rows(argument: &'static str, rows: usize, width: usize, found: usize) -> Result<()> {
    expect_len(argument, rows.saturating_mul(width), found)
}

pub(crate) fn expect_len(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape {
        argument,
        expected: format!("{expected} elements"),
        found: format!("{found} elements"),
    })
}

/// Errors of the other rooms where no site is involved.
impl From<panda_core::Error> for Error {
    fn from(error: panda_core::Error) -> Self {
        Self::Normaliser(error)
    }
}
