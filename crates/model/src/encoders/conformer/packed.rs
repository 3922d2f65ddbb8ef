//! `PackedConformer`: the Conformer encoder for inference, with packed weights.
//!
//! Linear layers after the input layer are in `f32` or 8-bit blocks; the input layer, norms and
//! depthwise convolutions are `f32`.
use std::sync::Arc;

use decoding::AffineLayer;
use layers::attention::{ChunkSizes, max_scores_in_memory};

use super::layer::ConformerLayer;
use super::stream::ConformerStream;
use super::streaming_layer::{LayerState, StreamingLayer};
use super::{ConformerEncoderConfig, InputLayer};
use crate::encoders::inference_encoder::build_from_values;
use crate::encoders::subsampling_stream::SubsamplingStream;
use crate::encoders::{EncodedRows, EncoderChunk, EncoderStream, InferenceEncoder, NumberFormat, ReadTensor};
use crate::{Error, Result};

/// [`super::ConformerEncoder`] with packed weights.
pub(super) struct PackedConformer {
    pub(super) input_layer: PackedInputLayer,
    pub(super) layers: Vec<StreamingLayer>,
    /// Width W of encoder rows.
    pub(super) width: usize,
    pub(super) chunks: Option<ChunkSizes>,
    /// Taps of depthwise convolutions that apply to earlier frames.
    pub(super) past_taps: usize,
    /// Width F of the inner rows of a feed-forward module.
    inner_width: usize,
    heads: usize,
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
    fn encode(&self, utterances: &[&[f32]]) -> Vec<Vec<f32>> {
        match self {
            PackedInputLayer::Linear(linear) => {
                utterances.iter().map(|rows| linear.forward_rows(rows)).collect()
            }
            PackedInputLayer::Subsampling(subsampling) => subsampling.encode(utterances),
        }
    }
}

impl PackedConformer {
    pub(super) fn new(
        config: &ConformerEncoderConfig,
        input_layer: PackedInputLayer,
        layers: Vec<StreamingLayer>,
    ) -> Self {
        PackedConformer {
            input_layer,
            layers,
            width: config.width,
            chunks: config.attention.chunks(),
            past_taps: config.past_taps(),
            inner_width: config.feed_forward,
            heads: config.heads,
        }
    }

    /// Reads and packs the parameters of [`super::ConformerEncoder`], one layer after another.
    ///
    /// # Errors
    /// Those of `read`; [`Error::Shape`] for weights that cannot be quantized.
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
            layers.push(StreamingLayer::new(&layer, format)?);
        }
        Ok(Self::new(config, input_layer, layers))
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
        self.width
    }

    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        let input_width = self.input_width();
        if let Some(rows) = utterances.iter().find(|rows| !rows.len().is_multiple_of(input_width)) {
            let expected = format!("rows of {input_width} values");
            return Err(Error::shape("utterances", expected, format!("{} values", rows.len())));
        }
        let rows = self.input_layer.encode(utterances);
        let lengths: Vec<usize> = rows.iter().map(|rows| rows.len() / self.width).collect();
        let mut x = rows.concat();
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
        // Rows x, their sum with a module's result, and the rows in front of the layers: 3 W.
        // Attention: norm, q|k|v, the same with context, rotated heads, results by heads and
        // together, projection: 13 W. Feed-forward modules need norm, inner rows, SiLU, blocks and
        // result: 2 W and 3 F.
        let values = rows * (3 * self.width + (13 * self.width).max(2 * self.width + 3 * self.inner_width));
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let scores = max_scores_in_memory(self.heads * lengths.len(), longest, self.chunks);
        input.max((values + scores) * size_of::<f32>())
    }

    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>> {
        Some(Arc::new(ConformerStream::new(self)?))
    }
}
