//! Results of a benchmark suite as JSON; all suites have the same schema.
use serde::Serialize;

use super::case::PlotMark;
use super::decoding_speed::DecodingSpeed;
use super::error::{Error, Result};
use super::lower_bounds::TrainingSpeed;
use super::machine::Machine;
use super::workload::{CaseShape, PruningReport, SkipReport};

/// Results of a suite.
#[derive(Serialize)]
pub(crate) struct Report {
    /// Name of the suite.
    pub suite: &'static str,
    /// Machine and time of the run.
    pub machine: Machine,
    /// One row per case and system.
    pub rows: Vec<ResultRow>,
}

impl Report {
    /// Formats the report as JSON.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub(crate) fn json(&self) -> Result<String> {
        let text =
            serde_json::to_string_pretty(self).map_err(|source| Error::Json { what: "report", source })?;
        Ok(text + "\n")
    }
}

/// Results of one system on one case.
#[derive(Serialize)]
pub(crate) struct ResultRow {
    /// Name of the case.
    pub case: String,
    /// Name of the system, for example `panda`.
    pub system: String,
    /// Sizes of the case.
    pub shape: CaseShape,
    /// Threads of the system.
    pub threads: usize,
    /// Median time of the timed steps of all repeats.
    pub median_ms: Option<f64>,
    /// Minimum time of these steps.
    pub min_ms: Option<f64>,
    /// Maximum time of these steps.
    pub max_ms: Option<f64>,
    /// Peak resident memory without inputs, parameters and gradients.
    pub peak_bytes: Option<u64>,
    /// GFLOP/s of the required matrix products at the median time.
    pub gflops: Option<f64>,
    /// Ratio to the rate of one large product in the same process; median of the repeats.
    pub sgemm_share: Option<f64>,
    /// Largest relative L2 difference of a gradient tensor from the baseline's.
    pub rel_grad_diff: Option<f64>,
    /// Success, or the kind of failure.
    pub status: Status,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Errors of skipping, in the suite `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipReport>,
    /// Retained sites, in the suite `pruned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<PruningReport>,
    /// Decoding speed, in the suite `decode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<DecodingSpeed>,
    /// Training speed, in the suite `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSpeed>,
    /// Place on the horizontal axis of the plot.
    #[serde(skip)]
    pub mark: Option<PlotMark>,
}

/// Outcome of a system on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    /// The system finished the case.
    Ok,
    /// The predicted or measured memory is above the cap.
    OutOfMemory,
    /// The system does not support the case, or exceeds the time limit.
    Skipped,
}

/// Computes speeds relative to the last row, which is frame looping.
pub(crate) fn compare_speeds(rows: &mut [ResultRow]) {
    let Some(frame_looping) = rows.last().and_then(|row| row.speed) else { return };
    for speed in rows.iter_mut().filter_map(|row| row.speed.as_mut()) {
        speed.over_frame_looping = Some(speed.utterances_per_second / frame_looping.utterances_per_second);
    }
}
