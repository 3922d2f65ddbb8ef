//! Losses of multi-blank, TDT, factored blanks and retained sites: values, gradients, errors.
//!
//! Losses of a joint network must equal those of its dense scores, or the definition in plain
//! loops; gradients must equal central differences. Tensors are padded: B = 2, T = 4, U + 1 = 3.
use oracle::differences::central_difference;
use rnnt_dp::{Lattices, Regularizers, forward_backward};
use rnnt_loss::{
    Error, Gradients, Head, JointInputs, Layout, Loss, LossOutput, Options, Result, ScoreInputs, Session,
    Targets, TokenNormalization, Topology,
};

/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 6;
/// Frames that a token of the TDT loss may advance.
const DURATIONS: [usize; 3] = [0, 1, 2];

/// Pseudo-random values.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + salt) * 7919 % 1009) as f64 - 504.0) / 400.0).collect()
}

/// B = 2, padded T = 4, U + 1 = 3; the blank in the middle of the classes.
fn targets(blank: u32) -> Targets {
    let label = |i: u32| if i >= blank { i + 1 } else { i };
    Targets::new(blank, vec![4, 2], vec![vec![label(0), label(3)], vec![label(1)]]).unwrap()
}

const PADDED: Layout = Layout::Padded { frames: 4, positions: 3 };
/// Elements of frame rows, label rows, and both weights and biases.
const SIZES: [usize; 6] = [2 * 4 * H, 2 * 3 * H, C * H, C, DURATIONS.len() * H, DURATIONS.len()];
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 2] = [0.5, -2.0];

/// Splits inputs into frame rows, label rows, token head and duration head.
///
/// A head is a weight and a bias.
fn split_inputs(mut all: &[f64]) -> [&[f64]; 6] {
    SIZES.map(|size| all.split_off(..size).unwrap())
}

/// Splits inputs without durations into frame rows, label rows and token head.
fn split_joint_inputs(mut all: &[f64]) -> [&[f64]; 4] {
    [0, 1, 2, 3].map(|i| all.split_off(..SIZES[i]).unwrap())
}

/// Frame rows, label rows, and both heads, concatenated.
fn inputs() -> Vec<f64> {
    values(SIZES.iter().sum(), 5)
}

fn session<F: rnnt_loss::Real>(options: &Options) -> Session<F> {
    Session::new(options).unwrap()
}

/// Runs the loss with one head for all tokens.
fn run_joint(all: &[f64], targets: &Targets, options: &Options) -> LossOutput<f64> {
    let [frames, labels, weight, bias] = split_joint_inputs(all);
    let head = Head::new(weight, Some(bias), H).unwrap();
    session(options)
        .sum(JointInputs::new(frames, labels, head).with_layout(PADDED), targets, &WEIGHTS)
        .unwrap()
}

/// Loss and gradient of padded scores.
fn loss_of_scores(scores: &[f64], targets: &Targets, options: &Options) -> Result<LossOutput<f64>> {
    Session::new(options)?.sum(ScoreInputs { scores, classes: C, layout: PADDED }, targets, &WEIGHTS)
}

/// Gradients of the arguments, concatenated.
fn concatenate_gradients(gradients: Gradients<f64>) -> Vec<f64> {
    let Gradients { encoded, predicted, head, durations, .. } = gradients;
    [encoded, predicted, head.weight, head.bias, durations.weight, durations.bias].concat()
}

