//! Golden test of the LAMB optimizer: weights, moments and trust ratios.
//!
//! Gradients of each step are given.
use rnnt_loss::Element;
use serde::Deserialize;
use training::optimizer::{Clip, LambConfig, LambStep};

use super::check::{MlPerfCheck, Tolerance};
use crate::error::RunError;

/// Settings of the optimizer in the sidecar.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    max_grad_norm: f64,
    clip: Option<ClipForm>,
    bias_correction: bool,
    no_decay: Vec<String>,
    steps: usize,
    tensors: Vec<String>,
    kept_steps: Vec<usize>,
}

/// Clipping of the gradient norm: in one process, or in a distributed run.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum ClipForm {
    Single,
    Distributed,
}

/// A parameter of the model: its weights, its gradients of all steps, its moments.
struct ParameterState<F> {
    name: String,
    has_weight_decay: bool,
    gradients: Vec<Vec<F>>,
    weights: Vec<F>,
    first_moment: Vec<F>,
    second_moment: Vec<F>,
}

/// Returns the tolerances of parameters and moments, from the README.
fn tolerances(is_f32: bool) -> [(&'static str, Tolerance); 3] {
    let [param, m, v] = if is_f32 { [1e-5, 2e-6, 3e-5] } else { [1e-12; 3] };
    [
        ("param", Tolerance::RelativeToMax(param)),
        ("m", Tolerance::RelativeToMax(m)),
        ("v", Tolerance::RelativeToMax(v)),
    ]
}

/// Runs the optimizer on the stored gradients and compares its state.
pub(super) fn compare<F: Element>(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let options: Options = check.file.field("options")?;
    let is_f32 = size_of::<F>() == size_of::<f32>();
    let clip = match options.clip {
        None => Clip::None,
        Some(ClipForm::Single) => Clip::Single(options.max_grad_norm),
        Some(ClipForm::Distributed) => Clip::Distributed(options.max_grad_norm),
    };
    let config = LambConfig {
        betas: [options.beta1, options.beta2],
        eps: options.eps,
        weight_decay: options.weight_decay,
        bias_correction: options.bias_correction,
    };
    let mut parameters = Vec::new();
    for name in &options.tensors {
        let weights = check.input::<F>(&format!("init.{name}"))?;
        let gradients = check.input_rows(&format!("grad.{name}"), options.steps)?;
        let zeros = vec![F::ZERO; weights.len()];
        let has_weight_decay = !options.no_decay.contains(name);
        let (first_moment, second_moment) = (zeros.clone(), zeros);
        parameters.push(ParameterState {
            name: name.clone(),
            has_weight_decay,
            gradients,
            weights,
            first_moment,
            second_moment,
        });
    }
    let rates = check.input::<f64>("lr")?;
    if rates.len() != options.steps {
        return Err(check
            .file
            .error("lr", &format!("{} rates", options.steps), &rates.len().to_string())
            .into());
    }
    // Run all steps; compare weights and moments after the stored ones.
    let (mut norms, mut divisors, mut trust_ratios) = (Vec::new(), Vec::new(), Vec::new());
    for (step_index, &rate) in rates.iter().enumerate() {
        let squares = parameters
            .iter()
            .flat_map(|parameter| &parameter.gradients[step_index])
            .map(|g| g.to_f64().powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let divisor = clip.divisor(norm);
        norms.push(norm);
        divisors.push(divisor);
        let step = LambStep::new(&config, step_index as u64 + 1, rate, divisor);
        for ParameterState { has_weight_decay, gradients, weights, first_moment, second_moment, .. } in
            &mut parameters
        {
            trust_ratios.push(step.update_tensor(
                *has_weight_decay,
                weights,
                &gradients[step_index],
                first_moment,
                second_moment,
            )?);
        }
        if options.kept_steps.contains(&(step_index + 1)) {
            for parameter in &parameters {
                let actual = [&parameter.weights, &parameter.first_moment, &parameter.second_moment];
                for ((kind, tolerance), actual) in tolerances(is_f32).into_iter().zip(actual) {
                    let name = format!("step{}.{kind}.{}", step_index + 1, parameter.name);
                    check.compare(&name, actual, tolerance)?;
                    if is_f32 {
                        check.compare(&format!("f32.{name}"), actual, tolerance)?;
                    }
                }
            }
        }
    }
    // Norms and ratios have the tolerance of the parameters.
    let tolerance = if is_f32 { Tolerance::Relative(1e-5) } else { Tolerance::Relative(1e-12) };
    check.compare("global_grad_norm", &norms, tolerance)?;
    check.compare("grad_divisor", &divisors, tolerance)?;
    check.compare("trust_ratio", &trust_ratios, tolerance)?;
    if !is_f32 {
        check.ignore(|name| name.starts_with("f32."));
    }
    Ok(())
}
