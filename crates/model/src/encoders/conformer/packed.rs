//! `PackedConformer`: the Conformer encoder for inference, with packed weights.
//!
//! Linear layers after the input layer are in `f32` or 8-bit blocks; the input layer, norms and
//! depthwise convolutions are `f32`.
use std::sync::Arc;

use decoding::AffineLayer;
use layers::attention::max_scores_in_memory;

use super::layer::ConformerLayer;
use super::packed_layer::{LayerState, PackedConformerLayer};
use super::stream::ConformerStream;
use super::{ConformerEncoderConfig, InputLayer};
use crate::Result;
use crate::encoders::inference_encoder::{build_from_values, count_rows};
use crate::encoders::subsampling_stream::SubsamplingStream;
use crate::encoders::{EncodedRows, EncoderChunk, EncoderStream, InferenceEncoder, NumberFormat, ReadTensor};

/// [`super::ConformerEncoder`] with packed weights.
pub(super) struct PackedConformer {
    pub(super) config: ConformerEncoderConfig,
    pub(super) input_layer: PackedInputLayer,
    pub(super) layers: Vec<PackedConformerLayer>,
}

/// [`InputLayer`] with packed weights.
pub(super) enum PackedInputLayer {
    Linear(AffineLayer),
    Subsampling(Box<SubsamplingStream>),
}

impl PackedInputLayer {
    /// Computes the next rows of each utterance.
    pub(super) fn step(&self, chunks: &mut [EncoderChunk]) -> Vec<Vec<f32>> {
        match self {
            PackedInputLayer::Linear(linear) => {
                chunks.iter().map(|chunk| linear.forward_rows(chunk.rows)).collect()
            }
            PackedInputLayer::Subsampling(subsampling) => subsampling.step(chunks),
        }
    }

    /// Computes the rows of whole utterances.
    fn encode(&self, x: Vec<f32>, lengths: Vec<usize>) -> EncodedRows {
        match self {
            PackedInputLayer::Linear(linear) => EncodedRows { rows: linear.forward_rows(&x), lengths },
            PackedInputLayer::Subsampling(subsampling) => subsampling.encode(x, &lengths),
        }
    }
}

impl PackedConformer {
    /// Reads and packs the parameters of [`super::ConformerEncoder`], one layer after another.
    ///
    /// # Errors
    /// Those of `read`; [`crate::Error::Shape`] for weights that cannot be quantized.
    pub(super) fn read(
        config: &ConformerEncoderConfig,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Self> {
        let input_layer =
            build_from_values(format, read, |vb| InputLayer::new(config, input_width, &vb.pp("encoder")))?
                .pack()?;
        let mut layers = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let layer = build_from_values(format, read, |vb| {
                Ok(ConformerLayer::new(config, None, &vb.pp("encoder").pp("layers").pp(index))?)
            })?;
            layers.push(PackedConformerLayer::new(&layer, format)?);
        }
        Ok(PackedConformer { config: config.clone(), input_layer, layers })
    }
}

impl InferenceEncoder for PackedConformer {
    fn input_width(&self) -> usize {
        match &self.input_layer {
            PackedInputLayer::Linear(linear) => linear.inputs(),
            PackedInputLayer::Subsampling(subsampling) => subsampling.input_width(),
        }
    }

    fn width(&self) -> usize {
        self.config.width
    }

    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        let lengths = count_rows(utterances, self.input_width())?;
        let EncodedRows { rows: mut x, lengths } = self.input_layer.encode(utterances.concat(), lengths);
        for layer in &self.layers {
            // No earlier rows.
            let mut values = vec![[Vec::new(), Vec::new()]; lengths.len()];
            let mut states: Vec<LayerState> =
                values.iter_mut().map(|[keys, tail]| LayerState { keys, tail }).collect();
            x = layer.step(x, &lengths, &mut states);
        }
        Ok(EncodedRows { rows: x, lengths })
    }

    fn bytes(&self, input_rows: &[usize]) -> usize {
        let (input, lengths): (usize, Vec<usize>) = match &self.input_layer {
            PackedInputLayer::Linear(_) => (0, input_rows.to_vec()),
            PackedInputLayer::Subsampling(subsampling) => {
                let rows = input_rows.iter().map(|frames| frames.div_ceil(subsampling.factor()));
                (subsampling.bytes(input_rows), rows.collect())
            }
        };
        let rows: usize = lengths.iter().sum();
        let ConformerEncoderConfig { width, heads, feed_forward, .. } = self.config;
        // Rows x, their sum with a module's result, and the rows in front of the layers: 3 W.
        // Attention: norm, q|k|v, rotated heads, results by heads and together, projection: 10 W.
        // Feed-forward modules: norm, inner rows, SiLU, blocks and result: 2 W and 3 F.
        let values = rows * (3 * width + (10 * width).max(2 * width + 3 * feed_forward));
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let scores = max_scores_in_memory(heads * lengths.len(), longest, self.config.attention.chunks());
        input.max((values + scores) * size_of::<f32>())
    }

    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>> {
        Some(Arc::new(ConformerStream::new(self)?))
    }
}
