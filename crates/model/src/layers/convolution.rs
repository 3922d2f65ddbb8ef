//! A 3 x 3 convolution over time and mel bands with ReLU, for subsampling.
//!
//! It is a matrix product of patches: the 3 x 3 x C input values of an output frame and bin,
//! gathered for some frames at a time. A frame is F mel bins of C channels, channels innermost; O
//! is the number of output channels, s the stride over time; the stride over mel bins is always 2.
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Accumulate, PackedRight, Real, View, ViewMut, items_mut, par_for, product, product_packed};

use crate::layers::footprint::{self, Footprint, threads};
use crate::layers::operation::{SliceOperation, apply3, sum_parts};
use crate::layers::ragged::Ragged;
use crate::{Error, Result};

/// Output frames whose patches are gathered at a time.
const FRAMES_PER_BLOCK: usize = 16;
/// Taps of each axis.
const TAPS: usize = 3;

/// The shape of a convolution, apart from the number of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvolutionShape {
    /// Mel bins of the input; the stride over them is 2.
    pub bins: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// Frames from one output frame to the next.
    pub stride: usize,
}

/// The window of an output frame in the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowPosition {
    /// The first output frame.
    pub first: usize,
    /// Frames in the window of output frame 0 before the first input frame.
    ///
    /// 1, or 0 if the input begins with that frame.
    pub outside: usize,
}

impl WindowPosition {
    fn inside(first: usize) -> Self {
        WindowPosition { first, outside: 1 }
    }
}

/// Convolves the frames of each utterance, with zero padding and ReLU.
///
/// `y[t, f, o] = max(0, b_o + Σ w[o, c, i, j] x[st + i - 1, 2f + j - 1, c])`
///
/// # Shapes
/// `x [Σ T_b, F·C]`, channels innermost; `weight [O, C, 3, 3]`; `bias [O]`. Returns
/// `[Σ ⌈T_b/s⌉, ⌈F/2⌉·O]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ ⌈T_b/s⌉ · F · C · O)` time; only `x` and the result are saved: patches are gathered
/// for 16 frames at a time, and again in the backward pass.
pub(crate) fn convolution(
    x: &Tensor,
    (from, to): (&Arc<Ragged>, &Arc<Ragged>),
    shape: ConvolutionShape,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let ConvolutionShape { bins, inputs, outputs, .. } = shape;
    let shapes: [(&str, &Tensor, &[usize]); 3] = [
        ("x", x, &[from.rows(), bins * inputs]),
        ("weight", weight, &[outputs, inputs, TAPS, TAPS]),
        ("bias", bias, &[outputs]),
    ];
    for (name, tensor, expected) in shapes {
        if tensor.dims() != expected || expected[1..].contains(&0) {
            return Err(Error::shape(name, format!("{expected:?}"), format!("{:?}", tensor.dims())));
        }
    }
    apply3(Convolution { from: from.clone(), to: to.clone(), shape }, x, &flat(weight)?, bias)
}

/// Reorders weights `[O, C, 3, 3]` to `[O, 3·3·C]`, in the order of a patch.
pub(crate) fn flat(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, ..) = weight.dims4()?;
    Ok(weight.permute((0, 2, 3, 1))?.reshape((outputs, TAPS * TAPS * inputs))?)
}

struct Convolution {
    from: Arc<Ragged>,
    to: Arc<Ragged>,
    shape: ConvolutionShape,
}

impl ConvolutionShape {
    /// Returns the mel bins of the output.
    pub fn bins_out(&self) -> usize {
        self.bins.div_ceil(2)
    }

    /// Returns the values of an input frame.
    pub fn width(&self) -> usize {
        self.bins * self.inputs
    }

    /// Returns the values of an output frame.
    pub fn width_out(&self) -> usize {
        self.bins_out() * self.outputs
    }

    /// Returns the values of a patch: time, then mel, then channels.
    fn patch(&self) -> usize {
        TAPS * TAPS * self.inputs
    }

    /// Calls `each` for every output frame, output bin, and tap over time.
    ///
    /// Its arguments are the input frame, which is below `count`, the output bin, and the offset in
    /// the patches.
    fn spans(
        &self,
        position: WindowPosition,
        frames: usize,
        count: usize,
        mut each: impl FnMut(usize, usize, usize),
    ) {
        let width = TAPS * self.inputs;
        for (at, i) in (0..frames).flat_map(|at| (0..TAPS).map(move |i| (at, i))) {
            let t = ((position.first + at) * self.stride + i).checked_sub(position.outside);
            let Some(t) = t.filter(|&t| t < count) else { continue };
            for f in 0..self.bins_out() {
                each(t, f, (at * self.bins_out() + f) * self.patch() + i * width);
            }
        }
    }

    /// Returns the input columns of output bin `f`.
    ///
    /// Their offset in one tap of the patch is returned as well.
    fn columns(&self, f: usize) -> (std::ops::Range<usize>, usize) {
        let (from, to) = ((2 * f).saturating_sub(1), self.bins.min(2 * f + 2));
        (from * self.inputs..to * self.inputs, if f == 0 { self.inputs } else { 0 })
    }

