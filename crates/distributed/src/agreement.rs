//! `ProcessGroup::agree`: all ranks (processes) return the same error when one fails.
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, ProcessGroup, Result};

/// An error that every rank reports when one rank has it.
pub trait SharedError: Sized + From<Error> {
    /// The form in which other ranks receive the error.
    type Report: Serialize + DeserializeOwned;

    /// Returns the form in which other ranks receive the error.
    fn to_report(&self) -> Self::Report;

    /// Returns the priority of a report: all ranks return the error of the lowest.
    fn priority(report: &Self::Report) -> usize;

    /// Returns the error of another rank.
    fn from_report(rank: usize, report: Self::Report) -> Self;
}

impl ProcessGroup {
    /// Returns this rank's result if no rank has failed.
    ///
    /// # Errors
    /// The same error on all ranks: the one of lowest [`SharedError::priority`], and of those the
    /// one of the lowest rank.
    pub fn agree<T, E: SharedError>(
        &mut self,
        result: std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if self.size() == 1 {
            return result;
        }
        let reports = self.all_gather(&result.as_ref().err().map(E::to_report))?;
        first_error(self.rank(), reports, result)
    }

    /// Returns true if the flag is true on any rank.
    ///
    /// # Errors
    /// Those of [`all_gather`](Self::all_gather).
    pub fn any_rank(&mut self, flag: bool) -> Result<bool> {
        Ok(if self.size() == 1 { flag } else { self.all_gather(&flag)?.contains(&true) })
    }
}

/// Selects the error that all ranks return from their reports.
///
/// Returns this rank's result if no rank has sent a report.
///
/// # Errors
/// Those of [`ProcessGroup::agree`].
pub fn first_error<T, E: SharedError>(
    this_rank: usize,
    reports: Vec<Option<E::Report>>,
    result: std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let reports = reports.into_iter().enumerate().filter_map(|(rank, report)| Some((rank, report?)));
    match (reports.min_by_key(|(_, report)| E::priority(report)), result) {
        (None, result) => result,
        (Some((rank, _)), Err(error)) if rank == this_rank => Err(error),
        (Some((rank, report)), _) => Err(E::from_report(rank, report)),
    }
}
