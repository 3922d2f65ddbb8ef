//! The LSTM encoder: its recipe keys, and its layers over padded batches.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use kernels::BufferPool;
use serde::{Deserialize, Serialize};

use super::packed_lstm::PackedLstm;
use super::subsampling::Subsampling;
use super::time_reduction::TimeReduction;
use super::{
    BuildEncoder, Encoder, EncoderStream, InferenceEncoder, NumberFormat, ReadTensor, SubsamplingConfig,
};
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout, ensure};
use crate::{Lstm, Result};
use layers::footprint::{self, Footprint};
use layers::training_pass::TrainingPass;

/// `[encoder]` with `kind = "lstm"`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmEncoderConfig {
    /// Number of LSTM layers.
    pub layers: usize,
    /// Width of the state of each direction.
    pub hidden: usize,
    /// True if each layer has a backward direction as well.
    #[serde(default)]
    pub bidirectional: bool,
    /// Dropout rate after each layer.
    #[serde(default)]
    pub dropout: f32,
    /// True if each direction has a second bias, as in other toolkits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_biases: bool,
    /// Optional time reduction between two layers.
    #[serde(default)]
    pub time_reduction: Option<TimeReduction>,
    /// Optional convolutions before the layers, to rows of width `hidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsampling: Option<SubsamplingConfig>,
}

impl BuildEncoder for LstmEncoderConfig {
    fn check(&self) -> Result<()> {
        check_count("encoder.layers", self.layers, MAX_SMALL_COUNT)?;
        check_count("encoder.hidden", self.hidden, MAX_WIDTH)?;
        check_dropout("encoder.dropout", self.dropout)?;
        if let Some(reduction) = &self.time_reduction {
            check_count("encoder.time_reduction.factor", reduction.factor, MAX_SMALL_COUNT)?;
            let (key, after) = ("encoder.time_reduction.after_layer", reduction.after_layer);
            ensure(key, "a number below encoder.layers", after < self.layers, after)?;
        }
        self.subsampling.as_ref().map_or(Ok(()), SubsamplingConfig::check)
    }

    fn reduction(&self) -> usize {
        let subsampling = self.subsampling.as_ref().map_or(1, |subsampling| subsampling.factor);
        subsampling * self.time_reduction.as_ref().map_or(1, |reduction| reduction.factor)
    }

    fn subsamples(&self) -> bool {
        self.subsampling.is_some()
    }

    fn dropout(&self) -> f32 {
        self.dropout
    }

    fn build(&self, input_width: usize, vb: &VarBuilder) -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(LstmEncoder::new(self, input_width, vb)?))
    }

    /// Packs in `f32` and in 8-bit blocks.
    fn pack(
        &self,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        match format {
            NumberFormat::Bf16 => Ok(None),
            _ => Ok(Some(Arc::new(PackedLstm::read(self, input_width, format, read)?))),
        }
    }
}

impl LstmEncoderConfig {
    /// Returns the time reduction directly before a layer, if there is one.
    pub(super) fn reduction_before(&self, layer: usize) -> Option<&TimeReduction> {
        self.time_reduction.as_ref().filter(|reduction| reduction.is_before(layer))
    }

    /// Creates the subsampling, if there is one; `vb` is the builder of the encoder.
    pub(super) fn build_subsampling(
        &self,
        input_width: usize,
        vb: &VarBuilder,
    ) -> Result<Option<Subsampling>> {
        let build =
            |subsampling| Subsampling::new(subsampling, input_width, self.hidden, &vb.pp("pre_encode"));
        self.subsampling.as_ref().map(build).transpose()
    }

    /// Creates a layer; `vb` is the builder of the encoder.
    pub(super) fn build_layer(&self, layer: usize, input_width: usize, vb: &VarBuilder) -> Result<Lstm> {
        let directions = if self.bidirectional { 2 } else { 1 };
        let width = match (layer, &self.subsampling) {
            (0, None) => input_width,
            (0, Some(_)) => self.hidden,
            _ => directions * self.hidden,
        };
        let width = self.reduction_before(layer).map_or(width, |reduction| width * reduction.factor);
        let vb = vb.pp("layers").pp(layer);
        let lstm = Lstm::new(width, self.hidden, 0, self.bidirectional, &vb)?;
        Ok(if self.two_biases { lstm.with_two_biases(0, &vb)? } else { lstm })
    }
}

