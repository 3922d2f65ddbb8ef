//! Exponential moving average (EMA) of the weights, which evaluation uses.
use std::collections::BTreeMap;

use kernels::{Real, move_average, par_for, parts, parts_mut};

use crate::{Error, Result};
use model::Parameters;
use model::tensors::with_slice;

/// Elements of one parallel task.
const ELEMENTS_PER_TASK: usize = 1 << 15;

/// The moving average `a ← d a + (1 - d) w`, updated after every step in `f32`.
///
/// With a warm-up, `d = min(decay, (1 + step) / (10 + step))`, so that the initial weights are
/// forgotten; without, `d = decay`, as in MLPerf's RNN-T.
#[derive(Debug, Clone)]
pub(crate) struct Ema {
    decay: f64,
    has_warmup: bool,
    /// The average of each parameter, by name.
    pub(crate) values: BTreeMap<String, Vec<f32>>,
}

impl Ema {
    /// Creates an average that starts from the current weights.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(decay: f64, has_warmup: bool, parameters: &Parameters) -> Result<Self> {
        Ok(Ema { decay, has_warmup, values: parameters.values()? })
    }

    /// Adds the weights after step `step`, counted from 0.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for a parameter that the average does not contain;
    /// errors of candle.
    pub(crate) fn update(&mut self, step: u64, parameters: &Parameters) -> Result<()> {
        let warmup_decay = (1.0 + step as f64) / (10.0 + step as f64);
        let decay = if self.has_warmup { self.decay.min(warmup_decay) } else { self.decay };
        for (name, variable) in parameters.iter() {
            let Some(average) = self.values.get_mut(name) else {
                return Err(Error::shape(name, "a parameter of the average", "a new one"));
            };
            with_slice(variable, |weights: &[f32]| {
                update_average(average, weights, decay);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Updates an average, `a ← a + (1 - decay) (w - a)`, element by element, in parallel.
///
/// Cost: 12 bytes a weight in `f32`.
///
/// ```
/// let mut a = [1.0f64, 0.0];
/// training::ema::update_average(&mut a, &[3.0, 1.0], 0.75);
/// assert_eq!(a, [1.5, 0.25]);
/// ```
pub fn update_average<F: Real>(average: &mut [F], weights: &[F], decay: f64) {
    let rate = F::from_f64(1.0 - decay);
    par_for(
        (parts_mut(average, ELEMENTS_PER_TASK), parts(weights, ELEMENTS_PER_TASK)),
        |_, (average, weights)| {
            move_average(average, weights, rate);
        },
    );
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use candle_core::{Device, Tensor};

    use super::*;

    fn expect_updates(has_warmup: bool, steps: &[(u64, f32)]) {
        let (parameters, ()) = Parameters::build(0, |vb| Ok(vb.get(1, "w").map(drop)?)).unwrap();
        let w = parameters.get("w").unwrap();
        let mut ema = Ema::new(0.5, has_warmup, &parameters).unwrap();
        let mut expected = 0.0f32;
        for &(step, decay) in steps {
            let value = step as f32 + 1.0;
            w.set(&Tensor::from_slice(&[value], 1, &Device::Cpu).unwrap()).unwrap();
            ema.update(step, &parameters).unwrap();
            expected = decay * expected + (1.0 - decay) * value;
            assert_relative_eq!(ema.values["w"][0], expected, max_relative = 1e-6);
        }
    }

    #[test]
    fn updates_have_the_values_computed_by_hand() {
        // The warm-up's decays are 1/10, 2/11, ... until (1 + step) / (10 + step) passes 0.5 at
        // step 8.
        expect_updates(true, &[(0, 0.1), (1, 2.0 / 11.0), (7, 8.0 / 17.0), (8, 0.5), (1000, 0.5)]);
        expect_updates(false, &[(0, 0.5), (1, 0.5), (7, 0.5), (1000, 0.5)]);
    }

    #[test]
    fn constant_weights_equal_their_average_in_every_task() {
        let weights: Vec<f32> = (0..3 * ELEMENTS_PER_TASK + 7).map(|index| (index as f32).sin()).collect();
        let mut average = weights.clone();
        update_average(&mut average, &weights, 0.9);
        assert_eq!(average, weights);
        update_average(&mut average, &vec![0.0; weights.len()], 0.0);
        assert!(average.iter().all(|&a| a == 0.0));
    }
}
