//! The one error type of the crate.
use crate::Topology;
use kernels::ShortFloat;

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
    /// There is no utterance in the batch.
    #[error("batch: expected at least one utterance, found none")]
    EmptyBatch,
    /// An utterance has no frame, so that no path could end.
    #[error("utterance {utterance}: expected at least one frame, found none")]
    NoFrames {
        /// Index in the batch.
        utterance: usize,
    },
    /// The batch has more sites than a `u32` can count.
    #[error(
        "utterance {utterance}: {frames} frames x ({labels} labels + 1) bring the batch above {} sites",
        u32::MAX
    )]
    TooLarge {
        /// Index in the batch.
        utterance: usize,
        /// Frames given.
        frames: usize,
        /// Labels given.
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
        /// t
        frame: usize,
        /// u
        label: usize,
        /// Index among the arcs of the topology; 0 for CTC, where `label` is the column.
        arc: usize,
        /// The value found.
        value: f64,
    },
    /// A tensor has the wrong shape.
    #[error("`{argument}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// The shape that the other arguments imply.
        expected: Vec<usize>,
        /// The shape given.
        found: Vec<usize>,
    },
    /// An array has no such axis.
    #[error("axis: expected one of {axes} axes, 0 .. or from the last one, -1, back, found {found}")]
    Axis {
        /// How many it has.
        axes: usize,
        /// The axis given.
        found: isize,
    },
    /// An array has more values than can be counted.
    #[error("`shape`: expected a product that a usize holds, found {shape:?}")]
    Values {
        /// The shape given.
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
        /// The loss that came out.
        loss: f64,
    },
    /// There is no arc in the topology.
    #[error("topology: expected at least one arc, found none")]
    NoArcs,
    /// An arc leads to where it comes from.
    #[error("topology: arc {arc}: expected frames or labels to move on by, found 0 of both")]
    Loop {
        /// Index among the arcs.
        arc: usize,
    },
    /// A band of retained label positions is not one.
    #[error(
        "`bands`, utterance {utterance}, frame {frame}: expected some of the {positions} label positions, found {found:?}"
    )]
    Band {
        /// Index in the batch.
        utterance: usize,
        /// t
        frame: usize,
        /// U + 1
        positions: usize,
        /// The band given.
        found: std::ops::Range<usize>,
    },
    /// There is not one weight for each label.
    #[error(
        "token_weights: utterance {utterance}: expected {expected} finite numbers, found {found} numbers"
    )]
    TokenWeights {
        /// Index in the batch.
        utterance: usize,
        /// U
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// The weight of a label is not finite.
    #[error("token_weights: utterance {utterance}, label {label}: expected a finite number, found {found}", found = ShortFloat(*found))]
    TokenWeight {
        /// Index in the batch.
        utterance: usize,
        /// Index among the labels of the utterance.
        label: usize,
        /// The weight given.
        found: f64,
    },
    /// A memory limit is below what one lane needs.
    #[error("memory: expected at least {needed} bytes, found {found}")]
    Memory {
        /// Bytes of a single lane, see [`Workspace::scratch`](crate::Workspace::scratch).
        needed: usize,
        /// The limit given.
        found: usize,
    },
    /// No topology has the name.
    #[error("topology: expected one of {}, with big blanks as in `regular+2,4`, or `tdt:0,1,2`, found {found:?}", Topology::names().collect::<Vec<_>>().join(", "))]
    Name {
        /// The name given.
        found: String,
    },
    /// Big blanks are asked of a topology whose arcs are sums of columns.
    #[error("big blanks: expected a topology in which every arc is a column, found {topology}")]
    BigBlanks {
        /// The topology.
        topology: String,
    },
    /// A duration is there twice, or is none.
    #[error("`durations`: expected {expected}, found {found}")]
    Duration {
        /// What would be one.
        expected: &'static str,
        /// The duration.
        found: usize,
    },
    /// An arc leads farther than any lattice reaches.
    #[error(
        "topology: arc {arc}: expected at most {} frames and labels, found {frames} and {labels}",
        u32::MAX
    )]
    Far {
        /// Index among the arcs.
        arc: usize,
        /// Its frames.
        frames: usize,
        /// Its labels.
        labels: usize,
    },
    /// No path could end.
    #[error("`durations`: expected one of at least 1, with which a path may end, found none")]
    NoEnd,
    /// A regulariser has a value that makes no sense.
    #[error("`{argument}`: expected a number of {expected}, found {found}", found = ShortFloat(*found))]
    Regulariser {
        /// Name of the option.
        argument: &'static str,
        /// The range.
        expected: &'static str,
        /// The value given.
        found: f64,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
