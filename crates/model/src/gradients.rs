//! Gradients by the names of the parameters, summed over batches.
use std::collections::BTreeMap;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use kernels::{items_mut, par_for, parts};

use crate::tensors::with_slice;
use crate::{Parameters, Result};

/// What a step moves along: the sum of the gradients of some batches.
///
/// Each batch brings its share of the mean over all utterances of the step, so that a sum is all that is left to do, here and
/// between processes.
#[derive(Debug, Clone, Default)]
pub struct Gradients {
    values: BTreeMap<String, Tensor>,
}

impl Gradients {
    /// Adds what a backward pass found; parameters that it did not reach have no gradient.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn add(&mut self, parameters: &Parameters, mut found: GradStore) -> Result<()> {
        for (name, variable) in parameters.iter() {
            let Some(new) = found.remove(variable) else { continue };
            let new = match self.values.remove(name) {
                Some(old) => (old + new)?,
                None => new.contiguous()?,
            };
            self.values.insert(name.to_owned(), new);
        }
        Ok(())
    }

    /// The gradient of a parameter, contiguous.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.values.get(name)
    }

    /// Sets the gradient of a parameter.
    pub fn insert(&mut self, name: &str, gradient: Tensor) {
        self.values.insert(name.to_owned(), gradient);
    }

    /// Names and gradients, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.values.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Names and gradients, for sums with those of other processes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Tensor)> {
        self.values.iter_mut().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Multiplies all of them.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        for gradient in self.values.values_mut() {
            *gradient = (&*gradient * factor)?;
        }
        Ok(())
    }

    /// ‖g‖ over all parameters, with sums in f64: a task for each of them, and their sums in the order of the names.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn norm(&self) -> Result<f64> {
        let present: Vec<&Tensor> = self.values.values().collect();
        let mut sums: Vec<candle_core::Result<f64>> = present.iter().map(|_| Ok(0.0)).collect();
        par_for((items_mut(&mut sums), parts(&present, 1)), |_, (sum, gradient)| {
            *sum = with_slice(gradient[0], |g: &[f32]| Ok(sum_of_squares(g)));
        });
        Ok(sums.into_iter().sum::<candle_core::Result<f64>>()?.sqrt())
    }
}

/// Σ x² in f64 with eight interleaved sums: fast and always in the same order.
fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for chunk in chunks {
        for k in 0..8 {
            sums[k] += f64::from(chunk[k]) * f64::from(chunk[k]);
        }
    }
    rest + sums.iter().sum::<f64>()
}
