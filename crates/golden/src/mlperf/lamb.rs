//! Traces of LAMB: parameters, moments and trust ratios after given gradients.
use rnnt_loss::Element;
use serde::Deserialize;
use training::optimizer::{Clip, LambConfig, LambStep, Number};

use super::check::{Bar, Check};
use crate::error::Stop;

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

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum ClipForm {
    Single,
    Distributed,
}

/// One tensor and what belongs to it.
struct Tensor<F> {
    name: String,
    decays: bool,
    gradients: Vec<Vec<F>>,
    weights: Vec<F>,
    first: Vec<F>,
    second: Vec<F>,
}

/// The README's bars of parameters and both moments.
fn bars(single: bool) -> [(&'static str, Bar); 3] {
    let [param, m, v] = if single { [1e-5, 2e-6, 3e-5] } else { [1e-12; 3] };
    [("param", Bar::OfLargest(param)), ("m", Bar::OfLargest(m)), ("v", Bar::OfLargest(v))]
}

pub fn run<F: Element + Number>(check: &mut Check) -> Result<(), Stop> {
    let options: Options = check.file.field("options")?;
    let single = size_of::<F>() == size_of::<f32>();
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
    let mut tensors = Vec::new();
    for name in &options.tensors {
        let weights = check.input::<F>(&format!("init.{name}"))?;
        let gradients = check.rows(&format!("grad.{name}"), options.steps)?;
        let zeros = vec![F::ZERO; weights.len()];
        let decays = !options.no_decay.contains(name);
        let (first, second) = (zeros.clone(), zeros);
        tensors.push(Tensor { name: name.clone(), decays, gradients, weights, first, second });
    }
    let rates = check.input::<f64>("lr")?;
    if rates.len() != options.steps {
        return Err(check
            .file
            .wrong("lr", &format!("{} rates", options.steps), &rates.len().to_string())
            .into());
    }
    let (mut norms, mut divisors, mut trusts) = (Vec::new(), Vec::new(), Vec::new());
    for (at, &rate) in rates.iter().enumerate() {
        let squares = tensors.iter().flat_map(|tensor| &tensor.gradients[at]).map(|g| g.to_f64().powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let divisor = clip.divisor(norm);
        norms.push(norm);
        divisors.push(divisor);
        let step = LambStep::new(&config, at as u64 + 1, rate, divisor);
        for Tensor { decays, gradients, weights, first, second, .. } in &mut tensors {
            trusts.push(step.update_tensor(*decays, weights, &gradients[at], first, second)?);
        }
        if options.kept_steps.contains(&(at + 1)) {
            for tensor in &tensors {
                let found = [&tensor.weights, &tensor.first, &tensor.second];
                for ((kind, bar), found) in bars(single).into_iter().zip(found) {
                    let name = format!("step{}.{kind}.{}", at + 1, tensor.name);
                    check.compare(&name, found, bar)?;
                    if single {
                        check.compare(&format!("f32.{name}"), found, bar)?;
                    }
                }
            }
        }
    }
    // Norms and ratios have no bar of their own: they are as good as the parameters that come of them.
    let bar = if single { Bar::Relative(1e-5) } else { Bar::Relative(1e-12) };
    check.compare("global_grad_norm", &norms, bar)?;
    check.compare("grad_divisor", &divisors, bar)?;
    check.compare("trust_ratio", &trusts, bar)?;
    if !single {
        check.leave_out(|name| name.starts_with("f32."));
    }
    Ok(())
}
