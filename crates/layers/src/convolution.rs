//! The encoder's subsampling convolution: 3 x 3 over time and mel bands, ReLU.
//!
//! It is a matrix product of patches: the 3 x 3 x C input values of an output frame and bin,
//! gathered for some frames at a time. A frame is M mel bins of C channels, channels innermost; O
//! is the number of output channels, s the stride over time; the stride over mel bins is always 2.
//! T_b: input frames of utterance b; x: input; w: weight; y: result; z: result before ReLU; `d` in
//! front of a name: the gradient of the loss.
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Accumulate, PackedRight, Real, View, ViewMut, items_mut, par_for, product, product_packed};

use crate::footprint::{self, Footprint, planned_threads};
use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Output frames whose patches are gathered at a time.
const FRAMES_PER_BLOCK: usize = 16;
/// Taps of the filter on each axis.
const TAPS: usize = 3;

/// The shape of a convolution, apart from the number of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Mel bins of the input; the stride over them is 2.
    pub bins: usize,
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Frames from one output frame to the next.
    pub stride: usize,
    /// Zeros before the input on both axes, 1 or 2.
    pub padding: usize,
}

/// The position of output frames relative to the input.
#[derive(Debug, Clone, Copy)]
pub struct WindowPosition {
    /// The first output frame that is computed.
    pub first_output: usize,
    /// Frames in the window of output frame 0 before the first input frame.
    ///
    /// The padding at the start of an utterance; 0 in a stream, whose input begins with the
    /// previous frames.
    pub padding_frames: usize,
}

/// Convolves the frames of each utterance, with zero padding and ReLU.
///
/// `input_rows` and `output_rows` are the frames of each utterance before and after.
///
/// `y[t, m, o] = max(0, bias_o + Σ w[o, c, i, j] x[s·t + i - p, 2m + j - p, c])`, the sum over
/// channels c and taps i, j; p is the padding.
///
/// # Shapes
/// `x [Σ T_b, M·C]`, channels innermost; `weight [O, C, 3, 3]`; `bias [O]`. Returns
/// `[Σ T'_b, M'·O]`; T'_b are the rows of `output_rows`, M' is `(M + p - 2) div 2 + 1`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ T'_b · M · C · O)` time; only `x` and the result are saved: patches are gathered
/// for 16 frames at a time, and again in the backward pass.
pub fn convolution(
    x: &Tensor,
    input_rows: &Arc<Ragged>,
    output_rows: &Arc<Ragged>,
    shape: ConvolutionShape,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let ConvolutionShape { bins, inputs, outputs, .. } = shape;
    let shapes: [(&str, &Tensor, &[usize]); 3] = [
        ("x", x, &[input_rows.rows(), bins * inputs]),
        ("weight", weight, &[outputs, inputs, TAPS, TAPS]),
        ("bias", bias, &[outputs]),
    ];
    for (name, tensor, expected) in shapes {
        if tensor.dims() != expected || expected[1..].contains(&0) {
            return Err(Error::shape(name, format!("{expected:?}"), format!("{:?}", tensor.dims())));
        }
    }
    let operation =
        ConvolutionOperation { input_rows: input_rows.clone(), output_rows: output_rows.clone(), shape };
    apply3(operation, x, &flatten_weight(weight)?, bias)
}

/// Reorders weights `[O, C, 3, 3]` to `[O, 3·3·C]`, in the order of a patch.
pub fn flatten_weight(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, ..) = weight.dims4()?;
    Ok(weight.permute((0, 2, 3, 1))?.reshape((outputs, TAPS * TAPS * inputs))?)
}

/// The operation of [`convolution`].
struct ConvolutionOperation {
    input_rows: Arc<Ragged>,
    output_rows: Arc<Ragged>,
    shape: ConvolutionShape,
}

impl ConvolutionShape {
    /// Returns the number of mel bins of the output.
    pub fn bins_out(&self) -> usize {
        (self.bins + self.padding).saturating_sub(2) / 2 + 1
    }

    /// Returns a position in a whole utterance, which begins with padding.
    fn in_whole_utterance(&self, first_output: usize) -> WindowPosition {
        WindowPosition { first_output, padding_frames: self.padding }
    }

