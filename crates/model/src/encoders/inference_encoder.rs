//! `InferenceEncoder`: the trait of encoders with packed weights, without candle.
use std::sync::Arc;

use super::EncoderStream;
use crate::Result;

/// Encoder rows of several utterances, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRows {
    /// `[Σ T_b, W]`
    pub rows: Vec<f32>,
    /// The number of rows of each utterance.
    pub lengths: Vec<usize>,
}

/// Returns the values of a parameter by its full name.
pub type ReadTensor<'a> = dyn FnMut(&str) -> Result<Vec<f32>> + 'a;

/// An encoder for inference: it owns its weights, packed for products.
///
/// The rows of an utterance have the same bits alone and in a batch, for every number of threads.
pub trait InferenceEncoder: Send + Sync {
    /// Returns the width D of input rows.
    fn input_width(&self) -> usize;

    /// Returns the width W of encoder rows.
    fn width(&self) -> usize;

    /// Encodes utterances of input rows `[T, D]`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a number of values that is not a multiple of D.
    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows>;

    /// Returns the bytes that encoding needs in addition to weights and input.
    ///
    /// `input_rows` are those of each utterance.
    fn bytes(&self, input_rows: &[usize]) -> usize;

    /// Returns a streaming encoder with these weights; none if rows depend on whole utterances.
    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>>;
}
