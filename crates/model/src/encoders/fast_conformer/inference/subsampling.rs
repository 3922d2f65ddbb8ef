//! The subsampling convolutions, one block of output rows at a time.
//!
//! ```text
//! stage 1    y = relu(convolution 3x3, stride 2, of the frames)       1 to C channels
//! stage s    y = relu(V · depthwise 3x3, stride 2, of x + b)          V: 1x1, C to C channels
//! out        row = W y + b                                            y: [bands, C]
//! ```
//! A block of rows computes the stages one after the other for the frames that it needs, so that
//! no stage is stored for a whole recording. Channels are innermost: `[frames, bands, C]`. Rows
//! outside an utterance are zeros in each stage.
use std::ops::Range;

use kernels::packed::{NumberFormat, Operand, PackedOperand};
use kernels::{AlignedVec, ScratchReq, weighted_sum};

use super::linear::PackedLinear;
use super::weights::{WeightReader, unquantized};
use crate::Result;
use crate::encoders::fast_conformer::DepthwiseSubsamplingConfig;

/// Taps of a convolution on each axis.
const TAPS: usize = 3;

/// The subsampling with packed weights.
#[derive(Debug)]
pub(super) struct PackedSubsampling {
    pub config: DepthwiseSubsamplingConfig,
    /// Bands of an input frame, then those after each stage.
    bands: Vec<usize>,
    /// The first convolution, `[9, C]`.
    first: PackedLinear,
    /// The stages after the first one.
    stages: Vec<SeparableStage>,
    /// The linear layer; its inputs are in the order `[bands, C]`.
    pub out: PackedLinear,
}

/// A depthwise convolution with stride 2, followed by a pointwise one.
#[derive(Debug)]
struct SeparableStage {
    /// `[9, C]`
    weight: Vec<f32>,
    bias: Vec<f32>,
    pointwise: PackedLinear,
}

/// Frames of one stage: a part of an utterance.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageFrames<'a> {
    /// `[frames, bands, channels]`
    pub values: &'a [f32],
    /// The position of the first frame.
    pub first: usize,
    /// The number of frames of the utterance; later ones are zeros.
    pub total: usize,
}

/// Scratch memory of a block.
#[derive(Debug)]
pub(super) struct SubsamplingScratch {
    stages: [AlignedVec<f32>; 2],
    convolved: AlignedVec<f32>,
    packed: PackedOperand,
    packed_frames: PackedOperand,
}

impl Default for SubsamplingScratch {
    fn default() -> Self {
        SubsamplingScratch {
            stages: Default::default(),
            convolved: AlignedVec::default(),
            packed: PackedOperand::new(NumberFormat::F32, Operand::Left),
            packed_frames: PackedOperand::new(NumberFormat::F32, Operand::Left),
        }
    }
}

impl PackedSubsampling {
    /// Packs the weights `encoder.pre_encode.*`; `factor` multiplies the rows.
    ///
    /// # Errors
    /// Those of the reader, and [`crate::Error::Shape`] for weights of another size.
    pub(super) fn new(
        config: &DepthwiseSubsamplingConfig,
        input_width: usize,
        width: usize,
        factor: f64,
        reader: &mut WeightReader,
    ) -> Result<Self> {
        let channels = config.channels;
        let mut bands = vec![input_width];
        for _ in 0..config.stages() {
            bands.push(config.stage_len(bands[bands.len() - 1]));
        }
        let name = |index: usize, part: &str| format!("encoder.pre_encode.conv.{index}.{part}");
        let (format, convolution_format) = (reader.format, unquantized(reader.format));
        // Frames are not rounded: the first convolution is in `f32` in all formats.
        let weight = reader.read(&name(0, "weight"), channels * TAPS * TAPS)?;
        let bias = reader.read(&name(0, "bias"), channels)?;
        let first = PackedLinear::new("conv.0", NumberFormat::F32, &weight, TAPS * TAPS, bias)?;
        let mut stages = Vec::new();
        for stage in 1..config.stages() {
            let (depthwise, pointwise) = (3 * stage - 1, 3 * stage);
            let weight = reader.read(&name(depthwise, "weight"), channels * TAPS * TAPS)?;
            let bias = reader.read(&name(depthwise, "bias"), channels)?;
            let matrix = reader.read(&name(pointwise, "weight"), channels * channels)?;
            let pointwise_bias = reader.read(&name(pointwise, "bias"), channels)?;
            stages.push(SeparableStage {
                weight: layers::depthwise::transpose_weight(&weight, TAPS * TAPS),
                bias,
                pointwise: PackedLinear::new("conv", convolution_format, &matrix, channels, pointwise_bias)?,
            });
        }
        // NeMo's inputs are in the order [C, bands].
        let last_bands = bands[bands.len() - 1];
        let inputs = channels * last_bands;
        let scaled = |value: f32| (f64::from(value) * factor) as f32;
        let weight = reader.read("encoder.pre_encode.out.weight", width * inputs)?;
        let input = |i: usize| i % channels * last_bands + i / channels;
        let reordered: Vec<f32> =
            weight.chunks(inputs).flat_map(|row| (0..inputs).map(move |i| scaled(row[input(i)]))).collect();
        drop(weight);
        let bias = reader.read("encoder.pre_encode.out.bias", width)?.into_iter().map(scaled).collect();
        let out = PackedLinear::new("encoder.pre_encode.out", format, &reordered, inputs, bias)?;
        Ok(PackedSubsampling { config: config.clone(), bands, first, stages, out })
    }