    /// Returns the number of values of an input frame.
    pub fn width(&self) -> usize {
        self.bins * self.inputs
    }

    /// Returns the number of values of an output frame.
    pub fn width_out(&self) -> usize {
        self.bins_out() * self.outputs
    }

    /// Returns the number of values of a patch: time, then mel, then channels.
    fn patch_len(&self) -> usize {
        TAPS * TAPS * self.inputs
    }

    /// Calls `visit` for every output frame, output bin, and tap over time.
    ///
    /// Its arguments are the input frame, the output bin, and the offset of the tap in the patches.
    /// Taps outside the `input_frames` frames of the input are padding, and are not visited.
    fn for_each_tap(
        &self,
        position: WindowPosition,
        output_frames: usize,
        input_frames: usize,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let tap_len = TAPS * self.inputs;
        for (frame, tap) in (0..output_frames).flat_map(|frame| (0..TAPS).map(move |tap| (frame, tap))) {
            let t =
                ((position.first_output + frame) * self.stride + tap).checked_sub(position.padding_frames);
            let Some(t) = t.filter(|&t| t < input_frames) else { continue };
            for bin in 0..self.bins_out() {
                visit(t, bin, (frame * self.bins_out() + bin) * self.patch_len() + tap * tap_len);
            }
        }
    }

    /// Returns the input columns of an output bin.
    ///
    /// The window of output bin m has the input bins 2m - p to 2m - p + 2, except padding. The
    /// offset of the columns in one tap of the patch is returned as well.
    fn columns(&self, output_bin: usize) -> (std::ops::Range<usize>, usize) {
        let first_bin = (2 * output_bin).saturating_sub(self.padding);
        let end_bin = self.bins.min((2 * output_bin + TAPS).saturating_sub(self.padding));
        let padding_bins = self.padding.saturating_sub(2 * output_bin);
        (first_bin * self.inputs..end_bin * self.inputs, padding_bins * self.inputs)
    }

    /// Gathers the patches of `output_frames` frames of an utterance.
    fn gather<F: Real>(&self, x: &[F], position: WindowPosition, output_frames: usize, patches: &mut [F]) {
        patches.fill(F::ZERO);
        self.for_each_tap(position, output_frames, x.len() / self.width(), |t, bin, offset| {
            let (columns, padding) = self.columns(bin);
            let target = &mut patches[offset + padding..][..columns.len()];
            target.copy_from_slice(&x[t * self.width()..][columns]);
        });
    }

    /// Adds patches to the frames that [`Self::gather`] reads: its transpose.
    fn scatter<F: Real>(&self, patches: &[F], position: WindowPosition, output_frames: usize, x: &mut [F]) {
        let width = self.width();
        self.for_each_tap(position, output_frames, x.len() / width, |t, bin, offset| {
            let (columns, padding) = self.columns(bin);
            let patch = &patches[offset + padding..][..columns.len()];
            kernels::add(&mut x[t * width..][columns], patch);
        });
    }

    /// Computes some output frames of an utterance `x`.
    pub fn forward<F: Real>(
        &self,
        x: &[F],
        position: WindowPosition,
        weight: &PackedRight<F>,
        bias: &[F],
        out: &mut [F],
    ) {
        let frames = out.len() / self.width_out();
        let patch_count = frames * self.bins_out();
        let mut patches = vec![F::ZERO; patch_count * self.patch_len()];
        self.gather(x, position, frames, &mut patches);
        let patches = View::new(&patches, patch_count, self.patch_len());
        let target = ViewMut::new(&mut *out, patch_count, self.outputs);
        product_packed(target, patches, weight, Accumulate::Replace);
        for row in out.chunks_exact_mut(self.outputs) {
            for (y, &b) in row.iter_mut().zip(bias) {
                let z = *y + b;
                // NaN is preserved.
                *y = if z < F::ZERO { F::ZERO } else { z };
            }
        }
    }

