//! Depthwise convolution over time and mel, as one candle operation.
//!
//! A frame is M mel bins of C channels, channels innermost; each channel has a filter of 3 x 3
//! taps, and the stride is 2 on both axes. T_b, T'_b: input and output frames of utterance b; M':
//! output bins; p: padding; x, w, y: input, weight, result; `d` in front of a name: the gradient of
//! the loss.
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Real, items_mut, par_for};

use crate::depthwise::transpose_weight;
use crate::footprint;
use crate::footprint::Footprint;
use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Taps of the filter on each axis.
const TAPS: usize = 3;
/// Taps of the filter on both axes.
const FILTER_TAPS: usize = TAPS * TAPS;
/// Distance of neighboring outputs in the input, on each axis.
const STRIDE: usize = 2;
/// Frames that one task processes.
const FRAMES_PER_TASK: usize = 8;
/// Channels whose sums are in registers at a time.
const CHANNELS_PER_BLOCK: usize = 16;

/// The shape of a depthwise convolution, apart from the number of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depthwise2dShape {
    /// Mel bins M of the input.
    pub bins: usize,
    /// Channels C.
    pub channels: usize,
    /// Zeros before the input on both axes, 1 or 2.
    pub padding: usize,
}

/// Convolves each channel over time and mel bins, with zero padding.
///
/// `y[t, m, c] = b_c + Σ_ij w[c, i, j] x[2t + i - p, 2m + j - p, c]`
///
/// `input_rows` and `output_rows` are the frames of each utterance before and after.
///
/// # Shapes
/// `x [Σ T_b, M·C]`, channels innermost; `weight [C, 1, 3, 3]`; `bias [C]`. Returns
/// `[Σ T'_b, M'·C]`; M' is `(M + p - 2) div 2 + 1`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ T'_b · M' · C)` time; only `x` is saved.
pub fn depthwise_2d(
    x: &Tensor,
    input_rows: &Arc<Ragged>,
    output_rows: &Arc<Ragged>,
    shape: Depthwise2dShape,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let channels = shape.channels;
    let shapes: [(&str, &Tensor, &[usize]); 3] = [
        ("x", x, &[input_rows.rows(), shape.width()]),
        ("weight", weight, &[channels, 1, TAPS, TAPS]),
        ("bias", bias, &[channels]),
    ];
    for (name, tensor, expected) in shapes {
        if tensor.dims() != expected || shape.width() == 0 {
            return Err(Error::shape(name, format!("{expected:?}"), format!("{:?}", tensor.dims())));
        }
    }
    let operation = Depthwise2d { input_rows: input_rows.clone(), output_rows: output_rows.clone(), shape };
    apply3(operation, x, weight, bias)
}

/// The operation of [`depthwise_2d`].
struct Depthwise2d {
    input_rows: Arc<Ragged>,
    output_rows: Arc<Ragged>,
    shape: Depthwise2dShape,
}

/// The taps of an output that are no padding.
struct ValidTaps {
    /// Index of the tap, and offset of its values.
    taps: [(usize, usize); FILTER_TAPS],
    count: usize,
}

impl ValidTaps {
    /// Returns the taps with a frame and a bin.
    ///
    /// `frame` and `bin` return the position of a tap on one axis, if there is one.
    fn new(
        shape: ValuesShape,
        frame: impl Fn(usize) -> Option<usize>,
        bin: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let mut valid = ValidTaps { taps: [(0, 0); FILTER_TAPS], count: 0 };
        for (i, frame) in (0..TAPS).filter_map(|i| Some((i, frame(i)?))) {
            for (j, bin) in (0..TAPS).filter_map(|j| Some((j, bin(j)?))) {
                let offset = (frame * shape.bins + bin) * shape.channels;
                valid.taps[valid.count] = (i * TAPS + j, offset);
                valid.count += 1;
            }
        }
        valid
    }

    fn as_slice(&self) -> &[(usize, usize)] {
        &self.taps[..self.count]
    }

