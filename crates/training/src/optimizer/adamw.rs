//! The AdamW optimizer with clipping of the global gradient norm.
use std::borrow::Cow;
use std::collections::BTreeMap;

use kernels::{AdamFactors, adam_update, par_for, parts, parts_mut};

use super::moments::{ELEMENTS_PER_TASK, Moments};
use super::{Optimizer, RateFactors, gradient_norm};
use crate::Result;
use crate::optimizer::{ClipKind, OptimizerConfig};
use model::checkpoint::Values;
use model::config::values::ensure;
use model::{Gradients, Parameters};

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101).
///
/// ```text
/// g ← g · min(1, clip / ‖g‖)      m ← β₁m + (1-β₁)g      v ← β₂v + (1-β₂)g²
/// w ← w - rate · (m / (1-β₁ᵗ) / (√(v / (1-β₂ᵗ)) + ε) + decay · w)
/// ```
/// g: gradient; m, v: first and second moment; w: weight; t: step from 1. Parameters with one axis,
/// which are biases and scales, do not decay. The rate of a parameter includes its factor of
/// `optimizer.rates`.
#[derive(Debug, Clone)]
pub struct AdamW {
    config: OptimizerConfig,
    factors: RateFactors,
    moments: Moments,
    steps: u64,
}

impl AdamW {
    /// Creates the optimizer with zero moments.
    pub fn new(parameters: &Parameters, config: &OptimizerConfig) -> Self {
        let factors = RateFactors::new(&config.rates);
        AdamW { config: config.clone(), factors, moments: Moments::new(parameters), steps: 0 }
    }
}

/// Checks the keys of `[optimizer]` that AdamW does not support.
pub(super) fn check(config: &OptimizerConfig) -> model::Result<()> {
    let single = config.clip == ClipKind::Single;
    ensure("optimizer.clip", "\"single\" where the kind is not \"lamb\"", single, "distributed")?;
    let expected = "true where the kind is not \"lamb\"";
    ensure("optimizer.bias_correction", expected, config.bias_correction, false)
}

/// Creates the optimizer of a recipe.
pub(super) fn build(config: &OptimizerConfig, parameters: &Parameters) -> AdamW {
    AdamW::new(parameters, config)
}

impl Optimizer for AdamW {
    fn step(&mut self, parameters: &Parameters, gradients: &Gradients, rate: f64) -> Result<f64> {
        let norm = gradient_norm(gradients)?;
        if !norm.is_finite() {
            return Ok(norm);
        }
        self.steps += 1;
        let OptimizerConfig { clip_norm, betas: [beta1, beta2], eps, weight_decay, .. } = self.config;
        let clip = if clip_norm > 0.0 && norm > clip_norm { clip_norm / norm } else { 1.0 };
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let factors = |rate: f64, decay: f64| AdamFactors {
            scale: clip as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rate: (rate / (1.0 - beta1.powi(steps))) as f32,
            correction2: (1.0 / (1.0 - beta2.powi(steps))) as f32,
            eps: eps as f32,
            retention: (1.0 - rate * decay) as f32,
        };
        for (name, variable) in parameters.iter_trained() {
            let Some(gradient) = gradients.get(name) else { continue };
            let (m, v) = self.moments.get_mut(name, variable.elem_count())?;
            let decay = if variable.rank() > 1 { weight_decay } else { 0.0 };
            let factors = factors(self.factors.rate_of(name, rate), decay);
            super::update_in_place(variable, gradient, |w, g| {
                let blocks = (
                    parts_mut(w, ELEMENTS_PER_TASK),
                    parts(g, ELEMENTS_PER_TASK),
                    parts_mut(m, ELEMENTS_PER_TASK),
                    parts_mut(v, ELEMENTS_PER_TASK),
                );
                par_for(blocks, |_, (w, g, m, v)| adam_update(w, g, m, v, &factors));
            })?;
        }
        Ok(norm)
    }

