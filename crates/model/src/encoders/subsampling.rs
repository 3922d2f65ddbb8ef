//! Subsampling in front of an encoder: two strided convolutions over time and mel bands.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use super::subsampling_stream::SubsamplingStream;
use crate::config::values::{MAX_WIDTH, check_count, ensure};
use crate::{Linear, Result};
use layers::convolution::{ConvolutionShape, convolution};
use layers::footprint::{self, Footprint};
use layers::layer_norm::LayerNorm;
use layers::ragged::Ragged;

/// `[encoder.subsampling]`: convolutions that reduce several frames to one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsamplingConfig {
    /// Channels of both convolutions.
    pub channels: usize,
    /// Number of frames for each row: 2 or 4.
    #[serde(default = "default_factor")]
    pub factor: usize,
}

fn default_factor() -> usize {
    4
}

impl SubsamplingConfig {
    pub(super) fn check(&self) -> Result<()> {
        check_count("encoder.subsampling.channels", self.channels, MAX_WIDTH)?;
        ensure("encoder.subsampling.factor", "2 or 4", [2, 4].contains(&self.factor), self.factor)
    }

    /// Returns the shapes of both convolutions, for frames of `bins` values.
    pub(super) fn shapes(&self, bins: usize) -> [ConvolutionShape; 2] {
        let first = ConvolutionShape { bins, inputs: 1, outputs: self.channels, stride: 2, padding: 1 };
        let bins = first.bins_out();
        let (inputs, outputs) = (self.channels, self.channels);
        [first, ConvolutionShape { bins, inputs, outputs, stride: self.factor / 2, padding: 1 }]
    }
}

/// Two 3 x 3 convolutions with ReLU, a layer norm, then a linear layer.
///
/// ```text
/// conv    stride 2 over time and mel; then 2 over mel and factor/2 over time; zero padding
/// norm    over the ⌈⌈M/2⌉/2⌉ · C values of a row, channels innermost
/// out     to W values
/// ```
/// M: mel bins of a frame; C: channels; W: width of the encoder's rows. The norm is required as
/// values after ReLU are positive: without it, a step of the optimizer changes all values of a row
/// together. With factor 4, a row depends on seven frames, up to the third after its first.
///
/// | parameter | shape |
/// |---|---|
/// | `conv.0.weight`, `conv.2.weight`, each with a bias | `[C, 1, 3, 3]`, `[C, C, 3, 3]` |
/// | `norm.weight`, with a bias | `[⌈⌈M/2⌉/2⌉ · C]` |
/// | `out.weight`, with a bias | `[W, ⌈⌈M/2⌉/2⌉ · C]` |
#[derive(Debug, Clone)]
pub(super) struct Subsampling {
    shapes: [ConvolutionShape; 2],
    /// Weight and bias of each convolution.
    convolutions: [[Tensor; 2]; 2],
    norm: LayerNorm,
    out: Linear,
}

impl Subsampling {
    /// Creates the layers for frames of `bins` values and rows of `width`.
    pub(super) fn new(
        config: &SubsamplingConfig,
        bins: usize,
        width: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let shapes = config.shapes(bins);
        let convolution = |shape: &ConvolutionShape, vb: VarBuilder| -> Result<[Tensor; 2]> {
            let (bias, shape) = (shape.outputs, (shape.outputs, shape.inputs, 3, 3));
            // Rows keep their scale through ReLU; with the usual ±1/√inputs they would be a tenth
            // of the frames.
            let weight = vb.get_with_hints(shape, "weight", candle_nn::init::DEFAULT_KAIMING_UNIFORM)?;
            Ok([weight, vb.get_with_hints(bias, "bias", Init::Const(0.0))?])
        };
        let [first, second] = &shapes;
        let conv = vb.pp("conv");
        let convolutions = [convolution(first, conv.pp(0))?, convolution(second, conv.pp(2))?];
        let norm = LayerNorm::new(second.width_out(), &vb.pp("norm"))?;
        let out = Linear::new(second.width_out(), width, &vb.pp("out"))?;
        Ok(Subsampling { shapes, convolutions, norm, out })
    }

    /// Applies the layers: frames `[B, T, M]` to ragged rows `[Σ T'_b, W]`.
    ///
    /// B: utterances; T: frames of the longest one; T'_b: rows of utterance b.
    pub(super) fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Arc<Ragged>)> {
        let mut ragged = Ragged::new(lengths);
        let mut x = ragged.pack(x)?;
        for (shape, [weight, bias]) in self.shapes.iter().zip(&self.convolutions) {
            let lengths: Vec<usize> = ragged.lengths().iter().map(|l| l.div_ceil(shape.stride)).collect();
            let output_rows = Ragged::new(&lengths);
            x = convolution(&x, &ragged, &output_rows, *shape, weight, bias)?;
            ragged = output_rows;
        }
        Ok((self.out.apply(&self.norm.apply(&x)?)?, ragged))
    }

    /// Returns the number of frames for each row.
    pub(super) fn factor(&self) -> usize {
        self.shapes.iter().map(|shape| shape.stride).product()
    }

    /// Returns the memory of a padded batch.
    pub(super) fn footprint(&self, batch: usize, frames: usize) -> Footprint {
        let width = self.out.bias().elem_count();
        let mut rows = frames;
        let mut total = footprint::from_values(batch * frames * self.shapes[0].width(), 0);
        for shape in &self.shapes {
            let input_frames = rows;
            rows = rows.div_ceil(shape.stride);
            total = footprint::chain(total, shape.footprint(batch, input_frames, rows));
        }
        let (conv_width, rows) = (self.shapes[1].width_out(), batch * rows);
        // Saved: the rows of norm and linear layer. Temporary: their gradients, packed operands.
        let linear = footprint::from_values(
            rows * (conv_width + width),
            rows * (4 * conv_width + 3 * width) + 3 * conv_width * width,
        );
        footprint::chain(total, linear)
    }

    /// Creates the layers for streaming, with a copy of the weights.
    pub(super) fn stream(&self) -> Result<SubsamplingStream> {
        let out = self.out.pack("pre_encode.out")?;
        SubsamplingStream::new(self.shapes, &self.convolutions, self.norm.for_inference()?, out)
    }
}
