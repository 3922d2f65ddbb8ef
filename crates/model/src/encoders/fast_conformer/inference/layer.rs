//! One layer of the packed encoder: weights of its modules, prepared for inference.
//!
//! The factor ½ of the feed-forward modules and 1/√d of attention are part of the weights, the
//! batch norm is part of the depthwise convolution, and q, k and v are one product.
use std::ops::Range;

use kernels::packed::RowBits;

use super::attention::HeadParameters;
use super::linear::{PackedLinear, interleave_gate_rows, interleave_gates};
use super::positions::PositionProjection;
use super::weights::{LinearWeight, NormWeights, WeightReader, unquantized};
use crate::encoders::fast_conformer::{ConvolutionNorm, FastConformerEncoderConfig};
use crate::{Error, Result};
use layers::depthwise::transpose_weight;

/// Term that the batch norm adds to the variance.
const BATCH_NORM_EPSILON: f64 = 1e-5;

/// A layer with packed weights.
#[derive(Debug)]
pub(super) struct PackedLayer {
    pub feed_forward1: PackedFeedForward,
    pub attention: PackedAttention,
    pub convolution: PackedConvolution,
    pub feed_forward2: PackedFeedForward,
    pub norm_out: NormWeights,
}

/// A feed-forward module; the second layer includes the factor ½.
#[derive(Debug)]
pub(super) struct PackedFeedForward {
    pub norm: NormWeights,
    pub inner: PackedLinear,
    pub outer: PackedLinear,
}

#[derive(Debug)]
pub(super) struct PackedAttention {
    pub norm: NormWeights,
    /// Queries without bias, keys and values; queries are scaled, except in q8.
    pub qkv: PackedLinear,
    pub heads: HeadParameters,
    pub positions: PositionProjection,
    pub out: PackedLinear,
}

#[derive(Debug)]
pub(super) struct PackedConvolution {
    pub norm: NormWeights,
    /// The first pointwise layer, with interleaved gates.
    pub gated: PackedLinear,
    pub depthwise: DepthwiseFilter,
    pub out: PackedLinear,
}

/// The depthwise convolution with its norm.
#[derive(Debug)]
pub(super) struct DepthwiseFilter {
    /// `[k, W]`, with the factors of a batch norm.
    weight: Vec<f32>,
    bias: Vec<f32>,
    /// The layer norm, if it is one.
    norm: Option<NormWeights>,
    /// Taps of earlier rows.
    pub past_taps: usize,
}

impl PackedLayer {
    /// Packs the weights of layer `index`.
    ///
    /// # Errors
    /// Those of the reader; [`Error::Shape`] for weights of another size.
    pub(super) fn new(
        config: &FastConformerEncoderConfig,
        index: usize,
        reader: &mut WeightReader,
    ) -> Result<Self> {
        let layer = format!("encoder.layers.{index}");
        let width = config.width;
        Ok(PackedLayer {
            feed_forward1: PackedFeedForward::new(config, &layer, 1, reader)?,
            attention: PackedAttention::new(config, &layer, reader)?,
            convolution: PackedConvolution::new(config, &layer, reader)?,
            feed_forward2: PackedFeedForward::new(config, &layer, 2, reader)?,
            norm_out: reader.read_norm(&format!("{layer}.norm_out"), width)?,
        })
    }
}

impl PackedFeedForward {
    fn new(
        config: &FastConformerEncoderConfig,
        layer: &str,
        number: usize,
        reader: &mut WeightReader,
    ) -> Result<Self> {
        let (width, inner_width) = (config.width, config.feed_forward);
        let norm = reader.read_norm(&format!("{layer}.norm_feed_forward{number}"), width)?;
        let name = |part: &str| format!("{layer}.feed_forward{number}.{part}");
        let inner = read_linear(reader, &name("linear1"), [inner_width, width], 1.0)?;
        let outer = read_linear(reader, &name("linear2"), [width, inner_width], 0.5)?;
        let [inner, outer] = [inner, outer].map(|linear| linear.with_row_bits(RowBits::Eight));
        Ok(PackedFeedForward { norm, inner, outer })
    }
}

/// Reads and packs a linear layer `[O, I]`, multiplied by a factor.
fn read_linear(
    reader: &mut WeightReader,
    name: &str,
    [outputs, inputs]: [usize; 2],
    factor: f32,
) -> Result<PackedLinear> {
    let weight = reader.read_linear(&format!("{name}.weight"), [outputs, inputs])?;
    let mut bias = reader.read_bias(name, outputs)?;
    bias.iter_mut().for_each(|value| *value *= factor);
    PackedLinear::from_weight(name, reader.format, weight, inputs, (factor, bias))
}

