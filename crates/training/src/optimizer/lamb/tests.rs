//! Tests of LAMB: steps computed by hand, threads, clipping, restored state.
//!
//! w: weights; g: gradient; m, v: first and second moment; u: update, as in [`LambStep`].

use approx::assert_relative_eq;
use candle_core::{Device, Tensor};
use candle_nn::Init;
use proptest::prelude::*;

use super::*;
use crate::Error;
use crate::optimizer::moments::ELEMENTS_PER_TASK;

const CONFIG: LambConfig =
    LambConfig { betas: [0.5, 0.75], eps: 0.0, weight_decay: 0.5, bias_correction: true };

#[test]
fn two_steps_have_the_values_computed_by_hand() {
    let (mut w, mut m, mut v) = ([1.0, -2.0], [0.0; 2], [0.0; 2]);
    // The divisor 2 makes the gradient (3, 4). First step: m/(1-β₁) = g and √(v/(1-β₂)) = |g|,
    // so u = (1 + 0.5, 1 - 1).
    let first = LambStep::new(&CONFIG, 1, 0.1, 2.0);
    let trust = first.update_tensor(true, &mut w, &[6.0, 8.0], &mut m, &mut v).unwrap();
    assert_relative_eq!(trust, 5f64.sqrt() / 1.5, max_relative = 1e-12);
    assert_relative_eq!(w[..], [1.0 - 0.1 * trust * 1.5, -2.0], max_relative = 1e-12);
    assert_eq!((m, v), ([1.5, 2.0], [2.25, 4.0]));

    // m = 0.5·1.5 - 0.5 and 1, v = 0.75·2.25 + 0.25 and 3; corrections 1 - 0.25 and 1 - 0.5625.
    let before = w;
    let trust = LambStep::new(&CONFIG, 2, 0.2, 1.0)
        .update_tensor(true, &mut w, &[-1.0, 0.0], &mut m, &mut v)
        .unwrap();
    let u = [
        0.25 / 0.75 / (1.9375f64 / 0.4375).sqrt() + 0.5 * before[0],
        1.0 / 0.75 / (3.0f64 / 0.4375).sqrt() + 0.5 * before[1],
    ];
    assert_relative_eq!(trust, before[0].hypot(before[1]) / u[0].hypot(u[1]), max_relative = 1e-12);
    let expected = [before[0] - 0.2 * trust * u[0], before[1] - 0.2 * trust * u[1]];
    assert_relative_eq!(w[..], expected[..], max_relative = 1e-12);
}

#[test]
fn the_trust_ratio_is_1_if_it_is_not_defined() {
    let trust = |config: &LambConfig, decays, mut w: [f64; 2], g: [f64; 2]| {
        let (mut m, mut v) = ([0.0; 2], [0.0; 2]);
        let trust =
            LambStep::new(config, 1, 0.1, 1.0).update_tensor(decays, &mut w, &g, &mut m, &mut v).unwrap();
        assert!(w.iter().all(|w| w.is_finite()));
        trust
    };
    let config = LambConfig { eps: 1e-9, ..CONFIG };
    assert_eq!(trust(&config, true, [0.0; 2], [1.0, 2.0]), 1.0);
    assert_eq!(trust(&config, true, [0.0; 2], [0.0; 2]), 1.0);
    assert_eq!(trust(&config, false, [3.0, 4.0], [1.0, 2.0]), 1.0);
    let without_decay = LambConfig { weight_decay: 0.0, ..config };
    assert_eq!(trust(&without_decay, true, [3.0, 4.0], [1.0, 2.0]), 1.0);
    // Without a gradient u = λw.
    assert_relative_eq!(trust(&config, true, [3.0, 4.0], [0.0; 2]), 2.0, max_relative = 1e-12);
}

#[test]
fn slices_of_different_lengths_are_rejected() {
    let step = LambStep::new(&CONFIG, 1, 0.1, 1.0);
    for (g_length, m_length, v_length) in [(2, 3, 3), (3, 4, 3), (3, 3, 0)] {
        let (g, mut m, mut v) = (vec![0f32; g_length], vec![0.0; m_length], vec![0.0; v_length]);
        let error = step.update_tensor(true, &mut [0.0; 3], &g, &mut m, &mut v).unwrap_err();
        assert!(matches!(error, Error::Model(model::Error::Shape { .. })), "{error}");
    }
    assert_eq!(step.update_tensor::<f32>(true, &mut [], &[], &mut [], &mut []).unwrap(), 1.0);
}

/// Returns weights, moments and ratios after three steps with pseudorandom numbers.
fn three_steps(count: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f64>) {
    let test_value = |index: usize, frequency: f32| ((index * 7919 % 10007) as f32 * frequency).sin();
    let mut w: Vec<f32> = (0..count).map(|index| test_value(index, 0.37)).collect();
    let (mut m, mut v) = (vec![0.0; count], vec![0.0; count]);
    let steps = (1..4).map(|step| {
        let g: Vec<f32> = (0..count).map(|index| test_value(index, 0.11 * step as f32)).collect();
        let config = LambConfig { eps: 1e-9, ..CONFIG };
        LambStep::new(&config, step, 0.01, 1.5).update_tensor(true, &mut w, &g, &mut m, &mut v).unwrap()
    });
    let trusts = steps.collect();
    (w, m, v, trusts)
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    for count in [1, 7, ELEMENTS_PER_TASK, 3 * ELEMENTS_PER_TASK + 5] {
        let run_on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| three_steps(count))
        };
        let single_threaded = run_on(1);
        assert!(single_threaded == run_on(2) && single_threaded == run_on(3), "{count}");
    }
}

