//! Subsampling in front of the FastConformer: depthwise-separable convolutions of stride 2.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::DepthwiseSubsamplingConfig;
use crate::{Linear, Result};
use layers::convolution::{ConvolutionShape, convolution};
use layers::depthwise_2d::{Depthwise2dShape, depthwise_2d};
use layers::footprint::{self, Footprint};
use layers::ragged::Ragged;

/// Taps of each filter over time and mel bins.
const FILTER_TAPS: usize = 9;

/// Depthwise-separable convolutions of stride 2, then a linear layer.
///
/// ```text
/// conv.0                   1 to C channels, ReLU
/// conv.2, conv.3 ...       depthwise, then C to C channels, ReLU
/// out                      to W values, from the channels of a row, each with its bins
/// ```
/// Each stage has stride 2 over time and mel bins. Zeros are before and after the frames and bins
/// of each stage: a row past the end of an utterance is padding in every stage.
#[derive(Debug, Clone)]
pub(super) struct DepthwiseSubsampling {
    config: DepthwiseSubsamplingConfig,
    pub first: FirstStage,
    pub stages: Vec<SeparableStage>,
    pub out: Linear,
}

/// The first convolution.
#[derive(Debug, Clone)]
pub(super) struct FirstStage {
    pub shape: ConvolutionShape,
    pub weight: Tensor,
    pub bias: Tensor,
}

/// A depthwise convolution and a 1 x 1 convolution.
#[derive(Debug, Clone)]
pub(super) struct SeparableStage {
    pub shape: Depthwise2dShape,
    /// Weight and bias of the depthwise convolution.
    pub depthwise: [Tensor; 2],
    pub pointwise: Linear,
}

impl DepthwiseSubsampling {
    /// Creates the layers for frames of `bins` values and rows of `width`.
    pub(super) fn new(
        config: &DepthwiseSubsamplingConfig,
        bins: usize,
        width: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let (channels, padding) = (config.channels, config.padding_before());
        let filters = |index: usize, init: Init| -> Result<[Tensor; 2]> {
            let vb = vb.pp("conv").pp(index);
            let weight = vb.get_with_hints((channels, 1, 3, 3), "weight", init)?;
            Ok([weight, vb.get_with_hints(channels, "bias", Init::Const(0.0))?])
        };
        // Rows keep their scale through all stages; with the usual ±1/√inputs, those after three
        // stages would be a hundredth of the frames.
        let before_relu = candle_nn::init::DEFAULT_KAIMING_UNIFORM;
        let limit = (3.0 / FILTER_TAPS as f64).sqrt();
        let linear = Init::Uniform { lo: -limit, up: limit };
        let [weight, bias] = filters(0, before_relu)?;
        let shape = ConvolutionShape { bins, inputs: 1, outputs: channels, stride: 2, padding };
        let first = FirstStage { shape, weight, bias };
        let mut bins = shape.bins_out();
        let mut stages = Vec::new();
        for stage in 1..config.stages() {
            // An activation is between two stages: 0, 2, 3, 5, 6, ...
            let depthwise_index = 3 * stage - 1;
            let shape = Depthwise2dShape { bins, channels, padding };
            bins = shape.bins_out();
            stages.push(SeparableStage {
                shape,
                depthwise: filters(depthwise_index, linear)?,
                pointwise: Linear::with_init(
                    channels,
                    channels,
                    before_relu,
                    &vb.pp("conv").pp(depthwise_index + 1),
                )?,
            });
        }
        let out = Linear::new(channels * bins, width, &vb.pp("out"))?;
        Ok(DepthwiseSubsampling { config: config.clone(), first, stages, out })
    }

