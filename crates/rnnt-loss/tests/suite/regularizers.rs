//! Regularizers of the transducer loss: label smoothing, z-loss, token weights.
//!
//! Losses are compared with the definitions, gradients with central differences.
use candle_core::{Device, Tensor, Var, backprop::GradStore};
use oracle::differences::central_difference;
use rnnt_dp::{Lattices, Regularizers, forward_backward};
use rnnt_loss::{
    Error, Gradients, Head, HiddenInputs, JointInputs, Layout, Loss, LossOutput, Options, Result,
    ScoreInputs, Session, Targets, TokenNormalization, Topology,
    candle::{transducer_loss, transducer_loss_sum},
};

/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 5;
/// Elements of frame rows, label rows, weight and bias.
const SIZES: [usize; 4] = [(4 + 2) * H, (3 + 2) * H, C * H, C];
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 2] = [0.5, -2.0];

/// Pseudo-random values.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

/// Targets of the batch.
fn targets() -> Targets {
    Targets::new(1, vec![4, 2], vec![vec![0, 4], vec![2]]).unwrap()
}

/// Splits inputs into frame rows, label rows, weight and bias.
fn split_inputs(mut all: &[f64]) -> [&[f64]; 4] {
    SIZES.map(|size| all.split_off(..size).unwrap())
}

/// Frame rows, label rows, weight and bias, concatenated.
fn inputs() -> Vec<f64> {
    values(SIZES.iter().sum(), 3)
}

fn run(all: &[f64], targets: &Targets, options: &Options) -> LossOutput<f64> {
    let [frames, labels, w, b] = split_inputs(all);
    let head = Head::new(w, Some(b), H).unwrap();
    Session::new(options).unwrap().sum(JointInputs::new(frames, labels, head), targets, &WEIGHTS).unwrap()
}

/// Gradients of rows and token head, concatenated.
fn concatenate_gradients(gradients: Gradients<f64>) -> Vec<f64> {
    let Gradients { encoded, predicted, head, .. } = gradients;
    [encoded, predicted, head.weight, head.bias].concat()
}

