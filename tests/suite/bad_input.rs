//! Bad input at the doors of the loss: each gives an error that names the thing and what was expected.
use candle_core::{DType, Device, Tensor};
use panda::panda_core::{Head, Plan};
use panda::rnnt_loss::{
    Error, HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, Reduction, Result, ScoreInputs,
    Session, Targets, candle,
};

use crate::common::Problem;

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("must be refused; expected an error that says {words:?}") };
    let message = error.to_string();
    words.iter().for_each(|word| assert!(message.contains(word), "{message:?} does not say {word:?}"));
    error
}

/// T = 2 and U = 1 for both utterances, three classes, all scores zero.
const LAYOUT: Layout = Layout::Padded { frames: 2, positions: 2 };
const SCORES: [f64; 24] = [0.0; 24];

fn targets(labels: [u32; 2]) -> Targets {
    Targets::new(0, vec![2, 2], labels.map(|id| vec![id]).into()).unwrap()
}

fn inputs(scores: &[f64]) -> ScoreInputs<'_, f64> {
    ScoreInputs { scores, classes: 3, layout: LAYOUT }
}

fn loss_of(scores: &[f64], targets: &Targets, options: &Options) -> Result<Vec<f64>> {
    Ok(Session::new(options)?.sum(inputs(scores), targets, &[1.0, 1.0])?.losses)
}

#[test]
fn targets_that_make_no_sense() {
    let error = refused(Targets::new(0, vec![], vec![]), &["at least one utterance"]);
    assert!(matches!(error, Error::Lattice(_)));
    let error = refused(Targets::new(0, vec![2], vec![]), &["labels", "each of 1", "found 0"]);
    assert!(matches!(error, Error::Batch { expected: 1, found: 0 }));
    let error = refused(
        Targets::new(4, vec![2, 2], vec![vec![1], vec![1, 4]]),
        &["utterance 1", "position 1", "blank"],
    );
    assert!(matches!(error, Error::BlankLabel { utterance: 1, position: 1, blank: 4 }));
    refused(Targets::new(0, vec![1, 0], vec![vec![], vec![]]), &["utterance 1", "at least one frame"]);
    refused(Targets::new(0, vec![usize::MAX], vec![vec![1]]), &["utterance 0", "4294967295 sites"]);
}

#[test]
fn labels_and_blank_outside_the_classes() {
    let options = Options::default();
    let error = refused(loss_of(&SCORES, &targets([1, 3]), &options), &["utterance 1", "below 3", "found 3"]);
    assert!(matches!(error, Error::LabelOutOfRange { utterance: 1, position: 0, label: 3, classes: 3 }));
    let far = Targets::new(3, vec![2, 2], vec![vec![1], vec![1]]).unwrap();
    let error = refused(loss_of(&SCORES, &far, &options), &["blank", "below 3", "found 3"]);
    assert!(matches!(error, Error::BlankOutOfRange { blank: 3, classes: 3 }));
}

#[test]
fn lengths_beyond_the_tensor() {
    let long = Targets::new(0, vec![2, 3], vec![vec![1], vec![1]]).unwrap();
    let error =
        refused(loss_of(&SCORES, &long, &Options::default()), &["frames", "utterance 1", "3 rows", "has 2"]);
    assert!(matches!(error, Error::TooLong { utterance: 1, needed: 3, found: 2, .. }));
    let wordy = Targets::new(0, vec![2, 2], vec![vec![1, 2], vec![1]]).unwrap();
    refused(loss_of(&SCORES, &wordy, &Options::default()), &["label positions", "utterance 0", "3 rows"]);
}