proptest! {
    #[test]
    fn a_step_is_proportional_to_the_norm_of_its_tensor(
        w in prop::collection::vec(-10.0f64..10.0, 1..40), seed in any::<u32>(), scale in -20i32..20,
    ) {
        let g: Vec<f64> = (0..w.len()).map(|index| 2f64.powi(scale) * ((index as f64) + f64::from(seed)).sin()).collect();
        let (mut new_w, mut m, mut v) = (w.clone(), vec![0.0; w.len()], vec![0.0; w.len()]);
        let trust = LambStep::new(&CONFIG, 1, 0.1, 1.0).update_tensor(true, &mut new_w, &g, &mut m, &mut v).unwrap();
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let (weight_norm, step_norm) = (norm(&mut w.iter().copied()), norm(&mut w.iter().zip(&new_w).map(|(a, b)| a - b)));
        prop_assert!(trust > 0.0);
        if trust != 1.0 {
            prop_assert!((step_norm - 0.1 * weight_norm).abs() <= 1e-9 * weight_norm, "{} of {}", step_norm, weight_norm);
        }
    }
}

/// Creates two tensors, and their gradients of a loss Σ g·w.
fn parameters_and_gradients(g: [f32; 3]) -> (Parameters, Gradients) {
    let start = Init::Uniform { lo: -1.0, up: 1.0 };
    let make = |vb: candle_nn::VarBuilder| {
        vb.get_with_hints((2, 1), "w", start)?;
        Ok(vb.get_with_hints(1, "some.bias", start).map(drop)?)
    };
    let parameters = Parameters::build(3, make).unwrap().0;
    let term = |name: &str, g: &[f32]| {
        let w = parameters.get(name).unwrap();
        (w.as_tensor() * Tensor::from_slice(g, w.shape(), &Device::Cpu).unwrap()).unwrap().sum_all().unwrap()
    };
    let loss = (term("w", &g[..2]) + term("some.bias", &g[2..])).unwrap();
    let mut gradients = model::GradientSum::new(&parameters);
    gradients.backward(&loss, None).unwrap();
    let gradients = gradients.into_gradients();
    (parameters, gradients)
}

#[test]
fn all_parameters_share_one_norm_and_decay() {
    let (parameters, gradients) = parameters_and_gradients([2.0, 3.0, 6.0]);
    let before = parameters.values().unwrap();
    let config = LambConfig { eps: 1e-9, weight_decay: 0.1, ..CONFIG };
    let mut lamb = Lamb::new(&parameters, config, Clip::Single(1.0));
    assert_relative_eq!(lamb.step(&parameters, &gradients, 0.5).unwrap(), 7.0, max_relative = 1e-12);
    assert_relative_eq!(lamb.moments.first["w"][..], [1.0 / 7.0, 1.5 / 7.0], max_relative = 1e-6);
    // A tensor with one number changes by rate · |w| against its update.
    let (old, new) = (before["some.bias"][0], parameters.values().unwrap()["some.bias"][0]);
    assert_relative_eq!(new, old - 0.5 * old.abs() * (1.0 + 0.1 * old).signum(), max_relative = 1e-5);
}

#[test]
fn a_restored_optimizer_continues_with_the_same_bits() {
    let run = |restore: bool| {
        let (parameters, gradients) = parameters_and_gradients([2.0, -3.0, 6.0]);
        let new = || Lamb::new(&parameters, CONFIG, Clip::Distributed(1.0));
        let mut lamb = new();
        lamb.step(&parameters, &gradients, 0.1).unwrap();
        if restore {
            let state = lamb.state().into_iter().map(|(kind, values)| (kind, values.into_owned())).collect();
            lamb = new();
            lamb.restore(&state, 1).unwrap();
            assert!(lamb.restore(&BTreeMap::new(), 1).unwrap_err().to_string().starts_with("first: "));
        }
        lamb.step(&parameters, &gradients, 0.1).unwrap();
        parameters.values().unwrap()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for bad in [f32::NAN, f32::INFINITY] {
        let (parameters, gradients) = parameters_and_gradients([2.0, bad, 6.0]);
        let before = parameters.values().unwrap();
        let mut lamb = Lamb::new(&parameters, CONFIG, Clip::Single(1.0));
        assert!(!lamb.step(&parameters, &gradients, 0.1).unwrap().is_finite());
        assert_eq!((parameters.values().unwrap(), lamb.steps), (before, 0));
        assert!(lamb.moments.first.values().flatten().all(|&m| m == 0.0));
    }
}
