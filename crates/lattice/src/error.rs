//! What can go wrong with a recognition lattice.
use kernels::{ShortFloat, par_find, parts};

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// A lattice error; the message names the argument, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Arguments that do not fit together.
    #[error("{argument}: expected {expected}, found {found}")]
    Shape {
        /// Name of the argument.
        argument: String,
        /// What would have fitted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A context automaton that is too large to be numbered.
    #[error("{argument}: expected at most {limit} context states, found {found}")]
    States {
        /// Name of the argument.
        argument: &'static str,
        /// The most that can be numbered.
        limit: usize,
        /// How many there would be.
        found: String,
    },
    /// An entry of a table of next states that is no state.
    #[error("table: expected a state below {states} after state {state} and label {label}, found {found}")]
    Table {
        /// The state that the arc leaves.
        state: usize,
        /// Its label.
        label: usize,
        /// Number of states.
        states: usize,
        /// The entry.
        found: i64,
    },
    /// A label that is none.
    #[error(
        "labels: expected 1 to {vocabulary} at position {position} of utterance {utterance}, found {found}"
    )]
    Label {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the label.
        position: usize,
        /// Number of labels V.
        vocabulary: usize,
        /// What was there.
        found: i64,
    },
    /// A frame inside an utterance's length with a value that is NaN or infinite.
    #[error("frames: expected finite values in frame {frame} of utterance {utterance}, found {value}", value = ShortFloat(*value))]
    Frame {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the frame.
        frame: usize,
        /// The value.
        value: f64,
    },
    /// A parameter with a value that it must not have.
    #[error("{argument}: expected {expected} at index {index}, found {value}", value = ShortFloat(*value))]
    Parameter {
        /// Name of the parameter.
        argument: String,
        /// What may be there.
        expected: &'static str,
        /// Index of the first such value.
        index: usize,
        /// The value.
        value: f64,
    },
    /// Sums over paths that left the numbers.
    #[error("weights: expected arc weights whose sums are finite or -inf, found {value} in utterance {utterance}", value = ShortFloat(*value))]
    Overflow {
        /// Index of the utterance.
        utterance: usize,
        /// The sum over its paths.
        value: f64,
    },
    /// Arc weights too large for their precision: differences of 1 are lost beside them.
    #[error("weights: expected arc weights small enough for posteriors that add up to 1, found {sum} in frame {frame} of utterance {utterance}", sum = ShortFloat(*sum))]
    Precision {
        /// Index of the utterance.
        utterance: usize,
        /// Index of the frame.
        frame: usize,
        /// What the posteriors of its states add up to.
        sum: f64,
    },
    /// A budget below the smallest cut.
    #[error("budget: expected at least {smallest} bytes, found {found}")]
    Budget {
        /// Bytes of the smallest cut.
        smallest: usize,
        /// Bytes of the budget.
        found: usize,
    },
    /// A search that would have taken more work than it was given.
    #[error("limit: expected at most {limit} prefixes to be looked at, found more in utterance {utterance}")]
    Limit {
        /// Index of the utterance.
        utterance: usize,
        /// The most prefixes of strings that may be looked at.
        limit: usize,
    },
    /// A lattice that is too large to be listed.
    #[error("limit: expected at most {limit} arcs to be listed, found more")]
    Arcs {
        /// The most arcs.
        limit: usize,
    },
    /// A score of a label that is none.
    #[error("fusion: expected a finite score or -inf for label {label}, found {value}", value = ShortFloat(*value))]
    Fusion {
        /// The label.
        label: u32,
        /// Its score.
        value: f64,
    },
    /// The normaliser's own errors.
    #[error(transparent)]
    Normaliser(#[from] panda_core::Error),
    /// A tensor operation failed; the message is candle's.
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
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Shape { argument: argument.into(), expected: expected.into(), found: found.to_string() }
    }
}

/// Fails unless a slice has a length.
pub(crate) fn expect_len(argument: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::shape(argument, format!("{expected} values"), found))
}

/// Fails unless there is such an utterance.
pub(crate) fn expect_utterance(utterance: usize, utterances: usize) -> Result<()> {
    if utterance < utterances {
        return Ok(());
    }
    Err(Error::shape("utterance", format!("one below {utterances}"), utterance))
}

/// Where the first value is that is NaN or infinite.
pub(crate) fn first_not_finite<F: kernels::Real>(values: &[F]) -> Option<usize> {
    /// Elements of a task.
    const MANY: usize = 1 << 16;
    par_find(parts(values, MANY), |at, values| first_in(values).map(|found| at * MANY + found))
}

fn first_in<F: kernels::Real>(values: &[F]) -> Option<usize> {
    /// Elements that are looked at without a branch, several at a time.
    const RUN: usize = 256;
    const LANES: usize = 16;
    // Zero times a number is zero, but for those that are looked for.
    let all = |run: &[F]| {
        let mut sums = [F::ZERO; LANES];
        let (whole, rest) = run.as_chunks::<LANES>();
        for of_lanes in whole {
            sums.iter_mut().zip(of_lanes).for_each(|(sum, &x)| *sum += x * F::ZERO);
        }
        sums.iter().chain(rest).all(|&x| x * F::ZERO == F::ZERO)
    };
    let first = RUN * values.chunks(RUN).position(|run| !all(run))?;
    values[first..].iter().position(|x| !x.to_f64().is_finite()).map(|at| first + at)
}

/// Fails for the first value of a parameter that is NaN or infinite.
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
    fn the_first_that_is_not_finite_is_found_wherever_it_is() {
        let mut values = vec![f32::MAX; 200_000];
        assert_eq!(first_not_finite(&values), None);
        let wrong = [(f32::NAN, 150_000), (f32::NAN, 999), (f32::NEG_INFINITY, 512), (f32::INFINITY, 511)];
        for (wrong, at) in wrong.into_iter().chain([(f32::NAN, 0)]) {
            values[at] = wrong;
            assert_eq!(first_not_finite(&values), Some(at));
        }
        assert_eq!(first_not_finite::<f64>(&[]), None);
        assert_eq!(first_not_finite(&[-f64::MAX, f64::NAN]), Some(1));
    }
}
