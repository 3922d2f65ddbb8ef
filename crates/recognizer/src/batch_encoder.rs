//! `BatchEncoder`: encodes batches with packed weights, or with candle.
use std::sync::Arc;

use candle_core::{Device, Tensor};
use model::Model;
use model::encoders::{EncodedRows, InferenceEncoder, NumberFormat};
use model::tensors::with_slice;
use speech::Features;

use crate::Result;

/// The encoder of a model for inference.
///
/// Encoders without packed inference ([`Model::packed_encoder`]) run in candle.
pub(crate) struct BatchEncoder {
    packed: Option<Arc<dyn InferenceEncoder>>,
}

impl BatchEncoder {
    /// Packs the current weights of a model.
    ///
    /// # Errors
    /// Those of [`Model::packed_encoder`].
    pub(crate) fn new(model: &Model, format: NumberFormat) -> Result<Self> {
        Ok(BatchEncoder { packed: model.packed_encoder(format)? })
    }

    /// Returns padded encoder rows `[B, T, W]` and their numbers.
    ///
    /// # Errors
    /// Errors of the encoder.
    pub(crate) fn encode(&self, model: &Model, features: &[&Features]) -> Result<(Tensor, Vec<usize>)> {
        let (input, lengths) = model::collate(features, &model.config().input.rows)?;
        let Some(encoder) = &self.packed else {
            return Ok(model.encoder().forward(&input, &lengths, None)?);
        };
        let utterance_len = input.dim(1)? * encoder.input_width();
        let encoded = with_slice(&input, |input: &[f32]| {
            let utterances = lengths.iter().enumerate();
            let utterances = utterances
                .map(|(b, rows)| &input[b * utterance_len..][..rows * encoder.input_width()])
                .collect::<Vec<_>>();
            Ok(encoder.encode(&utterances))
        })??;
        pad(&encoded, encoder.width())
    }

    /// Returns an upper bound of the bytes for a padded batch.
    pub(crate) fn bytes(&self, model: &Model, utterances: usize, rows: usize) -> Option<usize> {
        let Some(encoder) = &self.packed else { return model.encoding_bytes(utterances, rows) };
        // Input rows, and results in tensors and in vectors, before and after the projection.
        let results = model.config().encoder.output_rows(rows) * (2 * encoder.width() + 2 * model.width());
        let values = utterances.saturating_mul(2 * rows * encoder.input_width() + results);
        Some(encoder.bytes(&vec![rows; utterances]).saturating_add(values.saturating_mul(size_of::<f32>())))
    }
}

/// Pads the rows of each utterance to the longest.
fn pad(encoded: &EncodedRows, width: usize) -> Result<(Tensor, Vec<usize>)> {
    let EncodedRows { rows, lengths } = encoded;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut padded = kernels::alloc(lengths.len() * longest * width, 0.0);
    let mut remaining = &rows[..];
    for (b, length) in lengths.iter().enumerate() {
        let (utterance, later) = remaining.split_at(length * width);
        padded[b * longest * width..][..utterance.len()].copy_from_slice(utterance);
        remaining = later;
    }
    let shape = (lengths.len(), longest, width);
    Ok((Tensor::from_vec(padded, shape, &Device::Cpu)?, lengths.clone()))
}
