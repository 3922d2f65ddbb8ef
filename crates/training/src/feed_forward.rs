//! Half a feed-forward module and what it is added to, as one operation.
//!
//! A graph of single operations keeps three buffers of the inner width for each gradient. Here nothing of that width outlives the
//! call: the backward pass computes the inner rows again.
use candle_core::{Shape, Tensor};
use kernels::{Real, par_for, parts_mut};

use crate::Result;
use crate::dropout::Mask;
use crate::gates::{silu_back, silu_rows};
use crate::layer_norm::{self, LayerNorm};
use crate::linear::{self, Linear};
use crate::ops::{Slices, apply3};

/// Elements of a task.
const SOME: usize = 1 << 14;

/// `y = x + ½ m₂ ∘ (W₂ (m₁ ∘ silu(W₁ n + b₁)) + b₂)`, `n = layer_norm(x)`, with dropout masks m.
///
/// # Shapes
/// `x [N, W]`, the layers `[F, W]` and `[W, F]`; masks of `N·F` and `N·W` elements. Returns `[N, W]`.
///
/// # Errors
/// [`crate::Error::Shape`] for types that differ.
///
/// Cost: `O(N · W · F)` time, a fifth of it for what the backward pass computes again; nothing kept beside `x` and the masks.
pub(crate) fn feed_forward(
    x: &Tensor,
    norm: &LayerNorm,
    [first, second]: [&Linear; 2],
    masks: [Option<Mask>; 2],
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
    masks: [Option<Mask>; 2],
}

/// The parameters of one module.
struct Parameters<'a, F> {
    /// `[F, W]` and `[W, F]`
    weights: [&'a [F]; 2],
    biases: [&'a [F]; 2],
    /// Weight and bias of the layer norm.
    norm: [&'a [F]; 2],
}

fn drop<F: Real>(mask: &Option<Mask>, values: &mut [F]) {
    let Some(mask) = mask else { return };
    par_for(parts_mut(values, SOME), |at, values| mask.multiply(at * SOME, values));
}

impl FeedForward {
    fn parameters<'a, F>(&self, weights: &'a [F], biases: &'a [F]) -> Parameters<'a, F> {
        let (first, second) = weights.split_at(self.inner * self.width);
        let (first_bias, rest) = biases.split_at(self.inner);
        let (second_bias, norm) = rest.split_at(self.width);
        Parameters {
            weights: [first, second],
            biases: [first_bias, second_bias],
            norm: norm.split_at(self.width).into(),
        }
    }

    /// n and W₁ n + b₁.
    fn inside<F: Real>(x: &[F], parameters: &Parameters<F>) -> [Vec<F>; 2] {
        let n = layer_norm::forward(x, parameters.norm[0], parameters.norm[1]);
        let h = linear::forward(&n, parameters.weights[0], parameters.biases[0]);
        [n, h]
    }

    /// m₁ ∘ silu(h)
    fn active<F: Real>(&self, h: &[F]) -> Vec<F> {
        let mut a = silu_rows(h);
        drop(&self.masks[0], &mut a);
        a
    }
}

impl Slices<3> for FeedForward {
    const NAME: &'static str = "feed forward";

    fn shape(&self) -> Shape {
        Shape::from((self.rows, self.width))
    }

    fn forward<F: Real>(&self, [x, weights, biases]: [&[F]; 3]) -> Vec<F> {
        let parameters = self.parameters(weights, biases);
        let [_, h] = Self::inside(x, &parameters);
        let mut y = linear::forward(&self.active(&h), parameters.weights[1], parameters.biases[1]);
        drop(&self.masks[1], &mut y);
        let mut out = x.to_vec();
        kernels::add_scaled(&mut out, F::from_f64(0.5), &y);
        out
    }

    /// ```text
    /// du = ½ m₂ ∘ dy            dW₂ = duᵀ a     db₂ = Σ du     a = m₁ ∘ silu(h)
    /// dh = silu'(h) ∘ m₁ ∘ du W₂     dW₁ = dhᵀ n     db₁ = Σ dh
    /// dx = dy + that of the layer norm from dh W₁
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weights, biases]: [&[F]; 3],
        _: &[F],
        above: &[F],
        _: bool,
    ) -> [Vec<F>; 3] {
        let parameters = self.parameters(weights, biases);
        let [n, mut h] = Self::inside(x, &parameters);
        let mut du = above.to_vec();
        du.iter_mut().for_each(|du| *du *= F::from_f64(0.5));
        drop(&self.masks[1], &mut du);
        let [mut da, dw2, db2] = linear::backward(&self.active(&h), parameters.weights[1], &du, self.inner);
        drop(&self.masks[0], &mut da);
        silu_back(&mut h, &da);
        let [dn, dw1, db1] = linear::backward(&n, parameters.weights[0], &h, self.width);
        let [mut dx, d_scale, d_shift] = layer_norm::backward(x, parameters.norm[0], &dn);
        kernels::add(&mut dx, above);
        [dx, [dw1, dw2].concat(), [db1, db2, d_scale, d_shift].concat()]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::gates::silu;
    use crate::ops::tests::{check_gradients, values, wave};
    use crate::{Masks, linear};

    /// Masks for so many rows; the same for the same number of them.
    fn masks(rows: usize, rate: f32) -> [Option<Mask>; 2] {
        let mut masks = Masks::new(1, 2, 3);
        [masks.mask(rows * 5, rate), masks.mask(rows * 3, rate)]
    }

    fn run(a: &[Var], rate: f32) -> Tensor {
        let norm = LayerNorm { weight: a[5].as_tensor().clone(), bias: a[6].as_tensor().clone() };
        let layer = |at: usize| Linear::from_parts(a[at].as_tensor().clone(), a[at + 1].as_tensor().clone());
        feed_forward(&a[0], &norm, [&layer(1), &layer(3)], masks(a[0].dims()[0], rate)).unwrap()
    }

    #[test]
    fn values_are_those_of_its_parts_and_gradients_those_of_differences() {
        let shapes: [&[usize]; 7] = [&[4, 3], &[5, 3], &[5], &[3, 5], &[3], &[3], &[3]];
        let all: Vec<Var> = shapes.iter().enumerate().map(|(k, s)| wave(s, 0.7 + 0.2 * k as f64)).collect();
        for rate in [0.0, 0.4] {
            let factors = |which: usize, count: usize| {
                let mut ones = vec![1.0; count];
                drop(&masks(4, rate)[which], &mut ones);
                ones
            };
            let n = layer_norm::layer_norm(&all[0], &all[5], &all[6]).unwrap();
            let a = silu(&linear(&n, &all[1], &all[2]).unwrap()).unwrap();
            let mask = Tensor::from_vec(factors(0, 20), (4, 5), &candle_core::Device::Cpu).unwrap();
            let y = linear(&(a * mask).unwrap(), &all[3], &all[4]).unwrap();
            let expected = values(&y).into_iter().zip(factors(1, 12)).zip(values(&all[0]));
            let found = values(&run(&all, rate));
            for (found, ((y, m), x)) in found.into_iter().zip(expected) {
                assert!((found - (x + 0.5 * m * y)).abs() < 1e-12);
            }
            check_gradients(|a| run(a, rate), &all);
        }
    }
}
