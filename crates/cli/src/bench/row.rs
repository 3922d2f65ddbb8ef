//! The outcome of a suite, as it is written to JSON; the schema is the same for every suite.
use serde::{Deserialize, Serialize};

use super::case::Scores;
use super::machine::Machine;

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

/// What one system did in one case.
#[derive(Serialize)]
pub struct Row {
    /// The case.
    pub case: String,
    /// `ours`, or another system's name.
    pub system: String,
    /// Sizes.
    pub shape: Shape,
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

/// Sizes of a case; those that it does not have are null.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(non_snake_case, reason = "one letter an axis, as everywhere")]
pub struct Shape {
    /// Utterances.
    pub B: Option<usize>,
    /// Frames of the longest.
    pub T: Option<usize>,
    /// Labels of the longest.
    pub U: Option<usize>,
    /// Joint width.
    pub H: Option<usize>,
    /// Classes.
    pub C: Option<usize>,
    /// Real sites.
    pub N: Option<usize>,
}

/// What pruning left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PruningReport {
    /// What the first pass's scores come from.
    pub scores: Scores,
    /// Sites of the second pass.
    pub retained: usize,
    /// Their share of the lattice.
    pub share: f64,
}

/// Bound and truth of what skipping changed, in the measures of [`rnnt_loss::Skipped`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SkipReport {
    /// Sites left out although they had an adjoint.
    pub sites: usize,
    /// Their summed occupancy.
    pub mass: f64,
    /// Bounds on the errors in bias, weight, and frame and label rows.
    pub bounds: [f64; 3],
    /// The errors themselves, against the gradient without skipping.
    pub errors: [f64; 3],
}

impl SkipReport {
    /// The largest share of a bound that an error takes; above 1 the bound would be broken.
    pub fn share(&self) -> f64 {
        let shares = self.errors.iter().zip(&self.bounds);
        shares.map(|(error, bound)| if *error == 0.0 { 0.0 } else { error / bound }).fold(0.0, f64::max)
    }
}
