//! Half a feed-forward module and what it is added to, as one operation.
//!
//! A graph of single operations keeps three buffers of the inner width for each gradient. Here a
//! task takes some rows all the way, so that inner rows stay in its cache, and the backward pass
//! computes them again.
use candle_core::{Shape, Tensor};
use kernels::{
    Accumulate, Affine, PackedRight, Real, View, ViewMut, alloc, par_for, parts, parts_mut, product_packed,
};

use crate::layers::gates::{silu_back, silu_in_place};
use crate::layers::layer_norm;
use crate::layers::layer_norm::LayerNorm;
use crate::training_pass::DropoutMask;
use crate::{Linear, Result};

use crate::layers::operation::{Slices, apply3, total};

/// Rows of a task: a multiple of those of a micro-kernel whose inner rows fit in the second-level
/// cache.
const ROWS: usize = 56;

/// `y = x + ½ m₂ ∘ (W₂ (m₁ ∘ silu(W₁ n + b₁)) + b₂)`, `n = layer_norm(x)`, with dropout masks m.
///
/// # Shapes
/// `x [N, W]`, the layers `[F, W]` and `[W, F]`; masks of `N·F` and `N·W` elements. Returns
/// `[N, W]`.
///
/// # Errors
/// [`crate::Error::Shape`] for types that differ.
///
/// Cost: `O(N · W · F)` time, a seventh of it for what the backward pass computes again; nothing
/// kept beside `x` and the masks, and `2N·F` numbers while the backward pass runs.
pub(crate) fn feed_forward(
    x: &Tensor,
    norm: &LayerNorm,
    [first, second]: [&Linear; 2],
    masks: [Option<DropoutMask>; 2],
) -> Result<Tensor> {
    let (inner, width) = first.weight().dims2()?;
    let weights = Tensor::cat(&[&first.weight().flatten_all()?, &second.weight().flatten_all()?], 0)?;
    let biases = Tensor::cat(&[first.bias(), second.bias(), &norm.weight, &norm.bias], 0)?;
    apply3(FeedForward { rows: x.dim(0)?, width, inner, masks }, x, &weights, &biases)
}

struct FeedForward {
    rows: usize,
    width: usize,
    inner: usize,
    masks: [Option<DropoutMask>; 2],
}