    /// Applies the layers: frames `[B, T, M]` to ragged rows `[Σ T'_b, W]`.
    ///
    /// B: utterances; T: frames of the longest one; T'_b: rows of utterance b.
    pub(super) fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Arc<Ragged>)> {
        let FirstStage { shape, weight, bias } = &self.first;
        let frames = Ragged::new(lengths);
        let mut ragged = self.subsampled(&frames);
        let mut x = convolution(&frames.pack(x)?, &frames, &ragged, *shape, weight, bias)?;
        for SeparableStage { shape, depthwise: [weight, bias], pointwise } in &self.stages {
            let output_rows = self.subsampled(&ragged);
            let y = depthwise_2d(&x, &ragged, &output_rows, *shape, weight, bias)?;
            // Each bin of a row is a row of channels.
            let y = y.reshape((output_rows.rows() * shape.bins_out(), shape.channels))?;
            x = pointwise.apply_relu(&y)?.reshape((output_rows.rows(), shape.width_out()))?;
            ragged = output_rows;
        }
        // The weight of the linear layer has the bins of each channel next to each other.
        let (rows, width) = x.dims2()?;
        let channels = self.config.channels;
        let x = x.reshape((rows, width / channels, channels))?.transpose(1, 2)?.contiguous()?;
        Ok((self.out.apply(&x.reshape((rows, width))?)?, ragged))
    }

    /// Returns the rows of each utterance after one stage.
    fn subsampled(&self, ragged: &Ragged) -> Arc<Ragged> {
        let lengths = ragged.lengths().into_iter().map(|length| self.config.stage_len(length));
        Ragged::new(&lengths.collect::<Vec<_>>())
    }

    /// Returns memory and row count of a padded batch.
    pub(super) fn footprint(&self, batch: usize, frames: usize) -> (Footprint, usize) {
        let shape = &self.first.shape;
        let mut rows = self.config.stage_len(frames);
        // Packed frames are saved.
        let mut total = footprint::from_values(batch * frames * shape.width(), 0);
        total = footprint::chain(total, shape.footprint(batch, frames, rows));
        for stage in &self.stages {
            let (shape, input_rows) = (&stage.shape, rows);
            rows = self.config.stage_len(rows);
            total = footprint::chain(total, shape.footprint(batch, input_rows, rows));
            let values = batch * rows * shape.width_out();
            total = footprint::chain(total, linear_footprint(values, values, shape.channels, shape.channels));
        }
        let (inputs, width) = (self.out.weight().elem_count() / self.width(), self.width());
        let (values, outputs) = (batch * rows * inputs, batch * rows * width);
        // Reordered channels are saved.
        total = footprint::chain(total, footprint::from_values(values, 2 * values));
        (footprint::chain(total, linear_footprint(values, outputs, inputs, width)), rows)
    }

    /// Returns the width of the rows.
    fn width(&self) -> usize {
        self.out.bias().elem_count()
    }
}

/// Returns the memory of a linear layer.
///
/// All rows together have `values` inputs and `outputs` outputs.
fn linear_footprint(values: usize, outputs: usize, input_width: usize, output_width: usize) -> Footprint {
    // Saved: the output. Temporary: gradients, packed operands, and the gradients of weights.
    footprint::from_values(outputs, 3 * values + 4 * outputs + 4 * input_width * output_width)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn rows_of_a_new_model_have_the_scale_of_the_frames() {
        let (bins, width) = (40, 64);
        let shape = (2, 200, bins);
        let normal = Init::Randn { mean: 0.0, stdev: 1.0 };
        let values = crate::random::initial_values(normal, 1, "frames", &shape.into());
        let frames = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        for factor in [2, 4, 8, 16] {
            let config = DepthwiseSubsamplingConfig { channels: 64, factor, causal: false };
            let (_, subsampling) =
                Parameters::build(1, |vb| DepthwiseSubsampling::new(&config, bins, width, &vb)).unwrap();
            let (rows, _) = subsampling.forward(&frames, &[200, 150]).unwrap();
            let mean_square = rows.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
            assert!((0.1..5.0).contains(&mean_square), "factor {factor}: {mean_square}");
        }
    }
}