/// Compares the gradients with central differences of the weighted losses.
fn check_gradient(out: LossOutput<f64>, all: &[f64], targets: &Targets, options: &Options) {
    let gradient = concatenate_gradients(out.gradients);
    let loss =
        |all: &[f64]| Ok(run(all, targets, options).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (i, (actual, expected)) in gradient.iter().zip(central_difference(loss, all).unwrap()).enumerate() {
        assert!((actual - expected).abs() < 3e-7, "entry {i}: {actual} {expected}");
    }
}

/// Losses with smoothing and z-loss, by definition.
fn dense_losses(all: &[f64], targets: &Targets, epsilon: f64, z_loss: f64) -> Vec<f64> {
    let [frames, labels, w, b] = split_inputs(all);
    let (mut first_frame, mut first_label) = (0, 0);
    let mut losses = Vec::new();
    for utterance in 0..2 {
        let (t, u) = (targets.frames(utterance), targets.labels(utterance).len());
        let (mut emissions, mut squares) = (Vec::new(), 0.0);
        for frame in 0..t {
            for label in 0..=u {
                let f = &frames[(first_frame + frame) * H..][..H];
                let g = &labels[(first_label + label) * H..][..H];
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
        (first_frame, first_label) = (first_frame + t, first_label + u + 1);
    }
    losses
}

#[test]
fn smoothing_and_z_loss_match_the_definitions() {
    let (all, targets) = (inputs(), targets());
    for (label_smoothing, z_loss) in [(0.1, 0.0), (0.0, 0.01), (0.3, 0.2), (1.0, 0.0)] {
        let options = Options { label_smoothing, z_loss, ..Options::default() };
        let actual = run(&all, &targets, &options);
        for (actual, expected) in
            actual.losses.iter().zip(dense_losses(&all, &targets, label_smoothing, z_loss))
        {
            assert!((actual - expected).abs() < 1e-12 * expected.abs(), "{actual} {expected}");
        }
        check_gradient(actual, &all, &targets, &options);
    }
}

#[test]
fn smoothing_gradients_match_differences_in_other_topologies() {
    let (all, targets) = (inputs(), targets());
    for topology in [Topology::modified(), Topology::constrained()] {
        let loss = Loss::with_topology(topology);
        let options = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::new(loss) };
        check_gradient(run(&all, &targets, &options), &all, &targets, &options);
    }
    let loss = Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.05, omega: 0.25 };
    let options = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::new(loss) };
    let (v, c) = (values(3 * H, 8), values(3, 9));
    let tdt = |all: &[f64]| {
        let [frames, labels, w, b] = split_inputs(all);
        let (tokens, durations) = (Head::new(w, Some(b), H).unwrap(), Head::new(&v, Some(&c), H).unwrap());
        let joint = JointInputs::new(frames, labels, tokens).with_durations(durations);
        Session::new(&options).unwrap().sum(joint, &targets, &WEIGHTS).unwrap()
    };
    let actual = tdt(&all);
    let gradient = concatenate_gradients(actual.gradients);
    let loss = |all: &[f64]| Ok(tdt(all).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (actual, expected) in gradient.iter().zip(central_difference(loss, &all).unwrap()) {
        assert!((actual - expected).abs() < 3e-7, "{actual} {expected}");
    }
}

/// Hidden rows and the operation in two steps match the joint network.
#[test]
fn all_inputs_with_a_head_support_smoothing_and_factored_blanks() {
    let (all, targets) = (inputs(), targets());
    let [frames, labels, w, b] = split_inputs(&all);
    let head = Head::new(w, Some(b), H).unwrap();
    let (mut hidden, mut first_frame, mut first_label) = (Vec::new(), 0, 0);
    for utterance in 0..targets.batch() {
        for site in targets.lattices().utterance_sites(utterance) {
            let f = &frames[(first_frame + site.frame) * H..];
            let g = &labels[(first_label + site.label) * H..];
            hidden.extend((0..H).map(|k| (f[k] + g[k]).tanh()));
        }
        first_frame += targets.frames(utterance);
        first_label += targets.labels(utterance).len() + 1;
    }
    let smoothed = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
    let factored = Options { z_loss: 0.1, ..Options::new(Loss::hat()) };
    for options in [smoothed, factored] {
        let expected = run(&all, &targets, &options);
        let mut session = Session::new(&options).unwrap();
        let actual = session.sum(HiddenInputs::new(&hidden, head), &targets, &WEIGHTS).unwrap();
        let pairs = [
            (&actual.losses, &expected.losses),
            (&actual.gradients.head.weight, &expected.gradients.head.weight),
            (&actual.gradients.head.bias, &expected.gradients.head.bias),
        ];
        for (actual, expected) in
            pairs.iter().flat_map(|(actual, expected)| actual.iter().zip(expected.iter()))
        {
            assert!((actual - expected).abs() < 1e-12, "{actual} {expected}");
        }
    }
}

/// One utterance, so that packed and padded rows are equal.
#[test]
fn the_two_step_operation_supports_smoothing_and_factored_blanks() {
    let targets = Targets::new(1, vec![4], vec![vec![0, 4]]).unwrap();
    let tensor = |count: usize, seed, shape: &[usize]| {
        Var::from_tensor(&Tensor::from_vec(values(count, seed), shape, &Device::Cpu).unwrap()).unwrap()
    };
    let (frames, labels) = (tensor(4 * H, 1, &[1, 4, H]), tensor(3 * H, 2, &[1, 3, H]));
    let (w, b) = (tensor(C * H, 3, &[C, H]), tensor(C, 4, &[C]));
    let smoothed = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
    let factored = Options { z_loss: 0.1, ..Options::new(Loss::hat()) };
    for options in [smoothed, factored] {
        let forward = transducer_loss(&frames, &labels, &w, &b, &targets, &options).unwrap();
        let sum = transducer_loss_sum(&frames, &labels, &w, &b, &targets, &options, &[1.0]).unwrap();
        assert_eq!(forward.to_vec1::<f64>().unwrap(), sum.losses);
        let (forward, sum) = (forward.sum_all().unwrap().backward().unwrap(), sum.sum.backward().unwrap());
        for variable in [&frames, &labels, &w, &b] {
            let values = |gradients: &GradStore| {
                gradients.get(variable).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap()
            };
            assert_eq!(values(&forward), values(&sum));
        }
    }
}

#[test]
fn token_weights_scale_labels() {
    let (all, targets) = (inputs(), targets());
    let plain = Options::default();
    let same = targets.clone().with_token_weights(vec![vec![1.0; 2], vec![1.0]]).unwrap();
    assert_eq!(run(&all, &targets, &plain), run(&all, &same, &plain));
    // A common factor equals FastEmit.
    let weighted_targets = targets.clone().with_token_weights(vec![vec![1.25; 2], vec![1.25]]).unwrap();
    let fastemit = run(&all, &targets, &Options { fastemit: 0.25, ..Options::default() });
    let weighted = run(&all, &weighted_targets, &plain);
    assert_eq!(weighted.losses, fastemit.losses);
    for (a, b) in weighted.gradients.head.weight.iter().zip(&fastemit.gradients.head.weight) {
        assert!((a - b).abs() < 1e-12);
    }
    // Weights apply to one utterance only.
    let first = targets.clone().with_token_weights(vec![vec![0.0; 2], vec![1.0]]).unwrap();
    let encoded = |targets: &Targets| run(&all, targets, &plain).gradients.encoded;
    let (first, all_equal) = (encoded(&first), encoded(&targets));
    assert_eq!(first[4 * H..], all_equal[4 * H..]);
    assert_ne!(first[..4 * H], all_equal[..4 * H]);
}

/// An utterance without a path has no gradient with any regularizer.
#[test]
fn utterances_without_a_path_have_no_gradient() {
    let targets = Targets::new(1, vec![4, 1], vec![vec![0, 4], vec![2, 0]]).unwrap();
    let mut all = inputs();
    all.extend(values(H, 1));
    let (frames, rest) = all.split_at(5 * H);
    let (labels, rest) = rest.split_at(6 * H);
    let (w, b) = (&rest[..C * H], &values(C, 4));
    let head = Head::new(w, Some(b), H).unwrap();
    for (clamp, label_smoothing) in [(None, 0.1), (None, 0.0), (Some(0.1), 0.0)] {
        let loss = Loss::with_topology(Topology::modified());
        let options = Options { clamp, label_smoothing, z_loss: 0.1, ..Options::new(loss) };
        let mut session = Session::new(&options).unwrap();
        let out = session.sum(JointInputs::new(frames, labels, head), &targets, &WEIGHTS).unwrap();
        assert!(out.losses[0].is_finite() && out.losses[1] == f64::INFINITY);
        assert!(out.gradients.encoded[4 * H..].iter().all(|g| *g == 0.0));
        assert!(out.gradients.head.weight.iter().all(|g| g.is_finite()));
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let (all, targets) = (inputs(), targets());
    let [frames, labels, w, b] = split_inputs(&all);
    let head = Head::new(w, Some(b), H).unwrap();
    let with = |options: Options| -> Result<Vec<f64>> {
        let out = Session::new(&options)?.sum(JointInputs::new(frames, labels, head), &targets, &WEIGHTS)?;
        Ok(out.losses)
    };
    for bad in [-0.1, 1.1, f64::NAN] {
        let error = with(Options { label_smoothing: bad, ..Options::default() });
        assert!(matches!(error, Err(Error::Regularizer { argument: "label_smoothing", .. })));
    }
    for bad in [-0.1, f64::INFINITY, f64::NAN] {
        let error = with(Options { z_loss: bad, ..Options::default() });
        assert!(matches!(error, Err(Error::Regularizer { argument: "z_loss", .. })));
    }
    let skips = Options { z_loss: 0.1, skip: 0.1, ..Options::default() };
    assert!(matches!(with(skips), Err(Error::Incompatible { argument: "skip", .. })));
    let huge = Options { z_loss: 1e308, ..Options::default() };
    assert!(matches!(with(huge), Err(Error::Lattice(rnnt_dp::Error::Overflow { utterance: 0, .. }))));
    for (argument, penalties) in [
        ("delay_penalty", Options { delay_penalty: 1e39, ..Options::default() }),
        (
            "sigma",
            Options::new(Loss::Transducer {
                topology: Topology::rnnt(),
                tokens: TokenNormalization::Softmax,
                sigma: 1e300,
            }),
        ),
    ] {
        let actual = with(penalties).unwrap_err().to_string();
        assert!(actual.contains(argument) && actual.contains("1e30"), "{actual}");
    }
    let smoothed_hat = Options { label_smoothing: 0.1, ..Options::new(Loss::hat()) };
    assert!(matches!(with(smoothed_hat), Err(Error::Smoothing)));
    let smooth = Options { label_smoothing: 0.1, ..Options::default() };
    let clamped = Options { label_smoothing: 0.1, clamp: Some(1.0), ..Options::default() };
    assert!(matches!(with(clamped), Err(Error::Incompatible { argument: "clamp", .. })));
    let scores = values(16 * C, 1);
    let mut smooth = Session::new(&smooth).unwrap();
    let scores = ScoreInputs { scores: &scores, classes: C, layout: Layout::Packed };
    let actual = smooth.sum(scores, &targets, &WEIGHTS);
    assert!(matches!(actual, Err(Error::Smoothing)));
    let masked: Vec<f64> = (0..C).map(|c| if c == 3 { f64::NEG_INFINITY } else { 0.0 }).collect();
    let head = Head::new(w, Some(&masked), H).unwrap();
    let actual = smooth.sum(JointInputs::new(frames, labels, head), &targets, &WEIGHTS);
    assert!(actual.unwrap_err().to_string().contains("-inf for a class"));
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
