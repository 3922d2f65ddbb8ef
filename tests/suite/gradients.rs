//! Tests gradients of the composed loss against the dense loss by autograd.
use candle_core::{DType, Device, Tensor, Var};
use oracle::compare::{assert_close, difference};
use oracle::{ctc, dense, noise, reference};
use panda::panda_core::Head;
use panda::rnnt_loss::{
    HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, ScoreInputs, Session, Targets, candle,
};
use proptest::prelude::*;

use crate::loss_problem::{GRADIENT_NAMES, LossGradients, Problem, plans, problems, tensor_values};

#[track_caller]
fn assert_close_gradients(computed: &LossGradients, expected: &LossGradients, tolerance: f64) {
    assert_close("losses", &computed.losses, &expected.losses, tolerance);
    for (i, name) in GRADIENT_NAMES.into_iter().enumerate() {
        assert_close(name, &computed.gradients[i], &expected.gradients[i], tolerance);
    }
}

fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn composed_gradients_equal_autograd_in_f64(problem in problems(), plan in plans(), fastemit in 0.0..0.5_f64) {
        let expected = problem.dense(fastemit);
        let options = Options { fastemit, ..problem.options() };
        assert_close_gradients(&problem.composed_loss(DType::F64, &options), &expected, 1e-10);
        assert_close_gradients(&problem.composed_loss(DType::F64, &Options { plan: Some(plan), ..options }), &expected, 1e-10);
    }

    #[test]
    fn sample_wise_gradients_equal_autograd_in_f64(problem in problems(), plan in plans(), fastemit in 0.0..0.5_f64, clamp in prop::option::of(0.01..2.0_f64)) {
        let options = Options { fastemit, ..problem.options() };
        let small = Options { plan: Some(plan), ..options.clone() };
        assert_close_gradients(&problem.sample_wise(DType::F64, &small).0, &problem.dense(fastemit), 1e-10);
        let clamped = Options { clamp, ..small };
        let unsplit = problem.composed_loss(DType::F64, &Options { clamp, ..options });
        assert_close_gradients(&problem.sample_wise(DType::F64, &clamped).0, &unsplit, 1e-10);
    }

    #[test]
    fn budgets_change_only_rounding(problem in problems(), bytes in 0_usize..100_000) {
        let exact = problem.dense(0.0);
        // A budget too small for any plan is an error that states the smallest budget; that budget
        // works.
        let options = Options { budget: bytes, ..problem.options() };
        let required_budget = problem.required_budget(DType::F64, &options).max(problem.required_budget(DType::F32, &options));
        let bytes = bytes.max(required_budget);
        for (budget, keep_scores) in [(bytes, true), (usize::MAX, false), (usize::MAX, true)] {
            let options = Options { budget, keep_scores, ..problem.options() };
            assert_close_gradients(&problem.composed_loss(DType::F64, &options), &exact, 1e-10);
            let computed = problem.sample_wise(DType::F32, &options).0;
            for (i, name) in GRADIENT_NAMES.into_iter().enumerate() {
                let gap = difference(&computed.gradients[i], &exact.gradients[i]).unwrap();
                prop_assert!(gap.relative_l2 <= 2e-5 || gap.absolute <= 1e-6, "{name} with {budget}, {keep_scores}: {gap:?}");
            }
        }
    }

    #[test]
    fn skipping_stays_within_its_bound(problem in problems(), plan in plans(), log in -9.0..-0.5_f64) {
        let options = Options { plan: Some(plan), skip: 10_f64.powf(log), ..problem.options() };
        let (exact, _) = problem.sample_wise(DType::F64, &Options { skip: 0.0, ..options.clone() });
        let (computed, skipped) = problem.sample_wise(DType::F64, &options);
        prop_assert_eq!(&computed.losses, &exact.losses);
        for (i, bound) in [skipped.input_error, skipped.input_error, skipped.weight_error, skipped.bias_error].into_iter().enumerate() {
            let pairs = computed.gradients[i].iter().zip(&exact.gradients[i]);
            let max_error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            prop_assert!(max_error <= bound + 1e-12, "{}: {max_error} above {bound}", GRADIENT_NAMES[i]);
        }
        let steps: f64 = problem.frames.iter().zip(&problem.labels).zip(&problem.weights)
            .map(|((t, labels), weight)| (t + labels.len()) as f64 * weight.abs()).sum();
        prop_assert!(skipped.mass <= options.skip * steps * (1.0 + 1e-9));
    }

    #[test]
    fn autograd_in_f32(problem in problems(), plan in plans()) {
        let expected = problem.dense(0.0);
        let computed = problem.composed_loss(DType::F32, &Options { plan: Some(plan), ..problem.options() });
        for (a, b) in computed.losses.iter().zip(&expected.losses) {
            prop_assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "loss {a} against {b}");
        }
        for (i, name) in GRADIENT_NAMES.into_iter().enumerate() {
            let gap = difference(&computed.gradients[i], &expected.gradients[i]).unwrap();
            // Gradients that cancel to almost 0 have no relative accuracy.
            prop_assert!(gap.relative_l2 <= 2e-5 || gap.absolute <= 1e-6, "{name}: {gap:?}");
        }
    }

    #[test]
    fn gradients_of_scores_equal_autograd(problem in problems(), fastemit in 0.0..0.5_f64) {
        let vars = problem.vars(DType::F64);
        let scores = Var::from_tensor(&problem.logits(&vars)).unwrap();
        let Problem { frames, labels, blank, weights, .. } = &problem;
        let factors = Tensor::new(weights.as_slice(), &Device::Cpu).unwrap();
        let gradient = |loss: &Tensor| {
            tensor_values((loss * &factors).unwrap().sum_all().unwrap().backward().unwrap().get(&scores).unwrap())
        };
        let loss = dense::transducer_loss_fastemit(&scores, frames, labels, *blank, fastemit).unwrap();
        let (losses, expected) = (tensor_values(&loss), gradient(&loss));

        let (targets, options) = (problem.targets(), Options { fastemit, ..Options::default() });
        let loss = candle::scores_loss(&scores, &targets, &options).unwrap();
        assert_close("losses", &tensor_values(&loss), &losses, 1e-11);
        assert_close("candle scores", &gradient(&loss), &expected, 1e-11);

        let layout = Layout::Padded { frames: problem.max_frames, positions: problem.positions };
        let mut in_place = tensor_values(&scores);
        let mut session = Session::new(&options).unwrap();
        let inputs = ScoreInputs { scores: &in_place, classes: problem.classes, layout };
        let out = session.sum(inputs, &targets, weights).unwrap();
        assert_close("losses", &out.losses, &losses, 1e-11);
        assert_close("scores", &out.gradients.scores, &expected, 1e-11);
        let computed = session.sum_in_place(&mut in_place, (problem.classes, layout), &targets, weights).unwrap();
        prop_assert_eq!((computed, in_place), (out.losses, out.gradients.scores));
    }

    #[test]
    fn clamp_clips_before_weighting(problem in problems(), limit in 0.0..0.3_f64) {
        let scores = tensor_values(&problem.logits(&problem.vars(DType::F64)));
        let Problem { frames, labels, blank, weights, max_frames, positions, classes, .. } = &problem;
        let dims = [problem.batch(), *max_frames, *positions, *classes];
        let unclipped = reference::transducer_loss(&scores, dims, frames, labels, *blank, 0.0).unwrap();
        let utterance_size = max_frames * positions * classes;
        let clipped = unclipped.gradient.iter().enumerate();
        let expected: Vec<f64> =
            clipped.map(|(i, g)| weights[i / utterance_size] * g.clamp(-limit, limit)).collect();
        let options = Options { clamp: Some(limit), ..Options::default() };
        let layout = Layout::Padded { frames: *max_frames, positions: *positions };
        let inputs = ScoreInputs { scores: &scores, classes: *classes, layout };
        let computed = Session::new(&options).unwrap().sum(inputs, &problem.targets(), weights).unwrap();
        assert_close("clamped", &computed.gradients.scores, &expected, 1e-12);
    }

    #[test]
    fn gradients_of_hidden_rows_equal_autograd(problem in problems(), plan in plans(), packed in any::<bool>()) {
        // Hidden rows of a custom network: here noise.
        let Problem { frames, labels, blank, weights, classes, width, max_frames, positions, .. } = &problem;
        let dims = (problem.batch(), *max_frames, *positions, *width);
        let hidden = noise::normal(9, 0, dims.0 * dims.1 * dims.2 * dims.3, 1.0);
        let hidden_var = Var::from_vec(hidden.clone(), dims, &Device::Cpu).unwrap();
        let [_, _, weight_var, bias_var] = problem.vars(DType::F64);
        let flat_rows = hidden_var.reshape(((), *width)).unwrap().matmul(&weight_var.t().unwrap()).unwrap();
        let logits = flat_rows.broadcast_add(&bias_var).unwrap().reshape((dims.0, dims.1, dims.2, *classes)).unwrap();
        let loss = dense::transducer_loss(&logits, frames, labels, *blank).unwrap();
        let factors = Tensor::new(weights.as_slice(), &Device::Cpu).unwrap();
        let grads = (&loss * factors).unwrap().sum_all().unwrap().backward().unwrap();
        let expected_hidden = tensor_values(grads.get(&hidden_var).unwrap());

        let is_site: Vec<bool> = (0..dims.0 * dims.1 * dims.2)
            .map(|i| {
                let (b, t, u) = (i / dims.2 / dims.1, i / dims.2 % dims.1, i % dims.2);
                t < frames[b] && u <= labels[b].len()
            })
            .collect();
        let pack = |rows: &[f64]| -> Vec<f64> {
            rows.chunks(*width).zip(&is_site).filter(|(_, is_site)| **is_site).flat_map(|(row, _)| row).copied().collect()
        };
        let options = Options { plan: Some(plan), ..Options::default() };
        let head = Head::new(&problem.head_weight, Some(&problem.head_bias), *width).unwrap();
        let targets = problem.targets();
        let mut session = Session::new(&options).unwrap();
        let (computed, expected_hidden) = if packed {
            (session.sum(HiddenInputs::new(&pack(&hidden), head), &targets, weights).unwrap(), pack(&expected_hidden))
        } else {
            let layout = Layout::Padded { frames: *max_frames, positions: *positions };
            let rows = HiddenInputs::new(&hidden, head).with_layout(layout);
            (session.sum(rows, &targets, weights).unwrap(), expected_hidden)
        };
        assert_close("losses", &computed.losses, &tensor_values(&loss), 1e-10);
        assert_close("hidden", &computed.gradients.hidden, &expected_hidden, 1e-10);
        assert_close("weight", &computed.gradients.head.weight, &tensor_values(grads.get(&weight_var).unwrap()), 1e-10);
        assert_close("bias", &computed.gradients.head.bias, &tensor_values(grads.get(&bias_var).unwrap()), 1e-10);
    }

    #[test]
    fn gradients_of_projections_equal_autograd(problem in problems(), plan in plans(), seed in any::<u64>()) {
        let Problem { weights, width, max_frames, positions, .. } = &problem;
        let (batch, encoder_width, predictor_width) = (problem.batch(), 1 + seed as usize % 5, 1 + seed as usize / 5 % 5);
        // Encoder and predictor rows, their projections, and the bias.
        let shapes = [
            vec![batch, *max_frames, encoder_width],
            vec![batch, *positions, predictor_width],
            vec![*width, encoder_width],
            vec![*width, predictor_width],
            vec![*width],
        ];
        let values: Vec<Vec<f64>> = (0..)
            .zip(&shapes)
            .map(|(purpose, shape)| noise::normal(seed, purpose, shape.iter().product(), 0.7))
            .collect();
        let vars: Vec<Var> = values
            .iter()
            .zip(&shapes)
            .map(|(v, shape)| Var::from_slice(v, shape.as_slice(), &Device::Cpu).unwrap())
            .collect();
        // The dense loss with autograd.
        let project = |x: &Tensor, weight: &Tensor| x.broadcast_matmul(&weight.t().unwrap()).unwrap();
        let frame_rows = project(&vars[0], &vars[2]).broadcast_add(&vars[4]).unwrap();
        let label_rows = project(&vars[1], &vars[3]);
        let [_, _, head_weight, head_bias] = problem.vars(DType::F64);
        let logits = dense::joint_logits(&frame_rows, &label_rows, &head_weight, &head_bias, problem.activation).unwrap();
        let loss = dense::transducer_loss(&logits, &problem.frames, &problem.labels, problem.blank).unwrap();
        let factors = Tensor::new(weights.as_slice(), &Device::Cpu).unwrap();
        let grads = (&loss * factors).unwrap().sum_all().unwrap().backward().unwrap();
        let expected = |var: &Var| tensor_values(grads.get(var).unwrap());

        // The joint network on slices.
        let network = JointNetwork {
            encoder: &values[2],
            encoder_width,
            predictor: &values[3],
            predictor_width,
            bias: Some(&values[4]),
            head: Head::new(&problem.head_weight, Some(&problem.head_bias), *width).unwrap(),
        };
        let layout = Layout::Padded { frames: *max_frames, positions: *positions };
        let mut session = Session::new(&Options { plan: Some(plan), ..problem.options() }).unwrap();
        let inputs = NetworkInputs { encoder_rows: &values[0], predictor_rows: &values[1], layout };
        let computed = network.sum(&mut session, inputs, &problem.targets(), weights).unwrap();
        assert_close("losses", &computed.losses, &tensor_values(&loss), 1e-10);
        for (name, gradient, var) in [
            ("encodings", &computed.encodings, &vars[0]),
            ("predictions", &computed.predictions, &vars[1]),
            ("encoder", &computed.encoder, &vars[2]),
            ("predictor", &computed.predictor, &vars[3]),
            ("bias", &computed.bias, &vars[4]),
            ("head weight", &computed.head.weight, &head_weight),
            ("head bias", &computed.head.bias, &head_bias),
        ] {
            assert_close(name, gradient, &expected(var), 1e-10);
        }
    }

    #[test]
    fn ctc_equals_the_sum_over_all_labelings(seed in any::<u64>(), frame_count in 1_usize..6, label_count in 0_usize..4, classes in 2_u32..5) {
        let (batch, blank) = (2, noise::integers(seed, 0, 1, classes)[0]);
        let logits = noise::normal(seed, 1, batch * frame_count * classes as usize, 2.0);
        let frames = vec![frame_count, 1 + noise::integers(seed, 2, 1, frame_count as u32)[0] as usize];
        let labels: Vec<Vec<u32>> = (3..5).map(|p| noise::labels(seed, p, label_count, classes, blank)).collect();
        let logits_var = Var::from_slice(&logits, (batch, frame_count, classes as usize), &Device::Cpu).unwrap();
        let targets = Targets::new(blank, frames.clone(), labels.clone()).unwrap();
        let loss = candle::ctc_loss(&logits_var, &targets, &Options::default()).unwrap();
        let grads = loss.sum_all().unwrap().backward().unwrap();
        let (losses, gradient) = (tensor_values(&loss), tensor_values(grads.get(&logits_var).unwrap()));
        for b in 0..batch {
            let utterance_size = frame_count * classes as usize;
            let mut probs = logits[b * utterance_size..][..frames[b] * classes as usize].to_vec();
            probs.chunks_mut(classes as usize).for_each(reference::log_softmax);
            let all = ctc::sum_over_labelings(&probs, frames[b], classes as usize, &labels[b], blank).unwrap();
            assert_close("ctc loss", &[losses[b]], &[-all.log_likelihood], 1e-11);
            let mut expected = vec![0.0; utterance_size];
            if all.log_likelihood.is_finite() {
                let pairs = probs.iter().zip(&all.occupancies);
                expected.iter_mut().zip(pairs).for_each(|(e, (p, o))| *e = p.exp() - o);
            }
            assert_close("ctc gradient", &gradient[b * utterance_size..][..utterance_size], &expected, 1e-11);
        }
    }
}

