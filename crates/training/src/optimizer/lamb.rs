//! LAMB: Adam's direction with a step of each tensor's own size, for large batches.
mod step;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use step::{LambConfig, LambStep, Number};

use super::moments::Moments;
use super::{Clip, Optimizer, norm};
use crate::Result;
use model::checkpoint::Values;
use model::{Gradients, Parameters};

/// LAMB over all parameters; [`LambStep`] has the formula. All tensors decay, biases too.
#[derive(Debug, Clone)]
pub struct Lamb {
    config: LambConfig,
    clip: Clip,
    moments: Moments,
    steps: u64,
}

impl Lamb {
    /// Zero moments for these parameters.
    pub fn new(parameters: &Parameters, config: LambConfig, clip: Clip) -> Self {
        Lamb { config, clip, moments: Moments::new(parameters), steps: 0 }
    }
}

impl Optimizer for Lamb {
    fn step(&mut self, parameters: &Parameters, gradients: &Gradients, rate: f64) -> Result<f64> {
        let norm = norm(gradients)?;
        if !norm.is_finite() {
            return Ok(norm);
        }
        self.steps += 1;
        let step = LambStep::new(&self.config, self.steps, rate, self.clip.divisor(norm));
        for (name, variable) in parameters.iter() {
            let Some(gradient) = gradients.get(name) else { continue };
            let (m, v) = self.moments.get_mut(name, variable.elem_count())?;
            super::update(variable, gradient, |w, g| step.tensor(true, w, g, m, v))??;
        }
        Ok(norm)
    }

    fn memory(&self) -> BTreeMap<String, Cow<'_, Values>> {
        self.moments.memory()
    }

    fn restore(&mut self, memory: &BTreeMap<String, Values>, steps: u64) -> Result<()> {
        self.moments.restore(memory)?;
        self.steps = steps;
        Ok(())
    }
}
