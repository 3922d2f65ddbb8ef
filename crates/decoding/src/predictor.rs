//! Predictors: what the labels so far say about the next one, for many hypotheses at once.
mod lstm;
mod stateless;

pub use lstm::{LstmLayer, LstmPredictor};
pub use stateless::{NO_LABEL, PredictorActivation, StatelessPredictor};

use crate::{NetworkScratch, StateShape, States};

/// A predictor that advances many hypotheses by a label each.
///
/// What it remembers is a row of [`States`]; selecting, gathering, splitting and merging rows are theirs. A row must depend on its
/// own labels alone, never on the rows beside it.
pub trait Predictor: Send + Sync {
    /// Width P of the output rows.
    fn width(&self) -> usize;

    /// Number of ids that it knows: labels are below it.
    fn ids(&self) -> usize;

    /// State, one row, and output row `[P]` before any label.
    fn start(&self) -> (States, Vec<f32>);

    /// Advances row *i* by `labels[i]`, in place, and writes its output row.
    ///
    /// # Shapes
    /// `labels` *n*, `states` *n* rows, `out` *n x P*.
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], scratch: &mut NetworkScratch);

    /// Number of labels that stand before the first one, which lengths of hypotheses are counted with
    /// ([`BeamOptions::normalize_by_length`](crate::BeamOptions::normalize_by_length)): the context of a stateless predictor.
    fn context(&self) -> usize {
        1
    }

    /// What a row of its states holds.
    fn shape(&self) -> StateShape {
        self.start().0.shape()
    }
}
