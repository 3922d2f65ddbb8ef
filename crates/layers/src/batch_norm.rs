//! Batch normalization, as one candle operation.
//!
//! ```text
//! frozen     mean and variance are constant, those of another model's training data: a row depends
//!            on no other row, and training equals evaluation
//! trained    in training, mean and variance are those of the batch's rows; evaluation uses running
//!            statistics, which follow them
//! ```
//! W: width of a row; N: rows; μ, σ²: mean and variance of each channel; n: normalized row; `d` in
//! front of a name: the gradient of the loss.

use candle_core::{DType, Shape, Tensor};
use candle_nn::{Init, VarBuilder};
use kernels::{Real, alloc, par_for, parts, parts_mut};

use crate::batch_statistics::BatchStatistics;
use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::training_pass::TrainingPass;
use crate::{Error, Result};

/// Term added to the variance.
const EPSILON: f64 = 1e-5;
/// Rows that one task processes.
const ROWS_PER_TASK: usize = 64;

/// Batch normalization: the parameters `weight` and `bias`, and stored statistics.
///
/// All are `[W]`.
#[derive(Debug, Clone)]
pub struct BatchNorm {
    /// The name of the module, such as `encoder.layers.0.conv.batch_norm`.
    name: String,
    /// True if training uses the statistics of batches.
    is_trained: bool,
    /// The factor of each channel.
    pub weight: Tensor,
    /// The offset of each channel.
    pub bias: Tensor,
    /// `running_mean`, a constant parameter.
    pub mean: Tensor,
    /// `running_var`, a constant parameter.
    pub variance: Tensor,
}

impl BatchNorm {
    /// Creates the parameters, which leave rows unchanged.
    pub fn new(width: usize, vb: &VarBuilder) -> Result<Self> {
        let get = |name: &str, value: f64| vb.get_with_hints(width, name, Init::Const(value));
        Ok(BatchNorm {
            name: vb.prefix(),
            is_trained: false,
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
            mean: get("running_mean", 0.0)?,
            variance: get("running_var", 1.0)?,
        })
    }

    /// Makes training use the statistics of batches.
    #[must_use]
    pub fn with_batch_statistics(mut self, is_trained: bool) -> Self {
        self.is_trained = is_trained;
        self
    }

    /// Normalizes rows, in a training pass with the statistics of these rows.
    ///
    /// ```text
    /// μ = Σ x / N      σ² = Σ (x - μ)² / N      y = (x - μ) / √(σ² + 1e-5) ∘ weight + bias
    /// ```
    /// The pass receives the statistics, for `Parameters::update_statistics` of crate `model`.
    /// Without a pass, or if weight and bias are frozen, the result is that of [`Self::apply`].
    ///
    /// # Shapes
    /// `x [N, W]`; returns `[N, W]`.
    ///
    /// # Errors
    /// Those of [`Self::apply`].
    pub fn forward(&self, x: &Tensor, pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let is_frozen = !self.weight.track_op() && !self.bias.track_op();
        let rows = x.dim(0)?;
        let Some(pass) = pass.filter(|_| self.is_trained && !is_frozen && rows > 0) else {
            return self.apply(x);
        };
        self.check_shapes(x)?;
        let statistics = BatchStatistics::new(&self.name, &x.contiguous()?)?;
        let scale = statistics.variance.iter().map(|variance| 1.0 / (variance + EPSILON).sqrt()).collect();
        let (shape, mean) = (x.shape().clone(), statistics.mean.clone());
        pass.add_statistics(statistics);
        let operation = BatchNormOperation { shape, mean, scale, batch_rows: Some(rows) };
        apply3(operation, x, &self.weight, &self.bias)
    }

    /// Normalizes each row with the stored statistics.
    ///
    /// `y = (x - μ) / √(σ² + 1e-5) ∘ weight + bias`
    ///
    /// # Shapes
    /// `x [..., W]`; returns `[..., W]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if shapes or dtypes do not match, or a variance is negative.
    ///
    /// Cost: `O(rows · W)` time; only `x` is saved.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.check_shapes(x)?;
        let [mean, variance] =
            [&self.mean, &self.variance].map(|values| values.to_dtype(DType::F64)?.to_vec1::<f64>());
        let (mean, mut scale) = (mean?, variance?);
        for value in &mut scale {
            if value.is_nan() || *value < 0.0 {
                return Err(Error::shape("running_var", "values of at least 0", value.to_string()));
            }
            *value = 1.0 / (*value + EPSILON).sqrt();
        }
        let operation = BatchNormOperation { shape: x.shape().clone(), mean, scale, batch_rows: None };
        apply3(operation, x, &self.weight, &self.bias)
    }

    /// Checks that all parameters are `[W]`.
    fn check_shapes(&self, x: &Tensor) -> Result<()> {
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
        Ok(())
    }
}

/// The operation of [`BatchNorm::apply`] and [`BatchNorm::forward`].
struct BatchNormOperation {
    /// The shape of the result.
    shape: Shape,
    mean: Vec<f64>,
    /// `1 / √(σ² + 1e-5)`
    scale: Vec<f64>,
    /// The number of rows N whose statistics these are; none for constant statistics.
    batch_rows: Option<usize>,
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
    /// Statistics of these rows depend on them: `dx = (dy - db / N - n ∘ dw / N) ∘ w / √(σ² + ε)`.
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
        if let Some(rows) = self.batch_rows {
            let rows = F::from_f64(rows as f64);
            let task_parts = (parts_mut(&mut dx, ROWS_PER_TASK * width), parts(x, ROWS_PER_TASK * width));
            par_for(task_parts, |_, (dx, x)| {
                for (dx, x) in dx.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    for (c, (dx, &x)) in dx.iter_mut().zip(x).enumerate() {
                        let normalized = (x - mean[c]) * scale[c];
                        *dx = *dx - (db[c] + normalized * dw[c]) / rows * factor[c];
                    }
                }
            });
        }
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests;