/// Compares a gradient with central differences of the weighted losses.
fn check_gradient(gradient: &[f64], inputs: &[f64], losses: impl Fn(&[f64]) -> Vec<f64>) {
    let loss = |all: &[f64]| Ok(losses(all).iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    let expected = central_difference(loss, inputs).unwrap();
    assert_eq!(gradient.len(), expected.len());
    for (i, (actual, expected)) in gradient.iter().zip(expected).enumerate() {
        assert!((actual - expected).abs() < 2e-7, "entry {i}: {actual} {expected}");
    }
}

/// Scores of all padded sites, by the definition of the joint network.
fn dense_scores(frames: &[f64], labels: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut z = Vec::new();
    for site in 0..2 * 4 * 3 {
        let (b, t, u) = (site / 12, site / 3 % 4, site % 3);
        let (f, g) = (&frames[(b * 4 + t) * H..][..H], &labels[(b * 3 + u) * H..][..H]);
        let h: Vec<f64> = f.iter().zip(g).map(|(f, g)| (f + g).tanh()).collect();
        let dot = |w: &[f64]| w.iter().zip(&h).map(|(w, h)| w * h).sum::<f64>();
        z.extend(weight.chunks(H).zip(bias).map(|(w, b)| dot(w) + b));
    }
    z
}

#[test]
fn tdt_matches_the_loss_of_its_scores() {
    let (all, targets) = (inputs(), targets(5));
    for (omega, fastemit) in [(0.0, 0.0), (0.3, 0.0), (1.0, 0.0), (0.0, 0.2)] {
        let topology = Topology::tdt(&DURATIONS).unwrap();
        let options = Options { fastemit, ..Options::new(Loss::Tdt { topology, sigma: 0.05, omega }) };
        let run = |all: &[f64]| {
            let [frames, labels, weight, bias, duration_weight, duration_bias] = split_inputs(all);
            let tokens = Head::new(weight, Some(bias), H).unwrap();
            let durations = Head::new(duration_weight, Some(duration_bias), H).unwrap();
            let joint =
                JointInputs::new(frames, labels, tokens).with_durations(durations).with_layout(PADDED);
            session(&options).sum(joint, &targets, &WEIGHTS).unwrap()
        };
        let actual = run(&all);
        let [frames, labels, weight, bias, duration_weight, duration_bias] = split_inputs(&all);
        let token_scores = dense_scores(frames, labels, weight, bias);
        let duration_scores = dense_scores(frames, labels, duration_weight, duration_bias);
        let rows = token_scores.chunks(C).zip(duration_scores.chunks(DURATIONS.len()));
        let rows: Vec<f64> =
            rows.flat_map(|(tokens, durations)| tokens.iter().chain(durations)).copied().collect();
        let dense = loss_of_scores(&rows, &targets, &options).unwrap();
        for (a, b) in actual.losses.iter().zip(&dense.losses) {
            assert!((a - b).abs() < 1e-12 * b);
        }
        if fastemit == 0.0 {
            check_gradient(&concatenate_gradients(actual.gradients), &all, |all| run(all).losses);
            let losses = |rows: &[f64]| loss_of_scores(rows, &targets, &options).unwrap().losses;
            check_gradient(&dense.gradients.scores, &rows, losses);
        }
    }
}

#[test]
fn tdt_losses_agree_in_single_precision_and_every_budget() {
    let (all, targets) = (inputs(), targets(0));
    let losses = |keep_scores: bool| {
        let options =
            Options { budget: usize::MAX, keep_scores, ..Options::new(Loss::tdt(&DURATIONS).unwrap()) };
        let all: Vec<f32> = all.iter().map(|&x| x as f32).collect();
        let mut rest = all.as_slice();
        let [frames, labels, weight, bias, duration_weight, duration_bias] =
            SIZES.map(|size| rest.split_off(..size).unwrap());
        let tokens = Head::new(weight, Some(bias), H).unwrap();
        let durations = Head::new(duration_weight, Some(duration_bias), H).unwrap();
        let joint = JointInputs::new(frames, labels, tokens).with_durations(durations).with_layout(PADDED);
        session(&options).sum(joint, &targets, &WEIGHTS).unwrap()
    };
    let (kept, recomputed) = (losses(true), losses(false));
    assert_eq!(kept.losses, recomputed.losses);
    for (a, b) in kept.gradients.head.weight.iter().zip(&recomputed.gradients.head.weight) {
        assert!((a - b).abs() < 1e-5);
    }
}

/// Reference implementation of HAT, from scores.
fn hat_losses(z: &[f64], targets: &Targets, blank: usize) -> Vec<f64> {
    let mut losses = Vec::new();
    for b in 0..2 {
        let (frames, labels) = (targets.frames(b), targets.labels(b));
        let mut emissions = Vec::new();
        for t in 0..frames {
            for u in 0..=labels.len() {
                let row = &z[((b * 4 + t) * 3 + u) * C..][..C];
                let label_sum = (0..C).filter(|&c| c != blank).map(|c| row[c].exp()).sum::<f64>();
                let blank_probability = 1.0 / (1.0 + (-row[blank]).exp());
                emissions.push(blank_probability.ln());
                let label_share = labels.get(u).map_or(0.0, |&label| row[label as usize].exp() / label_sum);
                emissions.push(((1.0 - blank_probability) * label_share).ln());
            }
        }
        let lattices = Lattices::new(vec![frames], vec![labels.len()]).unwrap();
        let out = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default());
        losses.extend(out.unwrap().losses);
    }
    losses
}

#[test]
fn a_factored_blank_matches_the_definition() {
    let all = &inputs()[..SIZES[..4].iter().sum()];
    let options = Options::new(Loss::hat());
    for blank in [0, 2, C as u32 - 1] {
        let targets = targets(blank);
        let run = |all: &[f64]| run_joint(all, &targets, &options);
        let actual = run(all);
        let [frames, labels, weight, bias] = split_joint_inputs(all);
        let expected = hat_losses(&dense_scores(frames, labels, weight, bias), &targets, blank as usize);
        for (actual, expected) in actual.losses.iter().zip(&expected) {
            assert!((actual - expected).abs() < 1e-12 * expected, "{actual} {expected}");
        }
        check_gradient(&concatenate_gradients(actual.gradients), all, |all| run(all).losses);
    }
}