    /// Returns the number of stages.
    pub(super) fn stages(&self) -> usize {
        self.stages.len() + 1
    }

    /// Returns the values of a frame before a stage.
    pub(super) fn frame_width(&self, stage: usize) -> usize {
        self.bands[stage] * if stage == 0 { 1 } else { self.config.channels }
    }

    /// Returns the input frames of a stage for a range of results.
    pub(super) fn inputs_of(&self, results: &Range<usize>, input_frames: usize) -> Range<usize> {
        let before = self.config.padding_before();
        let start = (2 * results.start).saturating_sub(before);
        start..(2 * results.end + TAPS).saturating_sub(2 + before).clamp(start, input_frames.max(start))
    }

    /// Computes rows of an utterance in the order `[bands, C]`.
    ///
    /// # Shapes
    /// `frames [T, input width]`; `out` has the values of `results`.
    pub(super) fn compute_rows(
        &self,
        frames: &[f32],
        results: Range<usize>,
        out: &mut [f32],
        scratch: &mut SubsamplingScratch,
    ) {
        let mut lengths = vec![frames.len() / self.bands[0]];
        (0..self.stages()).for_each(|stage| lengths.push(self.config.stage_len(lengths[stage])));
        let mut ranges = vec![results];
        for stage in (0..self.stages()).rev() {
            ranges.push(self.inputs_of(&ranges[ranges.len() - 1], lengths[stage]));
        }
        ranges.reverse();
        let SubsamplingScratch { stages, convolved, packed, packed_frames } = scratch;
        let [mut input, mut output] = stages.each_mut();
        for stage in 0..self.stages() {
            let range = &ranges[stage];
            let width = self.frame_width(stage);
            let values = if stage == 0 {
                &frames[range.start * width..range.end * width]
            } else {
                &input[..range.len() * width]
            };
            let part = StageFrames { values, first: range.start, total: lengths[stage] };
            let results = ranges[stage + 1].clone();
            let buffers = (&mut *convolved, if stage == 0 { &mut *packed_frames } else { &mut *packed });
            if stage + 1 == self.stages() {
                self.compute_stage(stage, part, results, out, buffers);
            } else {
                let len = results.len() * self.frame_width(stage + 1);
                self.compute_stage(stage, part, results, output.ensure_len(len, 0.0), buffers);
                std::mem::swap(&mut input, &mut output);
            }
        }
    }

    /// Computes results of one stage, from frames without earlier or later ones.
    pub(super) fn compute_results(
        &self,
        stage: usize,
        frames: StageFrames,
        results: Range<usize>,
        out: &mut [f32],
        scratch: &mut SubsamplingScratch,
    ) {
        if !results.is_empty() {
            let buffers = (&mut scratch.convolved, &mut scratch.packed);
            self.compute_stage(stage, frames, results, out, buffers);
        }
    }

