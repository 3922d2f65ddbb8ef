//! `SubsamplingStream`: convolutional subsampling in front of a streaming encoder.
use candle_core::Tensor;
use decoding::AffineLayer;
use kernels::PackedRight;

use super::stream::PartSizes;
use super::{EncodedRows, EncoderChunk};
use crate::Result;
use layers::convolution::{ConvolutionShape, WindowPosition, flatten_weight};
use layers::layer_norm::InferenceNorm;
use layers::ragged::Ragged;
use layers::tensors::to_vec;

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
    /// The name of its waiting frames in an [`EncoderState`](super::EncoderState).
    part_name: String,
}

impl SubsamplingStream {
    pub(super) fn new(
        shapes: [ConvolutionShape; 2],
        weights: &[[Tensor; 2]; 2],
        norm: InferenceNorm,
        out: AffineLayer,
    ) -> Result<Self> {
        let layer = |index: usize| -> Result<StreamingConvolution> {
            let [weight, bias] = &weights[index];
            let weight = to_vec::<f32>(&flatten_weight(weight)?.contiguous()?)?;
            let (shape, part_name) = (shapes[index], format!("subsampling.{index}"));
            Ok(StreamingConvolution { weight: shape.pack(&weight), bias: to_vec(bias)?, shape, part_name })
        };
        Ok(SubsamplingStream { layers: [layer(0)?, layer(1)?], norm, out })
    }

    /// Returns the width of an input frame.
    pub(super) fn input_width(&self) -> usize {
        self.layers[0].shape.width()
    }

    /// Returns the width of a row.
    pub(super) fn width(&self) -> usize {
        self.out.outputs()
    }

    /// Returns the number of frames for each row.
    pub(super) fn factor(&self) -> usize {
        self.layers.iter().map(|layer| layer.shape.stride).product()
    }

    /// Returns the memory of [`Self::encode`]; `frames` are those of each utterance.
    pub(super) fn bytes(&self, frames: &[usize]) -> usize {
        let (mut lengths, mut peak) = (frames.to_vec(), 0);
        let mut frame_values = 0;
        for StreamingConvolution { shape, .. } in &self.layers {
            let inputs = lengths.iter().sum();
            lengths.iter_mut().for_each(|length| *length = length.div_ceil(shape.stride));
            let outputs = lengths.iter().sum();
            peak = peak.max(shape.inference_values(inputs, outputs));
            frame_values = outputs * shape.width_out();
        }
        // Frames before and after the norm, and the rows.
        let row_values = lengths.iter().sum::<usize>() * self.width();
        peak.max(2 * frame_values + row_values) * size_of::<f32>()
    }

    /// Computes the rows of whole utterances.
    ///
    /// `x` are the frames of all utterances, `lengths` their numbers.
    pub(super) fn encode(&self, mut x: Vec<f32>, lengths: &[usize]) -> EncodedRows {
        let mut ragged = Ragged::new(lengths);
        for StreamingConvolution { shape, weight, bias, .. } in &self.layers {
            let lengths: Vec<usize> = ragged.lengths().iter().map(|l| l.div_ceil(shape.stride)).collect();
            let output_rows = Ragged::new(&lengths);
            x = shape.forward_utterances(&x, [&*ragged, &*output_rows], weight, bias);
            ragged = output_rows;
        }
        EncodedRows { rows: self.out.forward_rows(&self.norm.apply(&x)), lengths: ragged.lengths() }
    }

    /// Returns the allowed lengths of each part of a state.
    pub(super) fn part_sizes(&self) -> PartSizes {
        let sizes = |layer: &StreamingConvolution| {
            (layer.part_name.clone(), [1, 2].map(|frames| frames * layer.shape.width()).to_vec())
        };
        self.layers.iter().map(sizes).collect()
    }

    /// Computes the next rows of each utterance.
    pub(super) fn step(&self, chunks: &mut [EncoderChunk]) -> Vec<Vec<f32>> {
        let rows = chunks.iter_mut().map(|chunk| {
            let mut rows = chunk.rows.to_vec();
            for layer in &self.layers {
                let Some(waiting) = chunk.state.values.get_mut(&layer.part_name) else { continue };
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
    fn step(&self, waiting: &mut Vec<f32>, new_frames: &[f32], is_last: bool) -> Vec<f32> {
        let ConvolutionShape { stride, .. } = self.shape;
        let width = self.shape.width();
        waiting.extend_from_slice(new_frames);
        // The window of output frame t is the three frames s t .. s t + 2, s the stride. The frame
        // exists if the middle one does, and is complete with the last one: for t up to
        // ⌈(inputs - 2) / s⌉ - 1.
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
