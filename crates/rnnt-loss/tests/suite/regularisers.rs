//! Label smoothing, z-loss and weights of tokens: definitions, central differences, mistakes.
use candle_core::{Device, Tensor, Var, backprop::GradStore};
use oracle::differences::central_difference;
use rnnt_dp::{Lattices, Regularizers, forward_backward};
use rnnt_loss::{
    Error, Gradients, Head, Joint, Layout, Loss, Options, Output, Result, Rows, Scores, Session, Targets,
    Tokens, Topology,
    candle::{transducer_loss, transducer_loss_sum},
};

const H: usize = 3;
const C: usize = 5;
const SIZES: [usize; 4] = [(4 + 2) * H, (3 + 2) * H, C * H, C];
const WEIGHTS: [f64; 2] = [0.5, -2.0];

fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

fn targets() -> Targets {
    Targets::new(1, vec![4, 2], vec![vec![0, 4], vec![2]]).unwrap()
}

fn cut(mut all: &[f64]) -> [&[f64]; 4] {
    SIZES.map(|size| all.split_off(..size).unwrap())
}

fn inputs() -> Vec<f64> {
    values(SIZES.iter().sum(), 3)
}

fn run(all: &[f64], targets: &Targets, options: &Options) -> Output<f64> {
    let [frames, labels, w, b] = cut(all);
    let head = Head::new(w, Some(b), H).unwrap();
    Session::new(options).unwrap().sum(Joint::new(frames, labels, head), targets, &WEIGHTS).unwrap()
}

/// Of rows and the head of the tokens.
fn in_one(gradients: Gradients<f64>) -> Vec<f64> {
    let Gradients { encoded, predicted, head, .. } = gradients;
    [encoded, predicted, head.weight, head.bias].concat()
}

fn check(out: Output<f64>, all: &[f64], targets: &Targets, options: &Options) {
    let gradient = in_one(out.gradients);
    let loss =
        |all: &[f64]| Ok(run(all, targets, options).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (i, (found, want)) in gradient.iter().zip(central_difference(loss, all).unwrap()).enumerate() {
        assert!((found - want).abs() < 3e-7, "entry {i}: {found} {want}");
    }
}

/// Losses with smoothing and z-loss, by their definitions.
fn dense(all: &[f64], targets: &Targets, epsilon: f64, z_loss: f64) -> Vec<f64> {
    let [frames, labels, w, b] = cut(all);
    let (mut row, mut column) = (0, 0);
    let mut losses = Vec::new();
    for utterance in 0..2 {
        let (t, u) = (targets.frames(utterance), targets.labels(utterance).len());
        let (mut emissions, mut squares) = (Vec::new(), 0.0);
        for frame in 0..t {
            for label in 0..=u {
                let (f, g) = (&frames[(row + frame) * H..][..H], &labels[(column + label) * H..][..H]);
                let h: Vec<f64> = f.iter().zip(g).map(|(f, g)| (f + g).tanh()).collect();
                let dot = |w: &[f64]| w.iter().zip(&h).map(|(w, h)| w * h).sum::<f64>();
                let z: Vec<f64> = w.chunks(H).zip(b).map(|(w, b)| dot(w) + b).collect();
                let log_z = z.iter().map(|z| z.exp()).sum::<f64>().ln();
                let mean = z.iter().map(|z| z - log_z).sum::<f64>() / C as f64;
                let smoothed = |c: u32| (1.0 - epsilon) * (z[c as usize] - log_z) + epsilon * mean;
                let next = targets.labels(utterance).get(label).copied();
                emissions.extend([smoothed(targets.blank()), next.map_or(0.0, smoothed)]);
                squares += log_z * log_z;
            }
        }
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let out = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default());
        losses.push(out.unwrap().losses[0] + z_loss * squares / (t * (u + 1)) as f64);
        (row, column) = (row + t, column + u + 1);
    }
    losses
}

#[test]
fn smoothing_and_z_loss_are_what_they_say() {
    let (all, targets) = (inputs(), targets());
    for (label_smoothing, z_loss) in [(0.1, 0.0), (0.0, 0.01), (0.3, 0.2), (1.0, 0.0)] {
        let options = Options { label_smoothing, z_loss, ..Options::default() };
        let found = run(&all, &targets, &options);
        for (found, want) in found.losses.iter().zip(dense(&all, &targets, label_smoothing, z_loss)) {
            assert!((found - want).abs() < 1e-12 * want.abs(), "{found} {want}");
        }
        check(found, &all, &targets, &options);
    }
}

