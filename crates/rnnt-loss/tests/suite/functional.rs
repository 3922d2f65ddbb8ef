//! Loss functions of candle tensors match sessions over slices.
//!
//! Further tests: paddings, reductions, utterances without a path, invalid arguments.
use candle_core::{DType, Device, Tensor, Var};
use panda_core::{Selection, candle::normalize_rows};
use rnnt_dp::{Lattices, Regularizers, Topology, candle::lattice_loss};
use rnnt_loss::{
    Activation, Error, Head, HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, Reduction,
    ScoreInputs, Session, Targets,
    candle::{ctc_loss, scores_loss, transducer_loss},
};

const DEVICE: Device = Device::Cpu;

/// Pseudo-random values.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

/// Pseudo-random variable of a shape.
fn var(shape: &[usize], salt: usize) -> Var {
    let len = shape.iter().product();
    Var::from_tensor(&Tensor::from_vec(values(len, salt), shape, &DEVICE).unwrap()).unwrap()
}

/// Compares tensors of any shape, element by element.
fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f64) {
    let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(actual.elem_count(), expected.elem_count());
    for (actual, expected) in flat(actual).iter().zip(flat(expected)) {
        assert!((actual - expected).abs() <= tolerance * (1.0 + expected.abs()), "{actual} {expected}");
    }
}

/// B = 2, padded T = 4, U + 1 = 3.
fn targets() -> Targets {
    Targets::new(2, vec![4, 2], vec![vec![0, 4], vec![1]]).unwrap()
}