    /// Computes the output frames of whole utterances.
    pub fn forward_utterances<F: Real>(
        &self,
        x: &[F],
        [input_rows, output_rows]: [&Ragged; 2],
        weight: &PackedRight<F>,
        bias: &[F],
    ) -> Vec<F> {
        let mut out = kernels::alloc(output_rows.rows() * self.width_out(), F::ZERO);
        let mut blocks = output_rows.blocks(&mut out, self.width_out(), FRAMES_PER_BLOCK);
        par_for(items_mut(&mut blocks), |_, block| {
            let x = input_rows.utterance(x, self.width(), block.utterance);
            self.forward(x, self.in_whole_utterance(block.first_row), weight, bias, block.rows);
        });
        out
    }

    /// Returns the number of values of [`Self::forward_utterances`], with input and result.
    pub fn inference_values(&self, input_frames: usize, output_frames: usize) -> usize {
        let frames_in_tasks = output_frames.min(planned_threads() * FRAMES_PER_BLOCK);
        let patches = frames_in_tasks * self.bins_out() * self.patch_len();
        input_frames * self.width() + output_frames * self.width_out() + patches
    }

    /// Returns the memory of the operation.
    ///
    /// Each utterance has `input_frames` frames, which become `output_frames`.
    pub fn footprint(&self, utterances: usize, input_frames: usize, output_frames: usize) -> Footprint {
        let [input_rows, output_rows] = [input_frames, output_frames].map(|frames| utterances * frames);
        let parameters = self.outputs * (self.patch_len() + 1);
        // Patches of the frames that threads process, and the gradients of these frames.
        let frames_in_tasks = output_rows
            .max(utterances * FRAMES_PER_BLOCK)
            .min(planned_threads() * FRAMES_PER_BLOCK)
            .next_multiple_of(FRAMES_PER_BLOCK);
        let patches_and_gradients = frames_in_tasks * self.bins_out() * (self.patch_len() + self.outputs);
        // Gradients of weight and bias: a partial sum for each utterance, their total, and candle's
        // gradient before and after it adds the total.
        let parameter_gradients = (utterances + 3) * parameters;
        let input_gradient = input_rows * self.width();
        let output_gradients = 2 * output_rows * self.width_out();
        let temporary = input_gradient + output_gradients + patches_and_gradients + parameter_gradients;
        // Saved: the result, and the weight in the order of a patch.
        footprint::from_values(output_rows * self.width_out() + parameters, temporary)
    }

    /// Packs the weight of [`flatten_weight`] for [`Self::forward`].
    pub fn pack<F: Real>(&self, weight: &[F]) -> PackedRight<F> {
        PackedRight::new(View::new(weight, self.outputs, self.patch_len()).transposed())
    }
}

impl SliceOperation<3> for ConvolutionOperation {
    const NAME: &'static str = "convolution";

    fn shape(&self) -> Shape {
        Shape::from((self.output_rows.rows(), self.shape.width_out()))
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let rows = [&*self.input_rows, &*self.output_rows];
        self.shape.forward_utterances(x, rows, &self.shape.pack(weight), bias)
    }

