//! Tests that losses and gradients do not depend on batch or padding.
use candle_core::DType;
use oracle::compare::assert_close;
use panda::panda_core::Head;
use panda::rnnt_loss::{HiddenInputs, Layout, NetworkInputs, Options, ScoreInputs, Session};
use proptest::prelude::*;

use crate::loss_problem::{LossGradients, Problem, problems, tensor_values};

/// The values of utterance `b` in a padded array.
fn utterance_values<'a>(values: &'a [f64], problem: &Problem, b: usize) -> &'a [f64] {
    let size = values.len() / problem.batch();
    &values[b * size..(b + 1) * size]
}

/// A batch of some utterances of another, in the order given.
fn select_utterances(problem: &Problem, order: &[usize]) -> Problem {
    let gather =
        |values: &[f64]| order.iter().flat_map(|&b| utterance_values(values, problem, b)).copied().collect();
    Problem {
        frames: order.iter().map(|&b| problem.frames[b]).collect(),
        labels: order.iter().map(|&b| problem.labels[b].clone()).collect(),
        encoded: gather(&problem.encoded),
        predicted: gather(&problem.predicted),
        weights: gather(&problem.weights),
        ..problem.clone()
    }
}

/// Puts NaN, infinities and huge values into all padded rows.
fn fill_padding(problem: &Problem) -> Problem {
    let bad_values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e38];
    let mut with_bad_padding = problem.clone();
    for (i, x) in with_bad_padding.encoded.iter_mut().enumerate() {
        let row = i / problem.width;
        if row % problem.max_frames >= problem.frames[row / problem.max_frames] {
            *x = bad_values[i % 4];
        }
    }
    for (i, x) in with_bad_padding.predicted.iter_mut().enumerate() {
        let row = i / problem.width;
        if row % problem.positions > problem.labels[row / problem.positions].len() {
            *x = bad_values[i % 4];
        }
    }
    with_bad_padding
}

/// The same utterances in a larger padded shape.
fn pad_to(problem: &Problem, frames: usize, positions: usize) -> Problem {
    let grow = |values: &[f64], old: usize, new: usize| {
        let rows = |b: usize| values[b * old * problem.width..(b + 1) * old * problem.width].iter().copied();
        let filler = |_| std::iter::repeat_n(f64::NAN, (new - old) * problem.width);
        (0..problem.batch()).flat_map(|b| rows(b).chain(filler(b))).collect()
    };
    Problem {
        encoded: grow(&problem.encoded, problem.max_frames, frames),
        predicted: grow(&problem.predicted, problem.positions, positions),
        max_frames: frames,
        positions,
        ..problem.clone()
    }
}

/// Adds a gradient to a sum of gradients.
fn add_to(sum: &mut [f64], term: &[f64]) {
    sum.iter_mut().zip(term).for_each(|(a, b)| *a += b);
}