    /// Gathers the patches of `frames` output frames of an utterance.
    fn gather<F: Real>(&self, x: &[F], position: WindowPosition, frames: usize, patches: &mut [F]) {
        patches.fill(F::ZERO);
        self.spans(position, frames, x.len() / self.width(), |t, f, to| {
            let (columns, skip) = self.columns(f);
            patches[to + skip..][..columns.len()].copy_from_slice(&x[t * self.width()..][columns]);
        });
    }

    /// Adds patches to the frames that [`Self::gather`] reads: its transpose.
    fn scatter<F: Real>(&self, patches: &[F], position: WindowPosition, frames: usize, x: &mut [F]) {
        let width = self.width();
        self.spans(position, frames, x.len() / width, |t, f, from| {
            let (columns, skip) = self.columns(f);
            let patch = &patches[from + skip..][..columns.len()];
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
        let rows = frames * self.bins_out();
        let mut patches = vec![F::ZERO; rows * self.patch()];
        self.gather(x, position, frames, &mut patches);
        let target = ViewMut::new(&mut *out, rows, self.outputs);
        product_packed(target, View::new(&patches, rows, self.patch()), weight, Accumulate::Replace);
        for row in out.chunks_exact_mut(self.outputs) {
            for (y, &b) in row.iter_mut().zip(bias) {
                let z = *y + b;
                // NaN is preserved.
                *y = if z < F::ZERO { F::ZERO } else { z };
            }
        }
    }

    /// Returns the memory of the operation.
    ///
    /// Utterances of `before` frames become `after` frames.
    pub fn footprint(&self, utterances: usize, [before, after]: [usize; 2]) -> Footprint {
        let [before, after] = [before, after].map(|frames| utterances * frames);
        let weight = self.outputs * (self.patch() + 1);
        // Patches of the frames that threads process, and what they scatter.
        let frames = after
            .max(utterances * FRAMES_PER_BLOCK)
            .min(threads() * FRAMES_PER_BLOCK)
            .next_multiple_of(FRAMES_PER_BLOCK);
        let gathered = frames * self.bins_out();
        let gathered = gathered * (self.patch() + self.outputs);
        // Gradients of input and result; sums of the weight's gradient for each utterance.
        let temporary =
            before * self.width() + 2 * after * self.width_out() + gathered + (utterances + 3) * weight;
        footprint::numbers(after * self.width_out() + weight, temporary)
    }

    /// Packs the weight of [`flat`] for [`Self::forward`].
    pub fn pack<F: Real>(&self, weight: &[F]) -> PackedRight<F> {
        PackedRight::new(View::new(weight, self.outputs, self.patch()).transposed())
    }
}

impl SliceOperation<3> for Convolution {
    const NAME: &'static str = "convolution";

    fn shape(&self) -> Shape {
        Shape::from((self.to.rows(), self.shape.width_out()))
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let (shape, weight) = (self.shape, self.shape.pack(weight));
        let mut out = kernels::alloc(self.to.rows() * shape.width_out(), F::ZERO);
        let mut blocks = self.to.blocks(&mut out, shape.width_out(), FRAMES_PER_BLOCK);
        par_for(items_mut(&mut blocks), |_, block| {
            let x = self.from.utterance(x, shape.width(), block.utterance);
            shape.forward(x, WindowPosition::inside(block.first), &weight, bias, block.rows);
        });
        out
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
        above: &[F],
        is_input_needed: bool,
    ) -> [Vec<F>; 3] {
        let (shape, patch, outputs) = (self.shape, self.shape.patch(), bias.len());
        let mut dx = kernels::alloc(if is_input_needed { x.len() } else { 0 }, F::ZERO);
        let len = outputs * (patch + 1);
        let mut partial = vec![F::ZERO; self.from.utterances() * len];
        let mut dx_parts =
            if is_input_needed { self.from.split_mut(&mut dx, shape.width()) } else { Vec::new() };
        let dx_parts = is_input_needed.then(|| items_mut(&mut dx_parts));
        par_for((kernels::parts_mut(&mut partial, len), dx_parts), |b, (sums, mut dx)| {
            let (dw, db) = sums.split_at_mut(outputs * patch);
            let x = self.from.utterance(x, shape.width(), b);
            let [out, above] = [out, above].map(|rows| self.to.utterance(rows, shape.width_out(), b));
            let rows = FRAMES_PER_BLOCK * shape.bins_out();
            let (mut patches, mut dz) = (vec![F::ZERO; rows * patch], vec![F::ZERO; rows * outputs]);
            let blocks = out.chunks(rows * outputs).zip(above.chunks(rows * outputs));
            for (first, (out, above)) in (0..).step_by(FRAMES_PER_BLOCK).zip(blocks) {
                let (frames, rows) = (out.len() / shape.width_out(), out.len() / outputs);
                let position = WindowPosition::inside(first);
                let (patches, dz) = (&mut patches[..rows * patch], &mut dz[..out.len()]);
                for (dz, (&y, &dy)) in dz.iter_mut().zip(out.iter().zip(above)) {
                    *dz = if y > F::ZERO { dy } else { F::ZERO };
                }
                dz.chunks_exact(outputs).for_each(|dz| kernels::add(db, dz));
                shape.gather(x, position, frames, patches);
                let dz_view = View::new(dz, rows, outputs);
                let target = ViewMut::new(dw, outputs, patch);
                product(
                    target,
                    dz_view.transposed(),
                    View::new(patches, rows, patch),
                    F::ONE,
                    Accumulate::Add,
                );
                let Some(dx) = dx.as_mut() else { continue };
                let target = ViewMut::new(patches, rows, patch);
                product(target, dz_view, View::new(weight, outputs, patch), F::ONE, Accumulate::Replace);
                shape.scatter(patches, position, frames, dx);
            }
        });
        let mut dw = sum_parts(&partial, len);
        let db = dw.split_off(outputs * patch);
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Var};

    use super::*;
    use crate::layers::operation::tests::{check_gradients, values, wave};

    fn ragged_pair(lengths: &[usize], stride: usize) -> (Arc<Ragged>, Arc<Ragged>) {
        let to: Vec<usize> = lengths.iter().map(|length| length.div_ceil(stride)).collect();
        (Ragged::new(lengths), Ragged::new(&to))
    }

    /// Computes the convolution with candle's operations.
    ///
    /// Candle's stride is the same for both axes.
    ///
    /// Frames and bins between the strides are computed and discarded.
    fn plain(x: &Tensor, lengths: &[usize], shape: ConvolutionShape, w: &Tensor, b: &Tensor) -> Tensor {
        let ConvolutionShape { bins, inputs, outputs, stride } = shape;
        let select = |count: usize, step: usize| {
            let numbers = (0..count as u32).step_by(step);
            Tensor::from_iter(numbers, &candle_core::Device::Cpu).unwrap()
        };
        let mut first = 0;
        let utterance = |&length: &usize| {
            let rows = x.narrow(0, first, length).unwrap();
            first += length;
            let image = rows.reshape((1, length, bins, inputs)).unwrap().permute((0, 3, 1, 2)).unwrap();
            let y = image.contiguous().unwrap().conv2d(w, 1, 1, 1, 1).unwrap();
            let y = y.broadcast_add(&b.reshape((1, outputs, 1, 1)).unwrap()).unwrap().relu().unwrap();
            let y = y.index_select(&select(length, stride), 2).unwrap();
            let y = y.index_select(&select(bins, 2), 3).unwrap().permute((0, 2, 3, 1)).unwrap();
            y.reshape((length.div_ceil(stride), shape.width_out())).unwrap()
        };
        Tensor::cat(&lengths.iter().map(utterance).collect::<Vec<_>>(), 0).unwrap()
    }

    #[test]
    fn values_and_gradients_equal_those_of_candles_convolution() {
        for (lengths, bins, inputs, stride) in
            [(&[7][..], 5, 1, 2), (&[8, 1], 6, 3, 2), (&[40, 33, 70], 7, 2, 1), (&[100, 37, 64], 16, 9, 2)]
        {
            let shape = ConvolutionShape { bins, inputs, outputs: 4, stride };
            let (from, to) = ragged_pair(lengths, stride);
            let (x, w, b) =
                (wave(&[from.rows(), bins * inputs], 0.7), wave(&[4, inputs, 3, 3], 1.1), wave(&[4], 0.9));
            let fused = convolution(&x, (&from, &to), shape, &w, &b).unwrap();
            let plain = plain(&x, lengths, shape, &w, &b);
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
        for (lengths, bins, inputs, stride) in [(&[5, 0, 2][..], 5, 2, 2), (&[3], 4, 1, 1), (&[35], 2, 1, 2)]
        {
            let shape = ConvolutionShape { bins, inputs, outputs: 3, stride };
            let (from, to) = ragged_pair(lengths, stride);
            let all =
                [wave(&[from.rows(), bins * inputs], 0.7), wave(&[3, inputs, 3, 3], 1.1), wave(&[3], 0.9)];
            check_gradients(|a| convolution(&a[0], (&from, &to), shape, &a[1], &a[2]).unwrap(), &all);
        }
    }

    #[test]
    fn bits_do_not_depend_on_threads_or_other_utterances() {
        let shape = ConvolutionShape { bins: 20, inputs: 4, outputs: 8, stride: 2 };
        let run = |lengths: &[usize], first: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (from, to) = ragged_pair(lengths, 2);
                let single = |v: Var| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap();
                let x = wave(&[130, 80], 0.7).narrow(0, first, from.rows()).unwrap();
                let x = single(Var::from_tensor(&x).unwrap());
                let (w, b) = (single(wave(&[8, 4, 3, 3], 1.1)), single(wave(&[8], 0.9)));
                let out = convolution(&x, (&from, &to), shape, &w, &b).unwrap();
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
