//! Encoders: what turns rows of sound into rows that the joint network can use.
//!
//! A new kind of encoder is a file next to `lstm.rs` with its configuration ([`BuildEncoder`]) and
//! its [`Encoder`], and two lines here: its `mod`, and its entry in [`EncoderKind`].
mod conformer;
mod frames;
mod lstm;
mod lstm_stream;
mod stream;
mod subsampling;
mod subsampling_stream;

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use conformer::{AttentionKind, ChunkedAttention, ConformerEncoder};
pub use frames::ModuleEncoder;
pub use lstm::{LstmEncoder, TimeReduction};
pub use stream::{EncoderChunk, EncoderState, EncoderStream};
pub use subsampling::SubsamplingConfig;

use crate::Result;
use crate::config::table::part_kinds;
use crate::training_pass::TrainingPass;

/// Encodes padded batches of rows.
pub trait Encoder: Send + Sync {
    /// Width W of the output rows.
    fn width(&self) -> usize;

    /// Encodes a padded batch. With a training pass, dropout is on.
    ///
    /// # Shapes
    /// `x [B, T, D]`; `lengths` has B entries of at most T. Returns `[B, T', W]` and B lengths of
    /// at most T'. What is in the rows beyond an utterance's end does not matter, but it must be
    /// finite.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the input does not fit.
    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)>;

    /// Most bytes that the forward and backward passes of a padded batch `[batch, rows, width]`
    /// hold beside input, weights and the gradients of these; `None`, as by default, if that is not
    /// known.
    fn bytes(&self, _batch: usize, _rows: usize, _width: usize) -> Option<usize> {
        None
    }

    /// The same encoder for sound that arrives in pieces, with a copy of the current weights;
    /// `None`, as by default, if it needs the whole utterance.
    ///
    /// # Errors
    /// Candle's own errors.
    fn stream(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        Ok(None)
    }
}

/// The configuration of an encoder, as a recipe has it.
pub trait BuildEncoder {
    /// Checks every value; keys begin with `encoder.`.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`] for the first one outside its range.
    fn check(&self) -> Result<()>;

    /// How many input rows become one output row.
    fn reduction(&self) -> usize {
        1
    }

    /// Whether rows must be single frames, since convolutions over time and mel make rows of them.
    fn subsamples(&self) -> bool {
        false
    }

    /// Makes the encoder for rows of width `input`.
    ///
    /// # Errors
    /// Those of the builder.
    fn build(&self, input: usize, vb: &VarBuilder) -> Result<Arc<dyn Encoder>>;
}

part_kinds! {
    /// The encoders that a recipe can name, by `encoder.kind`; without it, the LSTM.
    EncoderKind: dyn BuildEncoder {
        Lstm: lstm::LstmEncoderConfig,
        Conformer: conformer::ConformerEncoderConfig,
    }
}