    /// Computes `out = start + Σ w[tap] ∘ values[offset ..]` over the taps, with a weight `[9, C]`.
    fn sum<F: Real>(&self, start: &[F], weight: &[F], values: &[F], out: &mut [F]) {
        let channels = out.len();
        for (channel, out) in (0..).step_by(CHANNELS_PER_BLOCK).zip(out.chunks_mut(CHANNELS_PER_BLOCK)) {
            let count = out.len();
            if let Ok(out) = <&mut [F; CHANNELS_PER_BLOCK]>::try_from(&mut *out) {
                // One sum for each channel, in registers.
                let mut sums: [F; CHANNELS_PER_BLOCK] =
                    start[channel..channel + CHANNELS_PER_BLOCK].try_into().expect("a block of channels");
                for &(tap, offset) in self.as_slice() {
                    let x = &values[offset + channel..][..CHANNELS_PER_BLOCK];
                    let w = &weight[tap * channels + channel..][..CHANNELS_PER_BLOCK];
                    sums.iter_mut().zip(x.iter().zip(w)).for_each(|(sum, (&x, &w))| *sum += x * w);
                }
                *out = sums;
                continue;
            }
            // The last block may have fewer channels.
            out.copy_from_slice(&start[channel..channel + count]);
            for &(tap, offset) in self.as_slice() {
                let x = &values[offset + channel..][..count];
                let w = &weight[tap * channels + channel..][..count];
                out.iter_mut().zip(x.iter().zip(w)).for_each(|(sum, (&x, &w))| *sum += x * w);
            }
        }
    }
}

/// Bins and channels of a frame.
#[derive(Clone, Copy)]
struct ValuesShape {
    bins: usize,
    channels: usize,
}

impl Depthwise2dShape {
    /// Returns the number of mel bins of the output.
    pub fn bins_out(&self) -> usize {
        (self.bins + self.padding).saturating_sub(2) / STRIDE + 1
    }

    /// Returns the number of values of an input frame.
    pub(crate) fn width(&self) -> usize {
        self.bins * self.channels
    }

    /// Returns the number of values of an output frame.
    pub fn width_out(&self) -> usize {
        self.bins_out() * self.channels
    }

    /// Returns the taps of an output in the input.
    ///
    /// The window of output frame 0 begins `padding_frames` frames before the input, which has
    /// `input_frames` frames.
    fn input_taps(&self, frame: usize, bin: usize, padding_frames: usize, input_frames: usize) -> ValidTaps {
        let position = |output: usize, padding: usize, end: usize| {
            move |tap: usize| (STRIDE * output + tap).checked_sub(padding).filter(|&input| input < end)
        };
        ValidTaps::new(
            ValuesShape { bins: self.bins, channels: self.channels },
            position(frame, padding_frames, input_frames),
            position(bin, self.padding, self.bins),
        )
    }

    /// Returns the taps by which an input contributes to outputs.
    fn output_taps(&self, frame: usize, bin: usize, output_frames: usize) -> ValidTaps {
        // Input s contributes by tap i to output (s + p - i) / 2.
        let position = |input: usize, end: usize| {
            let padding = self.padding;
            move |tap: usize| {
                let doubled = (input + padding).checked_sub(tap)?;
                Some(doubled / STRIDE).filter(|&output| doubled.is_multiple_of(STRIDE) && output < end)
            }
        };
        ValidTaps::new(
            ValuesShape { bins: self.bins_out(), channels: self.channels },
            position(frame, output_frames),
            position(bin, self.bins_out()),
        )
    }

    /// Computes the output frames `first_output ..` of an utterance.
    ///
    /// `weight` is `[9, C]`.
    ///
    /// The window of output frame 0 begins `padding_frames` frames before `x`: the padding in a
    /// whole utterance, and 0 in a stream, whose input begins with the previous frames.
    pub(crate) fn forward_rows<F: Real>(
        &self,
        x: &[F],
        first_output: usize,
        padding_frames: usize,
        weight: &[F],
        bias: &[F],
        out: &mut [F],
    ) {
        let input_frames = x.len() / self.width();
        for (frame, out) in (first_output..).zip(out.chunks_exact_mut(self.width_out())) {
            for (bin, out) in out.chunks_exact_mut(self.channels).enumerate() {
                self.input_taps(frame, bin, padding_frames, input_frames).sum(bias, weight, x, out);
            }
        }
    }