/// A nearly certain blank, for which 1 - p would lose all digits.
#[test]
fn a_factored_blank_is_accurate() {
    let targets = Targets::new(0, vec![1], vec![vec![1]]).unwrap();
    let options = Options::new(Loss::hat());
    let bias = [80.0f64, 0.0, 0.0];
    let head = Head::new(&[0.0; 6], Some(&bias), 2).unwrap();
    let out = session(&options).sum(JointInputs::new(&[0.0; 2], &[0.0; 4], head), &targets, &[1.0]).unwrap();
    assert!((out.losses[0] - (80.0 + 2f64.ln())).abs() < 1e-12, "{}", out.losses[0]);
}

#[test]
fn big_blanks_are_classes() {
    let all = &inputs()[..SIZES[..4].iter().sum()];
    let targets = targets(5).with_big_blanks(vec![4, 2]).unwrap();
    let topology = Topology::multi_blank(&[2, 3]).unwrap();
    let options =
        Options::new(Loss::Transducer { topology, tokens: TokenNormalization::Softmax, sigma: 0.1 });
    let run = |all: &[f64]| run_joint(all, &targets, &options);
    let actual = run(all);
    let [frames, labels, weight, bias] = split_joint_inputs(all);
    let z = dense_scores(frames, labels, weight, bias);
    let dense = loss_of_scores(&z, &targets, &options).unwrap();
    for (actual, expected) in actual.losses.iter().zip(&dense.losses) {
        assert!((actual - expected).abs() < 1e-12 * expected);
    }
    check_gradient(&concatenate_gradients(actual.gradients), all, |all| run(all).losses);
}

#[test]
fn all_inputs_support_retained_sites() {
    let all = &inputs()[..SIZES[..4].iter().sum()];
    for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
        let options = Options { delay_penalty: 0.1, ..Options::new(Loss::with_topology(topology)) };
        let run = |all: &[f64], targets: &Targets| run_joint(all, targets, &options);
        let full = targets(2);
        let bands = vec![vec![0..2, 0..2, 1..3, 1..3], vec![0..1, 0..2]];
        let kept = full.with_bands(bands).unwrap();
        let (actual, unrestricted) = (run(all, &kept), run(all, &full));
        for (kept, whole) in actual.losses.iter().zip(&unrestricted.losses) {
            assert!(kept >= whole, "{kept} {whole}");
        }
        let [frames, labels, weight, bias] = split_joint_inputs(all);
        let mut z = dense_scores(frames, labels, weight, bias);
        // Sites that are not retained are never read.
        for (b, t, u) in [(0, 0, 2), (0, 1, 2), (0, 2, 0), (0, 3, 0), (1, 0, 1)] {
            z[((b * 4 + t) * 3 + u) * C..][..C].fill(f64::NAN);
        }
        let dense = loss_of_scores(&z, &kept, &options).unwrap();
        for (actual, expected) in actual.losses.iter().zip(&dense.losses) {
            assert!((actual - expected).abs() < 1e-12 * expected);
        }
        assert!(dense.gradients.scores.iter().all(|g| g.is_finite()));
        check_gradient(&concatenate_gradients(actual.gradients), all, |all| run(all, &kept).losses);
        let all_retained = full.with_bands(vec![vec![0..3; 4], vec![0..2; 2]]).unwrap();
        for (a, b) in run(all, &all_retained).losses.iter().zip(&unrestricted.losses) {
            assert!((a - b).abs() < 1e-12 * b);
        }
    }
}

fn topology_arc(frames: usize, labels: usize) -> rnnt_dp::TopologyArc {
    rnnt_dp::TopologyArc { frames, labels, may_end: labels == 0 }
}

