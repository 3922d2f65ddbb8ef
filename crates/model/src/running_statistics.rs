//! Running statistics of trained batch norms.
use candle_core::{Device, Tensor};
use layers::tensors::to_vec;

use crate::{BatchStatistics, Error, Parameters, Result};

/// Weight of a batch in running statistics, as in PyTorch.
const MOMENTUM: f64 = 0.1;

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
    use layers::batch_norm::BatchNorm;

    use super::*;
    use crate::TrainingPass;

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
