//! Tests that bad input to the loss is an error.
//!
//! Its message must name the argument, the expected and the found value.
use candle_core::{DType, Device, Tensor};
use panda::panda_core::{Head, Plan};
use panda::rnnt_loss::{
    Error, HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, Reduction, Result, ScoreInputs,
    Session, Targets, candle,
};

use crate::loss_problem::Problem;

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) -> Error {
    let Err(error) = result else { panic!("expected an error that contains {parts:?}") };
    let message = error.to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{message:?} does not contain {part:?}"));
    error
}

/// T = 2 and U = 1 for both utterances, three classes, all scores zero.
const LAYOUT: Layout = Layout::Padded { frames: 2, positions: 2 };
const SCORES: [f64; 24] = [0.0; 24];

fn targets(labels: [u32; 2]) -> Targets {
    Targets::new(0, vec![2, 2], labels.map(|id| vec![id]).into()).unwrap()
}

fn scores_input(scores: &[f64]) -> ScoreInputs<'_, f64> {
    ScoreInputs { scores, classes: 3, layout: LAYOUT }
}

fn losses(scores: &[f64], targets: &Targets, options: &Options) -> Result<Vec<f64>> {
    Ok(Session::new(options)?.sum(scores_input(scores), targets, &[1.0, 1.0])?.losses)
}

#[test]
fn invalid_targets_are_errors() {
    let error = assert_error(Targets::new(0, vec![], vec![]), &["at least one utterance"]);
    assert!(matches!(error, Error::Lattice(_)));
    let error = assert_error(Targets::new(0, vec![2], vec![]), &["labels", "each of 1", "found 0"]);
    assert!(matches!(error, Error::Batch { expected: 1, found: 0 }));
    let error = assert_error(
        Targets::new(4, vec![2, 2], vec![vec![1], vec![1, 4]]),
        &["utterance 1", "position 1", "blank"],
    );
    assert!(matches!(error, Error::BlankLabel { utterance: 1, position: 1, blank: 4 }));
    assert_error(Targets::new(0, vec![1, 0], vec![vec![], vec![]]), &["utterance 1", "at least one frame"]);
    assert_error(Targets::new(0, vec![usize::MAX], vec![vec![1]]), &["utterance 0", "4294967295 sites"]);
}

#[test]
fn labels_and_blank_outside_the_classes_are_errors() {
    let options = Options::default();
    let error =
        assert_error(losses(&SCORES, &targets([1, 3]), &options), &["utterance 1", "below 3", "found 3"]);
    assert!(matches!(error, Error::LabelOutOfRange { utterance: 1, position: 0, label: 3, classes: 3 }));
    let blank_outside = Targets::new(3, vec![2, 2], vec![vec![1], vec![1]]).unwrap();
    let error = assert_error(losses(&SCORES, &blank_outside, &options), &["blank", "below 3", "found 3"]);
    assert!(matches!(error, Error::BlankOutOfRange { blank: 3, classes: 3 }));
}

#[test]
fn lengths_beyond_the_tensor_are_errors() {
    let long = Targets::new(0, vec![2, 3], vec![vec![1], vec![1]]).unwrap();
    let error = assert_error(
        losses(&SCORES, &long, &Options::default()),
        &["frames", "utterance 1", "3 rows", "found 2"],
    );
    assert!(matches!(error, Error::TooLong { utterance: 1, needed: 3, found: 2, .. }));
    let long_labels = Targets::new(0, vec![2, 2], vec![vec![1, 2], vec![1]]).unwrap();
    assert_error(
        losses(&SCORES, &long_labels, &Options::default()),
        &["label positions", "utterance 0", "3 rows"],
    );
}

