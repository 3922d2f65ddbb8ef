//! Sums of losses as operations: values and gradients are those of the slice doors.
use candle_core::{DType, Device, Tensor, Var};
use pruned::{Heads, Linear};
use rnnt_loss::{
    Error, Head, Layout, Options, Pruning, Result, Targets, Topology,
    candle::{LossSum, PrunedSum, TrivialJoiner, pruned_loss_sum, tdt_loss_sum, transducer_loss_sum},
    pruned_loss, tdt_loss,
};

const DEVICE: Device = Device::Cpu;
/// Padded T = 4, U + 1 = 3; B = 3, and the last utterance has no path where a frame emits at most one label.
const LAYOUT: Layout = Layout::Padded { frames: 4, positions: 3 };
const WEIGHTS: [f64; 3] = [0.5, -2.0, 1.5];
/// What scales the sum afterwards.
const FACTOR: f64 = 3.0;

fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

fn var(shape: &[usize], salt: usize) -> Var {
    let values = values(shape.iter().product(), salt);
    Var::from_tensor(&Tensor::from_vec(values, shape, &DEVICE).unwrap()).unwrap()
}

fn slice(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn targets() -> Targets {
    Targets::new(2, vec![4, 3, 1], vec![vec![0, 4], vec![1], vec![3, 3]]).unwrap()
}

/// Gradients of `FACTOR · sum` against those of a slice door.
fn agree(sum: &Tensor, expected: &[(&Var, Vec<f64>)]) {
    let gradients = (sum * FACTOR).unwrap().backward().unwrap();
    for (index, (var, expected)) in expected.iter().enumerate() {
        let found = gradients.get(var).unwrap();
        assert_eq!(found.dims(), var.dims());
        assert!(expected.iter().any(|g| *g != 0.0), "argument {index}");
        for (found, expected) in slice(found).iter().zip(expected) {
            assert!(
                (found - FACTOR * expected).abs() <= 1e-12 * (1.0 + expected.abs()),
                "argument {index}: {found} {expected}"
            );
        }
    }
}

fn weighted(losses: &[f64]) -> f64 {
    losses.iter().zip(WEIGHTS).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}

#[test]
fn tokens_and_durations() {
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias, d_weight, d_bias) = (var(&[5, 3], 3), var(&[5], 4), var(&[3, 3], 5), var(&[3], 6));
    // A label moves on by one or two frames, so that two labels need three frames.
    let topology = Topology::tdt(&[1, 2, 4]).unwrap();
    let options = Options { topology, sigma: 0.05, omega: 0.25, fastemit: 0.1, ..Options::default() };
    let (tokens, durations) = ((&*weight, &*bias), (&*d_weight, &*d_bias));
    let LossSum { sum, losses, .. } =
        tdt_loss_sum(&frames, &labels, tokens, durations, &targets(), &options, &WEIGHTS).unwrap();
    let [f, g, w, b, dw, db] = [&frames, &labels, &weight, &bias, &d_weight, &d_bias].map(|v| slice(v));
    let tokens = Head::new(&w, Some(&b), 3).unwrap();
    let durations = Head::new(&dw, Some(&db), 3).unwrap();
    let out = tdt_loss(&f, &g, &tokens, &durations, LAYOUT, &targets(), &options, &WEIGHTS).unwrap();
    assert_eq!(losses, out.losses);
    assert!(losses[0].is_finite() && losses[1].is_finite() && losses[2] == f64::INFINITY, "{losses:?}");
    assert_eq!(sum.to_scalar::<f64>().unwrap(), weighted(&losses));
    agree(
        &sum,
        &[
            (&frames, out.frames),
            (&labels, out.labels),
            (&weight, out.tokens.0),
            (&bias, out.tokens.1),
            (&d_weight, out.durations.0),
            (&d_bias, out.durations.1),
        ],
    );
}

