//! What a case will take, as far as its sizes tell.
use rnnt_loss::MemoryPlan;

use super::answer::CaseShape;
use super::case::{Case, CaseWork, LengthSpread, LossWork, Method, PrunedWork, System};
use super::inputs::{BatchSizes, ragged, targets};
use super::loss::options;
use super::{dense, pruned_dense};

/// A forecast for one system.
pub enum Forecast {
    /// It needs about so many bytes above inputs and gradients.
    Bytes(f64),
    /// It cannot do this case.
    Skipped(String),
    /// Sizes that are not known before the files are read, or not worth a forecast.
    Unknown,
}

/// Whether a system can do a piece of work, and what memory it needs.
pub fn forecast(work: &CaseWork, system: &System) -> Forecast {
    let (work, pruned) = match work {
        CaseWork::Loss(work) => (work, None),
        CaseWork::Pruned(pruned) => (&pruned.loss, Some(pruned)),
        CaseWork::Lattices { .. }
        | CaseWork::Decode(_)
        | CaseWork::Recognition(_)
        | CaseWork::Train(_)
        | CaseWork::Model { .. } => {
            return Forecast::Unknown;
        }
    };
    match system.method {
        // It was never near to any cap.
        Method::Pruned(_)
        | Method::Decode(_)
        | Method::BestPath
        | Method::Denominator
        | Method::Train { .. } => Forecast::Unknown,
        Method::PrunedTextbook => {
            pruned.map_or(Forecast::Unknown, |work| Forecast::Bytes(pruned_dense::predicted_bytes(work)))
        }
        Method::Textbook => {
            let (diagonals, most) = (work.frames + work.labels, oracle::dense::MAX_DIAGONALS);
            if diagonals > most {
                return Forecast::Skipped(format!("{diagonals} anti-diagonals, its graph holds {most}"));
            }
            Forecast::Bytes(dense::predicted_bytes(work))
        }
        Method::Ours { budget, skip, bf16 } => match targets(work) {
            // The loss itself will say what is wrong.
            Err(_) => Forecast::Unknown,
            Ok(targets) => {
                let options = options(budget, skip, bf16);
                MemoryPlan::new::<f32>(&targets, work.hidden, work.classes, &options)
                    .map_or(Forecast::Unknown, |plan| Forecast::Bytes(plan.transient as f64))
            }
        },
    }
}

impl CaseWork {
    /// Sizes, as far as they are known without reading files.
    pub fn shape(&self) -> CaseShape {
        match *self {
            Self::Loss(ref work) | Self::Pruned(PrunedWork { loss: ref work, .. }) => work.sizes().shape(),
            Self::Lattices { sizes: [batch, frames, labels] } => {
                let some = Some;
                CaseShape { B: some(batch), T: some(frames), U: some(labels), ..CaseShape::default() }
            }
            Self::Decode(ref work) => work.shape(),
            Self::Recognition(ref work) => work.shape(),
            Self::Train(ref work) => work.shape(),
            Self::Model { .. } => CaseShape::default(),
        }
    }

    /// Bytes of the inputs, as far as they are known without reading files.
    pub fn input_bytes(&self) -> u64 {
        match self {
            Self::Loss(work) => work.sizes().bytes(),
            Self::Pruned(work) => work.loss.sizes().bytes() + work.source_bytes(),
            Self::Lattices { sizes } => 16 * sizes.iter().product::<usize>() as u64,
            Self::Decode(work) => work.input_bytes(),
            Self::Recognition(work) => work.input_bytes(),
            Self::Train(work) => work.input_bytes(),
            Self::Model { .. } => 1 << 30,
        }
    }
}

impl LossWork {
    /// Frames and labels of each utterance.
    pub fn all_lengths(&self) -> (Vec<usize>, Vec<usize>) {
        match self.lengths {
            LengthSpread::Ragged => ragged(self.batch, self.frames, self.labels),
            LengthSpread::Even => (vec![self.frames; self.batch], vec![self.labels; self.batch]),
        }
    }

    /// All sizes, real sites included.
    pub fn sizes(&self) -> BatchSizes {
        let Self { batch, frames, labels, hidden, classes, .. } = *self;
        let (lengths, counts) = self.all_lengths();
        let sites = lengths.iter().zip(&counts).map(|(t, u)| t * (u + 1)).sum();
        BatchSizes { batch, frames, labels, hidden, classes, sites }
    }

    /// Floating-point operations of forward and backward with recomputation, 8 N H C.
    pub fn operations(&self) -> f64 {
        8.0 * self.sizes().sites as f64 * self.hidden as f64 * self.classes as f64
    }
}

impl Case {
    /// Whether the system leaves sites out, and has to account for it.
    pub fn wants_skip_report(&self, system: &System) -> bool {
        matches!(system.method, Method::Ours { skip, .. } if skip > 0.0)
    }
}