/// The LSTM encoder: layers of one or two directions, with dropout after each.
///
/// There may be a time reduction between two layers.
#[derive(Debug, Clone)]
pub struct LstmEncoder {
    config: LstmEncoderConfig,
    subsampling: Option<Subsampling>,
    layers: Vec<Lstm>,
}

impl LstmEncoder {
    /// Creates the layers for input rows of width `input_width`.
    ///
    /// Parameters are those of [`Lstm`] under `layers.N` and, with subsampling, those of
    /// [`ConformerEncoder`](super::ConformerEncoder) under `pre_encode`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(config: &LstmEncoderConfig, input_width: usize, vb: &VarBuilder) -> Result<Self> {
        let subsampling = config.build_subsampling(input_width, vb)?;
        let layers = (0..config.layers).map(|layer| config.build_layer(layer, input_width, vb));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        Ok(LstmEncoder { config: config.clone(), subsampling, layers: Lstm::with_shared_buffers(layers) })
    }
}

impl Encoder for LstmEncoder {
    fn width(&self) -> usize {
        self.layers.last().map_or(0, Lstm::width)
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (mut x, mut lengths) = match &self.subsampling {
            None => (x.clone(), lengths.to_vec()),
            Some(subsampling) => {
                let (rows, ragged) = subsampling.forward(x, lengths)?;
                (ragged.unpack(&rows)?, ragged.lengths())
            }
        };
        for (layer, lstm) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(layer) {
                x = concatenate_rows(&x, reduction.factor)?;
                lengths.iter_mut().for_each(|length| *length = length.div_ceil(reduction.factor));
            }
            let hooks = pass.as_deref().and_then(TrainingPass::gradient_hooks);
            x = lstm.forward_with_hooks(&x, &lengths, hooks)?;
            if let Some(pass) = pass.as_deref_mut() {
                x = pass.apply(&x, self.config.dropout)?;
            }
        }
        Ok((x, lengths))
    }

    fn bytes(&self, batch: usize, rows: usize, width: usize) -> Option<usize> {
        let LstmEncoderConfig { hidden, dropout, .. } = &self.config;
        let (mut rows, mut width, mut total) = (rows, width, Footprint::default());
        if let Some(subsampling) = &self.subsampling {
            total = subsampling.footprint(batch, rows);
            (rows, width) = (rows.div_ceil(subsampling.factor()), *hidden);
            let padding = footprint::from_values(batch * rows * width, 2 * batch * rows * width);
            total = footprint::chain(total, padding);
        }
        for (layer, lstm) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.reduction_before(layer) {
                (rows, width) = (rows.div_ceil(reduction.factor), width * reduction.factor);
                // Copies for padding and for concatenation.
                let copies = footprint::from_values(4 * batch * rows * self.width().max(width), 0);
                total = footprint::chain(total, copies);
            }
            let directions = lstm.width() / hidden;
            let layer_footprint =
                footprint::lstm_layer(batch * rows, width, *hidden, directions, *dropout > 0.0);
            total = footprint::chain(total, layer_footprint);
            width = lstm.width();
        }
        Some(footprint::peak_bytes(total))
    }

    fn stream(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        if self.config.bidirectional {
            return Ok(None);
        }
        let pool = BufferPool::new();
        let pack = |layer: &Lstm| Ok(layer.pack(NumberFormat::F32)?.with_pool(pool.clone()));
        let layers = self.layers.iter().map(pack).collect::<Result<Vec<_>>>()?;
        let subsampling = self.subsampling.as_ref().map(Subsampling::stream).transpose()?;
        Ok(Arc::new(PackedLstm { config: self.config.clone(), subsampling, layers }).stream())
    }
}

/// Concatenates `factor` adjacent rows: `[B, T, D]` to `[B, ⌈T/factor⌉, factor·D]`.
///
/// B: utterances; T: frames of the longest one; D: width of a row.
/// Zeros pad the last group of rows.
fn concatenate_rows(x: &Tensor, factor: usize) -> Result<Tensor> {
    let (batch, frames, width) = x.dims3()?;
    let rows = frames.div_ceil(factor);
    let x = x.pad_with_zeros(1, 0, rows * factor - frames)?;
    Ok(x.reshape((batch, rows, factor * width))?)
}
