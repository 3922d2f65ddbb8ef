//! Benchmark of FastConformer encoders: packed inference in all formats, and candle.
use candle_core::{Device, Tensor};
use model::encoders::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, EncodedRows, Encoder,
    FastConformerEncoder, FastConformerEncoderConfig, PackedFastConformer,
};
use model::{Error as ModelError, Parameters};

use super::case::{EncodeWork, Method};
use super::error::Result;
use super::gradients::NamedGradients;
use super::inputs::noise;
use super::workload::{CaseShape, Workload};

/// Frames of a second.
pub(crate) const FRAMES_PER_SECOND: usize = 100;
/// Channels of the subsampling.
const CHANNELS: usize = 256;
/// Taps of the subsampling's depthwise convolutions.
const TAPS: usize = 9;

/// Encodes utterances of random frames with random weights.
struct EncodeWorkload {
    work: EncodeWork,
    encoder: AnyEncoder,
    frames: Vec<f32>,
    /// Encoder rows of the last step.
    encoded: Vec<f32>,
}

enum AnyEncoder {
    Packed(Box<PackedFastConformer>),
    Candle(Box<FastConformerEncoder>),
}

/// Creates an encoder and utterances.
///
/// # Errors
/// If the model does not support the sizes.
pub(crate) fn prepare(work: &EncodeWork, method: &Method) -> Result<Box<dyn Workload>> {
    let config = work.config();
    let encoder = match method {
        Method::Encode { format } => {
            let mut stream = 600;
            let packed = PackedFastConformer::new(&config, work.mels, (*format).into(), &mut |name| {
                stream += 1;
                Ok(work.weight(name, stream)?.into())
            })?;
            AnyEncoder::Packed(Box::new(packed))
        }
        _ => {
            let (_, encoder) =
                Parameters::build(7, |vb| FastConformerEncoder::new(&config, work.mels, &vb.pp("encoder")))?;
            AnyEncoder::Candle(Box::new(encoder))
        }
    };
    let frames = noise(601, work.batch * work.frames * work.mels, 3f32.sqrt());
    Ok(Box::new(EncodeWorkload { work: *work, encoder, frames, encoded: Vec::new() }))
}

impl EncodeWork {
    fn config(&self) -> FastConformerEncoderConfig {
        FastConformerEncoderConfig {
            layers: self.layers,
            width: self.width,
            heads: 8,
            feed_forward: 4 * self.width,
            kernel: 9,
            subsampling: DepthwiseSubsamplingConfig { channels: CHANNELS, factor: 8, causal: false },
            attention: AttentionLimits::Full,
            other_attention: Vec::new(),
            causal_convolution: false,
            convolution_norm: ConvolutionNorm::Batch,
            batch_norm: BatchNormMode::Frozen,
            bias: true,
            scale_input: false,
            dropout: 0.0,
        }
    }

    /// Returns mel bins after each stage of the subsampling.
    fn bins(&self) -> [usize; 3] {
        [2, 4, 8].map(|factor| self.mels.div_ceil(factor))
    }

    /// Returns random values of a parameter by its name.
    fn weight(&self, name: &str, stream: u64) -> std::result::Result<Vec<f32>, ModelError> {
        let width = self.width;
        let name = name.trim_start_matches("encoder.");
        let part = name.rsplit_once('.').map_or(name, |(part, _)| part);
        let is_bias = name.ends_with(".bias");
        let (outputs, inputs) = match part.rsplit('.').next().unwrap_or(part) {
            "linear1" => (4 * width, width),
            "linear2" => (width, 4 * width),
            "pointwise_conv1" => (2 * width, width),
            "depthwise_conv" => (width, 9),
            "out" => (width, CHANNELS * self.bins()[2]),
            "3" | "6" => (CHANNELS, CHANNELS),
            "0" | "2" | "5" => (CHANNELS, TAPS),
            "batch_norm" if name.ends_with("var") => return Ok(vec![1.0; width]),
            part if part.contains("norm") && name.ends_with("weight") => return Ok(vec![1.0; width]),
            part if part.contains("norm") => (width, 1),
            "self_attn" => (width, 1),
            _ => (width, width),
        };
        let scale = (3.0 / inputs as f32).sqrt();
        Ok(if is_bias { noise(stream, outputs, 0.02) } else { noise(stream, outputs * inputs, scale) })
    }

    /// Returns the sizes of the work.
    pub(crate) fn shape(&self) -> CaseShape {
        CaseShape { B: Some(self.batch), T: Some(self.frames), H: Some(self.width), ..CaseShape::default() }
    }

    /// Returns the bytes of frames and weights.
    pub(crate) fn input_bytes(&self) -> u64 {
        let layer = 27 * self.width * self.width;
        let weights = self.layers * layer + self.width * CHANNELS * self.bins()[2];
        4 * (weights + self.batch * self.frames * self.mels) as u64
    }

    /// Returns the operations of products and convolutions of all utterances.
    ///
    /// Keys of positions are not included, as they can be kept.
    fn operations(&self) -> u64 {
        let rows = [2, 4, 8].map(|factor| self.frames.div_ceil(factor));
        let (width, keys, bins) = (self.width, rows[2], self.bins());
        let positions = [0, 1, 2].map(|stage| rows[stage] * bins[stage]);
        let separable = TAPS * CHANNELS + CHANNELS * CHANNELS;
        let subsampling = positions[0] * TAPS * CHANNELS
            + (positions[1] + positions[2]) * separable
            + rows[2] * CHANNELS * bins[2] * width;
        let layer = rows[2] * (16 * width * width + 7 * width * width + 9 * width + 3 * keys * width);
        2 * (self.batch * (subsampling + self.layers * layer)) as u64
    }
}

impl Workload for EncodeWorkload {
    fn shape(&self) -> CaseShape {
        self.work.shape()
    }

    fn result_bytes(&self) -> u64 {
        size_of_val(&*self.encoded) as u64
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.operations())
    }

    fn step(&mut self) -> Result<NamedGradients> {
        self.encoded = match &self.encoder {
            AnyEncoder::Packed(encoder) => {
                let utterances: Vec<&[f32]> = self.frames.chunks(self.work.frames * self.work.mels).collect();
                let EncodedRows { rows, .. } = encoder.encode(&utterances)?;
                rows
            }
            AnyEncoder::Candle(encoder) => {
                let shape = (self.work.batch, self.work.frames, self.work.mels);
                let frames = Tensor::from_slice(&self.frames, shape, &Device::Cpu)?;
                let (rows, _) = encoder.forward(&frames, &vec![self.work.frames; self.work.batch], None)?;
                rows.flatten_all()?.to_vec1()?
            }
        };
        Ok(Vec::new())
    }

    fn check(&mut self) -> Result<()> {
        let is_finite = self.encoded.iter().all(|value| value.is_finite());
        let rows = self.work.batch * self.work.frames.div_ceil(8);
        assert!(is_finite && self.encoded.len() == rows * self.work.width);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::EncoderFormat;

    #[test]
    fn a_small_encoder_runs_with_every_method() {
        let work = EncodeWork { layers: 2, width: 64, mels: 80, frames: 200, batch: 2 };
        let formats = [EncoderFormat::F32, EncoderFormat::Bf16, EncoderFormat::Q8];
        let methods = formats.map(|format| Method::Encode { format });
        for method in methods.into_iter().chain([Method::Baseline]) {
            let mut workload = prepare(&work, &method).unwrap();
            workload.step().unwrap();
            workload.check().unwrap();
        }
    }
}
