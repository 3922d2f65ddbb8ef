//! A 3 x 3 convolution over (time, mel) with ReLU, as one operation on ragged rows.
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Accumulate, PackedRight, Real, View, ViewMut, items_mut, par_for, product, product_packed};

use crate::layers::footprint::{self, Footprint, threads};
use crate::layers::operation::{Slices, apply3, total};
use crate::layers::ragged::Ragged;
use crate::{Error, Result};

/// Output frames whose patches are gathered at a time.
const BLOCK: usize = 16;
/// Taps of each axis.
const TAPS: usize = 3;

/// Sizes of a convolution, apart from the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plane {
    /// Mel bins of the input; the stride over them is 2.
    pub bins: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// Frames from one output frame to the next.
    pub stride: usize,
}

/// Which output frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanePosition {
    /// The first of them.
    pub first: usize,
    /// Frames that output frame 0 sees before the first input frame: 1, or 0 where that is given
    /// too.
    pub outside: usize,
}

impl PlanePosition {
    fn inside(first: usize) -> Self {
        PlanePosition { first, outside: 1 }
    }
}

/// `y[t, f, o] = max(0, b_o + Σ w[o, c, i, j] x[st + i - 1, 2f + j - 1, c])`, zeros outside of the
/// utterance.
///
/// # Shapes
/// `x [Σ T_b, F·C]`, channels innermost; `weight [O, C, 3, 3]`; `bias [O]`. Returns
/// `[Σ ⌈T_b/s⌉, ⌈F/2⌉·O]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not fit.
///
/// Cost: `O(Σ ⌈T_b/s⌉ · F · C · O)` time; nothing kept beside `x` and the result: patches are
/// gathered for 16 frames at a time, and again by the backward pass.
pub(crate) fn convolution(
    x: &Tensor,
    (from, to): (&Arc<Ragged>, &Arc<Ragged>),
    plane: Plane,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let Plane { bins, inputs, outputs, .. } = plane;
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
    apply3(Convolution { from: from.clone(), to: to.clone(), plane }, x, &flat(weight)?, bias)
}

/// `[O, C, 3, 3]` to `[O, 3·3·C]`, in the order of a patch.
pub(crate) fn flat(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, ..) = weight.dims4()?;
    Ok(weight.permute((0, 2, 3, 1))?.reshape((outputs, TAPS * TAPS * inputs))?)
}

struct Convolution {
    from: Arc<Ragged>,
    to: Arc<Ragged>,
    plane: Plane,
}

impl Plane {
    /// Mel bins of the output.
    pub fn bins_out(&self) -> usize {
        self.bins.div_ceil(2)
    }

    /// Values of an input frame.
    pub fn width(&self) -> usize {
        self.bins * self.inputs
    }

    /// Values of an output frame.
    pub fn width_out(&self) -> usize {
        self.bins_out() * self.outputs
    }

    /// Values of a patch: time, then mel, then channels.
    fn patch(&self) -> usize {
        TAPS * TAPS * self.inputs
    }

    /// For each output bin and tap over time: the frame of an utterance of `count` that it sees,
    /// the bin, and where in the patches.
    fn spans(
        &self,
        place: PlanePosition,
        frames: usize,
        count: usize,
        mut each: impl FnMut(usize, usize, usize),
    ) {
        let side = TAPS * self.inputs;
        for (at, i) in (0..frames).flat_map(|at| (0..TAPS).map(move |i| (at, i))) {
            let t = ((place.first + at) * self.stride + i).checked_sub(place.outside);
            let Some(t) = t.filter(|&t| t < count) else { continue };
            for f in 0..self.bins_out() {
                each(t, f, (at * self.bins_out() + f) * self.patch() + i * side);
            }
        }
    }

    /// The columns of an input frame that output bin `f` sees, and where they begin in a side of
    /// its patch.
    fn columns(&self, f: usize) -> (std::ops::Range<usize>, usize) {
        let (from, to) = ((2 * f).saturating_sub(1), self.bins.min(2 * f + 2));
        (from * self.inputs..to * self.inputs, if f == 0 { self.inputs } else { 0 })
    }

    /// Patches of `frames` output frames of an utterance `x`; zeros outside.
    fn gather<F: Real>(&self, x: &[F], place: PlanePosition, frames: usize, patches: &mut [F]) {
        patches.fill(F::ZERO);
        self.spans(place, frames, x.len() / self.width(), |t, f, to| {
            let (columns, skip) = self.columns(f);
            patches[to + skip..][..columns.len()].copy_from_slice(&x[t * self.width()..][columns]);
        });
    }

    /// The transpose of [`Self::gather`].
    fn scatter<F: Real>(&self, patches: &[F], place: PlanePosition, frames: usize, x: &mut [F]) {
        let width = self.width();
        self.spans(place, frames, x.len() / width, |t, f, from| {
            let (columns, skip) = self.columns(f);
            let patch = &patches[from + skip..][..columns.len()];
            kernels::add(&mut x[t * width..][columns], patch);
        });
    }

