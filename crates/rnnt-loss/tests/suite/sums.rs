//! Weighted sums of losses (`sum`) over candle tensors match those over slices.
use candle_core::{DType, Device, Tensor, Var};
use pruned::{Heads, Linear};
use rnnt_loss::{
    Error, Head, JointInputs, Layout, Loss, Options, PassScales, PrunedInputs, Pruning, Result, Session,
    SimpleGradient, SimpleInputs, Targets, TokenNormalization, Topology,
    candle::{
        HeadTensors, JointTensors, LossSession, LossSum, PrunedTensors, SimpleTensors, transducer_loss_sum,
    },
};

const DEVICE: Device = Device::Cpu;
/// B = 3, padded T = 4, U + 1 = 3; with one label per frame, the last has no path.
const LAYOUT: Layout = Layout::Padded { frames: 4, positions: 3 };
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 3] = [0.5, -2.0, 1.5];
/// Factor of the sum.
const FACTOR: f64 = 3.0;

/// Pseudo-random values.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

/// Pseudo-random variable of a shape.
fn var(shape: &[usize], salt: usize) -> Var {
    let values = values(shape.iter().product(), salt);
    Var::from_tensor(&Tensor::from_vec(values, shape, &DEVICE).unwrap()).unwrap()
}

fn tensor_values(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Targets of the batch.
fn targets() -> Targets {
    Targets::new(2, vec![4, 3, 1], vec![vec![0, 4], vec![1], vec![3, 3]]).unwrap()
}

/// Compares gradients of `FACTOR · sum` with those of slices.
fn check_gradients(sum: &Tensor, expected: &[(&Var, Vec<f64>)]) {
    let gradients = (sum * FACTOR).unwrap().backward().unwrap();
    for (index, (var, expected)) in expected.iter().enumerate() {
        let actual = gradients.get(var).unwrap();
        assert_eq!(actual.dims(), var.dims());
        assert!(expected.iter().any(|g| *g != 0.0), "argument {index}");
        for (actual, expected) in tensor_values(actual).iter().zip(expected) {
            assert!(
                (actual - FACTOR * expected).abs() <= 1e-12 * (1.0 + expected.abs()),
                "argument {index}: {actual} {expected}"
            );
        }
    }
}

fn head<'a>(weight: &'a Tensor, bias: &'a Tensor) -> HeadTensors<'a> {
    HeadTensors { weight, bias: Some(bias) }
}

/// Weighted sum of the losses of utterances with a path.
fn weighted_sum(losses: &[f64]) -> f64 {
    losses.iter().zip(WEIGHTS).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}

#[test]
fn sums_of_tdt_losses_match_slices() {
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias, d_weight, d_bias) = (var(&[5, 3], 3), var(&[5], 4), var(&[3, 3], 5), var(&[3], 6));
    // A label advances by one or two frames, so that two labels need three frames.
    let topology = Topology::tdt(&[1, 2, 4]).unwrap();
    let loss = Loss::Tdt { topology, sigma: 0.05, omega: 0.25 };
    let options = Options { fastemit: 0.1, ..Options::new(loss) };
    let joint = JointTensors {
        encoded: &frames,
        predicted: &labels,
        head: head(&weight, &bias),
        durations: Some(head(&d_weight, &d_bias)),
        dropout: None,
    };
    let session = LossSession::new(&options).unwrap();
    let LossSum { sum, losses, .. } = session.sum(joint, &targets(), &WEIGHTS).unwrap();
    let [f, g, w, b, dw, db] =
        [&frames, &labels, &weight, &bias, &d_weight, &d_bias].map(|v| tensor_values(v));
    let tokens = Head::new(&w, Some(&b), 3).unwrap();
    let durations = Head::new(&dw, Some(&db), 3).unwrap();
    let joint = JointInputs::new(&f, &g, tokens).with_durations(durations).with_layout(LAYOUT);
    let out = Session::new(&options).unwrap().sum(joint, &targets(), &WEIGHTS).unwrap();
    assert_eq!(losses, out.losses);
    assert!(losses[0].is_finite() && losses[1].is_finite() && losses[2] == f64::INFINITY, "{losses:?}");
    assert_eq!(sum.to_scalar::<f64>().unwrap(), weighted_sum(&losses));
    check_gradients(
        &sum,
        &[
            (&frames, out.gradients.encoded),
            (&labels, out.gradients.predicted),
            (&weight, out.gradients.head.weight),
            (&bias, out.gradients.head.bias),
            (&d_weight, out.gradients.durations.weight),
            (&d_bias, out.gradients.durations.bias),
        ],
    );
}

