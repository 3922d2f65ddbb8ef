//! `PackedLstm`: the LSTM encoder for inference, with packed weights.
//!
//! Layers with 8-bit weights need a quarter of the memory, and their steps read a quarter of the
//! bytes. Convolutions of the subsampling, and its linear layer, are `f32`.
use std::sync::Arc;

use kernels::BufferPool;
use kernels::packed::NumberFormat;
use layers::lstm::PackedLstmLayer;

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
    pub(super) layers: Vec<PackedLstmLayer>,
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
        let (mut layers, pool) = (Vec::with_capacity(config.layers), BufferPool::new());
        for layer in 0..config.layers {
            let lstm = build_from_values(format, read, |vb| {
                config.build_layer(layer, input_width, &vb.pp("encoder"))
            })?;
            layers.push(lstm.pack(format)?.with_pool(pool.clone()));
        }
        let subsampling = subsampling.map(|subsampling| subsampling.stream()).transpose()?;
        Ok(PackedLstm { config: config.clone(), subsampling, layers })
    }
}

impl InferenceEncoder for PackedLstm {
    fn input_width(&self) -> usize {
        if let Some(subsampling) = &self.subsampling {
            return subsampling.input_width();
        }
        let width = self.layers[0].input();
        self.config.reduction_before(0).map_or(width, |reduction| width / reduction.factor)
    }

    fn width(&self) -> usize {
        self.layers.last().map_or(0, PackedLstmLayer::width)
    }

    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows> {
        let lengths = count_rows(utterances, self.input_width())?;
        let x = utterances.concat();
        let EncodedRows { rows: mut x, mut lengths } = match &self.subsampling {
            Some(subsampling) => subsampling.encode(x, &lengths),
            None => EncodedRows { rows: x, lengths },
        };
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(index) {
                x = complete_groups(&x, &mut lengths, layer.input(), reduction.factor);
            }
            x = layer.encode(&x, &lengths)?;
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
        // Layers share the pool: it has the largest buffers of all.
        let (mut pooled, mut temporary) = ([0, 0], 0);
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(index) {
                lengths.iter_mut().for_each(|length| *length = length.div_ceil(reduction.factor));
            }
            let rows: usize = lengths.iter().sum();
            let buffers = pooled.iter_mut().zip(layer.pooled_values(rows));
            buffers.for_each(|(largest, values)| *largest = values.max(*largest));
            // Rows before and after a time reduction.
            let input_values = 2 * rows * layer.input();
            temporary = temporary.max(input_values + layer.temporary_values(lengths.len(), rows));
        }
        let bytes = |values: usize| values * size_of::<f32>();
        bytes(pooled[0] + pooled[1]) + subsampling_bytes.max(bytes(temporary))
    }

    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>> {
        Some(Arc::new(LstmStream::new(self)?))
    }
}

/// Groups `factor` rows of each utterance; zeros complete the last group.
///
/// A group has `width` values. `lengths` become the numbers of groups.
fn complete_groups(x: &[f32], lengths: &mut [usize], width: usize, factor: usize) -> Vec<f32> {
    let count: usize = lengths.iter().map(|length| length.div_ceil(factor)).sum();
    let (mut remaining, mut groups) = (x, Vec::with_capacity(count * width));
    for length in lengths {
        let (rows, later) = remaining.split_at(*length * (width / factor));
        remaining = later;
        groups.extend_from_slice(rows);
        *length = length.div_ceil(factor);
        groups.resize(groups.len() - rows.len() + *length * width, 0.0);
    }
    groups
}