/// The parameters of one module.
struct FeedForwardWeights<'a, F> {
    /// `[F, W]` and `[W, F]`
    weights: [&'a [F]; 2],
    biases: [&'a [F]; 2],
    /// Weight and bias of the layer norm.
    norm: [&'a [F]; 2],
}

/// Multiplies values, of which the first has the number `first`.
fn drop<F: Real>(mask: &Option<DropoutMask>, first: usize, values: &mut [F]) {
    if let Some(mask) = mask {
        mask.multiply(first, values);
    }
}

/// `out = rows · matrix + bias`
fn times<F: Real>(rows: &[F], matrix: &PackedRight<F>, bias: Option<&[F]>, out: &mut [F]) {
    let (inputs, outputs) = matrix.shape();
    let count = rows.len() / inputs;
    let target = ViewMut::new(&mut *out, count, outputs);
    product_packed(target, View::new(rows, count, inputs), matrix, Accumulate::Replace);
    if let Some(bias) = bias {
        out.chunks_exact_mut(outputs).for_each(|row| kernels::add(row, bias));
    }
}

impl FeedForward {
    fn parameters<'a, F>(&self, weights: &'a [F], biases: &'a [F]) -> FeedForwardWeights<'a, F> {
        let (first, second) = weights.split_at(self.inner * self.width);
        let (first_bias, rest) = biases.split_at(self.inner);
        let (second_bias, norm) = rest.split_at(self.width);
        FeedForwardWeights {
            weights: [first, second],
            biases: [first_bias, second_bias],
            norm: norm.split_at(self.width).into(),
        }
    }

    /// Both weights `[O, D]`.
    fn views<'a, F: Real>(&self, parameters: &FeedForwardWeights<'a, F>) -> [View<'a, F>; 2] {
        let [first, second] = parameters.weights;
        [View::new(first, self.inner, self.width), View::new(second, self.width, self.inner)]
    }
}

impl Slices<3> for FeedForward {
    const NAME: &'static str = "feed forward";

    fn shape(&self) -> Shape {
        Shape::from((self.rows, self.width))
    }

    fn forward<F: Real>(&self, [x, weights, biases]: [&[F]; 3]) -> Vec<F> {
        let (width, inner) = (self.width, self.inner);
        let parameters = self.parameters(weights, biases);
        let [first, second] = self.views(&parameters).map(|weight| PackedRight::new(weight.transposed()));
        let FeedForwardWeights { biases, norm, .. } = parameters;
        let mut out = alloc(x.len(), F::ZERO);
        par_for((parts_mut(&mut out, ROWS * width), parts(x, ROWS * width)), |at, (out, x)| {
            let count = x.len() / width;
            let (mut n, mut h) = (vec![F::ZERO; x.len()], vec![F::ZERO; count * inner]);
            layer_norm::forward_rows(x, norm[0], norm[1], &mut n);
            times(&n, &first, Some(biases[0]), &mut h);
            silu_in_place(&mut h);
            drop(&self.masks[0], at * ROWS * inner, &mut h);
            let y = &mut n;
            times(&h, &second, Some(biases[1]), y);
            drop(&self.masks[1], at * ROWS * width, y);
            out.copy_from_slice(x);
            kernels::add_scaled(out, F::from_f64(0.5), y);
        });
        out
    }

    /// ```text
    /// tasks of rows      h = W₁ n + b₁     a = m₁ ∘ silu(h)     du = ½ m₂ ∘ dy     dh = silu'(h) ∘ m₁ ∘ (du W₂)
    ///                    dx = dy + that of the layer norm from dh W₁
    /// all rows at once   dW₂ = duᵀ a     db₂ = Σ du     dW₁ = dhᵀ n     db₁ = Σ dh
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weights, biases]: [&[F]; 3],
        _: &[F],
        above: &[F],
        _: bool,
    ) -> [Vec<F>; 3] {
        let (width, inner) = (self.width, self.inner);
        let parameters = self.parameters(weights, biases);
        let views = self.views(&parameters);
        let first = PackedRight::new(views[0].transposed());
        let [first_back, second_back] = views.map(PackedRight::new);
        let FeedForwardWeights { biases: [first_bias, _], norm, .. } = parameters;

        let [mut dx, mut n, mut du] = [0; 3].map(|_| alloc(x.len(), F::ZERO));
        let [mut a, mut dh] = [0; 2].map(|_| alloc(self.rows * inner, F::ZERO));
        let mut partial = vec![F::ZERO; self.rows.div_ceil(ROWS) * 2 * width];
        let narrow = (
            parts_mut(&mut dx, ROWS * width),
            parts_mut(&mut n, ROWS * width),
            parts_mut(&mut du, ROWS * width),
        );
        let wide = (parts_mut(&mut a, ROWS * inner), parts_mut(&mut dh, ROWS * inner));
        let given = (parts(x, ROWS * width), parts(above, ROWS * width));
        let all = (narrow, wide, given, parts_mut(&mut partial, 2 * width));
        par_for(all, |at, ((dx, n, du), (a, dh), (x, above), sums)| {
            layer_norm::forward_rows(x, norm[0], norm[1], n);
            times(n, &first, Some(first_bias), dh);
            a.copy_from_slice(dh);
            silu_in_place(a);
            drop(&self.masks[0], at * ROWS * inner, a);
            du.copy_from_slice(above);
            du.iter_mut().for_each(|du| *du *= F::from_f64(0.5));
            drop(&self.masks[1], at * ROWS * width, du);
            let mut da = vec![F::ZERO; dh.len()];
            times(du, &second_back, None, &mut da);
            drop(&self.masks[0], at * ROWS * inner, &mut da);
            silu_back(dh, &da);
            let mut dn = vec![F::ZERO; dx.len()];
            times(dh, &first_back, None, &mut dn);
            layer_norm::backward_rows(x, norm[0], &dn, dx, sums);
            kernels::add(dx, above);
        });
        let mut dw = vec![F::ZERO; weights.len()];
        let mut db = vec![F::ZERO; inner + width];
        let ((dw1, dw2), (db1, db2)) = (dw.split_at_mut(inner * width), db.split_at_mut(inner));
        for (view, runs, dw, db) in [(views[0], (&n, &dh), dw1, db1), (views[1], (&a, &du), dw2, db2)] {
            Affine::new(view.transposed(), None).backward_parameters(&[(runs.0, runs.1)], dw, db);
        }
        db.extend(total(&partial, 2 * width));
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::TrainingPass;
    use crate::layers::gates::silu;
    use crate::layers::linear::linear;
    use crate::layers::operation::tests::{check_gradients, values, wave};

    /// Masks for so many rows; the same for the same number of them.
    fn masks(rows: usize, rate: f32) -> [Option<DropoutMask>; 2] {
        let mut pass = TrainingPass::new(1, 2, &[3]);
        [pass.mask(&[rows * 5], rate), pass.mask(&[rows * 3], rate)]
    }

    fn run(a: &[Var], rate: f32) -> Tensor {
        let norm = LayerNorm { weight: a[5].as_tensor().clone(), bias: a[6].as_tensor().clone() };
        let layer = |at: usize| Linear::from_parts(a[at].as_tensor().clone(), a[at + 1].as_tensor().clone());
        feed_forward(&a[0], &norm, [&layer(1), &layer(3)], masks(a[0].dims()[0], rate)).unwrap()
    }

    /// The same from its parts.
    fn plain(a: &[Var], rate: f32) -> Tensor {
        let rows = a[0].dims()[0];
        let factors = |which: usize, width: usize| {
            let mut ones = vec![1.0; rows * width];
            drop(&masks(rows, rate)[which], 0, &mut ones);
            Tensor::from_vec(ones, (rows, width), &candle_core::Device::Cpu).unwrap()
        };
        let n = layer_norm::layer_norm(&a[0], &a[5], &a[6]).unwrap();
        let inner = (silu(&linear(&n, &a[1], &a[2]).unwrap()).unwrap() * factors(0, 5)).unwrap();
        let y = (linear(&inner, &a[3], &a[4]).unwrap() * factors(1, 3)).unwrap();
        (a[0].as_tensor() + (y * 0.5).unwrap()).unwrap()
    }

    fn arguments(rows: usize) -> Vec<Var> {
        let shapes: [&[usize]; 7] = [&[rows, 3], &[5, 3], &[5], &[3, 5], &[3], &[3], &[3]];
        shapes.iter().enumerate().map(|(k, shape)| wave(shape, 0.7 + 0.2 * k as f64)).collect()
    }

    #[test]
    fn gradients_are_those_of_differences() {
        for rate in [0.0, 0.4] {
            check_gradients(|a| run(a, rate), &arguments(4));
        }
    }

    /// More rows than a task has.
    #[test]
    fn values_and_gradients_are_those_of_its_parts() {
        for rate in [0.0, 0.4] {
            let all = arguments(150);
            let close = |a: &Tensor, b: &Tensor| {
                let pairs = values(a).into_iter().zip(values(b));
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-11 * (1.0 + b.abs()), "{a} {b}"));
            };
            let (ours, plain) = (run(&all, rate), plain(&all, rate));
            close(&ours, &plain);
            let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let (ours, plain) = (gradients(ours), gradients(plain));
            all.iter().for_each(|v| close(ours.get(v).unwrap(), plain.get(v).unwrap()));
        }
    }
}
