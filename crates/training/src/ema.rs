//! An exponential moving average of the weights, which evaluation uses instead of the last step's.
use std::collections::BTreeMap;

use crate::tensors::with_slice;
use crate::{Parameters, Result};

/// `a ← d a + (1 - d) w` after every step, with `d = min(decay, (1 + step) / (10 + step))` so that the start is forgotten.
#[derive(Debug, Clone)]
pub struct Ema {
    decay: f64,
    pub(crate) values: BTreeMap<String, Vec<f32>>,
}

impl Ema {
    /// Starts from the current weights.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn new(decay: f64, parameters: &Parameters) -> Result<Self> {
        Ok(Ema { decay, values: parameters.values()? })
    }

    /// Takes in the weights after step `step`.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn update(&mut self, step: u64, parameters: &Parameters) -> Result<()> {
        let decay = self.decay.min((1.0 + step as f64) / (10.0 + step as f64));
        let share = (1.0 - decay) as f32;
        for (name, variable) in parameters.iter() {
            let average = self.values.get_mut(name).expect("made from the same parameters");
            with_slice(variable, |weights: &[f32]| {
                average.iter_mut().zip(weights).for_each(|(a, &w)| *a += share * (w - *a));
                Ok(())
            })?;
        }
        Ok(())
    }
}
