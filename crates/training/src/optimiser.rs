//! AdamW with global norm clipping, over plain slices.
use std::collections::BTreeMap;

use candle_core::backprop::GradStore;

use crate::recipe::OptimiserConfig;
use crate::tensors::{self, with_slice};
use crate::{Error, Parameters, Result};

/// The optimiser's memory: both moments of every parameter by name, and the number of steps done.
///
/// ```text
/// g ← g · min(1, clip / ‖g‖)      m ← β₁m + (1-β₁)g      v ← β₂v + (1-β₂)g²
/// w ← w - rate · (m / (1-β₁ᵗ) / (√(v / (1-β₂ᵗ)) + ε) + decay · w)       (no decay for biases)
/// ```
#[derive(Debug, Clone)]
pub struct AdamW {
    pub(crate) first: BTreeMap<String, Vec<f32>>,
    pub(crate) second: BTreeMap<String, Vec<f32>>,
    pub(crate) steps: u64,
}

impl AdamW {
    /// Zero moments for these parameters.
    pub fn new(parameters: &Parameters) -> Self {
        let zeros: BTreeMap<_, _> =
            parameters.iter().map(|(name, v)| (name.to_owned(), vec![0.0; v.elem_count()])).collect();
        AdamW { first: zeros.clone(), second: zeros, steps: 0 }
    }

    /// One step; returns the gradient's norm before clipping.
    ///
    /// Parameters without a gradient keep their weights. If the norm is not finite, nothing is changed.
    ///
    /// # Errors
    /// Candle's own errors; [`Error::Shape`] for a parameter that the optimiser does not know.
    pub fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &GradStore,
        rate: f64,
        config: &OptimiserConfig,
    ) -> Result<f64> {
        let mut square = 0.0;
        for (_, variable) in parameters.iter() {
            if let Some(gradient) = gradients.get(variable) {
                square += with_slice(&gradient.contiguous()?, |g: &[f32]| Ok(sum_of_squares(g)))?;
            }
        }
        let norm: f64 = f64::sqrt(square);
        if !norm.is_finite() {
            return Ok(norm);
        }
        self.steps += 1;
        let clip =
            if config.clip_norm > 0.0 && norm > config.clip_norm { config.clip_norm / norm } else { 1.0 };
        let [beta1, beta2] = config.betas;
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let rates = Rates {
            clip: clip as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step: (rate / (1.0 - beta1.powi(steps))) as f32,
            second: (1.0 / (1.0 - beta2.powi(steps))) as f32,
            eps: config.eps as f32,
            keep: 0.0,
        };
        for (name, variable) in parameters.iter() {
            let Some(gradient) = gradients.get(variable) else { continue };
            let (Some(m), Some(v)) = (self.first.get_mut(name), self.second.get_mut(name)) else {
                return Err(Error::shape(name, "a parameter known to the optimiser", "a new one"));
            };
            let decay = if name.ends_with(".bias") { 0.0 } else { rate * config.weight_decay };
            let rates = Rates { keep: (1.0 - decay) as f32, ..rates };
            let mut weights = with_slice(variable, |w: &[f32]| Ok(w.to_vec()))?;
            with_slice(&gradient.contiguous()?, |g| {
                update(&mut weights, g, m, v, rates);
                Ok(())
            })?;
            variable.set(&tensors::from_vec(weights, variable.shape().clone())?)?;
        }
        Ok(norm)
    }
}

#[derive(Clone, Copy)]
struct Rates {
    clip: f32,
    beta1: f32,
    beta2: f32,
    step: f32,
    second: f32,
    eps: f32,
    keep: f32,
}

fn update(weights: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], r: Rates) {
    let moments = first.iter_mut().zip(second);
    for ((w, &g), (m, v)) in weights.iter_mut().zip(gradient).zip(moments) {
        let g = g * r.clip;
        *m = r.beta1 * *m + (1.0 - r.beta1) * g;
        *v = r.beta2 * *v + (1.0 - r.beta2) * g * g;
        *w = r.keep * *w - r.step * *m / ((*v * r.second).sqrt() + r.eps);
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
