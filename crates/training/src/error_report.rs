//! `ErrorReport`: the form in which ranks exchange errors of training.
use distributed::SharedError;
use serde::{Deserialize, Serialize};

use crate::Error;

/// An error without its sources.
#[derive(Clone, Serialize, Deserialize)]
pub enum ErrorReport {
    /// The stop flag was set: [`Error::Stopped`].
    Stopped,
    /// A value is not finite: [`Error::Diverged`].
    Diverged {
        /// The step.
        step: u64,
        /// What was not finite.
        what: String,
        /// Ids of the utterances of the rank.
        utterances: Vec<String>,
    },
    /// An error already agreed on, with the rank that reported it.
    ///
    /// It is [`Error::Rank`] and is passed on unchanged.
    Rank {
        /// The rank.
        rank: usize,
        /// The message.
        message: String,
    },
    /// Any other error.
    Other(String),
}

impl SharedError for Error {
    type Report = ErrorReport;

    fn to_report(&self) -> ErrorReport {
        match self {
            Error::Stopped => ErrorReport::Stopped,
            Error::Diverged { step, what, utterances, .. } => {
                ErrorReport::Diverged { step: *step, what: what.to_string(), utterances: utterances.clone() }
            }
            Error::Rank { rank, message } => ErrorReport::Rank { rank: *rank, message: message.clone() },
            other => ErrorReport::Other(other.to_string()),
        }
    }

    /// Orders fatal errors before a stop, and a stop before skipped steps.
    ///
    /// All ranks return the error of the smallest number.
    fn priority(report: &ErrorReport) -> usize {
        match report {
            ErrorReport::Other(_) | ErrorReport::Rank { .. } => 0,
            ErrorReport::Stopped => 1,
            ErrorReport::Diverged { .. } => 2,
        }
    }

    fn from_report(rank: usize, report: ErrorReport) -> Self {
        match report {
            ErrorReport::Stopped => Error::Stopped,
            ErrorReport::Diverged { step, what, utterances } => {
                let quantity = format!("{what} in rank {rank}").into();
                Error::Diverged { step, what: quantity, found: None, utterances, source: None }
            }
            ErrorReport::Rank { rank, message } => Error::Rank { rank, message },
            ErrorReport::Other(message) => Error::Rank { rank, message },
        }
    }
}

impl From<distributed::Error> for Error {
    fn from(error: distributed::Error) -> Self {
        match error {
            distributed::Error::Rank { rank, message } => Error::Rank { rank, message },
            other => Error::Distributed(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use distributed::first_error;

    use super::*;

    #[test]
    fn all_ranks_return_the_same_error() {
        let error = |kind: usize| match kind {
            0 => None,
            1 => {
                let (what, utterances) = ("loss".into(), vec!["a".to_owned()]);
                Some(Error::Diverged { step: 3, what, found: None, utterances, source: None })
            }
            2 => Some(Error::Stopped),
            _ => Some(recognizer::Error::Empty { what: "here".to_owned() }.into()),
        };
        let agree = |kinds: [usize; 3]| {
            [0, 1, 2].map(|rank| {
                let reports = kinds.iter().map(|&kind| error(kind).as_ref().map(Error::to_report)).collect();
                first_error(rank, reports, error(kinds[rank]).map_or(Ok(rank), Err))
            })
        };
        assert!(agree([0, 0, 0]).into_iter().enumerate().all(|(rank, result)| result.unwrap() == rank));
        for result in agree([0, 1, 0]) {
            let Err(Error::Diverged { step: 3, utterances, .. }) = result else { panic!("{result:?}") };
            assert_eq!(utterances, ["a"]);
        }
        assert!(agree([1, 0, 2]).iter().all(|result| matches!(result, Err(Error::Stopped))));
        let [first, second, third] = agree([1, 3, 3]);
        assert!(matches!(first, Err(Error::Rank { rank: 1, .. })), "{first:?}");
        assert!(matches!(second, Err(Error::Recognizer(recognizer::Error::Empty { .. }))), "{second:?}");
        assert!(matches!(third, Err(Error::Rank { rank: 1, .. })), "{third:?}");
    }
}