#[test]
fn arrays_of_the_wrong_length_are_errors() {
    let (valid_targets, options) = (targets([1, 2]), Options::default());
    let error =
        assert_error(losses(&SCORES[1..], &valid_targets, &options), &["scores", "24 elements", "found 23"]);
    assert!(matches!(error, Error::Shape { argument: "scores", .. }));
    let mut session = Session::new(&options).unwrap();
    let missing_weight = session.sum(scores_input(&SCORES), &valid_targets, &[1.0]);
    assert_error(missing_weight, &["weights", "2 elements", "found 1"]);
    assert_error(Reduction::Mean.reduce(&[1.0], &valid_targets), &["losses", "2 elements"]);
    let (weight, bias) = ([0.0; 12], [0.0; 3]);
    let head = Head::new(&weight, Some(&bias), 4).unwrap();
    let rows =
        session.sum(HiddenInputs::new(&[0.0; 31], head).with_layout(LAYOUT), &valid_targets, &[1.0; 2]);
    assert_error(rows, &["hidden", "32 elements", "found 31"]);
    let network = JointNetwork {
        encoder: &[0.0; 8],
        encoder_width: 2,
        predictor: &[0.0; 8],
        predictor_width: 2,
        bias: Some(&[0.0; 4]),
        head,
    };
    let call = |x: &[f64], y: &[f64], network: &JointNetwork<f64>| {
        let inputs = NetworkInputs { encoder_rows: x, predictor_rows: y, layout: LAYOUT };
        network.sum(&mut Session::new(&options)?, inputs, &valid_targets, &[1.0; 2])
    };
    assert!(call(&[0.0; 8], &[0.0; 8], &network).is_ok());
    assert_error(call(&[0.0; 9], &[0.0; 8], &network), &["encoder_rows", "8 elements", "found 9"]);
    assert_error(call(&[0.0; 8], &[0.0; 7], &network), &["predictor_rows", "8 elements", "found 7"]);
    let invalid = JointNetwork { encoder: &[0.0; 7], ..network };
    assert_error(call(&[0.0; 8], &[0.0; 8], &invalid), &["network.encoder", "8 elements"]);
    let invalid = JointNetwork { predictor: &[0.0; 7], ..network };
    assert_error(call(&[0.0; 8], &[0.0; 8], &invalid), &["network.predictor", "8 elements"]);
    let invalid = JointNetwork { bias: Some(&[0.0; 3]), ..network };
    assert_error(call(&[0.0; 8], &[0.0; 8], &invalid), &["network.bias", "4 elements"]);
    let invalid = JointNetwork { predictor_width: 0, ..network };
    assert_error(call(&[0.0; 8], &[0.0; 8], &invalid), &["predictor_width", "at least 1"]);
}

#[test]
fn scores_that_are_not_finite_are_errors() {
    for bad in [f64::NAN, f64::INFINITY] {
        let mut scores = SCORES;
        scores[12 + 3 + 1] = bad; // utterance 1, frame 0, label position 1
        let untouched = scores.map(f64::to_bits);
        let error = assert_error(
            losses(&scores, &targets([1, 2]), &Options::default()),
            &["utterance 1", "frame 0", "found NaN or +inf"],
        );
        assert!(matches!(error, Error::Scores { utterance: 1, frame: 0, label: 1, .. }));
        let mut session = Session::new(&Options::default()).unwrap();
        let in_place = session.sum_in_place(&mut scores, (3, LAYOUT), &targets([1, 2]), &[1.0; 2]);
        assert_error(in_place, &["utterance 1"]);
        assert_eq!(scores.map(f64::to_bits), untouched, "a failed call has changed its input");
    }
    let mut scores = SCORES;
    scores[9..12].fill(f64::NEG_INFINITY);
    let error =
        assert_error(losses(&scores, &targets([1, 2]), &Options::default()), &["-inf for every class"]);
    assert!(matches!(error, Error::Scores { utterance: 0, frame: 1, label: 1, .. }));
}

#[test]
fn nan_in_an_input_is_an_error() {
    let problem = Problem::draw(3, 2, 3, 2, 5, 4, 1.0);
    let error_with_nan_at = |element: fn(&mut Problem) -> &mut f64| {
        let mut problem_with_nan = problem.clone();
        *element(&mut problem_with_nan) = f64::NAN;
        let [encoded, predicted, weight, bias] = problem_with_nan.vars(DType::F32);
        assert_error(
            candle::transducer_loss(
                &encoded,
                &predicted,
                &weight,
                &bias,
                &problem_with_nan.targets(),
                &problem_with_nan.options(),
            ),
            &["NaN"],
        )
    };
    for element in [
        (|p: &mut Problem| &mut p.encoded[0]) as fn(&mut Problem) -> &mut f64,
        |p| &mut p.predicted[1],
        |p| &mut p.head_weight[2],
        |p| &mut p.head_bias[4],
    ] {
        assert!(matches!(error_with_nan_at(element), Error::Scores { utterance: 0, frame: 0, label: 0, .. }));
    }
}

