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

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn the_average_follows_the_weights_by_hand() {
        let (parameters, ()) = Parameters::build(0, |vb| Ok(vb.get(1, "w").map(drop)?)).unwrap();
        let w = parameters.get("w").unwrap();
        let mut ema = Ema::new(0.5, &parameters).unwrap();
        let mut expected = 0.0f32;
        // The warm-up's decays are 1/10, 2/11, ... until (1 + step) / (10 + step) passes 0.5 at step 8.
        for (step, decay) in [(0, 0.1), (1, 2.0 / 11.0), (7, 8.0 / 17.0), (8, 0.5), (1000, 0.5)] {
            let value = step as f32 + 1.0;
            w.set(&Tensor::from_slice(&[value], 1, &Device::Cpu).unwrap()).unwrap();
            ema.update(step, &parameters).unwrap();
            expected = decay * expected + (1.0 - decay) * value;
            assert_relative_eq!(ema.values["w"][0], expected, max_relative = 1e-6);
        }
    }
}