    /// Returns the memory of the operation.
    ///
    /// Each utterance has `input_frames` frames, which become `output_frames`.
    pub fn footprint(&self, utterances: usize, input_frames: usize, output_frames: usize) -> Footprint {
        let [input, output] =
            [input_frames * self.width(), output_frames * self.width_out()].map(|values| utterances * values);
        // Gradients of input and output, each with a sum; partial sums of weight and bias.
        let parameters = (FILTER_TAPS + 1) * self.channels;
        footprint::from_values(output, 2 * (input + output) + (utterances + 5) * parameters)
    }
}

impl SliceOperation<3> for Depthwise2d {
    const NAME: &'static str = "depthwise convolution over two axes";

    fn shape(&self) -> Shape {
        Shape::from((self.output_rows.rows(), self.shape.width_out()))
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let shape = self.shape;
        let weight = transpose_weight(weight, FILTER_TAPS);
        let mut out = kernels::alloc(self.output_rows.rows() * shape.width_out(), F::ZERO);
        let mut blocks = self.output_rows.blocks(&mut out, shape.width_out(), FRAMES_PER_TASK);
        par_for(items_mut(&mut blocks), |_, block| {
            let x = self.input_rows.utterance(x, shape.width(), block.utterance);
            shape.forward_rows(x, block.first_row, shape.padding, &weight, bias, block.rows);
        });
        out
    }