impl PackedAttention {
    fn new(config: &FastConformerEncoderConfig, layer: &str, reader: &mut WeightReader) -> Result<Self> {
        let width = config.width;
        let scale = 1.0 / ((width / config.heads) as f64).sqrt();
        let scaled = |value: f64| (value * scale) as f32;
        let norm = reader.read_norm(&format!("{layer}.norm_self_att"), width)?;
        let name = |part: &str| format!("{layer}.self_attn.{part}");
        // Query biases are added with u and v, after the product.
        let mut weight = reader.read_linear(&name("linear_q.weight"), [width, width])?;
        let mut query_scale = scale as f32;
        if let LinearWeight::Values(values) = &mut weight {
            values.iter_mut().for_each(|value| *value = scaled(f64::from(*value)));
            query_scale = 1.0;
        }
        let query_bias = reader.read_bias(&name("linear_q"), width)?;
        let mut bias = if reader.has_bias { vec![0.0; width] } else { Vec::new() };
        for part in ["linear_k", "linear_v"] {
            weight.append(reader.read_linear(&name(&format!("{part}.weight")), [width, width])?);
            bias.extend(reader.read_bias(&name(part), width)?);
        }
        let qkv = PackedLinear::from_weight("linear_qkv", reader.format, weight, width, (1.0, bias))?;
        let mut query_biases = [Vec::new(), Vec::new()];
        for (biases, part) in query_biases.iter_mut().zip(["pos_bias_u", "pos_bias_v"]) {
            let values = reader.read(&name(part), width)?;
            let sums = values.iter().enumerate().map(|(i, &value)| {
                let query_bias = query_bias.get(i).copied().unwrap_or(0.0);
                scaled(f64::from(value) + f64::from(query_bias))
            });
            *biases = sums.collect();
        }
        let (heads, format, limits) = (config.heads, unquantized(reader.format), config.attention);
        let positions = PositionProjection::new(layer, heads, width, reader)?;
        let out = read_linear(reader, &name("linear_out"), [width, width], 1.0)?;
        let heads = HeadParameters { heads, width, format, limits, query_scale, query_biases };
        Ok(PackedAttention { norm, qkv, heads, positions, out })
    }
}

impl PackedConvolution {
    fn new(config: &FastConformerEncoderConfig, layer: &str, reader: &mut WeightReader) -> Result<Self> {
        let width = config.width;
        let norm = reader.read_norm(&format!("{layer}.norm_conv"), width)?;
        let name = format!("{layer}.conv.pointwise_conv1");
        let weight = reader.read_linear(&format!("{name}.weight"), [2 * width, width])?;
        let weight = interleave_gate_rows(weight, width);
        let bias = interleave_gates(&reader.read_bias(&name, 2 * width)?, 1);
        let gated = PackedLinear::from_weight(&name, reader.format, weight, width, (1.0, bias))?;
        let depthwise = DepthwiseFilter::new(config, &format!("{layer}.conv"), reader)?;
        let out = read_linear(reader, &format!("{layer}.conv.pointwise_conv2"), [width, width], 1.0)?;
        Ok(PackedConvolution { norm, gated, depthwise, out })
    }
}

impl DepthwiseFilter {
    fn new(config: &FastConformerEncoderConfig, module: &str, reader: &mut WeightReader) -> Result<Self> {
        let (width, taps) = (config.width, config.kernel);
        let mut weight = reader.read(&format!("{module}.depthwise_conv.weight"), width * taps)?;
        let mut bias = reader.read_bias(&format!("{module}.depthwise_conv"), width)?;
        bias.resize(width, 0.0);
        let name = format!("{module}.batch_norm");
        let norm = match config.convolution_norm {
            ConvolutionNorm::Layer => Some(reader.read_norm(&name, width)?),
            ConvolutionNorm::Batch => {
                let [gamma, beta, mean, variance] = [
                    reader.read(&format!("{name}.weight"), width)?,
                    reader.read(&format!("{name}.bias"), width)?,
                    reader.read(&format!("{name}.running_mean"), width)?,
                    reader.read(&format!("{name}.running_var"), width)?,
                ];
                let channels = weight.chunks_exact_mut(taps).zip(&mut bias).enumerate();
                for (channel, (weight, bias)) in channels {
                    let variance = f64::from(variance[channel]);
                    let factor = f64::from(gamma[channel]) / (variance + BATCH_NORM_EPSILON).sqrt();
                    if !factor.is_finite() {
                        let value = format!("{variance} at {channel}");
                        return Err(Error::shape(format!("{name}.running_var"), "positive values", value));
                    }
                    weight.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
                    let centered = f64::from(*bias) - f64::from(mean[channel]);
                    *bias = (centered * factor + f64::from(beta[channel])) as f32;
                }
                None
            }
        };
        let past_taps = if config.causal_convolution { taps - 1 } else { (taps - 1) / 2 };
        Ok(DepthwiseFilter { weight: transpose_weight(&weight, taps), bias, norm, past_taps })
    }

    /// Computes convolution, norm and SiLU for a range of rows.
    ///
    /// # Shapes
    /// `x [T, W]`; `out` has the values of `rows`.
    pub(super) fn apply(&self, x: &[f32], rows: Range<usize>, out: &mut [f32]) {
        let width = self.bias.len();
        let (taps, frames) = (self.weight.len() / width, x.len() / width);
        let mut inputs: Vec<(&[f32], &[f32])> = Vec::with_capacity(taps);
        let mut convolved = vec![0.0; width];
        for (t, out) in rows.zip(out.chunks_exact_mut(width)) {
            let first_tap = self.past_taps.saturating_sub(t);
            let end_tap = taps.min(frames + self.past_taps - t);
            inputs.clear();
            inputs.extend((first_tap..end_tap).map(|tap| {
                let row = t + tap - self.past_taps;
                (&x[row * width..][..width], &self.weight[tap * width..][..width])
            }));
            match &self.norm {
                None => kernels::weighted_sum(out, &self.bias, &inputs),
                Some(norm) => {
                    kernels::weighted_sum(&mut convolved, &self.bias, &inputs);
                    norm.apply_row(&convolved, out);
                }
            }
            kernels::silu(out);
        }
    }
}
