//! The outcome of a suite, as it is written to JSON; the schema is the same for every suite.
use serde::Serialize;

use super::answer::{CaseShape, PruningReport, SkipReport};
use super::error::{Error, Result};
use super::floors::Training;
use super::machine::Machine;
use super::speed::Speed;

/// A suite's outcome.
#[derive(Serialize)]
pub struct Report {
    /// Name of the suite.
    pub suite: &'static str,
    /// Where and when it was run.
    pub machine: Machine,
    /// A row for each case and system.
    pub rows: Vec<ResultRow>,
}

impl Report {
    /// Everything as JSON.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub fn json(&self) -> Result<String> {
        let text =
            serde_json::to_string_pretty(self).map_err(|source| Error::Json { what: "outcome", source })?;
        Ok(text + "\n")
    }
}

/// What one system did in one case.
#[derive(Serialize)]
pub struct ResultRow {
    /// The case.
    pub case: String,
    /// `ours`, or another system's name.
    pub system: String,
    /// Sizes.
    pub shape: CaseShape,
    /// Threads of the system.
    pub threads: usize,
    /// Median over the timed steps of all repeats.
    pub median_ms: Option<f64>,
    /// The fastest of them.
    pub min_ms: Option<f64>,
    /// The slowest of them.
    pub max_ms: Option<f64>,
    /// Largest resident memory above inputs, parameters and gradients.
    pub peak_bytes: Option<u64>,
    /// Rate of the matrix products that the system needs, at the median time.
    pub gflops: Option<f64>,
    /// That rate by the rate of one large product in the same processes; median over the repeats.
    pub sgemm_share: Option<f64>,
    /// Largest relative L2 difference of any gradient tensor from the rival's.
    pub rel_grad_diff: Option<f64>,
    /// Whether there is an outcome.
    pub status: Status,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What skipping cost, in the suite `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipReport>,
    /// What was pruned, in the suite `pruned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<PruningReport>,
    /// How fast utterances were decoded, in the suite `decode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// How fast it trained, in the suite `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// Place in the picture.
    #[serde(skip)]
    pub mark: Option<(f64, String)>,
}

/// Whether a system did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It did.
    Ok,
    /// It would need, or needed, more memory than the cap allows.
    OutOfMemory,
    /// It cannot do this case, or not in reasonable time.
    Skipped,
}

/// Compares decoding in the rows of a case with the last of them, which is frame-looping.
pub fn compare_speeds(rows: &mut [ResultRow]) {
    let Some(slow) = rows.last().and_then(|row| row.speed) else { return };
    for speed in rows.iter_mut().filter_map(|row| row.speed.as_mut()) {
        speed.over_frame_looping = Some(speed.utterances_per_second / slow.utterances_per_second);
    }
}
