//! Batch normalization with constant statistics, as one candle operation.
//!
//! Mean and variance are those of another model's training data and never change: a row depends on
//! no other row, and training equals evaluation. W: width of a row; μ, σ²: mean and variance of
//! each channel; n: normalized row; `d` in front of a name: the gradient of the loss.
use candle_core::{DType, Shape, Tensor};
use candle_nn::{Init, VarBuilder};
use kernels::{Real, alloc, par_for, parts, parts_mut};

use crate::layers::operation::{SliceOperation, apply3, sum_partials};
use crate::{Error, Result};

/// Term added to the variance.
const EPSILON: f64 = 1e-5;
/// Rows that one task processes.
const ROWS_PER_TASK: usize = 64;

/// Batch normalization: the parameters `weight` and `bias`, and the constant statistics.
///
/// All are `[W]`.
#[derive(Debug, Clone)]
pub(crate) struct BatchNorm {
    pub weight: Tensor,
    pub bias: Tensor,
    /// `running_mean`, a constant parameter.
    pub mean: Tensor,
    /// `running_var`, a constant parameter.
    pub variance: Tensor,
}

impl BatchNorm {
    /// Creates the parameters, which leave rows unchanged.
    pub(crate) fn new(width: usize, vb: &VarBuilder) -> Result<Self> {
        let get = |name: &str, value: f64| vb.get_with_hints(width, name, Init::Const(value));
        Ok(BatchNorm {
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
            mean: get("running_mean", 0.0)?,
            variance: get("running_var", 1.0)?,
        })
    }

    /// Normalizes each row: `y = (x - μ) / √(σ² + 1e-5) ∘ weight + bias`.
    ///
    /// # Shapes
    /// `x [..., W]`; returns `[..., W]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if shapes or dtypes do not match, or a variance is negative.
    ///
    /// Cost: `O(rows · W)` time; only `x` is saved.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let width = x.dims().last().copied().unwrap_or(0);
        for (name, tensor) in [
            ("weight", &self.weight),
            ("bias", &self.bias),
            ("running_mean", &self.mean),
            ("running_var", &self.variance),
        ] {
            if width == 0 || tensor.dims() != [width] {
                return Err(Error::shape(name, format!("[{width}]"), format!("{:?}", tensor.dims())));
            }
        }
        let [mean, variance] =
            [&self.mean, &self.variance].map(|values| values.to_dtype(DType::F64)?.to_vec1::<f64>());
        let (mean, mut scale) = (mean?, variance?);
        for value in &mut scale {
            if value.is_nan() || *value < 0.0 {
                return Err(Error::shape("running_var", "values of at least 0", value.to_string()));
            }
            *value = 1.0 / (*value + EPSILON).sqrt();
        }
        let operation = BatchNormOperation { shape: x.shape().clone(), mean, scale };
        apply3(operation, x, &self.weight, &self.bias)
    }
}

/// The operation of [`BatchNorm::apply`].
struct BatchNormOperation {
    /// The shape of the result.
    shape: Shape,
    mean: Vec<f64>,
    /// `1 / √(σ² + 1e-5)`
    scale: Vec<f64>,
}

/// Converts statistics to the type of the rows.
fn convert<F: Real>(values: &[f64]) -> Vec<F> {
    values.iter().map(|&value| F::from_f64(value)).collect()
}