#[test]
fn sums_of_both_pruned_passes_match_slices() {
    let (x, y) = (var(&[3, 4, 6], 11), var(&[3, 3, 7], 12));
    let (wx, bx, wy, by) = (var(&[5, 6], 13), var(&[5], 14), var(&[5, 7], 15), var(&[5], 16));
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
        let pruning = Pruning { s_range: 2, lm_only_scale: 0.25, am_only_scale: 0.125, ..Pruning::default() };
        let loss = Loss::Pruned { topology: topology.clone(), tokens: TokenNormalization::Softmax, pruning };
        let options = Options { fastemit: 0.1, ..Options::new(loss) };
        let scales = PassScales { simple: 0.5, pruned: 0.75 };
        let simple = SimpleTensors { frames: &x, labels: &y, am: head(&wx, &bx), lm: head(&wy, &by) };
        let joint = JointTensors {
            encoded: &frames,
            predicted: &labels,
            head: head(&weight, &bias),
            durations: None,
            dropout: None,
        };
        let inputs = PrunedTensors { simple, joint, scales };
        let session = LossSession::new(&options).unwrap();
        let LossSum { sum, losses: pruned, first_pass, .. } =
            session.sum(inputs, &targets(), &WEIGHTS).unwrap();
        let [xs, wxs, bxs, ys, wys, bys] = [&x, &wx, &bx, &y, &wy, &by].map(|v| tensor_values(v));
        let [f, g, w, b] = [&frames, &labels, &weight, &bias].map(|v| tensor_values(v));
        let am = Linear::new(&xs, &wxs, Some(&bxs), 6).unwrap();
        let lm = Linear::new(&ys, &wys, Some(&bys), 7).unwrap();
        let (source, head) = (Heads::new(am, lm).unwrap(), Head::new(&w, Some(&b), 3).unwrap());
        let joint = JointInputs::new(&f, &g, head).with_layout(LAYOUT);
        let inputs = PrunedInputs { simple: SimpleInputs::Heads(source), joint, scales };
        let out = Session::new(&options).unwrap().sum(inputs, &targets(), &WEIGHTS).unwrap();
        assert_eq!((&first_pass, &pruned), (&out.first_pass, &out.losses));
        assert_eq!(pruned[2].is_finite(), topology == Topology::rnnt());
        let expected = 0.5 * weighted_sum(&first_pass.unwrap().losses) + 0.75 * weighted_sum(&pruned);
        assert_eq!(sum.to_scalar::<f64>().unwrap(), expected);
        let Some(SimpleGradient::Heads(source)) = out.gradients.simple else { panic!("heads were given") };
        check_gradients(
            &sum,
            &[
                (&x, source.am.rows),
                (&wx, source.am.weight),
                (&bx, source.am.bias),
                (&y, source.lm.rows),
                (&wy, source.lm.weight),
                (&by, source.lm.bias),
                (&frames, out.gradients.encoded),
                (&labels, out.gradients.predicted),
                (&weight, out.gradients.head.weight),
                (&bias, out.gradients.head.bias),
            ],
        );
    }
}

/// Checks that the error of a call names an argument.
fn expect_shape_error<T: std::fmt::Debug>(result: Result<T>, name: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Shape { argument, .. } if argument == name), "{name}: {error}");
}

