//! `PackedLstm`: the LSTM encoder for inference, with packed weights.
//!
//! Layers with 8-bit weights need a quarter of the memory, and their steps read a quarter of the
//! bytes. Convolutions of the subsampling, and its linear layer, are `f32`.
use std::sync::Arc;

use kernels::packed::NumberFormat;
use layers::lstm::{LstmState, StreamingLstm};

use super::inference_encoder::{build_from_values, count_rows};
use super::lstm::LstmEncoderConfig;
use super::lstm_stream::LstmStream;
use super::subsampling_stream::SubsamplingStream;
use super::{EncodedRows, EncoderStream, InferenceEncoder, ReadTensor};
use crate::Result;

/// [`super::LstmEncoder`] with packed weights.
pub(super) struct PackedLstm {
    pub(super) config: LstmEncoderConfig,
    pub(super) subsampling: Option<SubsamplingStream>,
    /// The directions of each layer: one or two.
    pub(super) layers: Vec<Vec<StreamingLstm>>,
}

impl PackedLstm {
    /// Reads and packs the parameters of [`super::LstmEncoder`], one layer after another.
    ///
    /// # Errors
    /// Those of `read`; [`crate::Error::Shape`] for weights that cannot be quantized.
    pub(super) fn read(
        config: &LstmEncoderConfig,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Self> {
        let subsampling =
            build_from_values(format, read, |vb| config.build_subsampling(input_width, &vb.pp("encoder")))?;
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let lstm = build_from_values(format, read, |vb| {
                config.build_layer(layer, input_width, &vb.pp("encoder"))
            })?;
            layers.push(lstm.pack(format)?);
        }
        let subsampling = subsampling.map(|subsampling| subsampling.stream()).transpose()?;
        Ok(PackedLstm { config: config.clone(), subsampling, layers })
    }

    /// Returns the width of a layer's output rows.
    fn layer_width(&self, layer: usize) -> usize {
        self.layers[layer].iter().map(StreamingLstm::width).sum()
    }
}

impl InferenceEncoder for PackedLstm {
    fn input_width(&self) -> usize {
        if let Some(subsampling) = &self.subsampling {
            return subsampling.input_width();
        }
        let width = self.layers[0][0].input();
        self.config.reduction_before(0).map_or(width, |reduction| width / reduction.factor)
    }

    fn width(&self) -> usize {
        self.layer_width(self.layers.len() - 1)
    }

    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        let lengths = count_rows(utterances, self.input_width())?;
        let x = utterances.concat();
        let EncodedRows { rows: mut x, mut lengths } = match &self.subsampling {
            Some(subsampling) => subsampling.encode(x, &lengths),
            None => EncodedRows { rows: x, lengths },
        };
        for (layer, directions) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(layer) {
                x = complete_groups(&x, &mut lengths, directions[0].input(), reduction.factor);
            }
            let mut states = vec![LstmState::new(directions[0].width()); lengths.len()];
            let forward = directions[0].forward(&x, &lengths, &mut states)?;
            x = match directions.get(1) {
                None => forward,
                Some(reversed) => {
                    let backward = reversed.forward_reversed(&x, &lengths)?;
                    concatenate([&forward, &backward], directions[0].width())
                }
            };
        }
        Ok(EncodedRows { rows: x, lengths })
    }

    fn bytes(&self, input_rows: &[usize]) -> usize {
        let mut lengths = input_rows.to_vec();
        let mut subsampling_bytes = 0;
        if let Some(subsampling) = &self.subsampling {
            subsampling_bytes = subsampling.bytes(&lengths);
            lengths.iter_mut().for_each(|length| *length = length.div_ceil(subsampling.factor()));
        }
        let mut largest_layer = 0;
        for (layer, directions) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(layer) {
                lengths.iter_mut().for_each(|length| *length = length.div_ceil(reduction.factor));
            }
            let (inputs, hidden) = (directions[0].input(), directions[0].width());
            // Input rows: before and after a time reduction, packed, and in blocks.
            let input_values = 4 * inputs;
            // Of a direction: gates, cells and states.
            let step_values = 6 * hidden;
            // Results: of each direction, and together.
            let result_values = 2 * self.layer_width(layer);
            let rows: usize = lengths.iter().sum();
            largest_layer = largest_layer.max(rows * (input_values + step_values + result_values));
        }
        subsampling_bytes.max(largest_layer * size_of::<f32>())
    }

    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>> {
        Some(Arc::new(LstmStream::new(self)?))
    }
}

/// Groups `factor` rows of each utterance; zeros complete the last group.
///
/// A group has `width` values. `lengths` become the numbers of groups.
fn complete_groups(x: &[f32], lengths: &mut [usize], width: usize, factor: usize) -> Vec<f32> {
    let (mut remaining, mut groups) = (x, Vec::with_capacity(x.len()));
    for length in lengths {
        let (rows, later) = remaining.split_at(*length * (width / factor));
        remaining = later;
        groups.extend_from_slice(rows);
        *length = length.div_ceil(factor);
        groups.resize(groups.len() - rows.len() + *length * width, 0.0);
    }
    groups
}

/// Concatenates corresponding rows of `width` values.
fn concatenate(directions: [&[f32]; 2], width: usize) -> Vec<f32> {
    let [forward, backward] = directions.map(|rows| rows.chunks_exact(width));
    forward.zip(backward).flat_map(|(forward, backward)| forward.iter().chain(backward)).copied().collect()
}