impl SliceOperation<3> for BatchNormOperation {
    const NAME: &'static str = "batch norm";

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let width = weight.len();
        let (mean, mut scale) = (convert::<F>(&self.mean), convert::<F>(&self.scale));
        scale.iter_mut().zip(weight).for_each(|(scale, &weight)| *scale *= weight);
        let mut y = alloc(x.len(), F::ZERO);
        par_for((parts_mut(&mut y, ROWS_PER_TASK * width), parts(x, ROWS_PER_TASK * width)), |_, (y, x)| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                for ((y, &x), (&mean, (&scale, &b))) in
                    y.iter_mut().zip(x).zip(mean.iter().zip(scale.iter().zip(bias)))
                {
                    *y = (x - mean) * scale + b;
                }
            }
        });
        y
    }

    /// Computes the gradients.
    ///
    /// ```text
    /// n = (x - μ) / √(σ² + ε)      dx = dy ∘ w / √(σ² + ε)      dw = Σ dy ∘ n      db = Σ dy
    /// ```
    fn backward<F: Real>(&self, [x, weight, _]: [&[F]; 3], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 3] {
        let width = weight.len();
        let (mean, scale) = (convert::<F>(&self.mean), convert::<F>(&self.scale));
        let mut factor = scale.clone();
        factor.iter_mut().zip(weight).for_each(|(factor, &weight)| *factor *= weight);
        let mut dx = alloc(x.len(), F::ZERO);
        // Gradients of weight and bias, of each task.
        let mut partials = vec![F::ZERO; 2 * x.len().div_ceil(ROWS_PER_TASK * width) * width];
        let task_parts = (
            parts_mut(&mut dx, ROWS_PER_TASK * width),
            parts(x, ROWS_PER_TASK * width),
            parts(d_out, ROWS_PER_TASK * width),
            parts_mut(&mut partials, 2 * width),
        );
        par_for(task_parts, |_, (dx, x, d_out, partial)| {
            let (dw, db) = partial.split_at_mut(width);
            let rows = x.chunks_exact(width).zip(d_out.chunks_exact(width));
            for (dx, (x, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                dx.iter_mut().zip(dy.iter().zip(&factor)).for_each(|(dx, (&dy, &factor))| *dx = dy * factor);
                kernels::add(db, dy);
                for ((dw, &dy), (&x, (&mean, &scale))) in
                    dw.iter_mut().zip(dy).zip(x.iter().zip(mean.iter().zip(&scale)))
                {
                    *dw += dy * ((x - mean) * scale);
                }
            }
        });
        let mut dw = sum_partials(&partials, 2 * width);
        let db = dw.split_off(width);
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::operation::tests::{check_gradients, test_values, values};

    /// Returns a norm with irregular statistics; variances are positive.
    fn norm(weight: &Tensor, bias: &Tensor, width: usize) -> BatchNorm {
        let (mean, variance) = (test_values(&[width], 0.3), test_values(&[width], 1.7));
        let variance = (variance.sqr().unwrap() + 0.1).unwrap();
        BatchNorm { weight: weight.clone(), bias: bias.clone(), mean: mean.as_tensor().clone(), variance }
    }

    /// The larger number of rows needs several tasks.
    #[test]
    fn values_equal_the_formula_and_gradients_finite_differences() {
        for (rows, width) in [(4, 5), (0, 3), (150, 2)] {
            let arguments =
                [test_values(&[rows, width], 0.7), test_values(&[width], 1.9), test_values(&[width], 0.4)];
            let [x, w, b] = &arguments;
            let norm_of = |a: &[candle_core::Var]| norm(&a[1], &a[2], width).apply(&a[0]).unwrap();
            let y = values(&norm_of(&arguments));
            let [x, w, b] = [x, w, b].map(|v| values(v));
            let BatchNorm { mean, variance, .. } = norm(&arguments[1], &arguments[2], width);
            let [mean, variance] = [&mean, &variance].map(values);
            for (i, y) in y.iter().enumerate() {
                let c = i % width;
                let expected = (x[i] - mean[c]) / (variance[c] + 1e-5).sqrt() * w[c] + b[c];
                assert!((y - expected).abs() < 1e-13, "{y} {expected}");
            }
            check_gradients(norm_of, &arguments);
        }
    }

    #[test]
    fn negative_variances_and_other_shapes_are_rejected() {
        let (x, w) = (test_values(&[2, 3], 1.0), test_values(&[3], 1.0));
        let mut negative = norm(&w, &w, 3);
        negative.variance = w.neg().unwrap().abs().unwrap().neg().unwrap();
        let error = negative.apply(&x).unwrap_err().to_string();
        assert!(error.starts_with("running_var: expected values of at least 0, found -"), "{error}");
        let error = norm(&w, &w, 4).apply(&x).unwrap_err().to_string();
        assert!(error.starts_with("running_mean: expected [3], found [4]"), "{error}");
    }
}
