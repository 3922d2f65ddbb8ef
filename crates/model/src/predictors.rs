//! Predictors (prediction networks): a row for each label position from the previous labels.
//!
//! A new kind of predictor is a file next to `lstm.rs` with its configuration ([`BuildPredictor`])
//! and its [`Predictor`], and two lines here: its `mod`, and its entry in [`PredictorKind`].
mod concat;
mod embedding;
mod lstm;
mod stateless;

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use concat::ConcatPredictor;
pub use embedding::{Embedding, StartEmbedding};
pub use lstm::LstmPredictor;
pub use stateless::StatelessPredictor;

use crate::Result;
use crate::config::table::part_kinds;
use layers::training_pass::TrainingPass;

/// A predictor of whole label sequences; see [`decoder`](Predictor::decoder) for single labels.
pub trait Predictor: Send + Sync {
    /// Returns the width P of the output rows.
    fn width(&self) -> usize;

    /// Computes rows for label sequences; row u depends on the first u labels.
    ///
    /// With a training pass, dropout is on.
    ///
    /// # Shapes
    /// B label sequences, U the length of the longest; returns `[B, U+1, P]`. Rows after the last
    /// label of a sequence are ignored, but must be finite.
    ///
    /// # Errors
    /// Errors of candle.
    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor>;

    /// Returns an upper bound of the bytes of forward and backward pass.
    ///
    /// For `batch` label sequences with `rows` rows each; weights and their gradients are not
    /// included. None, the default, if the bytes are not known.
    fn bytes(&self, _batch: usize, _rows: usize) -> Option<usize> {
        None
    }

    /// Copies the network with its current weights, for label by label decoding.
    ///
    /// Its rows are those of [`Predictor::forward`] without dropout.
    ///
    /// # Errors
    /// Errors of candle.
    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>>;

    /// Copies the network with its weights in 8-bit blocks.
    ///
    /// The default is [`Self::decoder`].
    ///
    /// # Errors
    /// Errors of candle.
    fn quantized_decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        self.decoder()
    }
}

/// The configuration of a predictor in a recipe.
pub trait BuildPredictor {
    /// Checks every value; keys begin with `predictor.`.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> Result<()>;

    /// Creates the predictor for tokens 0 .. `tokens`, of which `blank` is the start.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>>;
}

part_kinds! {
    /// The predictors that a recipe can select with `predictor.kind`.
    PredictorKind: dyn BuildPredictor {
        Lstm: lstm::LstmPredictorConfig,
        Stateless: stateless::StatelessPredictorConfig,
        Concat: concat::ConcatPredictorConfig,
    }
}
