//! The outcome of a suite, as it is written to JSON; the schema is the same for every suite.
use serde::Serialize;

use super::case::Plan;
use super::error::{BenchError, Result};
use super::machine::Machine;
use super::row::Row;
use super::{picture, table};

/// A suite's outcome.
#[derive(Serialize)]
pub struct Report {
    /// Name of the suite.
    pub suite: &'static str,
    /// Where and when it was run.
    pub machine: Machine,
    /// A row for each case and system.
    pub rows: Vec<Row>,
}

impl Report {
    /// The table: a line for its head, one for each row, and notes.
    pub fn lines(&self) -> Vec<String> {
        table::lines(&self.rows)
    }

    /// Everything as JSON.
    ///
    /// # Errors
    /// [`BenchError::Json`].
    pub fn json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|source| BenchError::Json { what: "outcome", source })?;
        Ok(text + "\n")
    }

    /// An SVG of time and memory over the cases of the plan that this is the outcome of.
    ///
    /// # Errors
    /// [`BenchError::Picture`].
    pub fn picture(&self, plan: &Plan) -> Result<String> {
        picture::draw(plan, &self.rows)
    }
}
