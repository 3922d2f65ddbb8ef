//! Predictors: what the labels so far say about the next one.
//!
//! A new kind of predictor is a file next to `lstm.rs` with its configuration ([`BuildPredictor`])
//! and its [`Predictor`], and two lines here: its `mod`, and its entry in [`PredictorKind`].
mod embedding;
mod lstm;
mod stateless;

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use embedding::{Embedding, StartEmbedding};
pub use lstm::LstmPredictor;
pub use stateless::StatelessPredictor;

use crate::Result;
use crate::config::table::part_kinds;
use crate::training_pass::TrainingPass;

/// Looks at whole label sequences in training; its [`decoder`](Predictor::decoder) goes label by
/// label.
pub trait Predictor: Send + Sync {
    /// Width P of the output rows.
    fn width(&self) -> usize;

    /// Rows for the label sequences, row u having seen the first u labels. With a training pass,
    /// dropout is on.
    ///
    /// # Shapes
    /// B label sequences, U the length of the longest; returns `[B, U+1, P]`. What is in the rows
    /// beyond an utterance's last label does not matter, but it must be finite.
    ///
    /// # Errors
    /// Candle's own errors.
    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor>;

    /// Most bytes that the forward and backward passes of `batch` label sequences with so many rows
    /// hold beside weights and the gradients of these; `None`, as by default, if that is not known.
    fn bytes(&self, _batch: usize, _rows: usize) -> Option<usize> {
        None
    }

    /// The same network with its current weights, label by label for many hypotheses: after the
    /// same labels, the same row as [`Predictor::forward`] has without dropout.
    ///
    /// # Errors
    /// Candle's own errors.
    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>>;
}

/// The configuration of a predictor, as a recipe has it.
pub trait BuildPredictor {
    /// Checks every value; keys begin with `predictor.`.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> Result<()>;

    /// Makes the predictor for tokens 0 .. `tokens`, of which `blank` stands for "no label yet".
    ///
    /// # Errors
    /// Those of the builder.
    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>>;
}

part_kinds! {
    /// The predictors that a recipe can name, by `predictor.kind`.
    PredictorKind: dyn BuildPredictor {
        Lstm: lstm::LstmPredictorConfig,
        Stateless: stateless::StatelessPredictorConfig,
    }
}
