//! Predicts the peak memory of a benchmark case from its sizes.
use rnnt_loss::MemoryPlan;

use super::case::{Case, CaseWork, LengthSpread, LossSizes, Method, PrunedWork, System};
use super::inputs::{BatchSizes, ragged_lengths, synthetic_targets};
use super::loss::session_options;
use super::workload::CaseShape;
use super::{dense_baseline, pruned_baseline};

/// Estimated bytes of a trained model's rows and head.
const MODEL_INPUT_BYTES: u64 = 1 << 30;

/// Prediction for one system.
pub(crate) enum Forecast {
    /// Approximate peak bytes without inputs and gradients.
    Bytes(f64),
    /// The system does not support the case, with the reason.
    Skipped(String),
    /// No prediction: sizes depend on files, or memory is far below any cap.
    Unknown,
}

/// Predicts whether a system supports a case, and its memory.
pub(crate) fn forecast(work: &CaseWork, system: &System) -> Forecast {
    let (work, pruned) = match work {
        CaseWork::Loss(work) => (work, None),
        CaseWork::Pruned(pruned) => (&pruned.loss, Some(pruned)),
        CaseWork::Lattices { .. }
        | CaseWork::Decode(_)
        | CaseWork::Recognition(_)
        | CaseWork::Train(_)
        | CaseWork::Encode(_)
        | CaseWork::Model { .. } => {
            return Forecast::Unknown;
        }
    };
    match system.method {
        // These are far below any cap.
        Method::Pruned(_)
        | Method::Decode(_)
        | Method::BestPath
        | Method::Denominator
        | Method::Encode { .. }
        | Method::Train { .. } => Forecast::Unknown,
        Method::PrunedBaseline => {
            pruned.map_or(Forecast::Unknown, |work| Forecast::Bytes(pruned_baseline::predicted_bytes(work)))
        }
        Method::Baseline => {
            let (diagonals, max) = (work.frames + work.labels, oracle::dense::MAX_DIAGONALS);
            if diagonals > max {
                return Forecast::Skipped(format!("{diagonals} anti-diagonals, its graph supports {max}"));
            }
            Forecast::Bytes(dense_baseline::predicted_bytes(work))
        }
        Method::Panda { budget, skip, bf16 } => match synthetic_targets(work) {
            // The loss reports the error.
            Err(_) => Forecast::Unknown,
            Ok(targets) => {
                let options = session_options(budget, skip, bf16);
                MemoryPlan::new::<f32>(&targets, work.hidden, work.classes, &options)
                    .map_or(Forecast::Unknown, |plan| Forecast::Bytes(plan.transient_bytes as f64))
            }
        },
    }
}

impl CaseWork {
    /// Returns the sizes that are known without reading files.
    pub(crate) fn shape(&self) -> CaseShape {
        match *self {
            Self::Loss(ref work) | Self::Pruned(PrunedWork { loss: ref work, .. }) => work.sizes().shape(),
            Self::Lattices { sizes: [batch, frames, labels] } => {
                CaseShape { B: Some(batch), T: Some(frames), U: Some(labels), ..CaseShape::default() }
            }
            Self::Decode(ref work) => work.shape(),
            Self::Recognition(ref work) => work.shape(),
            Self::Train(ref work) => work.shape(),
            Self::Encode(ref work) => work.shape(),
            Self::Model { .. } => CaseShape::default(),
        }
    }

    /// Returns the bytes of the inputs; an estimate if they are read from files.
    pub(crate) fn input_bytes(&self) -> u64 {
        match self {
            Self::Loss(work) => work.sizes().bytes(),
            Self::Pruned(work) => work.loss.sizes().bytes() + work.first_pass_bytes(),
            // Two emissions in `f64` per site.
            Self::Lattices { sizes } => 16 * sizes.iter().product::<usize>() as u64,
            Self::Decode(work) => work.input_bytes(),
            Self::Recognition(work) => work.input_bytes(),
            Self::Train(work) => work.input_bytes(),
            Self::Encode(work) => work.input_bytes(),
            Self::Model { .. } => MODEL_INPUT_BYTES,
        }
    }
}

impl LossSizes {
    /// Returns frames and labels of each utterance.
    pub(crate) fn all_lengths(&self) -> (Vec<usize>, Vec<usize>) {
        match self.lengths {
            LengthSpread::Ragged => ragged_lengths(self.batch, self.frames, self.labels),
            LengthSpread::Even => (vec![self.frames; self.batch], vec![self.labels; self.batch]),
        }
    }

    /// Returns all sizes, including the number of sites.
    pub(crate) fn sizes(&self) -> BatchSizes {
        let Self { batch, frames, labels, hidden, classes, .. } = *self;
        let (lengths, counts) = self.all_lengths();
        let sites = lengths.iter().zip(&counts).map(|(t, u)| t * (u + 1)).sum();
        BatchSizes { batch, frames, labels, hidden, classes, sites }
    }

    /// Returns the operations of forward and backward with recomputation, 8 N H C.
    pub(crate) fn operations(&self) -> f64 {
        8.0 * self.sizes().sites as f64 * self.hidden as f64 * self.classes as f64
    }
}

impl Case {
    /// Returns true if the system skips sites and reports the error.
    pub(crate) fn needs_skip_report(&self, system: &System) -> bool {
        matches!(system.method, Method::Panda { skip, .. } if skip > 0.0)
    }
}