    /// Computes the gradients.
    ///
    /// ```text
    /// dz = dy where y > 0      dW = Σ dzᵀ patches      db = Σ dz
    /// dx: patches of dz W, scattered
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weight, bias]: [&[F]; 3],
        out: &[F],
        d_out: &[F],
        is_input_needed: bool,
    ) -> [Vec<F>; 3] {
        let (shape, patch_len, outputs) = (self.shape, self.shape.patch_len(), bias.len());
        let mut dx = kernels::alloc(if is_input_needed { x.len() } else { 0 }, F::ZERO);
        // Gradients of weight and bias, of each utterance.
        let parameter_count = outputs * (patch_len + 1);
        let mut partials = vec![F::ZERO; self.input_rows.utterances() * parameter_count];
        let mut dx_parts =
            if is_input_needed { self.input_rows.split_mut(&mut dx, shape.width()) } else { Vec::new() };
        let dx_parts = is_input_needed.then(|| items_mut(&mut dx_parts));
        par_for((kernels::parts_mut(&mut partials, parameter_count), dx_parts), |b, (partial, mut dx)| {
            let (dw, db) = partial.split_at_mut(outputs * patch_len);
            let x = self.input_rows.utterance(x, shape.width(), b);
            let [out, d_out] =
                [out, d_out].map(|rows| self.output_rows.utterance(rows, shape.width_out(), b));
            let block_patches = FRAMES_PER_BLOCK * shape.bins_out();
            let block_len = block_patches * outputs;
            let (mut patches, mut dz) = (vec![F::ZERO; block_patches * patch_len], vec![F::ZERO; block_len]);
            let blocks = out.chunks(block_len).zip(d_out.chunks(block_len));
            for (first_output, (out, d_out)) in (0..).step_by(FRAMES_PER_BLOCK).zip(blocks) {
                let (frames, patch_count) = (out.len() / shape.width_out(), out.len() / outputs);
                let position = shape.in_whole_utterance(first_output);
                let (patches, dz) = (&mut patches[..patch_count * patch_len], &mut dz[..out.len()]);

                // dz and db
                for (dz, (&y, &dy)) in dz.iter_mut().zip(out.iter().zip(d_out)) {
                    *dz = if y > F::ZERO { dy } else { F::ZERO };
                }
                dz.chunks_exact(outputs).for_each(|dz| kernels::add(db, dz));

                // dW += dzᵀ patches
                shape.gather(x, position, frames, patches);
                let dz_view = View::new(dz, patch_count, outputs);
                let (target, patch_view) =
                    (ViewMut::new(dw, outputs, patch_len), View::new(patches, patch_count, patch_len));
                product(target, dz_view.transposed(), patch_view, F::ONE, Accumulate::Add);

                // dx: patches of dz W, scattered
                let Some(dx) = dx.as_mut() else { continue };
                let (target, weight) =
                    (ViewMut::new(patches, patch_count, patch_len), View::new(weight, outputs, patch_len));
                product(target, dz_view, weight, F::ONE, Accumulate::Replace);
                shape.scatter(patches, position, frames, dx);
            }
        });
        let mut dw = sum_partials(&partials, parameter_count);
        let db = dw.split_off(outputs * patch_len);
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Var};

    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    /// Returns the input and output frames of each utterance.
    fn input_and_output_rows(lengths: &[usize], stride: usize, padding: usize) -> (Arc<Ragged>, Arc<Ragged>) {
        let output_len = |&length: &usize| match length {
            0 => 0,
            // Windows of three frames in the padded input, which has one zero at its end.
            length => (length + padding + 1 - TAPS) / stride + 1,
        };
        let output_lengths: Vec<usize> = lengths.iter().map(output_len).collect();
        (Ragged::new(lengths), Ragged::new(&output_lengths))
    }

    /// Computes the convolution with candle's operations.
    ///
    /// Candle's stride is the same for both axes: frames and bins between the strides are computed
    /// and discarded.
    fn plain_convolution(
        x: &Tensor,
        lengths: &[usize],
        shape: ConvolutionShape,
        w: &Tensor,
        b: &Tensor,
    ) -> Tensor {
        let ConvolutionShape { bins, inputs, outputs, stride, padding } = shape;
        let every_nth = |count: usize, step: usize| {
            let indices = (0..count as u32).step_by(step);
            Tensor::from_iter(indices, &candle_core::Device::Cpu).unwrap()
        };
        let mut first_row = 0;
        let utterance = |&length: &usize| {
            let rows = x.narrow(0, first_row, length).unwrap();
            first_row += length;
            let image = rows.reshape((1, length, bins, inputs)).unwrap().permute((0, 3, 1, 2)).unwrap();
            let image = image.pad_with_zeros(2, padding, 1).unwrap().pad_with_zeros(3, padding, 1).unwrap();
            let y = image.contiguous().unwrap().conv2d(w, 0, 1, 1, 1).unwrap();
            let y = y.broadcast_add(&b.reshape((1, outputs, 1, 1)).unwrap()).unwrap().relu().unwrap();
            let (_, _, all_frames, all_bins) = y.dims4().unwrap();
            let y = y.index_select(&every_nth(all_frames, stride), 2).unwrap();
            let y = y.index_select(&every_nth(all_bins, 2), 3).unwrap().permute((0, 2, 3, 1)).unwrap();
            y.reshape((all_frames.div_ceil(stride), shape.width_out())).unwrap()
        };
        Tensor::cat(&lengths.iter().map(utterance).collect::<Vec<_>>(), 0).unwrap()
    }

    #[test]
    fn values_and_gradients_equal_those_of_candles_convolution() {
        for (lengths, bins, inputs, stride, padding) in [
            (&[7][..], 5, 1, 2, 1),
            (&[8, 1], 6, 3, 2, 1),
            (&[40, 33, 70], 7, 2, 1, 1),
            (&[100, 37, 64], 16, 9, 2, 1),
            (&[7, 1, 2], 5, 1, 2, 2),
            (&[40, 33], 6, 3, 2, 2),
            (&[3], 1, 2, 2, 2),
        ] {
            let shape = ConvolutionShape { bins, inputs, outputs: 4, stride, padding };
            let (input_rows, output_rows) = input_and_output_rows(lengths, stride, padding);
            let (x, w, b) = (
                test_values(&[input_rows.rows(), bins * inputs], 0.7),
                test_values(&[4, inputs, 3, 3], 1.1),
                test_values(&[4], 0.9),
            );
            let fused = convolution(&x, &input_rows, &output_rows, shape, &w, &b).unwrap();
            let plain = plain_convolution(&x, lengths, shape, &w, &b);
            let assert_close = |a: &Tensor, b: &Tensor| {
                assert_eq!(a.dims(), b.dims());
                let pairs = values(a).into_iter().zip(values(b));
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{a} {b}"));
            };
            assert_close(&fused, &plain);
            let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let (fused, plain) = (gradients(fused), gradients(plain));
            [&x, &w, &b].into_iter().for_each(|v| assert_close(fused.get(v).unwrap(), plain.get(v).unwrap()));
        }
    }

    #[test]
    fn gradients_equal_finite_differences() {
        for (lengths, bins, inputs, stride, padding) in
            [(&[5, 0, 2][..], 5, 2, 2, 1), (&[3], 4, 1, 1, 1), (&[35], 2, 1, 2, 1), (&[5, 0, 2], 4, 2, 2, 2)]
        {
            let shape = ConvolutionShape { bins, inputs, outputs: 3, stride, padding };
            let (input_rows, output_rows) = input_and_output_rows(lengths, stride, padding);
            let arguments = [
                test_values(&[input_rows.rows(), bins * inputs], 0.7),
                test_values(&[3, inputs, 3, 3], 1.1),
                test_values(&[3], 0.9),
            ];
            check_gradients(
                |a| convolution(&a[0], &input_rows, &output_rows, shape, &a[1], &a[2]).unwrap(),
                &arguments,
            );
        }
    }

    #[test]
    fn bits_do_not_depend_on_threads_or_other_utterances() {
        let shape = ConvolutionShape { bins: 20, inputs: 4, outputs: 8, stride: 2, padding: 1 };
        let run = |lengths: &[usize], first_row: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (input_rows, output_rows) = input_and_output_rows(lengths, 2, 1);
                let to_f32 = |v: Var| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap();
                let x = test_values(&[130, 80], 0.7).narrow(0, first_row, input_rows.rows()).unwrap();
                let x = to_f32(Var::from_tensor(&x).unwrap());
                let (w, b) = (to_f32(test_values(&[8, 4, 3, 3], 1.1)), to_f32(test_values(&[8], 0.9)));
                let out = convolution(&x, &input_rows, &output_rows, shape, &w, &b).unwrap();
                let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [values(&out), values(gradients.get(&x).unwrap()), values(gradients.get(&w).unwrap())]
            })
        };
        let all = run(&[51, 0, 79], 0, 1);
        assert!(all == run(&[51, 0, 79], 0, 2) && all == run(&[51, 0, 79], 0, 5));
        let single = run(&[79], 51, 2);
        assert!(all[0].ends_with(&single[0]) && all[1].ends_with(&single[1]));
    }
}
