//! Errors of lattice sums, paths and topologies.
use crate::Topology;
use kernels::ShortFloat;

/// Errors of lattice sums, paths and topologies.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong number of elements.
    #[error("`{argument}`: expected {expected} elements, found {found}")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Number of elements implied by the other arguments.
        expected: usize,
        /// Number of elements found.
        found: usize,
    },
    /// The batch has no utterance.
    #[error("batch: expected at least one utterance, found none")]
    EmptyBatch,
    /// An utterance has no frame.
    #[error("utterance {utterance}: expected at least one frame, found none")]
    NoFrames {
        /// Index in the batch.
        utterance: usize,
    },
    /// The batch has `u32::MAX` sites or more.
    #[error(
        "batch: expected at most {} sites, found more at utterance {utterance} ({frames} frames x ({labels} labels + 1))",
        u32::MAX
    )]
    TooLarge {
        /// Index in the batch.
        utterance: usize,
        /// Number of frames.
        frames: usize,
        /// Number of labels.
        labels: usize,
    },
    /// An emission is NaN or +inf.
    #[error(
        "utterance {utterance}, frame {frame}, label position {label}, arc {arc}: expected an emission that is finite or -inf, found {value}",
        value = ShortFloat(*value)
    )]
    Emission {
        /// Index in the batch.
        utterance: usize,
        /// Frame t.
        frame: usize,
        /// Label position u.
        label: usize,
        /// Index among the arcs of the topology; 0 for CTC, where `label` is the column.
        arc: usize,
        /// The emission.
        value: f64,
    },
    /// A tensor has the wrong shape.
    #[error("`{argument}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// Shape implied by the other arguments.
        expected: Vec<usize>,
        /// Shape found.
        found: Vec<usize>,
    },
    /// An array has no such axis.
    #[error("`axis`: expected -{axes} to {axes} - 1, counted from the last axis if negative, found {found}")]
    Axis {
        /// Number of axes.
        axes: usize,
        /// The axis.
        found: isize,
    },
    /// The number of values of an array overflows.
    #[error("`shape`: expected a product that fits into usize, found {shape:?}")]
    ShapeOverflow {
        /// The shape.
        shape: Vec<usize>,
    },
    /// Emissions of an utterance are so large that their sums overflow.
    #[error(
        "utterance {utterance}: expected log-probabilities, found emissions whose sum overflows to a loss of {loss}",
        loss = ShortFloat(*loss)
    )]
    Overflow {
        /// Index in the batch.
        utterance: usize,
        /// The loss.
        loss: f64,
    },
    /// The topology has no arc.
    #[error("topology: expected at least one arc, found none")]
    NoArcs,
    /// An arc leads to its own source.
    #[error("topology: arc {arc}: expected at least one frame or label, found 0 of both")]
    SelfLoop {
        /// Index of the arc.
        arc: usize,
    },
    /// A band of retained label positions is empty or out of range.
    #[error(
        "`bands`, utterance {utterance}, frame {frame}: expected a nonempty range of the {positions} label positions, found {found:?}"
    )]
    Band {
        /// Index in the batch.
        utterance: usize,
        /// Frame t.
        frame: usize,
        /// U + 1, the number of label positions.
        positions: usize,
        /// The band.
        found: std::ops::Range<usize>,
    },
    /// The number of token weights differs from the number of labels.
    #[error(
        "`token_weights`, utterance {utterance}: expected {expected} weights, one per label, found {found}"
    )]
    TokenWeights {
        /// Index in the batch.
        utterance: usize,
        /// U, the number of labels.
        expected: usize,
        /// Number of weights.
        found: usize,
    },
    /// The weight of a label is NaN or infinite.
    #[error("`token_weights`, utterance {utterance}, label {label}: expected a finite number, found {found}", found = ShortFloat(*found))]
    TokenWeight {
        /// Index in the batch.
        utterance: usize,
        /// Index of the label in the utterance.
        label: usize,
        /// The weight.
        found: f64,
    },
    /// A memory limit is below the memory of one lane.
    ///
    /// A lane is a worker with its own memory, which processes utterances one after the other.
    #[error("memory: expected a limit of at least {needed} bytes, found {found}")]
    Memory {
        /// Bytes of one lane; see [`Workspace::scratch`](crate::Workspace::scratch).
        needed: usize,
        /// The limit.
        found: usize,
    },
    /// The name of a topology is unknown.
    #[error("topology: expected one of {}, with big blanks as in `regular+2,4`, or `tdt:0,1,2`, found {found:?}", Topology::names().collect::<Vec<_>>().join(", "))]
    UnknownName {
        /// The name.
        found: String,
    },
    /// Big blanks for a topology whose arcs sum several emission columns.
    #[error("big blanks: expected a topology with one emission column per arc, found {topology}")]
    BigBlanks {
        /// Name of the topology.
        topology: String,
    },
    /// A duration occurs twice or is out of range.
    #[error("`durations`: expected {expected}, found {found}")]
    Duration {
        /// Valid durations.
        expected: &'static str,
        /// The duration.
        found: usize,
    },
    /// An arc spans more frames or labels than any lattice has.
    #[error(
        "topology: arc {arc}: expected at most {} frames and labels, found {frames} and {labels}",
        u32::MAX
    )]
    ArcTooLong {
        /// Index of the arc.
        arc: usize,
        /// Frames of the arc.
        frames: usize,
        /// Labels of the arc.
        labels: usize,
    },
    /// No duration can end a path.
    #[error("`durations`: expected a duration of at least 1, which may end a path, found none")]
    NoFinalDuration,
    /// A regularizer is out of range.
    #[error("`{argument}`: expected a number of {expected}, found {found}", found = ShortFloat(*found))]
    Regularizer {
        /// Name of the regularizer.
        argument: &'static str,
        /// Valid range.
        expected: &'static str,
        /// The value.
        found: f64,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