#[test]
fn arrays_of_the_wrong_length() {
    let (sound, options) = (targets([1, 2]), Options::default());
    let error = refused(loss_of(&SCORES[1..], &sound, &options), &["scores", "24 elements", "found 23"]);
    assert!(matches!(error, Error::Shape { argument: "scores", .. }));
    let mut session = Session::new(&options).unwrap();
    let few = session.sum(inputs(&SCORES), &sound, &[1.0]);
    refused(few, &["weights", "2 elements", "found 1"]);
    refused(Reduction::Mean.reduce(&[1.0], &sound), &["losses", "2 elements"]);
    let (weight, bias) = ([0.0; 12], [0.0; 3]);
    let head = Head::new(&weight, Some(&bias), 4).unwrap();
    let rows = session.sum(HiddenInputs::new(&[0.0; 31], head).with_layout(LAYOUT), &sound, &[1.0; 2]);
    refused(rows, &["hidden", "32 elements", "found 31"]);
    let network = JointNetwork {
        encoder: &[0.0; 8],
        encoder_width: 2,
        predictor: &[0.0; 8],
        predictor_width: 2,
        bias: Some(&[0.0; 4]),
        head,
    };
    let call = |x: &[f64], y: &[f64], network: &JointNetwork<f64>| {
        let inputs = NetworkInputs { encodings: x, predictions: y, layout: LAYOUT };
        network.sum(&mut Session::new(&options)?, inputs, &sound, &[1.0; 2])
    };
    assert!(call(&[0.0; 8], &[0.0; 8], &network).is_ok());
    refused(call(&[0.0; 9], &[0.0; 8], &network), &["encodings", "8 elements", "found 9"]);
    refused(call(&[0.0; 8], &[0.0; 7], &network), &["predictions", "8 elements", "found 7"]);
    let wrong = JointNetwork { encoder: &[0.0; 7], ..network };
    refused(call(&[0.0; 8], &[0.0; 8], &wrong), &["network.encoder", "8 elements"]);
    let wrong = JointNetwork { predictor: &[0.0; 7], ..network };
    refused(call(&[0.0; 8], &[0.0; 8], &wrong), &["network.predictor", "8 elements"]);
    let wrong = JointNetwork { bias: Some(&[0.0; 3]), ..network };
    refused(call(&[0.0; 8], &[0.0; 8], &wrong), &["network.bias", "4 elements"]);
    let wrong = JointNetwork { predictor_width: 0, ..network };
    refused(call(&[0.0; 8], &[0.0; 8], &wrong), &["predictor_width", "at least 1"]);
}

#[test]
fn scores_that_are_no_numbers() {
    for bad in [f64::NAN, f64::INFINITY] {
        let mut scores = SCORES;
        scores[12 + 3 + 1] = bad; // utterance 1, frame 0, label position 1
        let untouched = scores.map(f64::to_bits);
        let error = refused(
            loss_of(&scores, &targets([1, 2]), &Options::default()),
            &["utterance 1", "frame 0", "found NaN or +inf"],
        );
        assert!(matches!(error, Error::Scores { utterance: 1, frame: 0, label: 1, .. }));
        let mut session = Session::new(&Options::default()).unwrap();
        let over = session.sum_in_place(&mut scores, (3, LAYOUT), &targets([1, 2]), &[1.0; 2]);
        refused(over, &["utterance 1"]);
        assert_eq!(scores.map(f64::to_bits), untouched, "a refused call has written");
    }
    let mut scores = SCORES;
    scores[9..12].fill(f64::NEG_INFINITY);
    let error = refused(loss_of(&scores, &targets([1, 2]), &Options::default()), &["-inf for every class"]);
    assert!(matches!(error, Error::Scores { utterance: 0, frame: 1, label: 1, .. }));
}

#[test]
fn nan_in_activations() {
    let problem = Problem::draw(3, 2, 3, 2, 5, 4, 1.0);
    let spoil = |place: fn(&mut Problem) -> &mut f64| {
        let mut spoilt = problem.clone();
        *place(&mut spoilt) = f64::NAN;
        let [f, g, w, b] = spoilt.vars(DType::F32);
        refused(candle::transducer_loss(&f, &g, &w, &b, &spoilt.targets(), &spoilt.options()), &["NaN"])
    };
    for place in [
        (|p: &mut Problem| &mut p.f[0]) as fn(&mut Problem) -> &mut f64,
        |p| &mut p.g[1],
        |p| &mut p.w[2],
        |p| &mut p.b[4],
    ] {
        assert!(matches!(spoil(place), Error::Scores { utterance: 0, frame: 0, label: 0, .. }));
    }
}

