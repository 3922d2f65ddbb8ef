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
/// w ← w - rate · (m / (1-β₁ᵗ) / (√(v / (1-β₂ᵗ)) + ε) + decay · w)
/// ```
/// Biases do not decay: neither those with a tensor of their own nor the bias row of an LSTM's packed weight
/// ([`Parameters::decayed`]).
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
            keep: 1.0,
        };
        for (name, variable) in parameters.iter() {
            let Some(gradient) = gradients.get(variable) else { continue };
            let (Some(m), Some(v)) = (self.first.get_mut(name), self.second.get_mut(name)) else {
                return Err(Error::shape(name, "a parameter known to the optimiser", "a new one"));
            };
            let decaying = Rates { keep: (1.0 - rate * config.weight_decay) as f32, ..rates };
            let split = parameters.decayed(name);
            let mut weights = tensors::to_vec(variable)?;
            with_slice(&gradient.contiguous()?, |g| {
                update(&mut weights[..split], &g[..split], &mut m[..split], &mut v[..split], decaying);
                update(&mut weights[split..], &g[split..], &mut m[split..], &mut v[split..], rates);
                Ok(())
            })?;
            variable.set(&tensors::from_vec(weights, variable.shape().clone())?)?;
        }
        Ok(norm)
    }
}

/// The step's factors; `keep` is what decay leaves of a weight.
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

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use candle_core::{Device, Tensor, Var};

    use super::*;
    use crate::init::Init;

    fn config(weight_decay: f64, clip_norm: f64) -> OptimiserConfig {
        let text = format!(
            "learning_rate = 0.1\nbetas = [0.5, 0.75]\neps = 1e-8\nweight_decay = {weight_decay}\nclip_norm = {clip_norm}"
        );
        toml::from_str(&text).unwrap()
    }

    fn set(variable: &Var, values: &[f32]) {
        variable.set(&Tensor::from_slice(values, variable.shape(), &Device::Cpu).unwrap()).unwrap();
    }

    fn get(variable: &Var) -> Vec<f32> {
        variable.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Gradients g of a loss Σ g·w.
    fn gradients(parts: &[(&Var, &[f32])]) -> GradStore {
        let terms: Vec<Tensor> = parts
            .iter()
            .map(|(v, g)| (v.as_tensor() * Tensor::from_slice(g, v.shape(), &Device::Cpu).unwrap()).unwrap())
            .map(|product| product.sum_all().unwrap())
            .collect();
        Tensor::stack(&terms, 0).unwrap().sum_all().unwrap().backward().unwrap()
    }

    #[test]
    fn two_steps_by_hand() {
        let mut parameters = Parameters::new(0);
        let w = parameters.create("w", &[2, 1], Init::Uniform(1.0)).unwrap();
        set(&w, &[1.0, -2.0]);
        let (config, mut optimiser) = (config(0.5, 0.0), AdamW::new(&parameters));
        let norm = optimiser.step(&parameters, &gradients(&[(&w, &[3.0, 4.0])]), 0.1, &config).unwrap();
        assert_relative_eq!(norm, 5.0, max_relative = 1e-12);
        // The first step is the sign of the gradient: m/(1-β₁) = g, √(v/(1-β₂)) = |g|. Decay takes 0.1·0.5 of the weight.
        assert_relative_eq!(get(&w)[..], [0.95 - 0.1, -1.9 - 0.1], max_relative = 1e-6);

        optimiser.step(&parameters, &gradients(&[(&w, &[-1.0, 0.0])]), 0.2, &config).unwrap();
        // m = 0.5·(0.5·3) + 0.5·(-1) = 0.25, v = 0.75·(0.25·9) + 0.25·1 = 1.9375; corrections 1-0.25 and 1-0.5625.
        let first = 0.25 / 0.75 / (1.9375f32 / 0.4375).sqrt();
        let second = 1.0 / 0.75 / (0.75 * 0.25 * 16.0 / 0.4375f32).sqrt();
        let expected = [0.9 * 0.85 - 0.2 * first, 0.9 * -2.0 - 0.2 * second];
        assert_relative_eq!(get(&w)[..], expected, max_relative = 1e-6);
    }

    #[test]
    fn clipping_scales_the_whole_gradient() {
        let run = |gradient: &[f32], clip| {
            let mut parameters = Parameters::new(0);
            let w = parameters.create("w", &[2, 1], Init::Uniform(1.0)).unwrap();
            let mut optimiser = AdamW::new(&parameters);
            let norm =
                optimiser.step(&parameters, &gradients(&[(&w, gradient)]), 0.1, &config(0.0, clip)).unwrap();
            (norm, optimiser.first["w"].clone())
        };
        let (norm, moments) = run(&[30.0, 40.0], 5.0);
        assert_relative_eq!(norm, 50.0, max_relative = 1e-12);
        assert_relative_eq!(moments[..], [1.5, 2.0], max_relative = 1e-6);
        assert_eq!(run(&[0.3, 0.4], 5.0).1, [0.15, 0.2]);
    }

    #[test]
    fn biases_do_not_decay_and_parameters_without_gradient_stay() {
        let mut parameters = Parameters::new(3);
        let packed = parameters.create("lstm", &[4, 8], Init::Lstm).unwrap();
        let bias = parameters.create("some.bias", &[2], Init::Zero).unwrap();
        let idle = parameters.create("idle", &[2, 2], Init::Normal(1.0)).unwrap();
        set(&packed, &[1.0; 32]);
        set(&bias, &[1.0; 2]);
        let before = get(&idle);
        let gradients = gradients(&[(&packed, &[0.0; 32]), (&bias, &[0.0; 2])]);
        AdamW::new(&parameters).step(&parameters, &gradients, 0.1, &config(0.5, 0.0)).unwrap();
        let packed = get(&packed);
        assert!(packed[..24].iter().all(|w| (w - 0.95).abs() < 1e-6), "{packed:?}");
        assert!(packed[24..].iter().chain(&get(&bias)).all(|&w| w == 1.0), "{packed:?}");
        assert_eq!(get(&idle), before);
    }

    #[test]
    fn a_gradient_that_is_no_number_changes_nothing() {
        let mut parameters = Parameters::new(0);
        let w = parameters.create("w", &[2, 1], Init::Uniform(1.0)).unwrap();
        let (before, mut optimiser) = (get(&w), AdamW::new(&parameters));
        let gradients = gradients(&[(&w, &[f32::NAN, 1.0])]);
        assert!(optimiser.step(&parameters, &gradients, 0.1, &config(0.5, 1.0)).unwrap().is_nan());
        assert_eq!((get(&w), optimiser.steps, optimiser.first["w"].clone()), (before, 0, vec![0.0; 2]));
    }
}
