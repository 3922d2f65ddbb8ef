//! `BatchEncoder`: encodes batches with packed weights, or with candle.
use std::sync::Arc;

use candle_core::{Device, Tensor};
use model::Model;
use model::encoders::{EncodedRows, InferenceEncoder, NumberFormat};
use model::tensors::with_slice;
use speech::Features;

use crate::Result;

/// The encoder of a model for inference, with packed weights.
///
/// Encoders without packed inference ([`Model::packed_encoder`]) run in candle, with the current
/// weights.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use model::config::JointConfig;
/// use model::encoders::{EncoderKind, LstmEncoderConfig, NumberFormat};
/// use model::{Model, ModelConfig};
/// use model::predictors::{PredictorKind, StatelessPredictorConfig};
/// use recognizer::BatchEncoder;
///
/// let encoder = LstmEncoderConfig { layers: 1, hidden: 8, ..LstmEncoderConfig::default() };
/// let predictor = StatelessPredictorConfig { embedding: 4, context: 1, dropout: 0.0 };
/// let config = ModelConfig {
///     predictor: Some(PredictorKind::Stateless(predictor)),
///     ..ModelConfig::new(EncoderKind::Lstm(encoder), JointConfig { width: 6, dropout: 0.0 })
/// };
/// let model = Model::new(&config, 3)?;
/// let input = Tensor::zeros((2, 5, config.input.width()), candle_core::DType::F32, &Device::Cpu)?;
/// let encoder = BatchEncoder::new(&model, NumberFormat::F32)?;
/// let (rows, lengths) = encoder.encode_rows(&model, &input, &[5, 3])?;
/// assert_eq!((rows.dims(), &lengths[..]), (&[2, 5, 8][..], &[5, 3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BatchEncoder {
    packed: Option<Arc<dyn InferenceEncoder>>,
}

impl BatchEncoder {
    /// Packs the current weights of a model.
    ///
    /// # Errors
    /// Those of [`Model::packed_encoder`].
    pub fn new(model: &Model, format: NumberFormat) -> Result<Self> {
        Ok(BatchEncoder { packed: model.packed_encoder(format)? })
    }

    /// Returns padded encoder rows `[B, T, W]` and their numbers.
    ///
    /// # Errors
    /// Errors of the encoder.
    pub(crate) fn encode(&self, model: &Model, features: &[&Features]) -> Result<(Tensor, Vec<usize>)> {
        let (input, lengths) = model::collate(features, &model.config().input.rows)?;
        self.encode_rows(model, &input, &lengths)
    }

    /// Encodes a padded batch of input rows.
    ///
    /// # Shapes
    /// `input [B, T, D]`, contiguous; `lengths` has B entries of at most T. Returns padded encoder
    /// rows `[B, T', W]` and B lengths.
    ///
    /// # Errors
    /// Errors of the encoder, such as [`model::Error::Shape`] for another width.
    pub fn encode_rows(
        &self,
        model: &Model,
        input: &Tensor,
        lengths: &[usize],
    ) -> Result<(Tensor, Vec<usize>)> {
        let Some(encoder) = &self.packed else {
            return Ok(model.encoder().forward(input, lengths, None)?);
        };
        let (utterances, rows, width) = input.dims3()?;
        if lengths.len() != utterances || lengths.iter().any(|&length| length > rows) {
            let expected = format!("{utterances} lengths of at most {rows}");
            return Err(model::Error::shape("lengths", expected, format!("{lengths:?}")).into());
        }
        if width != encoder.input_width() {
            let expected = format!("input rows of width {}", encoder.input_width());
            return Err(model::Error::shape("input", expected, width.to_string()).into());
        }
        let utterance_len = rows * width;
        let encoded = with_slice(input, |input: &[f32]| {
            let utterances = lengths.iter().enumerate();
            let utterances =
                utterances.map(|(b, rows)| &input[b * utterance_len..][..rows * width]).collect::<Vec<_>>();
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