#[test]
fn invalid_arguments_are_errors() {
    let targets = targets(5);
    let (w, b) = (values(C * H, 1), values(C, 2));
    let head = Head::new(&w, Some(&b), H).unwrap();
    let (frames, labels) = (values(SIZES[0], 3), values(SIZES[1], 4));
    let joint = JointInputs::new(&frames, &labels, head).with_layout(PADDED);
    let run = |targets: &Targets, options: &Options| -> Result<Vec<f64>> {
        Ok(Session::new(options)?.sum(joint, targets, &WEIGHTS)?.losses)
    };
    let with = |topology| Options::new(Loss::with_topology(topology));
    let tdt = with(Topology::tdt(&[1, 2]).unwrap());
    assert!(matches!(run(&targets, &tdt), Err(Error::Columns { expected: 2, found: 4, .. })));
    let big = with(Topology::multi_blank(&[2]).unwrap());
    assert!(matches!(run(&targets, &big), Err(Error::Columns { expected: 2, found: 3, .. })));
    let two = targets.clone().with_big_blanks(vec![4, 2]).unwrap();
    assert!(matches!(run(&two, &big), Err(Error::Columns { expected: 4, found: 3, .. })));
    // A topology of four columns that are not all tokens.
    let confused = run(&two, &tdt);
    assert!(matches!(confused, Err(Error::Columns { expected: 4, found: 2, .. })), "{confused:?}");
    // Columns with another meaning.
    let (blank, label) = (topology_arc(1, 0), topology_arc(0, 1));
    let swapped = with(Topology::new(vec![label, blank]).unwrap());
    assert!(matches!(run(&targets, &swapped), Err(Error::Arc { arc: 0, expected: 0, found: 1 })));
    let two_at_once = with(Topology::new(vec![blank, topology_arc(1, 2)]).unwrap());
    assert!(matches!(run(&targets, &two_at_once), Err(Error::Arc { arc: 1, expected: 1, found: 2 })));
    let z = values(24 * C, 1);
    let lasting = |topology, omega| Options::new(Loss::Tdt { topology, sigma: 0.0, omega });
    let actual = loss_of_scores(&z, &targets, &lasting(Topology::rnnt(), 0.0));
    assert!(matches!(actual, Err(Error::Columns { expected: 3, found: 2, .. })));
    let tdt = lasting(Topology::tdt(&[1, 2]).unwrap(), 0.0);
    let vast = ScoreInputs { scores: &z, classes: usize::MAX, layout: PADDED };
    assert!(session(&tdt).sum(vast, &targets, &WEIGHTS).is_err());
    let beyond = targets.clone().with_big_blanks(vec![C as u32]).unwrap();
    assert!(matches!(run(&beyond, &big), Err(Error::BlankOutOfRange { blank: 6, .. })));
    for taken in [vec![5], vec![0], vec![2, 2]] {
        assert!(matches!(targets.clone().with_big_blanks(taken), Err(Error::BigBlank { .. })));
    }
    let (v, c) = (values(6, 1), values(2, 2));
    let durations = Head::new(&v, Some(&c), H).unwrap();
    let run_tdt = |options: &Options| -> Result<Vec<f64>> {
        Ok(Session::new(options)?.sum(joint.with_durations(durations), &targets, &WEIGHTS)?.losses)
    };
    assert!(run_tdt(&tdt).is_ok());
    assert!(matches!(run(&targets, &tdt), Err(Error::Durations { expected: 2, found: 0 })));
    for plain in [Options::default(), Options::new(Loss::hat())] {
        assert!(matches!(run_tdt(&plain), Err(Error::Durations { expected: 0, found: 2 })));
    }
    for omega in [-0.1, 1.1, f64::NAN] {
        let actual = run_tdt(&lasting(Topology::tdt(&[1, 2]).unwrap(), omega));
        assert!(matches!(actual, Err(Error::Omega { .. })));
    }
    let narrow = Head::new(&v[..4], None, 2).unwrap();
    let actual = session(&tdt).sum(joint.with_durations(narrow), &targets, &WEIGHTS);
    assert!(matches!(actual, Err(Error::Shape { argument: "durations", .. })));
    let actual = loss_of_scores(&z, &targets, &Options::new(Loss::hat()));
    assert!(matches!(actual, Err(Error::FactoredBlank)));
    let (topology, tokens) = (Topology::multi_blank(&[2]).unwrap(), TokenNormalization::FactoredBlank);
    assert!(matches!(
        run(&two, &Options::new(Loss::Transducer { topology, tokens, sigma: 0.0 })),
        Err(Error::Incompatible { argument: "targets.big_blanks", .. })
    ));
    assert!(matches!(targets.with_bands(vec![vec![0..1; 4]]), Err(Error::Shape { argument: "bands", .. })));
    let short = targets.with_bands(vec![vec![0..1; 4], vec![0..1; 3]]);
    assert!(matches!(short, Err(Error::Bands { utterance: 1, expected: 2, found: 3 })));
    let (topology, tokens, sigma) = (Topology::rnnt(), TokenNormalization::Softmax, f64::INFINITY);
    let sigma = Options::new(Loss::Transducer { topology, tokens, sigma });
    assert!(matches!(run(&targets, &sigma), Err(Error::Lattice(_))));
}
