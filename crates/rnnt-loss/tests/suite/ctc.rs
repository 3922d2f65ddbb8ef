//! CTC losses compared with all labelings, central differences, and other batches.
//!
//! `inputs` are hidden rows and a head, concatenated, so that gradients can be compared with
//! central differences.
use candle_core::{Device, Tensor, Var};
use oracle::{ctc::sum_over_labelings, differences::central_difference};
use rnnt_dp::delay_shift;
use rnnt_loss::{
    Error, Head, HiddenInputs, JointInputs, Layout, Loss, LossOutput, Options, Plan, Session, Targets,
    align_ctc,
    candle::{self, HeadTensors, HiddenTensors, LossSession},
};

/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 4;
/// Class id of the blank.
const BLANK: u32 = 2;
/// Frames T of each utterance.
const FRAMES: [usize; 4] = [5, 1, 2, 4];
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 4] = [0.7, 1.3, 1.0, -0.4];

/// Pseudo-random values.
fn values(count: usize, seed: u64) -> Vec<f64> {
    oracle::noise::normal(seed, 0, count, 1.0)
}

/// Repeated labels, no labels, two equal labels in two frames, all classes.
fn targets() -> Targets {
    Targets::new(BLANK, FRAMES.to_vec(), vec![vec![1, 1, 0], vec![], vec![3, 3], vec![0, 3, 1]]).unwrap()
}

fn num_rows() -> usize {
    FRAMES.iter().sum()
}

/// Hidden rows, and weight and bias of the head, concatenated.
fn inputs() -> Vec<f64> {
    [values(num_rows() * H, 1), values(C * H, 2), values(C, 3)].concat()
}

fn options() -> Options {
    Options::new(Loss::Ctc)
}

/// Runs the loss of the concatenated inputs.
fn run(all: &[f64], targets: &Targets, options: &Options) -> LossOutput<f64> {
    let (rows, rest) = all.split_at(all.len() - C * H - C);
    let (weight, bias) = rest.split_at(C * H);
    let head = Head::new(weight, Some(bias), H).unwrap();
    let weights = &WEIGHTS[..targets.batch()];
    Session::new(options).unwrap().sum(HiddenInputs::new(rows, head), targets, weights).unwrap()
}

/// Log-probabilities of an utterance, smoothed, and the mean of squared log-sums.
fn dense_log_probs(all: &[f64], utterance: usize, epsilon: f64) -> (Vec<f64>, f64) {
    let (rows, rest) = all.split_at(num_rows() * H);
    let (weight, bias) = rest.split_at(C * H);
    let (first_row, frames) = (FRAMES[..utterance].iter().sum::<usize>(), FRAMES[utterance]);
    let (mut out, mut squares) = (Vec::new(), 0.0);
    for x in rows[first_row * H..(first_row + frames) * H].chunks(H) {
        let score = |c: usize| weight[c * H..][..H].iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias[c];
        let log_z = (0..C).map(|c| score(c).exp()).sum::<f64>().ln();
        let mean = (0..C).map(score).sum::<f64>() / C as f64 - log_z;
        out.extend((0..C).map(|c| (1.0 - epsilon) * (score(c) - log_z) + epsilon * mean));
        squares += log_z * log_z;
    }
    (out, squares / frames as f64)
}

#[test]
fn losses_match_sums_over_labelings() {
    let (all, targets) = (inputs(), targets());
    for (label_smoothing, z_loss) in [(0.0, 0.0), (0.2, 0.0), (0.1, 0.3)] {
        let options = Options { label_smoothing, z_loss, ..options() };
        let actual = run(&all, &targets, &options);
        for (utterance, actual) in actual.losses.iter().enumerate() {
            let (log_probs, squares) = dense_log_probs(&all, utterance, label_smoothing);
            let (frames, labels) = (FRAMES[utterance], targets.labels(utterance));
            let sum = sum_over_labelings(&log_probs, frames, C, labels, BLANK).unwrap();
            let expected = -sum.log_likelihood + z_loss * squares;
            assert!(
                *actual == expected || (actual - expected).abs() < 1e-12,
                "{utterance}: {actual} {expected}"
            );
        }
        assert_eq!(actual.losses[2], f64::INFINITY);
    }
}

