//! Convolutional subsampling for streaming inference.
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

struct StreamingConvolution {
    shape: ConvolutionShape,
    weight: PackedRight<f32>,
    bias: Vec<f32>,
    name: String,
}

impl SubsamplingStream {
    pub fn new(
        shapes: [ConvolutionShape; 2],
        weights: &[[Tensor; 2]; 2],
        norm: InferenceNorm,
        out: AffineLayer,
    ) -> Result<Self> {
        let layer = |at: usize| -> Result<StreamingConvolution> {
            let [weight, bias] = &weights[at];
            let weight = to_vec::<f32>(&flatten_weight(weight)?.contiguous()?)?;
            let (shape, name) = (shapes[at], format!("subsampling.{at}"));
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
            (layer.name.clone(), [1, 2].map(|n| n * layer.shape.width()).to_vec())
        };
        self.layers.iter().map(size).collect()
    }

    /// Computes the next rows of each utterance.
    pub fn step(&self, chunks: &mut [EncoderChunk]) -> Vec<Vec<f32>> {
        let rows = chunks.iter_mut().map(|chunk| {
            let mut rows = chunk.rows.to_vec();
            for layer in &self.layers {
                let Some(before) = chunk.state.values.get_mut(&layer.name) else { continue };
                rows = layer.step(before, &rows, chunk.is_last);
            }
            self.out.rows(&self.norm.apply(&rows))
        });
        rows.collect()
    }
}

impl StreamingConvolution {
    /// Computes output frames from waiting and new frames.
    ///
    /// These are the frames with all of their input or, at the end, all frames.
    fn step(&self, before: &mut Vec<f32>, rows: &[f32], is_last: bool) -> Vec<f32> {
        let ConvolutionShape { stride, .. } = self.shape;
        let width = self.shape.width();
        before.extend_from_slice(rows);
        // The window of output frame t is s t .. s t + 2; the frame exists if the middle one does.
        let count = before.len() / width;
        let frames =
            if is_last { (count - 1).div_ceil(stride) } else { (count + stride).saturating_sub(3) / stride };
        let mut out = vec![0.0; frames * self.shape.width_out()];
        let position = WindowPosition { first_output: 0, padding_frames: 0 };
        self.shape.forward(before, position, &self.weight, &self.bias, &mut out);
        before.drain(..frames * stride * width);
        out
    }
}
