//! Encoders (LSTM, Conformer, FastConformer, custom): from stacked log-mel frames to encoder rows.
//!
//! A new kind of encoder is a file next to `lstm.rs` with its configuration ([`BuildEncoder`]) and
//! its [`Encoder`], and two lines here: its `mod`, and its entry in [`EncoderKind`].
mod conformer;
mod fast_conformer;
mod feed_forward;
mod inference_encoder;
mod lstm;
mod lstm_stream;
mod module_encoder;
pub(crate) mod packed;
mod packed_lstm;
mod stream;
mod subsampling;
mod subsampling_stream;
mod time_reduction;

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use conformer::{AttentionKind, ChunkedAttention, ConformerEncoder};
pub(crate) use fast_conformer::is_linear_weight;
pub use fast_conformer::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoder,
    FastConformerStream, PackedFastConformer,
};
pub use inference_encoder::{EncodedRows, InferenceEncoder, ReadTensor, WeightValues};
pub use kernels::packed::NumberFormat;
pub use lstm::LstmEncoder;
pub use module_encoder::ModuleEncoder;
pub use stream::{EncoderChunk, EncoderState, EncoderStream};
pub use subsampling::SubsamplingConfig;
pub use time_reduction::TimeReduction;

use crate::config::adapter::AdapterConfig;
use crate::config::table::part_kinds;
use crate::{Error, Result};
use layers::training_pass::TrainingPass;

/// An encoder of padded batches of input rows.
///
/// B: utterances; T, T': input rows and encoder rows of the longest one; D: width of an input row.
pub trait Encoder: Send + Sync {
    /// Returns the width W of encoder rows.
    fn width(&self) -> usize;

    /// Encodes a padded batch. With a training pass, dropout is on.
    ///
    /// # Shapes
    /// `x [B, T, D]`; `lengths` has B entries of at most T. Returns `[B, T', W]` and B lengths of
    /// at most T'. Rows beyond the end of an utterance are ignored, but must be finite.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the shapes do not match.
    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)>;

    /// Returns an upper bound of the bytes of a batch's passes.
    ///
    /// The batch is `[batch, rows, width]`; input, weights and the gradients of these are not
    /// included. None, the default, if the bytes are not known.
    fn bytes(&self, _batch: usize, _rows: usize, _width: usize) -> Option<usize> {
        None
    }

    /// Returns [`Self::bytes`] of passes with recomputation.
    ///
    /// See [`TrainingPass::with_recomputation`]; the default is for encoders without it.
    fn recomputed_bytes(&self, batch: usize, rows: usize, width: usize) -> Option<usize> {
        self.bytes(batch, rows, width)
    }

    /// Returns a streaming encoder with a copy of the current weights.
    ///
    /// None, the default, if the encoder needs whole utterances.
    ///
    /// # Errors
    /// An error of candle.
    fn stream(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        Ok(None)
    }
}

/// The configuration of an encoder in a recipe.
pub trait BuildEncoder {
    /// Checks every value; keys begin with `encoder.`.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> Result<()>;

    /// Returns the number of input rows for each encoder row.
    fn reduction(&self) -> usize {
        1
    }

    /// Returns the number of encoder rows of an utterance of `input_rows` rows.
    fn output_rows(&self, input_rows: usize) -> usize {
        input_rows.div_ceil(self.reduction())
    }

    /// Returns the dropout rate in training.
    fn dropout(&self) -> f32 {
        0.0
    }

    /// Returns true if the layers support recomputation.
    ///
    /// See [`TrainingPass::with_recomputation`].
    fn recomputes(&self) -> bool {
        false
    }

    /// Returns true if the encoder subsamples single frames by convolutions.
    fn subsamples(&self) -> bool {
        false
    }

    /// Creates the encoder for input rows of width `input_width`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    fn build(&self, input_width: usize, vb: &VarBuilder) -> Result<Arc<dyn Encoder>>;

    /// Creates the encoder with low-rank adapters of its linear layers.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`], the default, if the encoder does not support adapters; errors
    /// of the builder `vb`.
    fn build_with_adapter(
        &self,
        _input_width: usize,
        _adapter: &AdapterConfig,
        _vb: &VarBuilder,
    ) -> Result<Arc<dyn Encoder>> {
        Err(Error::RecipeValue {
            key: "adapter".into(),
            expected: "none: this encoder does not support adapters".into(),
            found: "a table".into(),
        })
    }

    /// Packs weights for inference without candle.
    ///
    /// `read` returns the parameters of the encoder that [`BuildEncoder::build`] creates, by their
    /// names `encoder.*`; weights include the updates of an adapter. None, the default, if there is
    /// no such implementation in this format.
    ///
    /// # Errors
    /// Those of `read`; [`crate::Error::Shape`] for a parameter of another size.
    fn pack(
        &self,
        _input_width: usize,
        _format: NumberFormat,
        _read: &mut ReadTensor,
    ) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        Ok(None)
    }
}

part_kinds! {
    /// The encoders that a recipe can select with `encoder.kind`; the default is the LSTM.
    EncoderKind: dyn BuildEncoder {
        Lstm: lstm::LstmEncoderConfig,
        Conformer: conformer::ConformerEncoderConfig,
        FastConformer: fast_conformer::FastConformerEncoderConfig,
    }
}