#[test]
fn mismatched_tensors_are_errors() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &DEVICE).unwrap();
    let (frames, labels, weight, bias) = (zeros(&[3, 4, 3]), zeros(&[3, 3, 3]), zeros(&[5, 3]), zeros(&[5]));
    let session = LossSession::new(&Options::new(Loss::tdt(&[1, 2]).unwrap())).unwrap();
    let joint = JointTensors {
        encoded: &frames,
        predicted: &labels,
        head: head(&weight, &bias),
        durations: None,
        dropout: None,
    };
    let tdt = |w: &Tensor, b: &Tensor| {
        let durations = Some(head(w, b));
        session.sum(JointTensors { durations, ..joint }, &targets(), &WEIGHTS)
    };
    tdt(&zeros(&[2, 3]), &zeros(&[2])).unwrap();
    expect_shape_error(tdt(&zeros(&[2, 4]), &zeros(&[2])), "durations.weight");
    expect_shape_error(tdt(&zeros(&[2, 3]), &zeros(&[3])), "durations.bias");
    let single = zeros(&[2]).to_dtype(DType::F32).unwrap();
    expect_shape_error(tdt(&zeros(&[2, 3]), &single), "durations.bias");
    assert!(matches!(tdt(&zeros(&[3, 3]), &zeros(&[3])), Err(Error::Durations { expected: 2, found: 3 })));
    assert!(matches!(
        session.sum(joint, &targets(), &WEIGHTS),
        Err(Error::Durations { expected: 2, found: 0 })
    ));

    let [x, y, wx, wy] = [[3, 4, 6], [3, 3, 7], [5, 6, 1], [5, 7, 1]].map(|shape| zeros(&shape));
    let [wx, wy] = [wx, wy].map(|w| w.squeeze(2).unwrap());
    let good = SimpleTensors { frames: &x, labels: &y, am: head(&wx, &bias), lm: head(&wy, &bias) };
    let session = LossSession::new(&Options::new(Loss::pruned(Pruning::default()))).unwrap();
    let run = |simple: SimpleTensors| {
        session.sum(PrunedTensors { simple, joint, scales: PassScales::default() }, &targets(), &WEIGHTS)
    };
    run(good).unwrap();
    expect_shape_error(run(SimpleTensors { frames: &y, ..good }), "simple.frames");
    expect_shape_error(run(SimpleTensors { labels: &weight, ..good }), "simple.labels");
    expect_shape_error(run(SimpleTensors { am: head(&wy, &bias), ..good }), "simple.am.weight");
    expect_shape_error(run(SimpleTensors { am: head(&wx, &zeros(&[4])), ..good }), "simple.am.bias");
    expect_shape_error(run(SimpleTensors { lm: head(&wx, &bias), ..good }), "simple.lm.weight");
    expect_shape_error(run(SimpleTensors { lm: head(&wy, &single), ..good }), "simple.lm.bias");
}

#[test]
fn sums_with_a_factored_blank_match_slices() {
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    let options = Options::new(Loss::hat());
    let out = transducer_loss_sum(&frames, &labels, &weight, &bias, &targets(), &options, &WEIGHTS).unwrap();
    let [f, g, w, b] = [&frames, &labels, &weight, &bias].map(|v| tensor_values(v));
    let head = Head::new(&w, Some(&b), 3).unwrap();
    let joint = JointInputs::new(&f, &g, head).with_layout(LAYOUT);
    let expected = Session::new(&options).unwrap().sum(joint, &targets(), &WEIGHTS).unwrap();
    assert_eq!(out.losses, expected.losses);
    check_gradients(
        &out.sum,
        &[
            (&frames, expected.gradients.encoded),
            (&labels, expected.gradients.predicted),
            (&weight, expected.gradients.head.weight),
            (&bias, expected.gradients.head.bias),
        ],
    );
}