#[test]
fn nan_in_ctc_scores() {
    let mut scores = vec![0.0f32; 2 * 3 * 4];
    scores[(3 + 1) * 4 + 2] = f32::NAN; // utterance 1, frame 1
    let targets = Targets::new(0, vec![3, 2], vec![vec![1], vec![2]]).unwrap();
    let tensor = |scores: &[f32]| Tensor::from_slice(scores, (2, 3, 4), &Device::Cpu).unwrap();
    let error = refused(
        candle::ctc_loss(&tensor(&scores), &targets, &Options::default()),
        &["utterance 1", "frame 1", "NaN"],
    );
    assert!(matches!(error, Error::Frame { utterance: 1, frame: 1, .. }));
    // The same place is padding for a shorter utterance.
    let short = Targets::new(0, vec![3, 1], vec![vec![1], vec![2]]).unwrap();
    assert!(candle::ctc_loss(&tensor(&scores), &short, &Options::default()).is_ok());
}

#[test]
fn options_that_make_no_sense() {
    let sound = targets([1, 2]);
    let with = |options: Options| loss_of(&SCORES, &sound, &options);
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        refused(with(Options { fastemit: bad, ..Options::default() }), &["fastemit", "at least 0"]);
    }
    for bad in [-0.1, f64::NAN] {
        refused(with(Options { clamp: Some(bad), ..Options::default() }), &["clamp", "at least 0"]);
    }
    let mut session = Session::new(&Options::default()).unwrap();
    let weights = session.sum(inputs(&SCORES), &sound, &[1.0, f64::NAN]);
    refused(weights, &["finite"]);
    let plan = Some(Plan::custom(4, 4, 0, 1, 0));
    let session = Session::<f64>::new(&Options { plan, ..Options::default() });
    refused(session, &["plan.tile_classes", "at least 1"]);
}

#[test]
fn tensors_of_the_wrong_shape_or_type() {
    let problem = Problem::draw(3, 2, 3, 2, 5, 4, 1.0);
    let (targets, options) = (problem.targets(), problem.options());
    let [f, g, w, b] = problem.vars(DType::F32);
    let call = |f: &Tensor, g: &Tensor, w: &Tensor, b: &Tensor| {
        candle::transducer_loss(f, g, w, b, &targets, &options)
    };
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    assert!(call(&f, &g, &w, &b).is_ok());
    refused(call(&zeros(&[6, 4]), &g, &w, &b), &["encoded", "[B, T, H]", "[6, 4]"]);
    refused(call(&zeros(&[1, 3, 4]), &g, &w, &b), &["encoded", "[2, 3, 4]", "[1, 3, 4]"]);
    refused(call(&f, &zeros(&[2, 3, 5]), &w, &b), &["predicted", "[2, 3, 4]", "[2, 3, 5]"]);
    refused(call(&f, &g, &zeros(&[5]), &b), &["head.weight", "[C, H]"]);
    refused(call(&f, &g, &w, &zeros(&[4])), &["head.bias", "[5]", "[4]"]);
    refused(call(&zeros(&[2, 2, 4]), &g, &w, &b), &["frames", "3 rows", "has 2"]);
    let wide = g.to_dtype(DType::F64).unwrap();
    refused(call(&f, &wide, &w, &b), &["predicted", "f32", "f64"]);
    let half = f.to_dtype(DType::BF16).unwrap();
    refused(call(&half, &g, &w, &b), &["encoded", "f32 or f64", "bf16"]);
    refused(candle::scores_loss(&zeros(&[2, 3, 5]), &targets, &options), &["scores", "[B, T, U+1, C]"]);
    refused(candle::scores_loss(&zeros(&[1, 3, 3, 5]), &targets, &options), &["scores", "[2, 3, 3, 5]"]);
    refused(candle::ctc_loss(&zeros(&[2, 3]), &targets, &Options::default()), &["[B, T, C]"]);
    refused(candle::ctc_loss(&zeros(&[2, 2, 5]), &targets, &Options::default()), &["3", "2"]);
}
