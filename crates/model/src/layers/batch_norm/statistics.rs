//! Statistics of a batch in trained batch norms, and running statistics.
use candle_core::{DType, Device, Tensor};
use kernels::{Real, par_for, parts, parts_mut};
use serde::{Deserialize, Serialize};

use super::ROWS_PER_TASK;
use crate::layers::operation::sum_partials;
use crate::tensors::{to_vec, with_slice};
use crate::{Error, Parameters, Result};

/// Weight of a batch in running statistics, as in PyTorch.
const MOMENTUM: f64 = 0.1;

/// Mean and variance of a batch in a trained batch norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchStatistics {
    /// Name of the norm, such as `encoder.layers.0.conv.batch_norm`.
    pub norm: String,
    /// Number of rows N.
    pub rows: usize,
    /// Mean μ of each channel.
    pub mean: Vec<f64>,
    /// Variance `Σ (x - μ)² / N` of each channel.
    pub variance: Vec<f64>,
}

impl BatchStatistics {
    /// Computes the statistics of contiguous rows `[N, W]`, in `f64`.
    pub(super) fn new(norm: &str, x: &Tensor) -> Result<Self> {
        let (rows, width) = x.dims2()?;
        let [mean, variance] = match x.dtype() {
            DType::F32 => with_slice(x, |x: &[f32]| Ok(moments(x, rows, width)))?,
            DType::F64 => with_slice(x, |x: &[f64]| Ok(moments(x, rows, width)))?,
            other => return Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
        };
        Ok(BatchStatistics { norm: norm.to_owned(), rows, mean, variance })
    }
}

/// Returns mean and variance of each channel.
fn moments<F: Real>(x: &[F], rows: usize, width: usize) -> [Vec<f64>; 2] {
    let divide = |mut sums: Vec<f64>| {
        sums.iter_mut().for_each(|sum| *sum /= rows as f64);
        sums
    };
    let mean = divide(channel_sums(x, width, |x, _| x));
    let variance = divide(channel_sums(x, width, |x, channel| (x - mean[channel]) * (x - mean[channel])));
    [mean, variance]
}

/// Returns the sum of `term(x, channel)` of each channel.
///
/// The bits do not depend on threads.
fn channel_sums<F: Real>(x: &[F], width: usize, term: impl Fn(f64, usize) -> f64 + Sync) -> Vec<f64> {
    let values_per_task = ROWS_PER_TASK * width;
    let mut partials = vec![0.0; x.len().div_ceil(values_per_task) * width];
    par_for((parts_mut(&mut partials, width), parts(x, values_per_task)), |_, (sums, x)| {
        for row in x.chunks_exact(width) {
            for (channel, (sum, &x)) in sums.iter_mut().zip(row).enumerate() {
                *sum += term(x.to_f64(), channel);
            }
        }
    });
    sum_partials(&partials, width)
}

impl Parameters {
    /// Updates the running statistics of batch norms, one batch after the other.
    ///
    /// ```text
    /// running_mean ← 0.9 running_mean + 0.1 μ
    /// running_var  ← 0.9 running_var + 0.1 σ² N / (N - 1)
    /// ```
    /// as PyTorch does. The variance of a single row is not defined: such a batch changes the mean
    /// only.
    ///
    /// # Errors
    /// [`Error::Shape`] for a norm that the model does not have, or of another width.
    ///
    /// ```
    /// use model::BatchStatistics;
    ///
    /// let statistics =
    ///     BatchStatistics { norm: "norm".into(), rows: 5, mean: vec![1.0], variance: vec![2.0] };
    /// let error = model::Parameters::default().update_statistics(&[statistics]).unwrap_err();
    /// assert!(error.to_string().starts_with("norm.running_mean: expected a parameter"));
    /// ```
    pub fn update_statistics(&self, statistics: &[BatchStatistics]) -> Result<()> {
        for BatchStatistics { norm, rows, mean, variance } in statistics {
            self.move_values(&format!("{norm}.running_mean"), mean, 1.0)?;
            if *rows > 1 {
                let correction = *rows as f64 / (*rows as f64 - 1.0);
                self.move_values(&format!("{norm}.running_var"), variance, correction)?;
            }
        }
        Ok(())
    }

    /// Moves a parameter towards `factor` times these values.
    fn move_values(&self, name: &str, values: &[f64], factor: f64) -> Result<()> {
        let variable = self.get(name).filter(|variable| variable.elem_count() == values.len());
        let Some(variable) = variable else {
            let count = self.get(name).map(|variable| variable.elem_count().to_string());
            let expected = format!("a parameter of {} values", values.len());
            return Err(Error::shape(name, expected, count.unwrap_or("none".into())));
        };
        let mut running: Vec<f32> = to_vec(variable)?;
        for (running, value) in running.iter_mut().zip(values) {
            *running = ((1.0 - MOMENTUM) * f64::from(*running) + MOMENTUM * factor * value) as f32;
        }
        Ok(variable.set(&Tensor::from_vec(running, variable.shape(), &Device::Cpu)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::batch_norm::BatchNorm;
    use crate::training_pass::TrainingPass;

    /// The expected values are those of `torch.nn.BatchNorm1d`, computed by its formulas.
    #[test]
    fn running_statistics_follow_batches() {
        let (parameters, norm) =
            Parameters::build(1, |vb| Ok(BatchNorm::new(2, &vb.pp("a.norm"))?.with_batch_statistics(true)))
                .unwrap();
        let mut pass = TrainingPass::new(1, 0, &[0]);
        for rows in [&[1.0f32, 2.0, 3.0, -2.0, 5.0, 6.0][..], &[4.0, 8.0]] {
            norm.forward(
                &Tensor::from_slice(rows, (rows.len() / 2, 2), &Device::Cpu).unwrap(),
                Some(&mut pass),
            )
            .unwrap();
        }
        let statistics = pass.take_statistics();
        assert_eq!(statistics[0].mean, [3.0, 2.0]);
        parameters.update_statistics(&statistics).unwrap();
        let expect = |name: &str, expected: [f64; 2]| {
            let values: Vec<f32> = to_vec(parameters.get(name).unwrap()).unwrap();
            assert!(values.iter().zip(expected).all(|(&x, y)| (f64::from(x) - y).abs() < 1e-6), "{values:?}");
        };
        expect("a.norm.running_mean", [0.9 * 0.3 + 0.4, 0.9 * 0.2 + 0.8]);
        // Unbiased variances 8 / 2 and 32 / 2 of the first batch; the second has one row.
        expect("a.norm.running_var", [0.9 + 0.4, 0.9 + 1.6]);
        // The layer uses the new values.
        let y: Vec<f32> =
            to_vec(&norm.apply(&Tensor::new(&[[0.67f32, 0.98]], &Device::Cpu).unwrap()).unwrap()).unwrap();
        assert!(y.iter().all(|y| y.abs() < 1e-6), "{y:?}");
        let wide = BatchStatistics { mean: vec![0.0; 3], ..statistics[0].clone() };
        let error = parameters.update_statistics(&[wide]).unwrap_err().to_string();
        assert_eq!(error, "a.norm.running_mean: expected a parameter of 3 values, found 2");
    }
}