    /// Some output frames of an utterance `x`.
    pub fn forward<F: Real>(
        &self,
        x: &[F],
        place: PlanePosition,
        weight: &PackedRight<F>,
        bias: &[F],
        out: &mut [F],
    ) {
        let frames = out.len() / self.width_out();
        let rows = frames * self.bins_out();
        let mut patches = vec![F::ZERO; rows * self.patch()];
        self.gather(x, place, frames, &mut patches);
        let target = ViewMut::new(&mut *out, rows, self.outputs);
        product_packed(target, View::new(&patches, rows, self.patch()), weight, Accumulate::Replace);
        for row in out.chunks_exact_mut(self.outputs) {
            for (y, &b) in row.iter_mut().zip(bias) {
                let z = *y + b;
                // Not a number stays what it is.
                *y = if z < F::ZERO { F::ZERO } else { z };
            }
        }
    }

    /// What the operation takes for so many utterances of `before` frames that become `after`.
    pub fn held(&self, utterances: usize, [before, after]: [usize; 2]) -> Footprint {
        let [before, after] = [before, after].map(|frames| utterances * frames);
        let weight = self.outputs * (self.patch() + 1);
        // Patches of the frames that threads have in hand, and what they scatter.
        let frames = after.max(utterances * BLOCK).min(threads() * BLOCK).next_multiple_of(BLOCK);
        let gathered = frames * self.bins_out();
        let gathered = gathered * (self.patch() + self.outputs);
        // Both gradients; sums of the weight's by utterance.
        let passing =
            before * self.width() + 2 * after * self.width_out() + gathered + (utterances + 3) * weight;
        footprint::numbers(after * self.width_out() + weight, passing)
    }

    /// The weight as [`Self::forward`] takes it, from that of [`flat`].
    pub fn pack<F: Real>(&self, weight: &[F]) -> PackedRight<F> {
        PackedRight::new(View::new(weight, self.outputs, self.patch()).transposed())
    }
}

impl Slices<3> for Convolution {
    const NAME: &'static str = "convolution";

    fn shape(&self) -> Shape {
        Shape::from((self.to.rows(), self.plane.width_out()))
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let (plane, weight) = (self.plane, self.plane.pack(weight));
        let mut out = kernels::alloc(self.to.rows() * plane.width_out(), F::ZERO);
        par_for(items_mut(&mut self.to.blocks(&mut out, plane.width_out(), BLOCK)), |_, block| {
            let x = self.from.of(x, plane.width(), block.utterance);
            plane.forward(x, PlanePosition::inside(block.first), &weight, bias, block.rows);
        });
        out
    }

