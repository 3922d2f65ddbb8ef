//! Layer normalization of encoder rows, as one candle operation.
//!
//! W: width of a row; μ, σ: mean and standard deviation of a row.
use candle_core::{Shape, Tensor};
use candle_nn::{Init, VarBuilder};
use kernels::{Real, alloc, par_for, parts, parts_mut};

use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::{Error, Result};

/// Term added to the variance: constant rows do not divide by 0.
const EPSILON: f64 = 1e-5;
/// Rows that one task processes.
const ROWS_PER_TASK: usize = 64;
/// Interleaved accumulators of a sum.
const ACCUMULATORS: usize = 16;

/// Layer normalization with its parameters, `weight [W]` and `bias [W]`.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    /// The factor of each channel.
    pub weight: Tensor,
    /// The offset of each channel.
    pub bias: Tensor,
}

impl LayerNorm {
    /// Creates the parameters: weights of 1, biases of 0.
    pub fn new(width: usize, vb: &VarBuilder) -> Result<Self> {
        let weight = vb.get_with_hints(width, "weight", Init::Const(1.0))?;
        Ok(LayerNorm { weight, bias: vb.get_with_hints(width, "bias", Init::Const(0.0))? })
    }

    /// Normalizes each row.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.weight, &self.bias)
    }

    /// Copies the parameters for inference.
    pub fn for_inference(&self) -> Result<InferenceNorm> {
        let [weight, bias] = [&self.weight, &self.bias].map(crate::tensors::to_vec);
        Ok(InferenceNorm { weight: weight?, bias: bias? })
    }
}

/// [`LayerNorm`] over slices, for streaming inference.
#[derive(Debug)]
pub struct InferenceNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl InferenceNorm {
    /// Normalizes each row.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        forward(x, &self.weight, &self.bias)
    }
}

/// Normalizes each row to mean 0 and variance 1, then scales and shifts it.
///
/// `y = (x - μ) / √(σ² + 1e-5) ∘ weight + bias` (Ba et al., arXiv 1607.06450).
///
/// # Shapes
/// `x [..., W]`, `weight [W]`, `bias [W]`; returns `[..., W]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(rows · W)` time; only `x` is saved.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let width = x.dims().last().copied().unwrap_or(0);
    if width == 0 || weight.dims() != [width] || bias.dims() != [width] {
        let shapes = format!("{:?} and bias {:?}", weight.dims(), bias.dims());
        return Err(Error::shape("weight", format!("[{width}] and bias [{width}]"), shapes));
    }
    apply3(LayerNormOperation(x.shape().clone()), x, weight, bias)
}

/// The operation of [`layer_norm`], with the shape of its result.
struct LayerNormOperation(Shape);

/// Computes Σ f(a, b) over a row, in a fixed order.
#[inline(always)]
fn sum_over_row<F: Real>(a: &[F], b: &[F], f: impl Fn(F, F) -> F) -> F {
    let mut partial_sums = [F::ZERO; ACCUMULATORS];
    let (blocks_a, rest_a) = a.as_chunks::<ACCUMULATORS>();
    let (blocks_b, rest_b) = b.as_chunks::<ACCUMULATORS>();
    for (a, b) in blocks_a.iter().zip(blocks_b) {
        partial_sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (&a, &b))| *sum += f(a, b));
    }
    partial_sums.iter_mut().zip(rest_a.iter().zip(rest_b)).for_each(|(sum, (&a, &b))| *sum += f(a, b));
    partial_sums.into_iter().fold(F::ZERO, |sum, partial_sum| sum + partial_sum)
}

/// Computes μ and 1 / √(σ² + ε) of a row.
fn moments<F: Real>(x: &[F]) -> (F, F) {
    let inverse_width = F::from_f64(1.0 / x.len() as f64);
    let mean = sum_over_row(x, x, |a, _| a) * inverse_width;
    let variance = sum_over_row(x, x, |a, _| (a - mean) * (a - mean)) * inverse_width;
    (mean, F::from_f64(1.0 / (variance.to_f64() + EPSILON).sqrt()))
}

/// [`layer_norm`] of slices.
pub(crate) fn forward<F: Real>(x: &[F], weight: &[F], bias: &[F]) -> Vec<F> {
    let width = weight.len();
    let mut y = alloc(x.len(), F::ZERO);
    par_for((parts_mut(&mut y, ROWS_PER_TASK * width), parts(x, ROWS_PER_TASK * width)), |_, (y, x)| {
        forward_rows(x, weight, bias, y);
    });
    y
}

/// [`forward`] within a task.
pub(crate) fn forward_rows<F: Real>(x: &[F], weight: &[F], bias: &[F], y: &mut [F]) {
    let width = weight.len();
    for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
        let (mean, scale) = moments(x);
        for ((y, &x), (&w, &b)) in y.iter_mut().zip(x).zip(weight.iter().zip(bias)) {
            *y = (x - mean) * scale * w + b;
        }
    }
}