#[test]
fn smoothing_under_other_topologies() {
    let (all, targets) = (inputs(), targets());
    for topology in [Topology::modified(), Topology::constrained()] {
        let loss = Loss::over(topology);
        let options = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::of(loss) };
        check(run(&all, &targets, &options), &all, &targets, &options);
    }
    let loss = Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.05, omega: 0.25 };
    let options = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::of(loss) };
    let (v, c) = (values(3 * H, 8), values(3, 9));
    let tdt = |all: &[f64]| {
        let [frames, labels, w, b] = cut(all);
        let (tokens, durations) = (Head::new(w, Some(b), H).unwrap(), Head::new(&v, Some(&c), H).unwrap());
        let joint = Joint::new(frames, labels, tokens).with_durations(durations);
        Session::new(&options).unwrap().sum(joint, &targets, &WEIGHTS).unwrap()
    };
    let found = tdt(&all);
    let gradient = in_one(found.gradients);
    let loss = |all: &[f64]| Ok(tdt(all).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (found, want) in gradient.iter().zip(central_difference(loss, &all).unwrap()) {
        assert!((found - want).abs() < 3e-7, "{found} {want}");
    }
}

/// Hidden rows that the joint would make have the same loss and head gradients, and so has the operation with two steps.
#[test]
fn every_door_with_a_head_smooths_and_factors() {
    let (all, targets) = (inputs(), targets());
    let [frames, labels, w, b] = cut(&all);
    let head = Head::new(w, Some(b), H).unwrap();
    let (mut hidden, mut row, mut column) = (Vec::new(), 0, 0);
    for utterance in 0..targets.batch() {
        for site in targets.lattices().utterance_sites(utterance) {
            let (f, g) = (&frames[(row + site.frame) * H..], &labels[(column + site.label) * H..]);
            hidden.extend((0..H).map(|k| (f[k] + g[k]).tanh()));
        }
        row += targets.frames(utterance);
        column += targets.labels(utterance).len() + 1;
    }
    let smoothed = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
    let factored = Options { z_loss: 0.1, ..Options::of(Loss::hat()) };
    for options in [smoothed, factored] {
        let want = run(&all, &targets, &options);
        let mut session = Session::new(&options).unwrap();
        let found = session.sum(Rows::new(&hidden, head), &targets, &WEIGHTS).unwrap();
        let pairs = [
            (&found.losses, &want.losses),
            (&found.gradients.head.weight, &want.gradients.head.weight),
            (&found.gradients.head.bias, &want.gradients.head.bias),
        ];
        for (found, want) in pairs.iter().flat_map(|(found, want)| found.iter().zip(want.iter())) {
            assert!((found - want).abs() < 1e-12, "{found} {want}");
        }
    }
}

/// One utterance, so that packed rows are padded ones.
#[test]
fn the_operation_in_two_steps_smooths_and_factors() {
    let targets = Targets::new(1, vec![4], vec![vec![0, 4]]).unwrap();
    let tensor = |count: usize, seed, shape: &[usize]| {
        Var::from_tensor(&Tensor::from_vec(values(count, seed), shape, &Device::Cpu).unwrap()).unwrap()
    };
    let (frames, labels) = (tensor(4 * H, 1, &[1, 4, H]), tensor(3 * H, 2, &[1, 3, H]));
    let (w, b) = (tensor(C * H, 3, &[C, H]), tensor(C, 4, &[C]));
    let smoothed = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
    let factored = Options { z_loss: 0.1, ..Options::of(Loss::hat()) };
    for options in [smoothed, factored] {
        let lazy = transducer_loss(&frames, &labels, &w, &b, &targets, &options).unwrap();
        let eager = transducer_loss_sum(&frames, &labels, &w, &b, &targets, &options, &[1.0]).unwrap();
        assert_eq!(lazy.to_vec1::<f64>().unwrap(), eager.losses);
        let (lazy, eager) = (lazy.sum_all().unwrap().backward().unwrap(), eager.sum.backward().unwrap());
        for variable in [&frames, &labels, &w, &b] {
            let of = |gradients: &GradStore| {
                gradients.get(variable).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap()
            };
            assert_eq!(of(&lazy), of(&eager));
        }
    }
}

#[test]
fn weights_of_tokens_scale_labels() {
    let (all, targets) = (inputs(), targets());
    let plain = Options::default();
    let same = targets.clone().with_token_weights(vec![vec![1.0; 2], vec![1.0]]).unwrap();
    assert_eq!(run(&all, &targets, &plain), run(&all, &same, &plain));
    // One factor for all of them is FastEmit.
    let more = targets.clone().with_token_weights(vec![vec![1.25; 2], vec![1.25]]).unwrap();
    let fastemit = run(&all, &targets, &Options { fastemit: 0.25, ..Options::default() });
    let weighed = run(&all, &more, &plain);
    assert_eq!(weighed.losses, fastemit.losses);
    for (a, b) in weighed.gradients.head.weight.iter().zip(&fastemit.gradients.head.weight) {
        assert!((a - b).abs() < 1e-12);
    }
    // A weight of one utterance is not that of another.
    let first = targets.clone().with_token_weights(vec![vec![0.0; 2], vec![1.0]]).unwrap();
    let encoded = |targets: &Targets| run(&all, targets, &plain).gradients.encoded;
    let (first, all_equal) = (encoded(&first), encoded(&targets));
    assert_eq!(first[4 * H..], all_equal[4 * H..]);
    assert_ne!(first[..4 * H], all_equal[..4 * H]);
}

