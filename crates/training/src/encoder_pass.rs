//! `EncoderPass`: what a training step does in the encoder.

/// The work of a step in the encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EncoderPass {
    /// Forward and backward pass; all activations are saved.
    #[default]
    Saved,
    /// Each layer saves its input only; the backward pass computes it again.
    Recomputed,
    /// None: batches are encoder rows from a cache.
    Cached,
}