    /// ```text
    /// dz = dy where y > 0      dW = Σ dzᵀ patches      db = Σ dz      dx: patches of dz W, scattered frame by frame
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weight, bias]: [&[F]; 3],
        out: &[F],
        above: &[F],
        wanted: bool,
    ) -> [Vec<F>; 3] {
        let (plane, patch, outputs) = (self.plane, self.plane.patch(), bias.len());
        let mut dx = kernels::alloc(if wanted { x.len() } else { 0 }, F::ZERO);
        let each = outputs * (patch + 1);
        let mut partial = vec![F::ZERO; self.from.utterances() * each];
        let mut of_x = if wanted { self.from.cut(&mut dx, plane.width()) } else { Vec::new() };
        let of_x = wanted.then(|| items_mut(&mut of_x));
        par_for((kernels::parts_mut(&mut partial, each), of_x), |b, (sums, mut dx)| {
            let (dw, db) = sums.split_at_mut(outputs * patch);
            let x = self.from.of(x, plane.width(), b);
            let [out, above] = [out, above].map(|rows| self.to.of(rows, plane.width_out(), b));
            let rows = BLOCK * plane.bins_out();
            let (mut patches, mut dz) = (vec![F::ZERO; rows * patch], vec![F::ZERO; rows * outputs]);
            let blocks = out.chunks(rows * outputs).zip(above.chunks(rows * outputs));
            for (first, (out, above)) in (0..).step_by(BLOCK).zip(blocks) {
                let (frames, rows) = (out.len() / plane.width_out(), out.len() / outputs);
                let place = PlanePosition::inside(first);
                let (patches, dz) = (&mut patches[..rows * patch], &mut dz[..out.len()]);
                for (dz, (&y, &dy)) in dz.iter_mut().zip(out.iter().zip(above)) {
                    *dz = if y > F::ZERO { dy } else { F::ZERO };
                }
                dz.chunks_exact(outputs).for_each(|dz| kernels::add(db, dz));
                plane.gather(x, place, frames, patches);
                let across = View::new(dz, rows, outputs);
                let target = ViewMut::new(dw, outputs, patch);
                product(
                    target,
                    across.transposed(),
                    View::new(patches, rows, patch),
                    F::ONE,
                    Accumulate::Add,
                );
                let Some(dx) = dx.as_mut() else { continue };
                let target = ViewMut::new(patches, rows, patch);
                product(target, across, View::new(weight, outputs, patch), F::ONE, Accumulate::Replace);
                plane.scatter(patches, place, frames, dx);
            }
        });
        let mut dw = total(&partial, each);
        let db = dw.split_off(outputs * patch);
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Var};

    use super::*;
    use crate::layers::operation::tests::{check_gradients, values, wave};

    fn reduced(lengths: &[usize], stride: usize) -> (Arc<Ragged>, Arc<Ragged>) {
        let to: Vec<usize> = lengths.iter().map(|length| length.div_ceil(stride)).collect();
        (Ragged::new(lengths), Ragged::new(&to))
    }

    /// candle has one stride for both axes: frames and bins in between are thrown away.
    fn plain(x: &Tensor, lengths: &[usize], plane: Plane, w: &Tensor, b: &Tensor) -> Tensor {
        let Plane { bins, inputs, outputs, stride } = plane;
        let every = |count: usize, step: usize| {
            let numbers = (0..count as u32).step_by(step);
            Tensor::from_iter(numbers, &candle_core::Device::Cpu).unwrap()
        };
        let mut first = 0;
        let one = |&length: &usize| {
            let rows = x.narrow(0, first, length).unwrap();
            first += length;
            let image = rows.reshape((1, length, bins, inputs)).unwrap().permute((0, 3, 1, 2)).unwrap();
            let y = image.contiguous().unwrap().conv2d(w, 1, 1, 1, 1).unwrap();
            let y = y.broadcast_add(&b.reshape((1, outputs, 1, 1)).unwrap()).unwrap().relu().unwrap();
            let y = y.index_select(&every(length, stride), 2).unwrap();
            let y = y.index_select(&every(bins, 2), 3).unwrap().permute((0, 2, 3, 1)).unwrap();
            y.reshape((length.div_ceil(stride), plane.width_out())).unwrap()
        };
        Tensor::cat(&lengths.iter().map(one).collect::<Vec<_>>(), 0).unwrap()
    }

    #[test]
    fn values_and_gradients_are_those_of_candles_convolution() {
        for (lengths, bins, inputs, stride) in
            [(&[7][..], 5, 1, 2), (&[8, 1], 6, 3, 2), (&[40, 33, 70], 7, 2, 1), (&[100, 37, 64], 16, 9, 2)]
        {
            let plane = Plane { bins, inputs, outputs: 4, stride };
            let (from, to) = reduced(lengths, stride);
            let (x, w, b) =
                (wave(&[from.rows(), bins * inputs], 0.7), wave(&[4, inputs, 3, 3], 1.1), wave(&[4], 0.9));
            let ours = convolution(&x, (&from, &to), plane, &w, &b).unwrap();
            let plain = plain(&x, lengths, plane, &w, &b);
            let close = |a: &Tensor, b: &Tensor| {
                assert_eq!(a.dims(), b.dims());
                let pairs = values(a).into_iter().zip(values(b));
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{a} {b}"));
            };
            close(&ours, &plain);
            let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let (ours, plain) = (gradients(ours), gradients(plain));
            [&x, &w, &b].into_iter().for_each(|v| close(ours.get(v).unwrap(), plain.get(v).unwrap()));
        }
    }

    #[test]
    fn gradients_are_those_of_differences() {
        for (lengths, bins, inputs, stride) in [(&[5, 0, 2][..], 5, 2, 2), (&[3], 4, 1, 1), (&[35], 2, 1, 2)]
        {
            let plane = Plane { bins, inputs, outputs: 3, stride };
            let (from, to) = reduced(lengths, stride);
            let all =
                [wave(&[from.rows(), bins * inputs], 0.7), wave(&[3, inputs, 3, 3], 1.1), wave(&[3], 0.9)];
            check_gradients(|a| convolution(&a[0], (&from, &to), plane, &a[1], &a[2]).unwrap(), &all);
        }
    }

    #[test]
    fn bits_depend_neither_on_threads_nor_on_batch_mates() {
        let plane = Plane { bins: 20, inputs: 4, outputs: 8, stride: 2 };
        let run = |lengths: &[usize], first: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let (from, to) = reduced(lengths, 2);
                let single = |v: Var| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap();
                let x = wave(&[130, 80], 0.7).narrow(0, first, from.rows()).unwrap();
                let x = single(Var::from_tensor(&x).unwrap());
                let (w, b) = (single(wave(&[8, 4, 3, 3], 1.1)), single(wave(&[8], 0.9)));
                let out = convolution(&x, (&from, &to), plane, &w, &b).unwrap();
                let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [values(&out), values(gradients.get(&x).unwrap()), values(gradients.get(&w).unwrap())]
            })
        };
        let all = run(&[51, 0, 79], 0, 1);
        assert!(all == run(&[51, 0, 79], 0, 2) && all == run(&[51, 0, 79], 0, 5));
        let alone = run(&[79], 51, 2);
        assert!(all[0].ends_with(&alone[0]) && all[1].ends_with(&alone[1]));
    }
}