/// The loss equals a normalizer followed by a lattice loss.
#[test]
fn one_operation_matches_two_operations() {
    let (frames, labels) = (var(&[2, 4, 3], 1), var(&[2, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    let targets = targets();
    let factors = Tensor::new(&[0.5f64, -2.0], &DEVICE).unwrap();
    // Frame row, label row and selected classes of each site; 99 is an inactive class.
    let (mut frame_indices, mut label_indices, mut ids) = (vec![], vec![], vec![]);
    for b in 0..2 {
        for site in targets.lattices().utterance_sites(b) {
            frame_indices.push((b * 4 + site.frame) as u32);
            label_indices.push((b * 3 + site.label) as u32);
            ids.extend([2, targets.labels(b).get(site.label).copied().unwrap_or(99)]);
        }
    }
    let active = ids.iter().map(|id| *id != 99).collect();
    let selection = Selection::new(ids, active, 2).unwrap();
    for activation in [Activation::Tanh, Activation::Relu] {
        let options = Options { activation, fastemit: 0.1, ..Options::default() };
        let single = transducer_loss(&frames, &labels, &weight, &bias, &targets, &options).unwrap();
        let rows = |rows: &Tensor, indices: &[u32]| {
            let indices = Tensor::new(indices, &DEVICE).unwrap();
            rows.reshape(((), 3)).unwrap().index_select(&indices, 0).unwrap()
        };
        let sum = (rows(&frames, &frame_indices) + rows(&labels, &label_indices)).unwrap();
        let hidden = match activation {
            Activation::Tanh => sum.tanh(),
            Activation::Relu => sum.relu(),
        };
        let emissions = normalize_rows(&hidden.unwrap(), &weight, &bias, selection.clone()).unwrap();
        let lattices = Lattices::new(vec![4, 2], vec![2, 1]).unwrap();
        let composed = lattice_loss(
            &emissions,
            lattices,
            Topology::rnnt(),
            Regularizers { fastemit: 0.1, ..Regularizers::default() },
        )
        .unwrap();
        assert_close(&single, &composed, 1e-14);
        let gradients = |loss: &Tensor| (loss * &factors).unwrap().sum_all().unwrap().backward().unwrap();
        let (actual, expected) = (gradients(&single), gradients(&composed));
        for var in [&frames, &labels, &weight, &bias] {
            assert_close(actual.get(var).unwrap(), expected.get(var).unwrap(), 1e-12);
        }
    }
}

#[test]
fn sessions_over_slices_match_tensor_functions() {
    // Widths of encoder, predictor and joint network; classes.
    let (e, p, h, c) = (3, 2, 4, 5);
    let (x, y) = (values(2 * 4 * e, 10), values(2 * 3 * p, 11));
    let (wa, wl, bz, wo, bo) =
        (values(h * e, 12), values(h * p, 13), values(h, 14), values(c * h, 15), values(c, 16));
    let network = JointNetwork {
        encoder: &wa,
        encoder_width: e,
        predictor: &wl,
        predictor_width: p,
        bias: Some(&bz),
        head: Head::new(&wo, Some(&bo), h).unwrap(),
    };
    let targets = targets();
    let options = Options { clamp: Some(0.05), ..Options::default() };
    let layout = Layout::Padded { frames: 4, positions: 3 };
    let weights = Reduction::MeanPerTarget.weights(&targets);
    let mut session = Session::new(&options).unwrap();
    let inputs = NetworkInputs { encoder_rows: &x, predictor_rows: &y, layout };
    let actual = network.sum(&mut session, inputs, &targets, &weights).unwrap();

    let new_var = |values: &[f64], shape: &[usize]| {
        Var::from_tensor(&Tensor::from_slice(values, shape, &DEVICE).unwrap()).unwrap()
    };
    let vars = [
        new_var(&x, &[2, 4, e]),
        new_var(&y, &[2, 3, p]),
        new_var(&wa, &[h, e]),
        new_var(&wl, &[h, p]),
        new_var(&bz, &[h]),
        new_var(&wo, &[c, h]),
        new_var(&bo, &[c]),
    ];
    let [x, y, wa, wl, bz, wo, bo] = &vars;
    let frames = x.broadcast_matmul(&wa.t().unwrap()).unwrap().broadcast_add(bz).unwrap();
    let labels = y.broadcast_matmul(&wl.t().unwrap()).unwrap();
    let loss = transducer_loss(&frames, &labels, wo, bo, &targets, &options).unwrap();
    assert_close(&loss, &Tensor::new(actual.losses.as_slice(), &DEVICE).unwrap(), 1e-13);
    let weights = Tensor::new(weights.as_slice(), &DEVICE).unwrap();
    let gradients = (loss * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let explicit = [
        &actual.encodings,
        &actual.predictions,
        &actual.encoder,
        &actual.predictor,
        &actual.bias,
        &actual.head.weight,
        &actual.head.bias,
    ];
    for (var, gradient) in vars.iter().zip(explicit) {
        assert_close(
            gradients.get(var).unwrap(),
            &Tensor::new(gradient.as_slice(), &DEVICE).unwrap().reshape(var.shape()).unwrap(),
            1e-12,
        );
    }
}

#[test]
fn padded_rows_match_packed_rows() {
    let (h, c) = (3, 5);
    let (weight, bias) = (values(c * h, 1), values(c, 2));
    let head = Head::new(&weight, Some(&bias), h).unwrap();
    let targets = targets();
    let packed = values(targets.lattices().num_sites() * h, 3);
    let mut padded = vec![f64::NAN; 2 * 4 * 3 * h];
    // Row of each site in the padded matrix.
    let mut padded_rows = vec![];
    for b in 0..2 {
        padded_rows
            .extend(targets.lattices().utterance_sites(b).map(|site| (b * 4 + site.frame) * 3 + site.label));
    }
    for (row, &index) in packed.chunks_exact(h).zip(&padded_rows) {
        padded[index * h..][..h].copy_from_slice(row);
    }
    let run = |rows: &[f64], layout| {
        let mut session = Session::new(&Options::default()).unwrap();
        session.sum(HiddenInputs::new(rows, head).with_layout(layout), &targets, &[1.0, 2.0]).unwrap()
    };
    let expected = run(&packed, Layout::Packed);
    let actual = run(&padded, Layout::Padded { frames: 4, positions: 3 });
    assert_eq!((&actual.losses, &actual.gradients.head), (&expected.losses, &expected.gradients.head));
    let gradient_row = |index: usize| &actual.gradients.hidden[index * h..][..h];
    for (row, &index) in expected.gradients.hidden.chunks_exact(h).zip(&padded_rows) {
        assert_eq!(row, gradient_row(index));
    }
    let padding = (0..2 * 4 * 3).filter(|index| !padded_rows.contains(index));
    padding.for_each(|index| assert_eq!(gradient_row(index), [0.0; 3]));
}

#[test]
fn ctc_gradients_match_central_differences_without_a_path() {
    // Utterance 1 has more labels than frames; padding is NaN.
    let targets = Targets::new(0, vec![4, 1], vec![vec![1, 1], vec![2, 1]]).unwrap();
    let mut z = values(2 * 4 * 3, 5);
    z[15..].fill(f64::NAN);
    let factors = Tensor::new(&[0.7f64, 1.0], &DEVICE).unwrap();
    let var = Var::from_tensor(&Tensor::from_slice(&z, (2, 4, 3), &DEVICE).unwrap()).unwrap();
    let loss = ctc_loss(&var, &targets, &Options::default()).unwrap();
    assert_eq!(loss.to_vec1::<f64>().unwrap()[1], f64::INFINITY);
    let gradients = (loss * factors).unwrap().sum_all().unwrap().backward().unwrap();
    let g = gradients.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert!(g[12..].iter().all(|g| *g == 0.0));
    for i in 0..12 {
        let shifted = |d: f64| {
            let mut z = z.clone();
            z[i] += d;
            let z = Tensor::from_slice(&z, (2, 4, 3), &DEVICE).unwrap();
            ctc_loss(&z, &targets, &Options::default()).unwrap().to_vec1::<f64>().unwrap()[0]
        };
        assert!((0.7 * (shifted(1e-5) - shifted(-1e-5)) / 2e-5 - g[i]).abs() < 1e-9, "{i}");
    }
}

#[test]
fn errors_report_the_position() {
    assert!(matches!(Targets::new(0, vec![], vec![]), Err(Error::Lattice(rnnt_dp::Error::EmptyBatch))));
    assert!(matches!(Targets::new(0, vec![1], vec![]), Err(Error::Batch { expected: 1, found: 0 })));
    let blank = Targets::new(3, vec![1, 1], vec![vec![], vec![1, 3]]);
    assert!(matches!(blank, Err(Error::BlankLabel { utterance: 1, position: 1, blank: 3 })));

    let options = Options::default();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &DEVICE).unwrap();
    let run = |frames: &Tensor, labels: &Tensor, classes: usize, targets: &Targets| {
        transducer_loss(frames, labels, &zeros(&[classes, 3]), &zeros(&[classes]), targets, &options)
            .unwrap_err()
    };
    let targets = targets();
    let (frames, labels) = (zeros(&[2, 4, 3]), zeros(&[2, 3, 3]));
    let error = run(&frames, &labels, 4, &targets);
    assert!(
        matches!(error, Error::LabelOutOfRange { utterance: 0, position: 1, label: 4, classes: 4 }),
        "{error}"
    );
    let error = run(&frames, &labels, 2, &targets);
    assert!(matches!(error, Error::BlankOutOfRange { blank: 2, classes: 2 }), "{error}");
    let error = run(&zeros(&[2, 3, 3]), &labels, 5, &targets);
    assert!(
        matches!(error, Error::TooLong { argument: "frames", utterance: 0, needed: 4, found: 3 }),
        "{error}"
    );
    let error = run(&frames, &zeros(&[2, 2, 3]), 5, &targets);
    assert!(
        matches!(error, Error::TooLong { argument: "label positions", needed: 3, found: 2, .. }),
        "{error}"
    );
    let error = run(&zeros(&[1, 4, 3]), &labels, 5, &targets);
    assert!(matches!(error, Error::Shape { argument: "encoded", .. }), "{error}");
    let error = run(&frames.to_dtype(DType::F64).unwrap(), &labels, 5, &targets);
    assert!(matches!(error, Error::Shape { argument: "predicted", .. }), "{error}");
    let mut z = vec![0.0f32; 2 * 4 * 3 * 5];
    z[((4 + 1) * 3 + 1) * 5] = f32::NAN;
    let scores = Tensor::from_vec(z, (2, 4, 3, 5), &DEVICE).unwrap();
    let error = scores_loss(&scores, &targets, &options).unwrap_err();
    assert!(
        matches!(error, Error::Scores { utterance: 1, frame: 1, label: 1, found: "NaN or +inf" }),
        "{error}"
    );
    let rows = HiddenInputs::new(&[0.0f32; 5], Head::new(&[0.0; 5], None, 1).unwrap());
    let rows = Session::new(&options).unwrap().sum(rows, &targets, &[1.0; 2]);
    assert!(matches!(rows, Err(Error::Shape { argument: "hidden", .. })));
    let bad = Options { fastemit: f64::NAN, ..options.clone() };
    assert!(matches!(scores_loss(&zeros(&[2, 4, 3, 5]), &targets, &bad), Err(Error::Lattice(_))));
}

#[test]
fn reductions_exclude_utterances_without_a_path() {
    let targets = Targets::new(9, vec![1, 1], vec![vec![1, 2], vec![]]).unwrap();
    let reduce = |r: Reduction, losses: [f64; 2]| r.reduce(&losses, &targets).unwrap();
    assert_eq!(reduce(Reduction::Sum, [3.0, 5.0]), 8.0);
    assert_eq!(reduce(Reduction::Mean, [3.0, 5.0]), 4.0);
    assert_eq!(reduce(Reduction::MeanPerTarget, [3.0, 5.0]), (1.5 + 5.0) / 2.0);
    assert_eq!(reduce(Reduction::MeanVolume, [3.0, 5.0]), 4.0);
    assert_eq!(reduce(Reduction::Mean, [f64::INFINITY, 5.0]), 2.5);
    assert!(Reduction::Sum.reduce(&[1.0], &targets).is_err());
    let nan = Reduction::Sum.reduce(&[1.0, f64::NAN], &targets);
    assert!(matches!(nan, Err(Error::Loss { utterance: 1, .. })));
}

/// The infinite weight of an infinite loss must not affect other utterances.
#[test]
fn an_utterance_without_a_path_does_not_affect_gradients() {
    let targets = Targets::new(0, vec![1, 1], vec![vec![1], vec![1]]).unwrap();
    let mut z = vec![0.0f32; 2 * 2 * 2];
    z[1] = f32::NEG_INFINITY; // utterance 0 can never emit its label
    let z = Var::from_tensor(&Tensor::from_vec(z, (2, 1, 2, 2), &DEVICE).unwrap()).unwrap();
    let loss = scores_loss(&z, &targets, &Options::default()).unwrap();
    assert_eq!(loss.to_vec1::<f64>().unwrap()[0], f64::INFINITY);
    let gradients = loss.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let g = gradients.get(&z).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(g[..4].iter().all(|g| *g == 0.0) && g[4..].iter().all(|g| g.is_finite() && *g != 0.0), "{g:?}");

    let lattices = || Lattices::new(vec![1, 1], vec![0, 0]).unwrap();
    let e = Var::from_slice(&[f64::NEG_INFINITY, 0.0, -1.0, 0.0], (2, 2), &DEVICE).unwrap();
    let loss = lattice_loss(&e, lattices(), Topology::rnnt(), Regularizers::default()).unwrap();
    let gradients = loss.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&e).unwrap().to_vec2::<f64>().unwrap(), [[0.0, 0.0], [-2.0, 0.0]]);
    let transposed = Tensor::zeros((4, 1), DType::F64, &DEVICE).unwrap();
    assert!(lattice_loss(&transposed, lattices(), Topology::rnnt(), Regularizers::default()).is_err());
    assert!(
        lattice_loss(&e.to_dtype(DType::U32).unwrap(), lattices(), Topology::rnnt(), Regularizers::default())
            .is_err()
    );
}

#[test]
fn infinite_weights_are_errors() {
    let targets = targets();
    let run = |weights: &[f64]| {
        let head = Head::new(&[0.5f32, 0.1, 0.2, 0.3, 0.4], None, 1).unwrap();
        Session::new(&Options::default()).unwrap().sum(HiddenInputs::new(&[0.1; 16], head), &targets, weights)
    };
    assert_eq!(targets.lattices().num_sites(), 16);
    assert!(matches!(run(&[1.0, f64::NAN]), Err(Error::Weight { utterance: 1, .. })));
    assert!(matches!(run(&[1e39, 1.0]), Err(Error::Normalizer(panda_core::Error::Adjoint { .. }))));
    assert!(run(&[1.0, 1.0]).is_ok());
}

/// With p and o near 1, `p - o` requires f64.
#[test]
fn ctc_gradients_are_accurate_for_certain_models() {
    let targets = Targets::new(0, vec![1], vec![vec![]]).unwrap();
    let z = Var::from_slice(&[20.0f32, 0.0], (1, 1, 2), &DEVICE).unwrap();
    let gradients =
        ctc_loss(&z, &targets, &Options::default()).unwrap().sum_all().unwrap().backward().unwrap();
    let g = gradients.get(&z).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!((g[0] + g[1]).abs() <= 1e-6 * g[1] && g[1] > 2e-9, "{g:?}");
    let nan = Tensor::new(&[[[f32::NAN, 0.0]]], &DEVICE).unwrap();
    assert!(matches!(
        ctc_loss(&nan, &targets, &Options::default()),
        Err(Error::Frame { utterance: 0, frame: 0, found: "NaN or +inf" })
    ));
}

#[test]
fn infinite_activations_are_errors_except_in_padding() {
    let targets = targets();
    let run = |index: usize| {
        let mut frames = vec![0.1f32; 2 * 4 * 3];
        frames[index] = f32::INFINITY;
        let tensor = |v: Vec<f32>, shape: &[usize]| Tensor::from_vec(v, shape, &DEVICE).unwrap();
        let (frames, labels) = (tensor(frames, &[2, 4, 3]), tensor(vec![0.1; 18], &[2, 3, 3]));
        let (weight, bias) = (tensor(vec![0.1; 15], &[5, 3]), tensor(vec![0.0; 5], &[5]));
        transducer_loss(&frames, &labels, &weight, &bias, &targets, &Options::default())
    };
    let error = run(12 + 3 + 2).unwrap_err(); // utterance 1, frame 1
    assert!(
        matches!(error, Error::Scores { utterance: 1, frame: 1, found: "an infinite frame row", .. }),
        "{error}"
    );
    assert!(run(12 + 2 * 3).is_ok()); // frame 2 of an utterance with two frames
}

#[test]
fn layouts_beyond_memory_are_errors() {
    let targets = targets();
    let padded = |frames, positions| {
        let layout = Layout::Padded { frames, positions };
        let scores = ScoreInputs { scores: &[0.0f32; 4], classes: 2, layout };
        Session::new(&Options::default()).unwrap().sum(scores, &targets, &[1.0; 2]).unwrap_err()
    };
    for (frames, positions) in [(1 << 62, 4), (1 << 61, 3), (1 << 40, 3), (usize::MAX, usize::MAX)] {
        assert!(matches!(padded(frames, positions), Error::LayoutTooLarge { .. }));
    }
    let scores = ScoreInputs::<f32> { scores: &[], classes: 1 << 62, layout: Layout::Packed };
    let packed = Session::new(&Options::default()).unwrap().sum(scores, &targets, &[1.0; 2]);
    assert!(matches!(packed, Err(Error::Shape { argument: "scores", .. })));
}
