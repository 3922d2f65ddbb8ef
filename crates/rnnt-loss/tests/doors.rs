//! The doors agree with each other, and mistakes at each of them are named.
use candle_core::{DType, Device, Tensor, Var};
use panda_core::{Selection, candle::normalise_joint};
use rnnt_dp::{Lattices, Regularisers, Topology, candle::lattice_loss};
use rnnt_loss::{
    Activation, Error, Head, JointNetwork, Layout, Options, Reduction, Targets,
    candle::{ctc_loss, scores_loss, transducer_loss},
    joint_loss, rows_loss,
};

const DEVICE: Device = Device::Cpu;

fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

fn var(shape: &[usize], salt: usize) -> Var {
    let len = shape.iter().product();
    Var::from_tensor(&Tensor::from_vec(values(len, salt), shape, &DEVICE).unwrap()).unwrap()
}

fn close(a: &Tensor, b: &Tensor, tolerance: f64) {
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    for (a, b) in flat(a).iter().zip(flat(b)) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} {b}");
    }
}

/// B = 2, padded T = 4, U + 1 = 3.
fn targets() -> Targets {
    Targets::new(2, vec![4, 2], vec![vec![0, 4], vec![1]]).unwrap()
}

#[test]
fn one_operation_equals_two_in_a_row() {
    let (frames, labels) = (var(&[2, 4, 3], 1), var(&[2, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    let targets = targets();
    let factors = Tensor::new(&[0.5f64, -2.0], &DEVICE).unwrap();
    let (mut of, mut ids) = ((vec![], vec![]), vec![]);
    for b in 0..2 {
        for site in targets.lattices().sites_of(b) {
            of.0.push((b * 4 + site.frame) as u32);
            of.1.push((b * 3 + site.label) as u32);
            ids.extend([2, targets.labels(b).get(site.label).copied().unwrap_or(99)]);
        }
    }
    let active = ids.iter().map(|id| *id != 99).collect();
    let selection = Selection::new(ids, active, 2).unwrap();
    for activation in [Activation::Tanh, Activation::Relu] {
        let options = Options { activation, fastemit: 0.1, ..Options::default() };
        let one = transducer_loss(&frames, &labels, &weight, &bias, &targets, &options).unwrap();
        let emissions =
            normalise_joint(&frames, &labels, of.clone(), activation, &weight, &bias, selection.clone()).unwrap();
        let lattices = Lattices::new(vec![4, 2], vec![2, 1]).unwrap();
        let two = lattice_loss(&emissions, lattices, Topology::rnnt(), Regularisers { fastemit: 0.1 }).unwrap();
        close(&one, &two, 1e-14);
        let gradients = |loss: &Tensor| (loss * &factors).unwrap().sum_all().unwrap().backward().unwrap();
        let (one, two) = (gradients(&one), gradients(&two));
        for v in [&frames, &labels, &weight, &bias] {
            close(one.get(v).unwrap(), two.get(v).unwrap(), 1e-12);
        }
    }
}

#[test]
fn explicit_calls_equal_the_tensor_face() {
    let (ha, hl, h, c) = (3, 2, 4, 5);
    let (x, y) = (values(2 * 4 * ha, 10), values(2 * 3 * hl, 11));
    let (wa, wl, bz, wo, bo) = (values(h * ha, 12), values(h * hl, 13), values(h, 14), values(c * h, 15), values(c, 16));
    let network = JointNetwork {
        encoder: &wa,
        encoder_width: ha,
        predictor: &wl,
        predictor_width: hl,
        bias: Some(&bz),
        head: Head::new(&wo, Some(&bo), h).unwrap(),
        activation: Activation::Tanh,
    };
    let targets = targets();
    let options = Options { clamp: Some(0.05), ..Options::default() };
    let layout = Layout::Padded { frames: 4, positions: 3 };
    let weights = Reduction::MeanPerTarget.weights(&targets);
    let found = joint_loss(&x, &y, &network, layout, &targets, &options, &weights).unwrap();

    let make = |v: &[f64], shape: &[usize]| Var::from_tensor(&Tensor::from_slice(v, shape, &DEVICE).unwrap()).unwrap();
    let vars = [
        make(&x, &[2, 4, ha]),
        make(&y, &[2, 3, hl]),
        make(&wa, &[h, ha]),
        make(&wl, &[h, hl]),
        make(&bz, &[h]),
        make(&wo, &[c, h]),
        make(&bo, &[c]),
    ];
    let [x, y, wa, wl, bz, wo, bo] = &vars;
    let frames = x.broadcast_matmul(&wa.t().unwrap()).unwrap().broadcast_add(bz).unwrap();
    let labels = y.broadcast_matmul(&wl.t().unwrap()).unwrap();
    let loss = transducer_loss(&frames, &labels, wo, bo, &targets, &options).unwrap();
    close(&loss, &Tensor::new(found.losses.as_slice(), &DEVICE).unwrap(), 1e-13);
    let weights = Tensor::new(weights.as_slice(), &DEVICE).unwrap();
    let gradients = (loss * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let explicit = [
        &found.encodings,
        &found.predictions,
        &found.encoder,
        &found.predictor,
        &found.bias,
        &found.head_weight,
        &found.head_bias,
    ];
    for (v, g) in vars.iter().zip(explicit) {
        close(gradients.get(v).unwrap(), &Tensor::new(g.as_slice(), &DEVICE).unwrap().reshape(v.shape()).unwrap(), 1e-12);
    }
}

#[test]
fn padded_rows_equal_packed_ones() {
    let (h, c) = (3, 5);
    let (weight, bias) = (values(c * h, 1), values(c, 2));
    let head = Head::new(&weight, Some(&bias), h).unwrap();
    let targets = targets();
    let packed = values(targets.lattices().sites() * h, 3);
    let mut padded = vec![f64::NAN; 2 * 4 * 3 * h];
    let mut place = vec![];
    for b in 0..2 {
        place.extend(targets.lattices().sites_of(b).map(|s| (b * 4 + s.frame) * 3 + s.label));
    }
    for (row, &at) in packed.chunks_exact(h).zip(&place) {
        padded[at * h..][..h].copy_from_slice(row);
    }
    let run = |rows: &[f64], layout| rows_loss(rows, &head, layout, &targets, &Options::default(), &[1.0, 2.0]).unwrap();
    let a = run(&packed, Layout::Packed);
    let b = run(&padded, Layout::Padded { frames: 4, positions: 3 });
    assert_eq!((&a.losses, &a.weight, &a.bias), (&b.losses, &b.weight, &b.bias));
    for (row, &at) in a.hidden.chunks_exact(h).zip(&place) {
        assert_eq!(row, &b.hidden[at * h..][..h]);
    }
    let padding = (0..24).filter(|at| !place.contains(at));
    padding.for_each(|at| assert_eq!(b.hidden[at * h..][..h], [0.0; 3]));
}

#[test]
fn ctc_gradients_are_central_differences_and_impossible_utterances_are_values() {
    // Utterance 1 has more labels than frames; padding is NaN.
    let targets = Targets::new(0, vec![4, 1], vec![vec![1, 1], vec![2, 1]]).unwrap();
    let mut z = values(2 * 4 * 3, 5);
    z[15..].fill(f64::NAN);
    let factors = Tensor::new(&[0.7f64, 1.0], &DEVICE).unwrap();
    let var = Var::from_tensor(&Tensor::from_slice(&z, (2, 4, 3), &DEVICE).unwrap()).unwrap();
    let loss = ctc_loss(&var, &targets).unwrap();
    assert_eq!(loss.to_vec1::<f64>().unwrap()[1], f64::INFINITY);
    let gradients = (loss * factors).unwrap().sum_all().unwrap().backward().unwrap();
    let g = gradients.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert!(g[12..].iter().all(|g| *g == 0.0));
    for i in 0..12 {
        let shifted = |d: f64| {
            let mut z = z.clone();
            z[i] += d;
            let z = Tensor::from_slice(&z, (2, 4, 3), &DEVICE).unwrap();
            ctc_loss(&z, &targets).unwrap().to_vec1::<f64>().unwrap()[0]
        };
        assert!((0.7 * (shifted(1e-5) - shifted(-1e-5)) / 2e-5 - g[i]).abs() < 1e-9, "{i}");
    }
}

#[test]
fn mistakes_are_named_where_they_are() {
    assert!(matches!(Targets::new(0, vec![], vec![]), Err(Error::Lattice(rnnt_dp::Error::EmptyBatch))));
    assert!(matches!(Targets::new(0, vec![1], vec![]), Err(Error::Batch { expected: 1, found: 0 })));
    let blank = Targets::new(3, vec![1, 1], vec![vec![], vec![1, 3]]);
    assert!(matches!(blank, Err(Error::BlankLabel { utterance: 1, position: 1, blank: 3 })));

    let options = Options::default();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &DEVICE).unwrap();
    let run = |frames: &Tensor, labels: &Tensor, classes: usize, targets: &Targets| {
        transducer_loss(frames, labels, &zeros(&[classes, 3]), &zeros(&[classes]), targets, &options).unwrap_err()
    };
    let targets = targets();
    let (frames, labels) = (zeros(&[2, 4, 3]), zeros(&[2, 3, 3]));
    let error = run(&frames, &labels, 4, &targets);
    assert!(matches!(error, Error::LabelOutOfRange { utterance: 0, position: 1, label: 4, classes: 4 }), "{error}");
    let error = run(&frames, &labels, 2, &targets);
    assert!(matches!(error, Error::BlankOutOfRange { blank: 2, classes: 2 }), "{error}");
    let error = run(&zeros(&[2, 3, 3]), &labels, 5, &targets);
    assert!(matches!(error, Error::TooLong { argument: "frames", utterance: 0, needed: 4, found: 3 }), "{error}");
    let error = run(&frames, &zeros(&[2, 2, 3]), 5, &targets);
    assert!(matches!(error, Error::TooLong { argument: "label positions", needed: 3, found: 2, .. }), "{error}");
    let error = run(&zeros(&[1, 4, 3]), &labels, 5, &targets);
    assert!(matches!(error, Error::Shape { argument: "frames", .. }), "{error}");
    let error = run(&frames.to_dtype(DType::F64).unwrap(), &labels, 5, &targets);
    assert!(matches!(error, Error::Shape { argument: "labels", .. }), "{error}");
    let mut z = vec![0.0f32; 2 * 4 * 3 * 5];
    z[(((1 * 4) + 1) * 3 + 1) * 5] = f32::NAN;
    let scores = Tensor::from_vec(z, (2, 4, 3, 5), &DEVICE).unwrap();
    let error = scores_loss(&scores, &targets, &options).unwrap_err();
    assert!(matches!(error, Error::Scores { utterance: 1, frame: 1, label: 1, found: "NaN or +inf" }), "{error}");
    let rows = rows_loss(&[0.0f32; 5], &Head::new(&[0.0; 5], None, 1).unwrap(), Layout::Packed, &targets, &options, &[1.0; 2]);
    assert!(matches!(rows, Err(Error::Shape { argument: "hidden", .. })));
    let bad = Options { fastemit: f64::NAN, ..options.clone() };
    assert!(matches!(scores_loss(&zeros(&[2, 4, 3, 5]), &targets, &bad), Err(Error::Lattice(_))));
}

#[test]
fn reductions_weigh_and_leave_impossible_utterances_out() {
    let targets = Targets::new(9, vec![1, 1], vec![vec![1, 2], vec![]]).unwrap();
    let reduce = |r: Reduction, losses: [f64; 2]| r.reduce(&losses, &targets).unwrap();
    assert_eq!(reduce(Reduction::Sum, [3.0, 5.0]), 8.0);
    assert_eq!(reduce(Reduction::Mean, [3.0, 5.0]), 4.0);
    assert_eq!(reduce(Reduction::MeanPerTarget, [3.0, 5.0]), (1.5 + 5.0) / 2.0);
    assert_eq!(reduce(Reduction::MeanVolume, [3.0, 5.0]), 4.0);
    assert_eq!(reduce(Reduction::Mean, [f64::INFINITY, 5.0]), 2.5);
    assert!(Reduction::Sum.reduce(&[1.0], &targets).is_err());
}
