//! Convolutional subsampling in front of a streaming encoder.
use std::collections::BTreeMap;

use candle_core::Tensor;
use decoding::AffineLayer;
use kernels::PackedRight;

use super::EncoderChunk;
use crate::Result;
use crate::layers::convolution::{ConvolutionShape, WindowPosition, flatten_weight};
use crate::layers::layer_norm::InferenceNorm;
use crate::tensors::to_vec;

/// [`super::subsampling::Subsampling`] for streaming: packed weights, and states that callers own.
///
/// | state | size |
/// |---|---|
/// | `subsampling.0`, `subsampling.1`: frames in the window of the next output frame, at the start one of zeros | 1 or 2 of them |
pub(super) struct SubsamplingStream {
    layers: [StreamingConvolution; 2],
    norm: InferenceNorm,
    out: AffineLayer,
}

/// One convolution with a packed weight.
struct StreamingConvolution {
    shape: ConvolutionShape,
    weight: PackedRight<f32>,
    bias: Vec<f32>,
    /// Name of its frames in the state.
    name: String,
}

impl SubsamplingStream {
    pub fn new(
        shapes: [ConvolutionShape; 2],
        weights: &[[Tensor; 2]; 2],
        norm: InferenceNorm,
        out: AffineLayer,
    ) -> Result<Self> {
        let layer = |index: usize| -> Result<StreamingConvolution> {
            let [weight, bias] = &weights[index];
            let weight = to_vec::<f32>(&flatten_weight(weight)?.contiguous()?)?;
            let (shape, name) = (shapes[index], format!("subsampling.{index}"));
            Ok(StreamingConvolution { weight: shape.pack(&weight), bias: to_vec(bias)?, shape, name })
        };
        Ok(SubsamplingStream { layers: [layer(0)?, layer(1)?], norm, out })
    }

    /// Returns the width of an input frame.
    pub fn input(&self) -> usize {
        self.layers[0].shape.width()
    }

    /// Returns the valid sizes of each part of a state; the first is that at the start.
    pub fn sizes(&self) -> BTreeMap<String, Vec<usize>> {
        let size = |layer: &StreamingConvolution| {
            (layer.name.clone(), [1, 2].map(|frames| frames * layer.shape.width()).to_vec())
        };
        self.layers.iter().map(size).collect()
    }

    /// Computes the next rows of each utterance.
    pub fn step(&self, chunks: &mut [EncoderChunk]) -> Vec<Vec<f32>> {
        let rows = chunks.iter_mut().map(|chunk| {
            let mut rows = chunk.rows.to_vec();
            for layer in &self.layers {
                let Some(waiting) = chunk.state.values.get_mut(&layer.name) else { continue };
                rows = layer.step(waiting, &rows, chunk.is_last);
            }
            self.out.forward_rows(&self.norm.apply(&rows))
        });
        rows.collect()
    }
}

impl StreamingConvolution {
    /// Computes output frames from waiting and new frames.
    ///
    /// These are the frames with all of their input or, at the end, all frames.
    fn step(&self, waiting: &mut Vec<f32>, rows: &[f32], is_last: bool) -> Vec<f32> {
        let ConvolutionShape { stride, .. } = self.shape;
        let width = self.shape.width();
        waiting.extend_from_slice(rows);
        // The window of output frame t is s t .. s t + 2; the frame exists if the middle one does.
        let inputs = waiting.len() / width;
        let outputs = if is_last {
            (inputs - 1).div_ceil(stride)
        } else {
            (inputs + stride).saturating_sub(3) / stride
        };
        let mut out = vec![0.0; outputs * self.shape.width_out()];
        let position = WindowPosition { first_output: 0, padding_frames: 0 };
        self.shape.forward(waiting, position, &self.weight, &self.bias, &mut out);
        waiting.drain(..outputs * stride * width);
        out
    }
}
