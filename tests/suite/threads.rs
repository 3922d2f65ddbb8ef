//! Tests that results have the same bits with 1, 2 and 5 threads.
use candle_core::{DType, Device, Tensor};
use panda::panda_core::{DEFAULT_BUDGET, Head, Plan, Precision, Shape};
use panda::rnnt_loss::{JointNetwork, Layout, NetworkInputs, Options, Session, candle};
use rayon::ThreadPoolBuilder;

use crate::loss_problem::{LossGradients, Problem, tensor_values};

/// Runs `work` with 1, 2, 5 and again 5 threads.
fn with_thread_counts<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    [1, 2, 5, 5]
        .map(|threads| ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&work))
        .into()
}

#[track_caller]
fn assert_all_equal<T: PartialEq + std::fmt::Debug>(results: &[T]) {
    for (i, result) in results.iter().enumerate() {
        assert!(*result == results[0], "run {i} differs from the run with one thread");
    }
}

/// Returns the bits of losses and gradients.
fn bits(result: LossGradients) -> Vec<Vec<u64>> {
    let LossGradients { losses, gradients } = result;
    let arrays = std::iter::once(losses).chain(gradients);
    arrays.map(|values| values.into_iter().map(f64::to_bits).collect()).collect()
}

/// A problem with several waves, blocks and tiles by the default plan.
fn large_problem() -> Problem {
    Problem::draw(8, 8, 120, 11, 2_100, 16, 0.4)
}

#[test]
fn the_default_plan_gives_equal_bits() {
    let problem = large_problem();
    let sites = problem.targets().lattices().num_sites();
    let shape = Shape { sites, hidden: problem.width, classes: problem.classes, selected: 2 };
    let plan = Plan::<f32>::new(shape, Precision::Full, DEFAULT_BUDGET, true).unwrap();
    assert!(
        sites > plan.wave_sites && problem.classes > 2 * plan.tile_classes,
        "the problem is too small for several waves and tiles: {plan:?}"
    );
    for dtype in [DType::F32, DType::F64] {
        for (budget, keep_scores) in [(DEFAULT_BUDGET, true), (usize::MAX, false), (1 << 20, true)] {
            let options = Options { budget, keep_scores, ..problem.options() };
            assert_all_equal(&with_thread_counts(|| bits(problem.composed_loss(dtype, &options))));
            assert_all_equal(&with_thread_counts(|| bits(problem.sample_wise(dtype, &options).0)));
        }
    }
}

#[test]
fn small_tiles_give_equal_bits() {
    let problem = Problem::draw(9, 6, 23, 9, 67, 7, 1.0);
    for (wave, block, classes, tiles, kept) in
        [(15, 5, 9, 4, 0), (1, 1, 1, 1, 9), (64, 64, 10, 2, 300), (32, 16, 67, 5, 100)]
    {
        let plan = Plan::custom(wave, block, classes, tiles, kept);
        let options = Options { plan: Some(plan), ..problem.options() };
        assert_all_equal(&with_thread_counts(|| bits(problem.composed_loss(DType::F32, &options))));
        assert_all_equal(&with_thread_counts(|| bits(problem.sample_wise(DType::F32, &options).0)));
    }
}

#[test]
fn losses_of_scores_and_ctc_give_equal_bits() {
    let problem = Problem::draw(10, 6, 40, 9, 130, 5, 1.0);
    let scores = problem.logits(&problem.vars(DType::F64)).to_dtype(DType::F32).unwrap().detach();
    let weights = Tensor::new(problem.weights.as_slice(), &Device::Cpu).unwrap();
    let differentiate = |input: &candle_core::Var, loss: &Tensor| {
        let grads = (loss * &weights).unwrap().sum_all().unwrap().backward().unwrap();
        (tensor_values(loss), tensor_values(grads.get(input).unwrap()))
    };
    assert_all_equal(&with_thread_counts(|| {
        let scores = candle_core::Var::from_tensor(&scores).unwrap();
        let loss = candle::scores_loss(&scores, &problem.targets(), &Options::default()).unwrap();
        differentiate(&scores, &loss)
    }));
    let by_frame = scores.narrow(2, 0, 1).unwrap().squeeze(2).unwrap().contiguous().unwrap();
    assert_all_equal(&with_thread_counts(|| {
        let z = candle_core::Var::from_tensor(&by_frame).unwrap();
        let loss = candle::ctc_loss(&z, &problem.targets(), &Options::default()).unwrap();
        differentiate(&z, &loss)
    }));
}

#[test]
fn a_joint_network_on_slices_gives_equal_bits() {
    let problem = large_problem();
    let to_f32 = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let (encoded, predicted) = (to_f32(&problem.encoded), to_f32(&problem.predicted));
    let (weight, bias) = (to_f32(&problem.head_weight), to_f32(&problem.head_bias));
    let width = problem.width;
    let projection = to_f32(&oracle::noise::normal(1, 1, width * width, 0.3));
    let network = JointNetwork {
        encoder: &projection,
        encoder_width: width,
        predictor: &projection,
        predictor_width: width,
        bias: None,
        head: Head::new(&weight, Some(&bias), width).unwrap(),
    };
    let layout = Layout::Padded { frames: problem.max_frames, positions: problem.positions };
    let (targets, options) = (problem.targets(), problem.options());
    assert_all_equal(&with_thread_counts(|| {
        let inputs = NetworkInputs { encoder_rows: &encoded, predictor_rows: &predicted, layout };
        network.sum(&mut Session::new(&options).unwrap(), inputs, &targets, &problem.weights).unwrap()
    }));
}