/// An impossible utterance has no gradient by any of them.
#[test]
fn no_path_no_gradient() {
    let targets = Targets::new(1, vec![4, 1], vec![vec![0, 4], vec![2, 0]]).unwrap();
    let mut all = inputs();
    all.extend(values(H, 1));
    let (frames, rest) = all.split_at(5 * H);
    let (labels, rest) = rest.split_at(6 * H);
    let (w, b) = (&rest[..C * H], &values(C, 4));
    let head = Head::new(w, Some(b), H).unwrap();
    for (clamp, label_smoothing) in [(None, 0.1), (None, 0.0), (Some(0.1), 0.0)] {
        let loss = Loss::over(Topology::modified());
        let options = Options { clamp, label_smoothing, z_loss: 0.1, ..Options::of(loss) };
        let mut session = Session::new(&options).unwrap();
        let out = session.sum(Joint::new(frames, labels, head), &targets, &WEIGHTS).unwrap();
        assert!(out.losses[0].is_finite() && out.losses[1] == f64::INFINITY);
        assert!(out.gradients.encoded[4 * H..].iter().all(|g| *g == 0.0));
        assert!(out.gradients.head.weight.iter().all(|g| g.is_finite()));
    }
}

#[test]
fn mistakes_are_named() {
    let (all, targets) = (inputs(), targets());
    let [frames, labels, w, b] = cut(&all);
    let head = Head::new(w, Some(b), H).unwrap();
    let with = |options: Options| -> Result<Vec<f64>> {
        let out = Session::new(&options)?.sum(Joint::new(frames, labels, head), &targets, &WEIGHTS)?;
        Ok(out.losses)
    };
    for bad in [-0.1, 1.1, f64::NAN] {
        let error = with(Options { label_smoothing: bad, ..Options::default() });
        assert!(matches!(error, Err(Error::Regulariser { argument: "label_smoothing", .. })));
    }
    for bad in [-0.1, f64::INFINITY, f64::NAN] {
        let error = with(Options { z_loss: bad, ..Options::default() });
        assert!(matches!(error, Err(Error::Regulariser { argument: "z_loss", .. })));
    }
    let skips = Options { z_loss: 0.1, skip: 0.1, ..Options::default() };
    assert!(matches!(with(skips), Err(Error::Misplaced { argument: "skip", .. })));
    let huge = Options { z_loss: 1e308, ..Options::default() };
    assert!(matches!(with(huge), Err(Error::Lattice(rnnt_dp::Error::Overflow { utterance: 0, .. }))));
    for (argument, penalties) in [
        ("delay_penalty", Options { delay_penalty: 1e39, ..Options::default() }),
        (
            "sigma",
            Options::of(Loss::Transducer {
                topology: Topology::rnnt(),
                tokens: Tokens::Softmax,
                sigma: 1e300,
            }),
        ),
    ] {
        let found = with(penalties).unwrap_err().to_string();
        assert!(found.contains(argument) && found.contains("1e30"), "{found}");
    }
    let both = Options { label_smoothing: 0.1, ..Options::of(Loss::hat()) };
    assert!(matches!(with(both), Err(Error::Smoothing)));
    let smooth = Options { label_smoothing: 0.1, ..Options::default() };
    let clamped = Options { label_smoothing: 0.1, clamp: Some(1.0), ..Options::default() };
    assert!(matches!(with(clamped), Err(Error::Misplaced { argument: "clamp", .. })));
    let scores = values(16 * C, 1);
    let mut smooth = Session::new(&smooth).unwrap();
    let scores = Scores { scores: &scores, classes: C, layout: Layout::Packed };
    let found = smooth.sum(scores, &targets, &WEIGHTS);
    assert!(matches!(found, Err(Error::Smoothing)));
    let masked: Vec<f64> = (0..C).map(|c| if c == 3 { f64::NEG_INFINITY } else { 0.0 }).collect();
    let head = Head::new(w, Some(&masked), H).unwrap();
    let found = smooth.sum(Joint::new(frames, labels, head), &targets, &WEIGHTS);
    assert!(found.unwrap_err().to_string().contains("-inf for a class"));
    for bad in [vec![vec![1.0; 2]], vec![vec![1.0], vec![1.0]], vec![vec![1.0, f64::NAN], vec![1.0]]] {
        let error = targets.clone().with_token_weights(bad).unwrap_err();
        use rnnt_dp::Error::{Length, TokenWeight, TokenWeights};
        assert!(
            matches!(
                error,
                Error::Lattice(
                    Length { .. } | TokenWeights { utterance: 0, .. } | TokenWeight { utterance: 0, .. }
                )
            ),
            "{error}"
        );
    }
}