#[test]
fn both_passes_of_pruned_training() {
    let (x, y) = (var(&[3, 4, 6], 11), var(&[3, 3, 7], 12));
    let (wx, bx, wy, by) = (var(&[5, 6], 13), var(&[5], 14), var(&[5, 7], 15), var(&[5], 16));
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    let options = Options { fastemit: 0.1, ..Options::default() };
    for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
        let first = pruned::Options {
            topology: topology.clone(),
            lm_only_scale: 0.25,
            am_only_scale: 0.125,
            ..Default::default()
        };
        let pruning = Pruning { first, s_range: 2, simple_scale: 0.5, pruned_scale: 0.75 };
        let simple = TrivialJoiner { frames: &x, labels: &y, am: (&wx, &bx), lm: (&wy, &by) };
        let head = (&*weight, &*bias);
        let PrunedSum { sum, simple, pruned, ranges, .. } =
            pruned_loss_sum(&simple, &frames, &labels, head, &targets(), &options, &pruning, &WEIGHTS)
                .unwrap();
        let [xs, wxs, bxs, ys, wys, bys] = [&x, &wx, &bx, &y, &wy, &by].map(|v| slice(v));
        let [f, g, w, b] = [&frames, &labels, &weight, &bias].map(|v| slice(v));
        let am = Linear::new(&xs, &wxs, Some(&bxs), 6).unwrap();
        let lm = Linear::new(&ys, &wys, Some(&bys), 7).unwrap();
        let (source, head) = (Heads::new(am, lm).unwrap(), Head::new(&w, Some(&b), 3).unwrap());
        let out = pruned_loss(&source, &f, &g, &head, LAYOUT, &targets(), &options, &pruning, &WEIGHTS);
        let out = out.unwrap();
        assert_eq!((&simple, &pruned, &ranges), (&out.simple, &out.second.losses, &out.ranges));
        assert_eq!(pruned[2].is_finite(), topology == Topology::rnnt());
        let expected = 0.5 * weighted(&simple) + 0.75 * weighted(&pruned);
        assert_eq!(sum.to_scalar::<f64>().unwrap(), expected);
        agree(
            &sum,
            &[
                (&x, out.source.am.rows),
                (&wx, out.source.am.weight),
                (&bx, out.source.am.bias),
                (&y, out.source.lm.rows),
                (&wy, out.source.lm.weight),
                (&by, out.source.lm.bias),
                (&frames, out.second.frames),
                (&labels, out.second.labels),
                (&weight, out.second.weight),
                (&bias, out.second.bias),
            ],
        );
    }
}

/// What must not fit is named.
fn refused<T: std::fmt::Debug>(result: Result<T>, name: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Shape { argument, .. } if argument == name), "{name}: {error}");
}

#[test]
fn misfitting_tensors_are_named() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &DEVICE).unwrap();
    let (frames, labels, weight, bias) = (zeros(&[3, 4, 3]), zeros(&[3, 3, 3]), zeros(&[5, 3]), zeros(&[5]));
    let options = Options { topology: Topology::tdt(&[1, 2]).unwrap(), ..Options::default() };
    let tdt = |w: &Tensor, b: &Tensor| {
        tdt_loss_sum(&frames, &labels, (&weight, &bias), (w, b), &targets(), &options, &WEIGHTS)
    };
    tdt(&zeros(&[2, 3]), &zeros(&[2])).unwrap();
    refused(tdt(&zeros(&[2, 4]), &zeros(&[2])), "durations.weight");
    refused(tdt(&zeros(&[2, 3]), &zeros(&[3])), "durations.bias");
    let single = zeros(&[2]).to_dtype(DType::F32).unwrap();
    refused(tdt(&zeros(&[2, 3]), &single), "durations.bias");
    assert!(matches!(tdt(&zeros(&[3, 3]), &zeros(&[3])), Err(Error::Columns { .. })));

    let [x, y, wx, wy] = [[3, 4, 6], [3, 3, 7], [5, 6, 1], [5, 7, 1]].map(|shape| zeros(&shape));
    let [wx, wy] = [wx, wy].map(|w| w.squeeze(2).unwrap());
    let good = TrivialJoiner { frames: &x, labels: &y, am: (&wx, &bias), lm: (&wy, &bias) };
    let pruning = Pruning::default();
    let run = |simple: TrivialJoiner| {
        let head = (&weight, &bias);
        pruned_loss_sum(&simple, &frames, &labels, head, &targets(), &Options::default(), &pruning, &WEIGHTS)
    };
    run(good).unwrap();
    refused(run(TrivialJoiner { frames: &y, ..good }), "simple.frames");
    refused(run(TrivialJoiner { labels: &weight, ..good }), "simple.labels");
    refused(run(TrivialJoiner { am: (&wy, &bias), ..good }), "simple.am.weight");
    refused(run(TrivialJoiner { am: (&wx, &zeros(&[4])), ..good }), "simple.am.bias");
    refused(run(TrivialJoiner { lm: (&wx, &bias), ..good }), "simple.lm.weight");
    refused(run(TrivialJoiner { lm: (&wy, &single), ..good }), "simple.lm.bias");
}

#[test]
fn a_factored_blank() {
    let (frames, labels) = (var(&[3, 4, 3], 1), var(&[3, 3, 3], 2));
    let (weight, bias) = (var(&[5, 3], 3), var(&[5], 4));
    let options = Options { factored_blank: true, ..Options::default() };
    let out = transducer_loss_sum(&frames, &labels, &weight, &bias, &targets(), &options, &WEIGHTS).unwrap();
    let [f, g, w, b] = [&frames, &labels, &weight, &bias].map(|v| slice(v));
    let head = Head::new(&w, Some(&b), 3).unwrap();
    let want = rnnt_loss::projected_loss(&f, &g, &head, LAYOUT, &targets(), &options, &WEIGHTS).unwrap();
    assert_eq!(out.losses, want.losses);
    agree(
        &out.sum,
        &[(&frames, want.frames), (&labels, want.labels), (&weight, want.weight), (&bias, want.bias)],
    );
}
