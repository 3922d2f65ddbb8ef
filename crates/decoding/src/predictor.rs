//! Prediction networks over the labels of hypotheses: LSTM and stateless.
mod lstm;
mod stateless;

pub use lstm::{LstmLayer, LstmPredictor};
pub use stateless::{NO_LABEL, PredictorActivation, StatelessPredictor};

use crate::{NetworkScratch, StateShape, States};

/// A prediction network that advances many hypotheses by one label each.
///
/// Its state is a row of [`States`], which gather, split and merge rows. A row must depend only on
/// its own labels, not on the other rows.
pub trait Predictor: Send + Sync {
    /// Width P of the output rows.
    fn width(&self) -> usize;

    /// Number of label ids; every label is below it.
    fn label_ids(&self) -> usize;

    /// Returns state (one row) and output row `[P]` before any label.
    fn start(&self) -> (States, Vec<f32>);

    /// Advances each state row by a label and writes its output row.
    ///
    /// # Shapes
    /// For *n* hypotheses: `labels` *n*, `states` *n* rows, `out` *n x P*.
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], scratch: &mut NetworkScratch);

    /// Number of labels before the first one: the context of a stateless predictor.
    ///
    /// [`BeamOptions::normalize_by_length`](crate::BeamOptions::normalize_by_length) counts them.
    fn context(&self) -> usize {
        1
    }

    /// Sizes of a row of its states.
    fn shape(&self) -> StateShape {
        self.start().0.shape()
    }
}