/// Returns the composed loss of a problem in f64.
fn composed_loss(problem: &Problem) -> LossGradients {
    problem.composed_loss(DType::F64, &problem.options())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batched_losses_equal_single_ones(problem in problems()) {
        let batched = composed_loss(&problem);
        let mut head_gradients = [vec![0.0; problem.head_weight.len()], vec![0.0; problem.head_bias.len()]];
        for b in 0..problem.batch() {
            let single = composed_loss(&select_utterances(&problem, &[b]));
            assert_close("loss", &single.losses, &batched.losses[b..=b], 1e-12);
            for i in 0..2 {
                let batched_gradient = utterance_values(&batched.gradients[i], &problem, b);
                assert_close("encoding", &single.gradients[i], batched_gradient, 1e-12);
            }
            add_to(&mut head_gradients[0], &single.gradients[2]);
            add_to(&mut head_gradients[1], &single.gradients[3]);
        }
        assert_close("weight", &batched.gradients[2], &head_gradients[0], 1e-11);
        assert_close("bias", &batched.gradients[3], &head_gradients[1], 1e-11);
    }

    #[test]
    fn a_permuted_batch_permutes_the_loss(
        (problem, order) in problems().prop_flat_map(|p| {
            let order: Vec<usize> = (0..p.batch()).collect();
            (Just(p), Just(order).prop_shuffle())
        })
    ) {
        let (in_order, permuted) = (composed_loss(&problem), composed_loss(&select_utterances(&problem, &order)));
        for (new_index, &old_index) in order.iter().enumerate() {
            assert_close("loss", &permuted.losses[new_index..=new_index], &in_order.losses[old_index..=old_index], 1e-12);
            for i in 0..2 {
                let (a, b) = (&permuted.gradients[i], &in_order.gradients[i]);
                assert_close("encoding", utterance_values(a, &problem, new_index), utterance_values(b, &problem, old_index), 1e-12);
            }
        }
        assert_close("weight", &permuted.gradients[2], &in_order.gradients[2], 1e-11);
        assert_close("bias", &permuted.gradients[3], &in_order.gradients[3], 1e-11);
    }

    #[test]
    fn padding_values_do_not_change_the_result(problem in problems()) {
        let (clean, with_bad_padding) = (composed_loss(&problem), composed_loss(&fill_padding(&problem)));
        // The same bits, since the same numbers are computed.
        prop_assert_eq!(&clean, &with_bad_padding);
        for (i, stride) in [(0, problem.max_frames), (1, problem.positions)] {
            for (row, gradient) in with_bad_padding.gradients[i].chunks(problem.width).enumerate() {
                let b = row / stride;
                let rows = if i == 0 { problem.frames[b] } else { problem.labels[b].len() + 1 };
                prop_assert!(row % stride < rows || gradient.iter().all(|&g| g == 0.0));
            }
        }
        let wide = pad_to(&problem, problem.max_frames + 3, problem.positions + 2);
        let wide = composed_loss(&wide);
        prop_assert_eq!(&wide.losses, &clean.losses);
        prop_assert_eq!(&wide.gradients[2..], &clean.gradients[2..]);
    }

    #[test]
    fn padding_values_do_not_change_results_on_slices(problem in problems()) {
        let (targets, options) = (problem.targets(), Options::default());
        let (frames, positions) = (problem.max_frames, problem.positions);
        let layout = Layout::Padded { frames, positions };
        let rows = problem.batch() * frames * positions;
        let is_site = |row: usize| {
            let b = row / positions / frames;
            row / positions % frames < problem.frames[b] && row % positions <= problem.labels[b].len()
        };
        let fill_padding = |values: &[f64], width: usize| -> Vec<f64> {
            let nan = values.iter().enumerate();
            nan.map(|(i, &x)| if is_site(i / width) { x } else { f64::NAN }).collect()
        };
        let padding_is_zero = |gradient: &[f64], width: usize| {
            gradient.iter().enumerate().all(|(i, &g)| is_site(i / width) || g == 0.0)
        };
        let scores = tensor_values(&problem.logits(&problem.vars(DType::F64)));
        let run = |scores: &[f64]| {
            let scores = ScoreInputs { scores, classes: problem.classes, layout };
            Session::new(&options).unwrap().sum(scores, &targets, &problem.weights).unwrap()
        };
        let (clean, with_bad_padding) = (run(&scores), run(&fill_padding(&scores, problem.classes)));
        prop_assert!(padding_is_zero(&with_bad_padding.gradients.scores, problem.classes));
        prop_assert_eq!(clean, with_bad_padding);

        let hidden = oracle::noise::normal(3, 1, rows * problem.width, 1.0);
        let head = Head::new(&problem.head_weight, Some(&problem.head_bias), problem.width).unwrap();
        let run = |hidden: &[f64]| {
            let rows = HiddenInputs::new(hidden, head).with_layout(layout);
            Session::new(&options).unwrap().sum(rows, &targets, &problem.weights).unwrap()
        };
        let (clean, with_bad_padding) = (run(&hidden), run(&fill_padding(&hidden, problem.width)));
        prop_assert!(padding_is_zero(&with_bad_padding.gradients.hidden, problem.width));
        prop_assert_eq!(clean, with_bad_padding);
    }

    #[test]
    fn packed_inputs_equal_padded_ones(problem in problems()) {
        let identity: Vec<f64> =
            (0..problem.width * problem.width).map(|i| f64::from(i % (problem.width + 1) == 0)).collect();
        let network = panda::rnnt_loss::JointNetwork {
            encoder: &identity,
            encoder_width: problem.width,
            predictor: &identity,
            predictor_width: problem.width,
            bias: None,
            head: Head::new(&problem.head_weight, Some(&problem.head_bias), problem.width).unwrap(),
        };
        let (targets, options) = (problem.targets(), problem.options());
        let padded = Layout::Padded { frames: problem.max_frames, positions: problem.positions };
        let with_bad_padding = fill_padding(&problem);
        let pack = |values: &[f64], stride: usize, row_count: &dyn Fn(usize) -> usize| -> Vec<f64> {
            let rows = values.chunks(problem.width).enumerate();
            rows.filter(|(row, _)| row % stride < row_count(row / stride)).flat_map(|(_, row)| row).copied().collect()
        };
        let frame_rows = pack(&problem.encoded, problem.max_frames, &|b| problem.frames[b]);
        let label_rows = pack(&problem.predicted, problem.positions, &|b| problem.labels[b].len() + 1);
        let run = |encoder_rows: &[f64], predictor_rows: &[f64], layout| {
            let inputs = NetworkInputs { encoder_rows, predictor_rows, layout };
            network.sum(&mut Session::new(&options).unwrap(), inputs, &targets, &problem.weights).unwrap()
        };
        let (padded_output, packed_output) = (run(&with_bad_padding.encoded, &with_bad_padding.predicted, padded), run(&frame_rows, &label_rows, Layout::Packed));
        prop_assert_eq!(&padded_output.losses, &packed_output.losses);
        prop_assert_eq!(&padded_output.head, &packed_output.head);
        prop_assert_eq!(&padded_output.encoder, &packed_output.encoder);
        prop_assert_eq!(pack(&padded_output.encodings, problem.max_frames, &|b| problem.frames[b]), packed_output.encodings);
        prop_assert_eq!(
            pack(&padded_output.predictions, problem.positions, &|b| problem.labels[b].len() + 1),
            packed_output.predictions
        );
    }
}

#[test]
fn an_impossible_utterance_does_not_change_the_others() {
    let mut problem = Problem::draw(4, 3, 5, 3, 8, 4, 1.0);
    problem.blank = 0;
    problem.labels = vec![vec![1, 2, 3], vec![7], vec![4, 5]];
    problem.head_bias[7] = f64::NEG_INFINITY;
    let batched = composed_loss(&problem);
    assert_eq!(batched.losses[1], f64::INFINITY);
    for i in 0..2 {
        assert!(utterance_values(&batched.gradients[i], &problem, 1).iter().all(|&g| g == 0.0));
    }
    let without_it = composed_loss(&select_utterances(&problem, &[0, 2]));
    assert_close("losses", &[batched.losses[0], batched.losses[2]], &without_it.losses, 1e-12);
    assert_close("weight", &batched.gradients[2], &without_it.gradients[2], 1e-12);
    assert_close("bias", &batched.gradients[3], &without_it.gradients[3], 1e-12);
}