#[test]
fn nan_in_ctc_scores_is_an_error() {
    let mut scores = vec![0.0f32; 2 * 3 * 4];
    scores[(3 + 1) * 4 + 2] = f32::NAN; // utterance 1, frame 1
    let targets = Targets::new(0, vec![3, 2], vec![vec![1], vec![2]]).unwrap();
    let tensor = |scores: &[f32]| Tensor::from_slice(scores, (2, 3, 4), &Device::Cpu).unwrap();
    let error = assert_error(
        candle::ctc_loss(&tensor(&scores), &targets, &Options::default()),
        &["utterance 1", "frame 1", "NaN"],
    );
    assert!(matches!(error, Error::Frame { utterance: 1, frame: 1, .. }));
    // For a shorter utterance this frame is padding.
    let short = Targets::new(0, vec![3, 1], vec![vec![1], vec![2]]).unwrap();
    assert!(candle::ctc_loss(&tensor(&scores), &short, &Options::default()).is_ok());
}

#[test]
fn invalid_options_are_errors() {
    let valid_targets = targets([1, 2]);
    let losses_with = |options: Options| losses(&SCORES, &valid_targets, &options);
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        assert_error(
            losses_with(Options { fastemit: bad, ..Options::default() }),
            &["fastemit", "at least 0"],
        );
    }
    for bad in [-0.1, f64::NAN] {
        assert_error(
            losses_with(Options { clamp: Some(bad), ..Options::default() }),
            &["clamp", "at least 0"],
        );
    }
    let mut session = Session::new(&Options::default()).unwrap();
    let weights = session.sum(scores_input(&SCORES), &valid_targets, &[1.0, f64::NAN]);
    assert_error(weights, &["finite"]);
    let plan = Some(Plan::custom(4, 4, 0, 1, 0));
    let session = Session::<f64>::new(&Options { plan, ..Options::default() });
    assert_error(session, &["plan.tile_classes", "at least 1"]);
}

#[test]
fn tensors_of_the_wrong_shape_or_type_are_errors() {
    let problem = Problem::draw(3, 2, 3, 2, 5, 4, 1.0);
    let (targets, options) = (problem.targets(), problem.options());
    let [encoded, predicted, weight, bias] = problem.vars(DType::F32);
    let call = |encoded: &Tensor, predicted: &Tensor, weight: &Tensor, bias: &Tensor| {
        candle::transducer_loss(encoded, predicted, weight, bias, &targets, &options)
    };
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    assert!(call(&encoded, &predicted, &weight, &bias).is_ok());
    assert_error(call(&zeros(&[6, 4]), &predicted, &weight, &bias), &["encoded", "[B, T, H]", "[6, 4]"]);
    assert_error(
        call(&zeros(&[1, 3, 4]), &predicted, &weight, &bias),
        &["encoded", "[2, 3, 4]", "[1, 3, 4]"],
    );
    assert_error(
        call(&encoded, &zeros(&[2, 3, 5]), &weight, &bias),
        &["predicted", "[2, 3, 4]", "[2, 3, 5]"],
    );
    assert_error(call(&encoded, &predicted, &zeros(&[5]), &bias), &["head.weight", "[C, H]"]);
    assert_error(call(&encoded, &predicted, &weight, &zeros(&[4])), &["head.bias", "[5]", "[4]"]);
    assert_error(call(&zeros(&[2, 2, 4]), &predicted, &weight, &bias), &["frames", "3 rows", "found 2"]);
    let wide = predicted.to_dtype(DType::F64).unwrap();
    assert_error(call(&encoded, &wide, &weight, &bias), &["predicted", "f32", "f64"]);
    let half = encoded.to_dtype(DType::BF16).unwrap();
    assert_error(call(&half, &predicted, &weight, &bias), &["encoded", "f32 or f64", "bf16"]);
    assert_error(candle::scores_loss(&zeros(&[2, 3, 5]), &targets, &options), &["scores", "[B, T, U+1, C]"]);
    assert_error(candle::scores_loss(&zeros(&[1, 3, 3, 5]), &targets, &options), &["scores", "[2, 3, 3, 5]"]);
    assert_error(candle::ctc_loss(&zeros(&[2, 3]), &targets, &Options::default()), &["[B, T, C]"]);
    assert_error(candle::ctc_loss(&zeros(&[2, 2, 5]), &targets, &Options::default()), &["3", "2"]);
}