    /// Computes results of one stage from the frames that they need.
    fn compute_stage(
        &self,
        stage: usize,
        frames: StageFrames,
        results: Range<usize>,
        out: &mut [f32],
        (convolved, packed): (&mut AlignedVec<f32>, &mut PackedOperand),
    ) {
        let (bands, channels) = (self.bands[stage + 1], self.config.channels);
        let positions = results.len() * bands;
        let layer = match stage.checked_sub(1) {
            None => {
                let windows = convolved.ensure_len(positions * TAPS * TAPS, 0.0);
                self.gather_windows(frames, results, windows);
                if packed.format() != NumberFormat::F32 {
                    *packed = PackedOperand::new(NumberFormat::F32, Operand::Left);
                }
                packed.fill(kernels::View::new(windows, positions, TAPS * TAPS));
                &self.first
            }
            Some(index) => {
                let SeparableStage { weight, bias, pointwise } = &self.stages[index];
                let convolved = convolved.ensure_len(positions * channels, 0.0);
                self.convolve_depthwise(stage, frames, results, [weight, bias], convolved);
                if packed.format() != pointwise.format() {
                    *packed = PackedOperand::new(pointwise.format(), Operand::Left);
                }
                packed.fill(kernels::View::new(convolved, positions, channels));
                pointwise
            }
        };
        layer.forward_relu_in_task(packed, out);
    }

    /// Copies the 3 x 3 window of each result, with zeros outside the utterance.
    fn gather_windows(&self, frames: StageFrames, results: Range<usize>, out: &mut [f32]) {
        let (bands, before) = (self.bands[0], self.config.padding_before());
        let rows = results.flat_map(|t| (0..self.bands[1]).map(move |f| (t, f)));
        for ((t, f), window) in rows.zip(out.chunks_exact_mut(TAPS * TAPS)) {
            for (dt, window) in window.chunks_exact_mut(TAPS).enumerate() {
                let frame = frame_at(&frames, 2 * t + dt, before, bands);
                for (df, value) in window.iter_mut().enumerate() {
                    let band = (2 * f + df).checked_sub(before).filter(|&band| band < bands);
                    *value = frame.zip(band).map_or(0.0, |(frame, band)| frame[band]);
                }
            }
        }
    }

    /// Computes the depthwise convolution of a stage.
    fn convolve_depthwise(
        &self,
        stage: usize,
        frames: StageFrames,
        results: Range<usize>,
        [weight, bias]: [&[f32]; 2],
        out: &mut [f32],
    ) {
        let (bands, channels) = (self.bands[stage], self.config.channels);
        let before = self.config.padding_before();
        let mut taps: Vec<(&[f32], &[f32])> = Vec::with_capacity(TAPS * TAPS);
        let rows = results.flat_map(|t| (0..self.bands[stage + 1]).map(move |f| (t, f)));
        for ((t, f), out) in rows.zip(out.chunks_exact_mut(channels)) {
            taps.clear();
            for dt in 0..TAPS {
                let Some(frame) = frame_at(&frames, 2 * t + dt, before, bands * channels) else { continue };
                for df in 0..TAPS {
                    let band = (2 * f + df).checked_sub(before).filter(|&band| band < bands);
                    taps.extend(band.map(|band| {
                        let tap = (dt * TAPS + df) * channels;
                        (&frame[band * channels..][..channels], &weight[tap..][..channels])
                    }));
                }
            }
            weighted_sum(out, bias, &taps);
        }
    }

    /// Returns the memory of a block of `rows` results.
    pub(super) fn requirement(&self, rows: usize) -> ScratchReq {
        let format = unquantized(self.out.format());
        let mut requirement = ScratchReq::EMPTY;
        let mut results = rows;
        for stage in (0..self.stages()).rev() {
            let positions = results * self.bands[stage + 1];
            let columns = if stage == 0 { TAPS * TAPS } else { self.config.channels };
            let packed = PackedOperand::requirement(format, Operand::Left, positions, columns);
            let packed =
                packed.or(PackedOperand::requirement(NumberFormat::F32, Operand::Left, positions, columns));
            let stage_memory = ScratchReq::aligned::<f32>(positions * columns).and(packed);
            requirement = requirement.and(stage_memory);
            results = 2 * results + 1;
            requirement = requirement.and(ScratchReq::aligned::<f32>(results * self.frame_width(stage)));
        }
        requirement
    }
}

/// Returns a frame of an utterance at `position - before`, `None` outside the utterance.
fn frame_at<'a>(frames: &StageFrames<'a>, position: usize, before: usize, width: usize) -> Option<&'a [f32]> {
    let index = position.checked_sub(before).filter(|&index| index < frames.total)?;
    Some(&frames.values[(index - frames.first) * width..][..width])
}