#[test]
fn gradients_match_central_differences() {
    let (all, targets) = (inputs(), targets());
    let regularized = Options {
        label_smoothing: 0.15,
        z_loss: 0.2,
        delay_penalty: 0.3,
        budget: usize::MAX,
        keep_scores: false,
        ..options()
    };
    for options in [options(), regularized] {
        let actual = run(&all, &targets, &options);
        let gradient =
            [actual.gradients.hidden, actual.gradients.head.weight, actual.gradients.head.bias].concat();
        let loss = |all: &[f64]| {
            let losses = run(all, &targets, &options).losses;
            Ok(losses.iter().zip(WEIGHTS).filter(|(l, _)| l.is_finite()).map(|(l, w)| l * w).sum())
        };
        for (actual, expected) in gradient.iter().zip(central_difference(loss, &all).unwrap()) {
            assert!((actual - expected).abs() < 3e-7, "{actual} {expected}");
        }
        // The utterance without a path.
        assert!(gradient[6 * H..8 * H].iter().all(|g| *g == 0.0));
    }
}

/// With one label in two frames: blank label, label blank, label label.
#[test]
fn the_delay_penalty_applies_at_the_start_of_a_label() {
    let targets = Targets::new(0, vec![2], vec![vec![1]]).unwrap();
    let options = Options { delay_penalty: 0.5, ..options() };
    let head = [0.0; C * H];
    let rows = HiddenInputs::new(&[0.0; 2 * H], Head::new(&head, None, H).unwrap());
    let out = Session::new(&options).unwrap().sum(rows, &targets, &[1.0]).unwrap();
    let (early, late) = (delay_shift(0.5, 0, 2).exp(), delay_shift(0.5, 1, 2).exp());
    let expected = -((2.0 * early + late) / 16.0).ln();
    assert!((out.losses[0] - expected).abs() < 1e-12);
}

#[test]
fn fastemit_and_token_weights_scale_labels() {
    let (all, targets) = (inputs(), targets());
    let plain = run(&all, &targets, &options());
    let fastemit = run(&all, &targets, &Options { fastemit: 0.25, ..options() });
    let weights = |weight: f64| (0..4).map(|b| vec![weight; targets.labels(b).len()]).collect::<Vec<_>>();
    let run_weighted = |w| run(&all, &targets.clone().with_token_weights(weights(w)).unwrap(), &options());
    assert_eq!(plain, run_weighted(1.0));
    assert_eq!(fastemit.losses, run_weighted(1.25).losses);
    for (a, b) in fastemit.gradients.head.weight.iter().zip(&run_weighted(1.25).gradients.head.weight) {
        assert!((a - b).abs() < 1e-12);
    }
    assert_ne!(fastemit.gradients.head.weight, plain.gradients.head.weight);
    // Equal labels share a class, but have separate weights.
    let hidden_gradient = |first: f64, second: f64| {
        let mut weights = weights(1.0);
        (weights[0][0], weights[0][1]) = (first, second);
        run(&all, &targets.clone().with_token_weights(weights).unwrap(), &options()).gradients.hidden
    };
    assert_ne!(hidden_gradient(0.0, 1.0), hidden_gradient(1.0, 0.0));
}

#[test]
fn results_do_not_depend_on_batch_groups_padding_and_threads() {
    let (all, targets) = (inputs(), targets());
    let options = options();
    let expected = run(&all, &targets, &options);
    // Groups of one utterance each.
    let plan = Plan { wave_sites: 1, ..options_plan() };
    let grouped = run(&all, &targets, &Options { plan: Some(plan), ..options.clone() });
    assert_eq!(grouped.losses, expected.losses);
    for (a, b) in grouped.gradients.hidden.iter().zip(&expected.gradients.hidden) {
        assert!((a - b).abs() < 1e-13);
    }
    let (weight, bias) = all[num_rows() * H..].split_at(C * H);
    let head = Head::new(weight, Some(bias), H).unwrap();
    let mut padded = vec![f64::NAN; 4 * 6 * H];
    let mut row = 0;
    for (b, frames) in FRAMES.into_iter().enumerate() {
        padded[b * 6 * H..][..frames * H].copy_from_slice(&all[row * H..(row + frames) * H]);
        row += frames;
    }
    let layout = Layout::Padded { frames: 6, positions: 1 };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let rows = HiddenInputs::new(&padded, head).with_layout(layout);
    let actual = pool.install(|| Session::new(&options).unwrap().sum(rows, &targets, &WEIGHTS).unwrap());
    assert_eq!((&actual.losses, &actual.gradients.head), (&expected.losses, &expected.gradients.head));
    let mut row = 0;
    for (b, frames) in FRAMES.into_iter().enumerate() {
        let (utterance_rows, padding) = actual.gradients.hidden[b * 6 * H..][..6 * H].split_at(frames * H);
        assert_eq!(utterance_rows, &expected.gradients.hidden[row * H..(row + frames) * H]);
        assert!(padding.iter().all(|g| *g == 0.0));
        row += frames;
    }
}