#[test]
fn f32_losses_of_many_classes_are_close_to_dense_ones() {
    // Several default tiles; the last is not full.
    let mut problem = Problem::draw(5, 2, 4, 3, 2_500, 12, 0.5);
    problem.blank = 2_499;
    problem.labels = vec![vec![0, 1_023, 1_024], vec![2_047]];
    let (computed, expected) = (problem.composed_loss(DType::F32, &problem.options()), problem.dense(0.0));
    for (i, name) in GRADIENT_NAMES.into_iter().enumerate() {
        let gap = difference(&computed.gradients[i], &expected.gradients[i]).unwrap();
        assert!(gap.relative_l2 < 2e-6, "{name}: {gap:?}");
    }
    assert_close("losses", &computed.losses, &expected.losses, 1e-4);
    let scores = to_f32(&tensor_values(&problem.logits(&problem.vars(DType::F64))));
    let layout = Layout::Padded { frames: 4, positions: 4 };
    let inputs = ScoreInputs { scores: &scores, classes: 2_500, layout };
    let mut session = Session::new(&Options::default()).unwrap();
    let f32_result = session.sum(inputs, &problem.targets(), &problem.weights);
    assert_close("scores", &f32_result.unwrap().losses, &expected.losses, 1e-4);
}

#[test]
fn a_variable_used_twice_gets_both_gradients() {
    // One tensor as frame rows and label rows: candle must add the two gradients.
    let mut problem = Problem::draw(11, 1, 3, 2, 7, 4, 1.0);
    problem.encoded.clone_from(&problem.predicted);
    let [shared, _, weight, bias] = problem.vars(DType::F64);
    let loss =
        candle::transducer_loss(&shared, &shared, &weight, &bias, &problem.targets(), &problem.options())
            .unwrap();
    let weights = Tensor::new(problem.weights.as_slice(), &Device::Cpu).unwrap();
    let grads = (loss * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let separate = problem.dense(0.0).gradients;
    let expected: Vec<f64> = separate[0].iter().zip(&separate[1]).map(|(a, b)| a + b).collect();
    assert_close("shared", &tensor_values(grads.get(&shared).unwrap()), &expected, 1e-11);
}
