//! Errors of transducer and CTC losses.
use kernels::ShortFloat;
use rnnt_dp::{Lattices, Site};

/// An error of a loss; its message names the argument, expected and found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of label sequences differs from that of frame counts.
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
    /// A big blank is a label, the blank, or a duplicate.
    #[error(
        "big_blanks: position {position}: expected a class that is not a label or another blank, found {found}"
    )]
    BigBlank {
        /// Index in the list.
        position: usize,
        /// The class given.
        found: u32,
    },
    /// The number of bands differs from the number of frames.
    #[error("bands: utterance {utterance}: expected one for each of {expected} frames, found {found}")]
    Bands {
        /// Index in the batch.
        utterance: usize,
        /// Number of frames T.
        expected: usize,
        /// Number of bands.
        found: usize,
    },
    /// The columns of the topology differ from those of targets and loss.
    #[error("options.topology: expected {expected} columns ({made_of}), found {found}")]
    Columns {
        /// Columns of targets and loss.
        expected: usize,
        /// Contents of the columns.
        made_of: &'static str,
        /// Columns of the topology.
        found: usize,
    },
    /// The duration head does not match the durations of the loss.
    #[error("durations: expected a head of {expected} classes (0: none), found {found}")]
    Durations {
        /// Durations of the loss.
        expected: usize,
        /// Classes of the head.
        found: usize,
    },
    /// The dropout rate is out of range.
    #[error("dropout.rate: expected a number from 0 to below 1, found {found}", found = ShortFloat(*found))]
    Dropout {
        /// The value given.
        found: f64,
    },
    /// The budget is below the minimum of a call.
    #[error("budget: expected at least {smallest} bytes, the minimum of this call, found {found}")]
    Budget {
        /// Bytes of the smallest blocking.
        smallest: usize,
        /// The budget given.
        found: usize,
    },
    /// The loss does not support this kind of inputs.
    #[error("inputs: expected {expected}, found {found}")]
    Inputs {
        /// Supported inputs.
        expected: &'static str,
        /// The inputs given.
        found: &'static str,
    },
    /// A label is not one of the classes.
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
        /// Number of classes C.
        classes: usize,
    },
    /// A blank is not one of the classes.
    #[error("blank: expected a class below {classes}, found {blank}")]
    BlankOutOfRange {
        /// The blank given.
        blank: u32,
        /// Number of classes C.
        classes: usize,
    },
    /// An utterance is longer than its padded tensor.
    #[error("{argument}: utterance {utterance}: expected at least {needed} rows, found {found}")]
    TooLong {
        /// Axis of the tensor.
        argument: &'static str,
        /// Index in the batch.
        utterance: usize,
        /// Rows that the utterance needs.
        needed: usize,
        /// Rows per utterance in the tensor.
        found: usize,
    },
    /// An argument or a tensor has the wrong shape.
    #[error("`{argument}`: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// The shape that the other arguments imply.
        expected: String,
        /// The shape given.
        found: String,
    },
    /// The layout has more rows than a `u32` can count.
    #[error("layout: {batch} utterances x {frames} frames x {positions} label positions are too many rows")]
    LayoutTooLarge {
        /// Number of utterances B.
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
    /// The share of occupancy to exclude is out of range.
    #[error("skip: expected a number from 0 to below 1, found {found}", found = ShortFloat(*found))]
    Skip {
        /// The value given.
        found: f64,
    },
    /// The factor of a regularizer is out of range.
    #[error("`{argument}`: expected a number from 0 to {max}, found {found}", max = ShortFloat(*max), found = ShortFloat(*found))]
    Regularizer {
        /// Name of the option.
        argument: &'static str,
        /// The largest valid value.
        max: f64,
        /// The value given.
        found: f64,
    },
    /// Label smoothing without a head, or with a factored blank.
    #[error("label_smoothing: expected inputs with a head and no factored blank, found others; set it to 0")]
    Smoothing,
    /// A factored blank without a head.
    #[error("factored_blank: expected inputs with a head for the tokens, found scores; use softmax")]
    FactoredBlank,
    /// An argument is incompatible with another one, or with the loss.
    #[error("{argument}: expected none {place}, found {found}")]
    Incompatible {
        /// Name of the argument.
        argument: &'static str,
        /// The other argument or the loss, as in "with a z-loss".
        place: &'static str,
        /// The value given.
        found: String,
    },
    /// The labels of an arc contradict its column.
    #[error(
        "options.topology: arc {arc}: expected {expected} labels, as only column 1 is the label, found {found}"
    )]
    Arc {
        /// Index among the arcs.
        arc: usize,
        /// Labels by the column.
        expected: usize,
        /// Labels of the arc.
        found: usize,
    },
    /// The share ω of the RNN-T loss is out of range.
    #[error("omega: expected a number from 0 to 1, found {found}", found = ShortFloat(*found))]
    Omega {
        /// The value given.
        found: f64,
    },
    /// A loss is NaN or -inf.
    #[error("losses: utterance {utterance}: expected a number or +inf, found {found}", found = ShortFloat(*found))]
    Loss {
        /// Index in the batch.
        utterance: usize,
        /// The loss given.
        found: f64,
    },
    /// The scores of a frame are NaN, +inf, or all -inf.
    #[error(
        "utterance {utterance}, frame {frame}: expected scores that are finite or -inf with at least one finite, found {found}"
    )]
    Frame {
        /// Index in the batch.
        utterance: usize,
        /// Frame t.
        frame: usize,
        /// The invalid scores.
        found: &'static str,
    },
    /// The scores of a site are NaN, +inf, or all -inf.
    #[error(
        "utterance {utterance}, frame {frame}, label position {label}: expected scores that are finite or -inf with at least one finite, found {found}"
    )]
    Scores {
        /// Index in the batch.
        utterance: usize,
        /// Frame t.
        frame: usize,
        /// Label position u.
        label: usize,
        /// The invalid scores.
        found: &'static str,
    },
    /// An error of the selected normalizer.
    #[error(transparent)]
    Normalizer(panda_core::Error),
    /// An error of the first pass of the pruned loss.
    #[error(transparent)]
    FirstPass(#[from] ::pruned::Error),
    /// An error of the lattice.
    #[error(transparent)]
    Lattice(#[from] rnnt_dp::Error),
    /// An error of a tensor operation.
    #[cfg(feature = "candle")]
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Inputs of a joint network for the CTC loss.
    pub(crate) fn joint_with_ctc() -> Self {
        Self::Inputs { expected: "hidden rows or scores for CTC", found: "those of a joint network" }
    }

    /// An argument that is incompatible with other options; `place` names them.
    pub(crate) fn incompatible(argument: &'static str, place: &'static str, found: impl ToString) -> Self {
        Self::Incompatible { argument, place, found: found.to_string() }
    }

    /// Converts an utterance's index in a group to that in the batch.
    pub(crate) fn in_group(mut self, first_utterance: usize) -> Self {
        match &mut self {
            Self::Weight { utterance, .. }
            | Self::Scores { utterance, .. }
            | Self::Lattice(
                rnnt_dp::Error::Emission { utterance, .. } | rnnt_dp::Error::Overflow { utterance, .. },
            ) => *utterance += first_utterance,
            // Others name no utterance, or are found in the whole batch before it is divided.
            _ => {}
        }
        self
    }

    /// Specifies the scores that are all -inf.
    pub(crate) fn with_masked(mut self, scores: &'static str) -> Self {
        if let Self::Scores { found, .. } = &mut self
            && *found == MASKED
        {
            *found = scores;
        }
        self
    }

    /// Reports positions in terms of the loss: frames for CTC.
    pub(crate) fn for_loss(self, loss: &crate::Loss) -> Self {
        if *loss == crate::Loss::Ctc { self.at_frame() } else { self }
    }

    /// Replaces the site by its frame.
    fn at_frame(self) -> Self {
        match self {
            Self::Scores { utterance, frame, found, .. } => Self::Frame { utterance, frame, found },
            other => other,
        }
    }

    /// Converts a normalizer error; reports the frame and label position of its site.
    pub(crate) fn at_site(error: panda_core::Error, lattices: &Lattices) -> Self {
        let (site, found) = match site_of_error(error) {
            Ok(site_and_scores) => site_and_scores,
            Err(other) => return Self::Normalizer(other),
        };
        let utterance =
            (0..lattices.batch()).find(|&b| lattices.site_range(b).contains(&site)).unwrap_or_default();
        let position = lattices.utterance_sites(utterance).nth(site - lattices.site_range(utterance).start);
        let Site { frame, label } = position.unwrap_or(Site { frame: 0, label: 0 });
        Self::Scores { utterance, frame, label, found }
    }
}

/// Invalid scores of a site whose classes are all masked.
const MASKED: &str = "-inf for every class";

/// The site of a normalizer error, and its invalid scores.
pub(crate) fn site_of_error(
    error: panda_core::Error,
) -> std::result::Result<(usize, &'static str), panda_core::Error> {
    match error {
        panda_core::Error::NotFinite { site } => Ok((site, "NaN or +inf")),
        panda_core::Error::AllMasked { site } => Ok((site, MASKED)),
        other => Err(other),
    }
}

/// Fails unless a matrix has `rows x width` elements.
pub(crate) fn expect_rows(argument: &'static str, rows: usize, width: usize, found: usize) -> Result<()> {
    expect_len(argument, rows.saturating_mul(width), found)
}

/// Fails unless an argument has the expected number of elements.
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

/// Errors without a site.
impl From<panda_core::Error> for Error {
    fn from(error: panda_core::Error) -> Self {
        Self::Normalizer(error)
    }
}