fn options_plan() -> Plan<f32> {
    Plan {
        saved_scores: 0,
        saved_hidden: 0,
        ..rnnt_loss::MemoryPlan::new::<f64>(&targets(), H, C, &options()).unwrap().plan
    }
}

/// `ctc_loss` and sessions over scores and hidden rows return equal losses.
#[test]
fn scores_and_hidden_rows_have_equal_losses() {
    let targets = Targets::new(BLANK, vec![5, 3], vec![vec![1, 1, 0], vec![3]]).unwrap();
    let tensor = |count: usize, seed, shape: &[usize]| {
        Var::from_tensor(&Tensor::from_vec(values(count, seed), shape, &Device::Cpu).unwrap()).unwrap()
    };
    let (x, w, b) = (tensor(2 * 5 * H, 1, &[2, 5, H]), tensor(C * H, 2, &[C, H]), tensor(C, 3, &[C]));
    let options = Options { delay_penalty: 0.1, fastemit: 0.2, z_loss: 0.05, ..options() };
    let scores = x.broadcast_matmul(&w.t().unwrap()).unwrap().broadcast_add(&b).unwrap();
    let weights = Tensor::new(&[0.5f64, 2.0], &Device::Cpu).unwrap();
    let from_scores = candle::ctc_loss(&scores, &targets, &options).unwrap();
    let rows = HiddenTensors { hidden: &x, head: HeadTensors { weight: &w, bias: Some(&b) } };
    let from_rows = LossSession::new(&options).unwrap().sum(rows, &targets, &[0.5, 2.0]).unwrap();
    for (a, b) in from_scores.to_vec1::<f64>().unwrap().iter().zip(&from_rows.losses) {
        assert!((a - b).abs() < 1e-12);
    }
    let from_scores = (from_scores * weights).unwrap().sum_all().unwrap().backward().unwrap();
    // Later operations scale the gradient.
    let from_rows = (from_rows.sum * 3.0).unwrap().backward().unwrap();
    for variable in [&x, &w, &b] {
        let [from_scores, from_rows] = [&from_scores, &from_rows]
            .map(|g| g.get(variable).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap());
        for (from_scores, from_rows) in from_scores.iter().zip(&from_rows) {
            assert!((3.0 * from_scores - from_rows).abs() < 1e-12, "{from_scores} {from_rows}");
        }
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let (all, targets) = (inputs(), targets());
    let (rows, rest) = all.split_at(num_rows() * H);
    let (weight, bias) = rest.split_at(C * H);
    let head = Head::new(weight, Some(bias), H).unwrap();
    let call = |rows: &[f64], targets: &Targets, options: &Options| -> rnnt_loss::Result<Vec<f64>> {
        let out = Session::new(options)?.sum(HiddenInputs::new(rows, head), targets, &WEIGHTS)?;
        Ok(out.losses)
    };
    let plain = options();
    let big = Targets::new(BLANK, FRAMES.to_vec(), vec![vec![1], vec![], vec![1], vec![0]]).unwrap();
    let big = big.with_big_blanks(vec![3]).unwrap();
    assert!(matches!(
        call(rows, &big, &plain),
        Err(Error::Incompatible { argument: "targets.big_blanks", .. })
    ));
    let bands = (0..4).map(|b| vec![0..targets.labels(b).len() + 1; FRAMES[b]]).collect();
    let retained = targets.with_bands(bands).unwrap();
    assert!(matches!(
        call(rows, &retained, &plain),
        Err(Error::Incompatible { argument: "targets.retained", .. })
    ));
    let skip = Options { skip: 0.01, ..options() };
    assert!(matches!(call(rows, &targets, &skip), Err(Error::Incompatible { argument: "skip", .. })));
    assert!(matches!(call(&rows[1..], &targets, &plain), Err(Error::Shape { argument: "hidden", .. })));
    let beyond = Targets::new(BLANK, FRAMES.to_vec(), vec![vec![], vec![], vec![9], vec![]]).unwrap();
    assert!(matches!(
        call(rows, &beyond, &plain),
        Err(Error::LabelOutOfRange { utterance: 2, label: 9, .. })
    ));
    let mut bad = rows.to_vec();
    bad[7 * H] = f64::NAN;
    let single_site = Options { plan: Some(Plan { wave_sites: 1, ..options_plan() }), ..options() };
    for options in [&plain, &single_site] {
        assert!(matches!(call(&bad, &targets, options), Err(Error::Frame { utterance: 2, frame: 1, .. })));
    }
    // CTC has only frames: neither a joint network nor durations.
    let joint = JointInputs::new(rows, rows, head);
    let actual = Session::new(&plain).unwrap().sum(joint, &targets, &WEIGHTS);
    assert!(matches!(actual, Err(Error::Inputs { .. })));
    let with_durations = HiddenInputs { durations: Some(head), ..HiddenInputs::new(rows, head) };
    let actual = Session::new(&plain).unwrap().sum(with_durations, &targets, &WEIGHTS);
    assert!(matches!(actual, Err(Error::Durations { expected: 0, found: C })));
}

#[test]
fn alignments_match_the_enumeration_of_all_paths() {
    let targets = targets();
    let all = inputs();
    let rows: Vec<Vec<f32>> = (0..targets.batch())
        .map(|b| dense_log_probs(&all, b, 0.0).0.iter().map(|&log_prob| log_prob as f32).collect())
        .collect();
    let slices: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    let alignments = align_ctc(&slices, C, &targets).unwrap();
    assert!(alignments[2].is_none());
    for b in [0, 1, 3] {
        let (frames, labels) = (FRAMES[b], targets.labels(b));
        // Probability of each path, and the first frames of its labels.
        let (mut total, mut best) = (0.0, (f64::NEG_INFINITY, Vec::new()));
        let mut begin_sums = vec![vec![0.0; frames]; labels.len()];
        for number in 0..C.pow(frames as u32) {
            let path: Vec<u32> = (0..frames).map(|t| (number / C.pow(t as u32) % C) as u32).collect();
            let starts: Vec<usize> =
                (0..frames).filter(|&t| path[t] != BLANK && (t == 0 || path[t] != path[t - 1])).collect();
            if starts.len() != labels.len() || starts.iter().zip(labels).any(|(&t, &label)| path[t] != label)
            {
                continue;
            }
            let log_prob: f64 =
                path.iter().enumerate().map(|(t, &class)| f64::from(rows[b][t * C + class as usize])).sum();
            total += log_prob.exp();
            starts.iter().enumerate().for_each(|(u, &t)| begin_sums[u][t] += log_prob.exp());
            if log_prob > best.0 {
                best = (log_prob, starts);
            }
        }
        let alignment = alignments[b].as_ref().unwrap();
        assert!((alignment.loss + total.ln()).abs() < 1e-9 && (alignment.log_prob - best.0).abs() < 1e-9);
        assert_eq!(alignment.labels.len(), labels.len());
        for (u, label) in alignment.labels.iter().enumerate() {
            let frame = best.1[u];
            assert_eq!((label.label, label.frame), (labels[u], frame));
            assert_eq!(label.log_prob, f64::from(rows[b][frame * C + labels[u] as usize]));
            assert!((label.confidence - begin_sums[u][frame] / total).abs() < 1e-9);
            let mean: f64 = begin_sums[u].iter().enumerate().map(|(t, sum)| t as f64 * sum / total).sum();
            assert!((label.expected_frame - mean).abs() < 1e-9);
        }
    }
    // Errors name the argument.
    let error = |slices: &[&[f32]], classes| align_ctc(slices, classes, &targets).unwrap_err();
    assert!(matches!(error(&slices[1..], C), Error::Shape { argument: "log_probs", .. }));
    assert!(matches!(error(&slices, C + 1), Error::Shape { argument: "log_probs", .. }));
    let mut broken = rows[1].clone();
    broken[BLANK as usize] = f32::NAN;
    let broken = [slices[0], &broken, slices[2], slices[3]];
    let emission_error = error(&broken, C);
    assert!(
        matches!(emission_error, Error::Lattice(rnnt_dp::Error::Emission { utterance: 1, .. })),
        "{emission_error}"
    );
}
