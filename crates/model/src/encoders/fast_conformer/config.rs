//! The recipe keys of the FastConformer encoder (`[encoder]`), and their checks.
use std::sync::Arc;

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{AttentionLimits, FastConformerEncoder, PackedFastConformer};
use crate::Result;
use crate::config::adapter::AdapterConfig;
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout, ensure};
use crate::encoders::{BuildEncoder, Encoder, InferenceEncoder, NumberFormat, ReadTensor};

/// Largest limit of attention in rows.
const MAX_LIMIT_ROWS: usize = 100_000;

/// `[encoder]` with `kind = "fastconformer"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FastConformerEncoderConfig {
    /// Number of layers.
    pub layers: usize,
    /// Width W of the rows.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Inner width F of the feed-forward modules; often 4 W.
    pub feed_forward: usize,
    /// Taps of the depthwise convolution, k.
    pub kernel: usize,
    /// Depthwise-separable convolutions in front.
    pub subsampling: DepthwiseSubsamplingConfig,
    /// The range of attention.
    #[serde(default)]
    pub attention: AttentionLimits,
    /// Other ranges of attention that the weights were trained with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_attention: Vec<AttentionLimits>,
    /// True if the depthwise convolution covers the current and earlier rows only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub causal_convolution: bool,
    /// Normalization after the depthwise convolution.
    #[serde(default)]
    pub convolution_norm: ConvolutionNorm,
    /// The statistics of batch norms in training.
    #[serde(default, skip_serializing_if = "BatchNormMode::is_default")]
    pub batch_norm: BatchNormMode,
    /// True if linear layers and convolutions of the layers have biases.
    #[serde(default = "default_bias")]
    pub bias: bool,
    /// True to multiply the rows after the subsampling by √W.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_input: bool,
    /// Dropout rate in and after each module.
    #[serde(default)]
    pub dropout: f32,
}

fn default_bias() -> bool {
    true
}

/// `[encoder.subsampling]` of the FastConformer encoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthwiseSubsamplingConfig {
    /// Channels of all convolutions.
    pub channels: usize,
    /// Number of frames for each row: 2, 4, 8 or 16.
    #[serde(default = "default_factor")]
    pub factor: usize,
    /// True if rows depend on earlier frames only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub causal: bool,
}

fn default_factor() -> usize {
    8
}

/// The normalization after the depthwise convolution of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvolutionNorm {
    /// Batch norm with stored mean and variance; see [`BatchNormMode`].
    Batch,
    /// Layer norm.
    #[default]
    Layer,
}

/// The statistics of batch norms in training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchNormMode {
    /// Mean and variance are stored ones, which training does not change.
    #[default]
    Frozen,
    /// Mean and variance are those of the batch; stored ones follow them.
    ///
    /// Losses and gradients then depend on the composition of batches.
    Trained,
}

impl BatchNormMode {
    /// Returns true for the default.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl BuildEncoder for FastConformerEncoderConfig {
    fn check(&self) -> Result<()> {
        check_count("encoder.layers", self.layers, MAX_SMALL_COUNT)?;
        check_count("encoder.width", self.width, MAX_WIDTH)?;
        check_count("encoder.heads", self.heads, MAX_WIDTH)?;
        let expected = format!("an even multiple of heads = {}", self.heads);
        let is_valid = self.width.is_multiple_of(self.heads) && self.width.is_multiple_of(2);
        ensure("encoder.width", &expected, is_valid, self.width)?;
        check_count("encoder.feed_forward", self.feed_forward, MAX_WIDTH)?;
        check_count("encoder.kernel", self.kernel, MAX_SMALL_COUNT)?;
        let is_valid = self.causal_convolution || self.kernel % 2 == 1;
        ensure("encoder.kernel", "an odd number unless the convolution is causal", is_valid, self.kernel)?;
        check_dropout("encoder.dropout", self.dropout)?;
        let is_valid =
            self.convolution_norm == ConvolutionNorm::Batch || self.batch_norm == BatchNormMode::Frozen;
        ensure(
            "encoder.batch_norm",
            "\"frozen\" without convolution_norm = \"batch\"",
            is_valid,
            "\"trained\"",
        )?;
        check_limits(self.attention, "encoder.attention")?;
        self.other_attention
            .iter()
            .try_for_each(|&limits| check_limits(limits, "encoder.other_attention"))?;
        self.subsampling.check()
    }

    fn reduction(&self) -> usize {
        self.subsampling.factor
    }

    fn output_rows(&self, input_rows: usize) -> usize {
        self.subsampling.output_len(input_rows)
    }

    fn subsamples(&self) -> bool {
        true
    }

    fn dropout(&self) -> f32 {
        self.dropout
    }

    fn recomputes(&self) -> bool {
        true
    }

    fn build(&self, input_width: usize, vb: &VarBuilder) -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(FastConformerEncoder::new(self, input_width, vb)?))
    }

    fn build_with_adapter(
        &self,
        input_width: usize,
        adapter: &AdapterConfig,
        vb: &VarBuilder,
    ) -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(FastConformerEncoder::with_adapter(self, input_width, Some(adapter), vb)?))
    }

    fn pack(
        &self,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        Ok(Some(Arc::new(PackedFastConformer::new(self, input_width, format, read)?)))
    }
}

impl DepthwiseSubsamplingConfig {
    fn check(&self) -> Result<()> {
        check_count("encoder.subsampling.channels", self.channels, MAX_WIDTH)?;
        let is_valid = [2, 4, 8, 16].contains(&self.factor);
        ensure("encoder.subsampling.factor", "2, 4, 8 or 16", is_valid, self.factor)
    }

    /// Returns the number of strided convolutions.
    pub(super) fn stages(&self) -> usize {
        self.factor.ilog2() as usize
    }

    /// Returns the zeros before the input on each axis, in every stage; 1 follows.
    pub(super) fn padding_before(&self) -> usize {
        if self.causal { 2 } else { 1 }
    }

    /// Returns the length of an axis after one stage: `(n + before + 1 - 3) div 2 + 1`.
    pub(super) fn stage_len(&self, len: usize) -> usize {
        if len == 0 { 0 } else { (len + self.padding_before() - 2) / 2 + 1 }
    }

    /// Returns the length of an axis after all stages.
    pub(super) fn output_len(&self, len: usize) -> usize {
        (0..self.stages()).fold(len, |len, _| self.stage_len(len))
    }
}

/// Checks limits of attention under a recipe key.
fn check_limits(limits: AttentionLimits, key: &str) -> Result<()> {
    let check_rows = |name: &str, rows: Option<usize>| {
        let rows = rows.unwrap_or(0);
        let expected = format!("at most {MAX_LIMIT_ROWS} rows");
        ensure(&format!("{key}.{name}"), &expected, rows <= MAX_LIMIT_ROWS, rows)
    };
    match limits {
        AttentionLimits::Full => Ok(()),
        AttentionLimits::Window { left, right } => {
            check_rows("left", left)?;
            check_rows("right", right)
        }
        AttentionLimits::Chunks { chunk, left } => {
            ensure(&format!("{key}.chunk"), "at least 1", chunk > 0, chunk)?;
            check_rows("chunk", Some(chunk))?;
            check_rows("left", left)?;
            let rows = left.unwrap_or(0);
            let expected = format!("a multiple of chunk = {chunk}");
            ensure(&format!("{key}.left"), &expected, rows.is_multiple_of(chunk), rows)
        }
    }
}
