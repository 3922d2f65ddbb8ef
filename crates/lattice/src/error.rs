//! Errors of recognition lattices, and checks of arguments.
use kernels::{ShortFloat, par_find, parts};

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A lattice error; the message names the argument, the expected value and the value found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Arguments that do not fit together.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: String,
        /// Expected value.
        expected: String,
        /// Value found.
        found: String,
    },
    /// More context states than the type of state indices can number.
    #[error("{argument}: expected at most {limit} context states, found {found}")]
    States {
        /// Name of the argument.
        argument: &'static str,
        /// Largest number of states.
        limit: usize,
        /// Number of states.
        found: String,
    },
    /// An invalid entry of a table of next states.
    #[error("table: expected a state below {states} after state {state} and label {label}, found {found}")]
    Table {
        /// Source state.
        state: usize,
        /// Label.
        label: usize,
        /// Number of states.
        states: usize,
        /// The entry.
        found: i64,
    },
    /// A label out of range.
    #[error(
        "labels: expected 1 to {vocabulary} at position {position} of utterance {utterance}, found {found}"
    )]
    Label {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the label.
        position: usize,
        /// V, the number of labels.
        vocabulary: usize,
        /// The label.
        found: i64,
    },
    /// A frame with a value that is NaN or infinite.
    #[error("frames: expected finite values in frame {frame} of utterance {utterance}, found {value}", value = ShortFloat(*value))]
    Frame {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the frame.
        frame: usize,
        /// The value.
        value: f64,
    },
    /// A parameter with an invalid value.
    #[error("{argument}: expected {expected} at index {index}, found {value}", value = ShortFloat(*value))]
    Parameter {
        /// Name of the parameter.
        argument: String,
        /// Valid values.
        expected: &'static str,
        /// Index of the first invalid value.
        index: usize,
        /// The value.
        value: f64,
    },
    /// Arc weights whose sums are NaN or +inf.
    #[error("weights: expected arc weights whose sums are finite or -inf, found {value} in utterance {utterance}", value = ShortFloat(*value))]
    Overflow {
        /// Index of the utterance.
        utterance: usize,
        /// Sum over the paths of the utterance.
        value: f64,
    },
    /// Arc weights too large for their precision: posteriors do not sum to 1.
    #[error("weights: expected arc weights small enough for posteriors that sum to 1, found a sum of {sum} in frame {frame} of utterance {utterance}", sum = ShortFloat(*sum))]
    Precision {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the frame.
        frame: usize,
        /// Sum of the posteriors of the states of the frame.
        sum: f64,
    },
    /// A budget below the smallest plan.
    #[error("budget: expected at least {smallest} bytes, found {found}")]
    Budget {
        /// Bytes of the smallest plan.
        smallest: usize,
        /// The budget in bytes.
        found: usize,
    },
    /// A search that exceeds its limit on prefixes.
    #[error(
        "max_prefixes: expected at most {limit} prefixes, found more in utterance {utterance}; raise the limit"
    )]
    Limit {
        /// Index of the utterance.
        utterance: usize,
        /// Largest number of prefixes.
        limit: usize,
    },
    /// A lattice with too many arcs to list.
    #[error("limit: expected at most {limit} arcs, found more; raise the limit")]
    Arcs {
        /// Largest number of arcs.
        limit: usize,
    },
    /// A score of a label that is NaN or +inf.
    #[error("scorer: expected a finite score or -inf for label {label}, found {value}", value = ShortFloat(*value))]
    Fusion {
        /// The label.
        label: u32,
        /// Its score.
        value: f64,
    },
    /// An error of the selected normalizer.
    #[error(transparent)]
    Normalizer(#[from] panda_core::Error),
    /// A candle operation failed; the message is candle's.
    #[cfg(feature = "candle")]
    #[error("{0}")]
    Tensor(String),
}

#[cfg(feature = "candle")]
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Tensor(error.to_string())
    }
}

impl Error {
    /// Creates an error for an argument that does not fit.
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Shape { argument: argument.into(), expected: expected.into(), found: found.to_string() }
    }
}

/// Fails if a slice has another length.
pub(crate) fn expect_len(argument: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::shape(argument, format!("{expected} values"), found))
}

/// Fails if a slice has no value.
pub(crate) fn expect_nonempty(argument: &str, found: usize) -> Result<()> {
    expect_len(argument, found.max(1), found)
}

/// Fails if the utterance does not exist.
pub(crate) fn expect_utterance(utterance: usize, utterances: usize) -> Result<()> {
    if utterance < utterances {
        return Ok(());
    }
    Err(Error::shape("utterance", format!("an index below {utterances}"), utterance))
}

/// Returns the index of the first value that is NaN or infinite.
pub(crate) fn first_not_finite<F: kernels::Real>(values: &[F]) -> Option<usize> {
    /// Elements of a task.
    const ELEMENTS_PER_TASK: usize = 1 << 16;
    par_find(parts(values, ELEMENTS_PER_TASK), |task, values| {
        first_not_finite_in(values).map(|index| task * ELEMENTS_PER_TASK + index)
    })
}

/// [`first_not_finite`] on one thread.
fn first_not_finite_in<F: kernels::Real>(values: &[F]) -> Option<usize> {
    /// Elements that are checked without a branch, several at a time.
    const RUN_ELEMENTS: usize = 256;
    /// Independent partial sums.
    const LANES: usize = 16;
    // Zero times a finite number is zero; zero times NaN or infinity is not.
    let is_finite = |run: &[F]| {
        let mut sums = [F::ZERO; LANES];
        let (chunks, remainder) = run.as_chunks::<LANES>();
        for lanes in chunks {
            sums.iter_mut().zip(lanes).for_each(|(sum, &x)| *sum += x * F::ZERO);
        }
        sums.iter().chain(remainder).all(|&x| x * F::ZERO == F::ZERO)
    };
    let run_start = RUN_ELEMENTS * values.chunks(RUN_ELEMENTS).position(|run| !is_finite(run))?;
    values[run_start..].iter().position(|x| !x.to_f64().is_finite()).map(|offset| run_start + offset)
}

/// Fails if a value of a parameter is NaN or infinite.
pub(crate) fn expect_finite<F: kernels::Real>(argument: &str, values: &[F]) -> Result<()> {
    match first_not_finite(values) {
        None => Ok(()),
        Some(index) => Err(Error::Parameter {
            argument: argument.into(),
            expected: "a finite value",
            index,
            value: values[index].to_f64(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_not_finite_returns_the_first_index() {
        let mut values = vec![f32::MAX; 200_000];
        assert_eq!(first_not_finite(&values), None);
        let invalid = [(f32::NAN, 150_000), (f32::NAN, 999), (f32::NEG_INFINITY, 512), (f32::INFINITY, 511)];
        for (value, index) in invalid.into_iter().chain([(f32::NAN, 0)]) {
            values[index] = value;
            assert_eq!(first_not_finite(&values), Some(index));
        }
        assert_eq!(first_not_finite::<f64>(&[]), None);
        assert_eq!(first_not_finite(&[-f64::MAX, f64::NAN]), Some(1));
    }
}