    /// Computes the gradients.
    ///
    /// ```text
    /// dx[s, n] = Σ w[i, j] ∘ dy[t, m] over 2t + i - p = s, 2m + j - p = n
    /// dw[i, j] = Σ dy[t, m] ∘ x[2t + i - p, 2m + j - p]      db = Σ dy
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weight, bias]: [&[F]; 3],
        _: &[F],
        d_out: &[F],
        is_input_needed: bool,
    ) -> [Vec<F>; 3] {
        let Depthwise2d { input_rows, output_rows, shape } = self;
        let channels = shape.channels;
        let weight = transpose_weight(weight, FILTER_TAPS);
        let mut dx = kernels::alloc(if is_input_needed { x.len() } else { 0 }, F::ZERO);
        if is_input_needed {
            let zeros = vec![F::ZERO; bias.len()];
            let mut blocks = input_rows.blocks(&mut dx, shape.width(), FRAMES_PER_TASK);
            par_for(items_mut(&mut blocks), |_, block| {
                let d_out = output_rows.utterance(d_out, shape.width_out(), block.utterance);
                let output_frames = d_out.len() / shape.width_out();
                for (frame, dx) in (block.first_row..).zip(block.rows.chunks_exact_mut(shape.width())) {
                    for (bin, dx) in dx.chunks_exact_mut(channels).enumerate() {
                        shape.output_taps(frame, bin, output_frames).sum(&zeros, &weight, d_out, dx);
                    }
                }
            });
        }
        // Gradients of weight and bias, of each utterance.
        let parameter_count = (FILTER_TAPS + 1) * channels;
        let mut partials = vec![F::ZERO; input_rows.utterances() * parameter_count];
        par_for(kernels::parts_mut(&mut partials, parameter_count), |b, partial| {
            let x = input_rows.utterance(x, shape.width(), b);
            let d_out = output_rows.utterance(d_out, shape.width_out(), b);
            let (dw, db) = partial.split_at_mut(FILTER_TAPS * channels);
            for (frame, dy) in d_out.chunks_exact(shape.width_out()).enumerate() {
                for (bin, dy) in dy.chunks_exact(channels).enumerate() {
                    kernels::add(db, dy);
                    let taps = shape.input_taps(frame, bin, shape.padding, x.len() / shape.width());
                    for &(tap, offset) in taps.as_slice() {
                        let (dw, x) = (&mut dw[tap * channels..][..channels], &x[offset..][..channels]);
                        dw.iter_mut().zip(x.iter().zip(dy)).for_each(|(dw, (&x, &dy))| *dw += x * dy);
                    }
                }
            }
        });
        let mut dw = sum_partials(&partials, parameter_count);
        let db = dw.split_off(FILTER_TAPS * channels);
        [dx, transpose_weight(&dw, channels), db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Var};

    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    /// Returns the input and output frames of each utterance.
    fn input_and_output_rows(lengths: &[usize], padding: usize) -> (Arc<Ragged>, Arc<Ragged>) {
        let output_len = |&length: &usize| if length == 0 { 0 } else { (length + padding - 2) / 2 + 1 };
        (Ragged::new(lengths), Ragged::new(&lengths.iter().map(output_len).collect::<Vec<_>>()))
    }

    #[test]
    fn values_are_plain_sums_and_gradients_equal_finite_differences() {
        for (lengths, bins, channels, padding) in [
            (&[5, 0, 4][..], 5, 3, 1),
            (&[1, 2, 3], 4, 2, 2),
            (&[6], 3, 17, 2),
            (&[3], 1, 16, 1),
            (&[40, 19], 6, 2, 2),
        ] {
            let (input_rows, output_rows) = input_and_output_rows(lengths, padding);
            let shape = Depthwise2dShape { bins, channels, padding };
            let arguments = [
                test_values(&[input_rows.rows(), bins * channels], 0.7),
                test_values(&[channels, 1, 3, 3], 1.1),
                test_values(&[channels], 0.9),
            ];
            let run =
                |a: &[Var]| depthwise_2d(&a[0], &input_rows, &output_rows, shape, &a[1], &a[2]).unwrap();
            let y = values(&run(&arguments));
            let [x, w, bias] = arguments.each_ref().map(|v| values(v));
            let bins_out = shape.bins_out();
            assert_eq!(bins_out, if padding == 1 { bins.div_ceil(2) } else { bins / 2 + 1 });
            for (b, &length) in lengths.iter().enumerate() {
                let (first_in, outputs) = (input_rows.range(b).start, output_rows.range(b));
                for (i, &y) in y[outputs.start * bins_out * channels..outputs.end * bins_out * channels]
                    .iter()
                    .enumerate()
                {
                    let (t, m, c) = (i / channels / bins_out, i / channels % bins_out, i % channels);
                    let mut expected = bias[c];
                    for tap in 0..9 {
                        let (s, n) = (2 * t + tap / 3, 2 * m + tap % 3);
                        let inside = |i: usize, end: usize| (padding..end + padding).contains(&i);
                        if inside(s, length) && inside(n, bins) {
                            let row = first_in + s - padding;
                            expected += w[c * 9 + tap] * x[(row * bins + n - padding) * channels + c];
                        }
                    }
                    assert!((y - expected).abs() < 1e-13, "{y} {expected}");
                }
            }
            if input_rows.rows() < 20 {
                check_gradients(run, &arguments);
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_threads_or_other_utterances() {
        let shape = Depthwise2dShape { bins: 10, channels: 8, padding: 1 };
        let run = |lengths: &[usize], first_row: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (input_rows, output_rows) = input_and_output_rows(lengths, 1);
                let to_f32 = |v: &Tensor| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap();
                let x =
                    to_f32(&test_values(&[130, 80], 0.7).narrow(0, first_row, input_rows.rows()).unwrap());
                let (w, b) = (to_f32(&test_values(&[8, 1, 3, 3], 1.1)), to_f32(&test_values(&[8], 0.9)));
                let out = depthwise_2d(&x, &input_rows, &output_rows, shape, &w, &b).unwrap();
                let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [values(&out), values(gradients.get(&x).unwrap()), values(gradients.get(&w).unwrap())]
            })
        };
        let all = run(&[51, 0, 79], 0, 1);
        assert!(all == run(&[51, 0, 79], 0, 2) && all == run(&[51, 0, 79], 0, 5));
        let single = run(&[79], 51, 2);
        assert!(all[0].ends_with(&single[0]) && all[1].ends_with(&single[1]));
    }

    #[test]
    fn errors_of_shapes_name_the_argument() {
        let shape = Depthwise2dShape { bins: 2, channels: 3, padding: 1 };
        let (input_rows, output_rows) = input_and_output_rows(&[4], 1);
        for (x, weight, bias, name) in [
            ([4, 5], [3, 1, 3, 3], [3], "x: expected [4, 6]"),
            ([4, 6], [3, 3, 3, 3], [3], "weight: expected [3, 1, 3, 3]"),
            ([4, 6], [3, 1, 3, 3], [4], "bias: expected [3]"),
        ] {
            let [x, weight, bias] = [&x[..], &weight, &bias].map(|shape| test_values(shape, 1.0));
            let error = depthwise_2d(&x, &input_rows, &output_rows, shape, &weight, &bias).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
}