    fn state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        self.moments.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, Values>, steps: u64) -> Result<()> {
        self.moments.restore(state)?;
        self.steps = steps;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use candle_core::{Device, Tensor, Var};
    use candle_nn::Init;
    use model::GradientSum;

    use super::*;

    fn config(weight_decay: f64, clip_norm: f64) -> OptimizerConfig {
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

    /// Creates parameters with uniform values within ±1.
    fn parameters(shapes: &[(&str, &[usize])]) -> Parameters {
        let start = Init::Uniform { lo: -1.0, up: 1.0 };
        let make = |vb: candle_nn::VarBuilder| {
            shapes
                .iter()
                .try_for_each(|(name, shape)| Ok(vb.get_with_hints(*shape, name, start).map(drop)?))
        };
        Parameters::build(3, make).unwrap().0
    }

    /// Computes the gradients g of a loss Σ g·w.
    fn gradients(parameters: &Parameters, parts: &[(&Var, &[f32])]) -> Gradients {
        let terms: Vec<Tensor> = parts
            .iter()
            .map(|(v, g)| (v.as_tensor() * Tensor::from_slice(g, v.shape(), &Device::Cpu).unwrap()).unwrap())
            .map(|product| product.sum_all().unwrap())
            .collect();
        let sum = Tensor::stack(&terms, 0).unwrap().sum_all().unwrap();
        let mut gradients = GradientSum::new(parameters);
        gradients.backward(&sum, None).unwrap();
        gradients.into_gradients()
    }

    #[test]
    fn two_steps_have_the_values_computed_by_hand() {
        let parameters = parameters(&[("w", &[2, 1])]);
        let w = parameters.get("w").unwrap();
        set(w, &[1.0, -2.0]);
        let mut optimizer = AdamW::new(&parameters, &config(0.5, 0.0));
        let norm = optimizer.step(&parameters, &gradients(&parameters, &[(w, &[3.0, 4.0])]), 0.1).unwrap();
        assert_relative_eq!(norm, 5.0, max_relative = 1e-12);
        // The first step is the sign of the gradient: m/(1-β₁) = g, √(v/(1-β₂)) = |g|. Decay takes
        // 0.1·0.5 of the weight.
        assert_relative_eq!(get(w)[..], [0.95 - 0.1, -1.9 - 0.1], max_relative = 1e-6);

        optimizer.step(&parameters, &gradients(&parameters, &[(w, &[-1.0, 0.0])]), 0.2).unwrap();
        // m = 0.5·(0.5·3) + 0.5·(-1) = 0.25, v = 0.75·(0.25·9) + 0.25·1 = 1.9375; corrections
        // 1-0.25 and 1-0.5625.
        let first = 0.25 / 0.75 / (1.9375f32 / 0.4375).sqrt();
        let second = 1.0 / 0.75 / (0.75 * 0.25 * 16.0 / 0.4375f32).sqrt();
        let expected = [0.9 * 0.85 - 0.2 * first, 0.9 * -2.0 - 0.2 * second];
        assert_relative_eq!(get(w)[..], expected, max_relative = 1e-6);
    }

    #[test]
    fn clipping_scales_the_whole_gradient() {
        let run = |gradient: &[f32], clip| {
            let parameters = parameters(&[("w", &[2, 1])]);
            let w = parameters.get("w").unwrap();
            let mut optimizer = AdamW::new(&parameters, &config(0.0, clip));
            let norm = optimizer.step(&parameters, &gradients(&parameters, &[(w, gradient)]), 0.1).unwrap();
            (norm, optimizer.moments.first["w"].clone())
        };
        let (norm, moments) = run(&[30.0, 40.0], 5.0);
        assert_relative_eq!(norm, 50.0, max_relative = 1e-12);
        assert_relative_eq!(moments[..], [1.5, 2.0], max_relative = 1e-6);
        assert_eq!(run(&[0.3, 0.4], 5.0).1, [0.15, 0.2]);
    }

    #[test]
    fn biases_do_not_decay_and_parameters_without_gradient_stay() {
        let parameters = parameters(&[("w", &[4, 8]), ("some.bias", &[2]), ("idle", &[2, 2])]);
        let [w, bias, idle] = ["w", "some.bias", "idle"].map(|name| parameters.get(name).unwrap());
        set(w, &[1.0; 32]);
        set(bias, &[1.0; 2]);
        let before = get(idle);
        let gradients = gradients(&parameters, &[(w, &[0.0; 32]), (bias, &[0.0; 2])]);
        AdamW::new(&parameters, &config(0.5, 0.0)).step(&parameters, &gradients, 0.1).unwrap();
        assert!(get(w).iter().all(|w| (w - 0.95).abs() < 1e-6), "{:?}", get(w));
        assert_eq!((get(bias), get(idle)), (vec![1.0; 2], before));
    }

    #[test]
    fn a_restored_optimizer_continues_with_the_same_bits() {
        let run = |restore: bool| {
            let parameters = parameters(&[("w", &[2, 1])]);
            let w = parameters.get("w").unwrap();
            let mut optimizer = AdamW::new(&parameters, &config(0.5, 0.0));
            optimizer.step(&parameters, &gradients(&parameters, &[(w, &[3.0, 4.0])]), 0.1).unwrap();
            if restore {
                let state =
                    optimizer.state().into_iter().map(|(kind, values)| (kind, values.into_owned())).collect();
                optimizer = AdamW::new(&parameters, &config(0.5, 0.0));
                optimizer.restore(&state, 1).unwrap();
                assert!(
                    optimizer.restore(&BTreeMap::new(), 1).unwrap_err().to_string().starts_with("first: ")
                );
            }
            optimizer.step(&parameters, &gradients(&parameters, &[(w, &[-1.0, 2.0])]), 0.1).unwrap();
            get(w)
        };
        assert_eq!(run(true), run(false));
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let parameters = parameters(&[("w", &[2, 1])]);
        let w = parameters.get("w").unwrap();
        let (before, mut optimizer) = (get(w), AdamW::new(&parameters, &config(0.5, 1.0)));
        let gradients = gradients(&parameters, &[(w, &[f32::NAN, 1.0])]);
        assert!(optimizer.step(&parameters, &gradients, 0.1).unwrap().is_nan());
        assert_eq!(
            (get(w), optimizer.steps, optimizer.moments.first["w"].clone()),
            (before, 0, vec![0.0; 2])
        );
    }
}