/// Computes the gradients of rows, weight and bias.
fn backward<F: Real>(x: &[F], weight: &[F], d_out: &[F]) -> [Vec<F>; 3] {
    let width = weight.len();
    let mut dx = alloc(x.len(), F::ZERO);
    let tasks = x.len().div_ceil(ROWS_PER_TASK * width);
    // Gradients of weight and bias, of each task.
    let mut partials = vec![F::ZERO; 2 * tasks * width];
    let task_parts = (
        parts_mut(&mut dx, ROWS_PER_TASK * width),
        parts(x, ROWS_PER_TASK * width),
        parts(d_out, ROWS_PER_TASK * width),
        parts_mut(&mut partials, 2 * width),
    );
    par_for(task_parts, |_, (dx, x, d_out, parameter_gradients)| {
        backward_rows(x, weight, d_out, dx, parameter_gradients);
    });
    let mut dw = sum_partials(&partials, 2 * width);
    let db = dw.split_off(width);
    [dx, dw, db]
}

/// Computes [`backward`] within a task.
///
/// The gradients of weight and bias, `[2W]`, are added to `parameter_gradients`.
///
/// ```text
/// n = (x - μ) / √(σ² + ε)      g = dy ∘ w
/// dx = (g - mean g - n · mean(g ∘ n)) / √(σ² + ε)      dw = Σ dy ∘ n      db = Σ dy
/// ```
pub(crate) fn backward_rows<F: Real>(
    x: &[F],
    weight: &[F],
    d_out: &[F],
    dx: &mut [F],
    parameter_gradients: &mut [F],
) {
    let width = weight.len();
    let inverse_width = F::from_f64(1.0 / width as f64);
    let (dw, db) = parameter_gradients.split_at_mut(width);
    let mut n = vec![F::ZERO; width];
    let rows = x.chunks_exact(width).zip(d_out.chunks_exact(width));
    for (dx, (x, d_out)) in dx.chunks_exact_mut(width).zip(rows) {
        let (mean, scale) = moments(x);
        n.iter_mut().zip(x).for_each(|(n, &x)| *n = (x - mean) * scale);
        // dx holds g until the last line.
        dx.iter_mut().zip(d_out.iter().zip(weight)).for_each(|(g, (&dy, &w))| *g = dy * w);
        dw.iter_mut().zip(d_out.iter().zip(&n)).for_each(|(dw, (&dy, &n))| *dw += dy * n);
        db.iter_mut().zip(d_out).for_each(|(db, &dy)| *db += dy);
        let mean_g = sum_over_row(dx, dx, |g, _| g) * inverse_width;
        let mean_gn = sum_over_row(dx, &n, |g, n| g * n) * inverse_width;
        dx.iter_mut().zip(&n).for_each(|(g, &n)| *g = (*g - mean_g - n * mean_gn) * scale);
    }
}

impl SliceOperation<3> for LayerNormOperation {
    const NAME: &'static str = "layer norm";

    fn shape(&self) -> Shape {
        self.0.clone()
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        forward(x, weight, bias)
    }

    fn backward<F: Real>(&self, [x, weight, _]: [&[F]; 3], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 3] {
        backward(x, weight, d_out)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, DType};

    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    #[test]
    fn values_equal_those_of_plain_operations_and_gradients_finite_differences() {
        let (x, w, b) = (test_values(&[2, 70, 21], 0.7), test_values(&[21], 1.9), test_values(&[21], 0.4));
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap()).unwrap();
        let variance = centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        let plain = centered.broadcast_div(&(variance + EPSILON).unwrap().sqrt().unwrap()).unwrap();
        let plain = plain.broadcast_mul(&w).unwrap().broadcast_add(&b).unwrap();
        let fused = values(&layer_norm(&x, &w, &b).unwrap());
        assert!(fused.iter().zip(values(&plain)).all(|(a, b)| (a - b).abs() < 1e-13));
        check_gradients(|a| layer_norm(&a[0], &a[1], &a[2]).unwrap(), &[test_values(&[2, 3, 21], 0.7), w, b]);
    }

    /// The number of rows needs several tasks.
    #[test]
    fn gradients_of_many_rows_equal_those_of_plain_operations() {
        let (x, w, b) = (test_values(&[150, 5], 0.7), test_values(&[5], 1.9), test_values(&[5], 0.4));
        let plain = |x: &Tensor| -> Tensor {
            let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap()).unwrap();
            let variance = centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
            let scaled = centered.broadcast_div(&(variance + EPSILON).unwrap().sqrt().unwrap()).unwrap();
            scaled.broadcast_mul(&w).unwrap().broadcast_add(&b).unwrap()
        };
        let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let (fused, plain) = (gradients(layer_norm(&x, &w, &b).unwrap()), gradients(plain(&x)));
        for v in [&x, &w, &b] {
            let pairs = values(fused.get(v).unwrap()).into_iter().zip(values(plain.get(v).unwrap()));
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{a} {b}"));
        }
    }

    #[test]
    fn errors_of_shapes_name_the_argument_and_constant_rows_become_the_bias() {
        let (x, w) = (test_values(&[2, 3], 1.0), test_values(&[4], 1.0));
        let error = layer_norm(&x, &w, &w).unwrap_err();
        assert!(error.to_string().starts_with("weight: expected [3]"), "{error}");
        let same = Tensor::ones((2, 4), DType::F64, &candle_core::Device::Cpu).unwrap();
        assert_eq!(values(&layer_norm(&same, &w, &w).unwrap())[..4], values(&w));
    }
}
