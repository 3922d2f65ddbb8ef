//! Pruned transducer loss: invariants, edge cases, errors; golden vectors check the values.
//!
//! A simple joiner (matrices `am` and `lm`) selects the sites of a joint network (frame rows and
//! label rows).
use oracle::differences::central_difference;
use pruned::{Heads, Linear, Matrices, MatrixGradient};
use rnnt_loss::{
    Error, Head, JointInputs, Layout, Loss, LossOutput, Options, PassScales, PrunedInputs, Pruning, Result,
    Session, SimpleGradient, SimpleInputs, Targets, TokenNormalization, Topology,
};

/// Width of the joint network.
const H: usize = 4;

/// Pseudo-random values.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + 31 * salt) * 7919 % 1009) as f64 - 504.0) / 300.0).collect()
}

/// A batch in padded tensors, its padding NaN.
struct Batch {
    targets: Targets,
    layout: Layout,
    classes: usize,
    /// Scores of the simple joiner.
    am: Vec<f64>,
    lm: Vec<f64>,
    /// Rows of the joint network.
    frames: Vec<f64>,
    labels: Vec<f64>,
    /// Head of the joint network.
    weight: Vec<f64>,
    bias: Vec<f64>,
    /// Weights of the utterances in the sum of losses.
    weights: Vec<f64>,
}

impl Batch {
    /// Creates utterances of T frames and U labels each.
    fn new(shapes: &[(usize, usize)], classes: usize, salt: usize) -> Self {
        let labels: Vec<Vec<u32>> = shapes
            .iter()
            .map(|&(_, u)| (0..u).map(|i| 1 + ((i * 5 + salt) % (classes - 1)) as u32).collect())
            .collect();
        let (frame_count, position_count) = (|b: usize| shapes[b].0, |b: usize| shapes[b].1 + 1);
        let utterances = 0..shapes.len();
        let max_frames = utterances.clone().map(frame_count).max().unwrap() + 1;
        let positions = utterances.clone().map(position_count).max().unwrap() + 1;
        let targets = Targets::new(0, utterances.map(frame_count).collect(), labels).unwrap();
        let padded = |rows: usize, width: usize, salt: usize, row_count: &dyn Fn(usize) -> usize| {
            let mut tensor = values(shapes.len() * rows * width, salt);
            for (b, utterance) in tensor.chunks_mut(rows * width).enumerate() {
                utterance[row_count(b) * width..].fill(f64::NAN);
            }
            tensor
        };
        Self {
            layout: Layout::Padded { frames: max_frames, positions },
            classes,
            am: padded(max_frames, classes, salt, &frame_count),
            lm: padded(positions, classes, salt + 1, &position_count),
            frames: padded(max_frames, H, salt + 2, &frame_count),
            labels: padded(positions, H, salt + 3, &position_count),
            weight: values(classes * H, salt + 4),
            bias: values(classes, salt + 5),
            weights: (0..shapes.len()).map(|b| 1.0 - 0.25 * b as f64).collect(),
            targets,
        }
    }

    fn head(&self) -> Head<'_, f64> {
        Head::new(&self.weight, Some(&self.bias), H).unwrap()
    }

    fn joint(&self) -> JointInputs<'_, f64> {
        JointInputs::new(&self.frames, &self.labels, self.head()).with_layout(self.layout)
    }

    fn inputs(&self, scales: PassScales) -> Result<PrunedInputs<'_, f64>> {
        let simple = SimpleInputs::Matrices(Matrices::new(&self.am, &self.lm, self.classes)?);
        Ok(PrunedInputs { simple, joint: self.joint(), scales })
    }

    fn run(&self, loss: &Loss, scales: PassScales) -> Result<LossOutput<f64>> {
        Session::new(&Options::new(loss.clone()))?.sum(self.inputs(scales)?, &self.targets, &self.weights)
    }

    /// Runs regular RNN-T with default scales.
    fn run_with(&self, pruning: Pruning) -> Result<LossOutput<f64>> {
        self.run(&Loss::pruned(pruning), PassScales::default())
    }

    /// Runs the loss over all sites, without a simple joiner.
    fn run_unpruned(&self, topology: &Topology) -> LossOutput<f64> {
        let options = Options::new(Loss::with_topology(topology.clone()));
        Session::new(&options).unwrap().sum(self.joint(), &self.targets, &self.weights).unwrap()
    }
}

/// Pruned losses of three topologies.
fn pruned_losses(s_range: usize) -> [Loss; 3] {
    [Topology::rnnt(), Topology::modified(), Topology::constrained()].map(|topology| {
        let pruning = Pruning { s_range, lm_only_scale: 0.25, am_only_scale: 0.1, ..Pruning::default() };
        Loss::Pruned { topology, tokens: TokenNormalization::Softmax, pruning }
    })
}

/// Factors of both losses; not the default.
const SCALES: PassScales = PassScales { simple: 0.3, pruned: 0.7 };

/// Losses of the first pass.
fn first_pass_losses(out: &LossOutput<f64>) -> &[f64] {
    &out.first_pass.as_ref().unwrap().losses
}

/// Retained label positions.
fn ranges(out: &LossOutput<f64>) -> &pruned::Ranges {
    &out.first_pass.as_ref().unwrap().ranges
}

/// Gradient of the simple joiner's matrices.
fn simple_gradient(out: &LossOutput<f64>) -> &MatrixGradient<f64> {
    match &out.gradients.simple {
        Some(SimpleGradient::Matrices(gradient)) => gradient,
        other => panic!("matrices were given, found {other:?}"),
    }
}

/// Shapes (T, U): ragged, no label, one frame, U > T, U = T.
const SHAPES: [(usize, usize); 6] = [(9, 5), (4, 0), (1, 1), (2, 6), (5, 5), (1, 0)];

#[test]
fn edge_cases_have_finite_results() {
    let batch = Batch::new(&SHAPES, 7, 1);
    for s_range in [2, 3, 5, 50] {
        for pruning in pruned_losses(s_range) {
            let actual = batch.run(&pruning, SCALES).unwrap();
            let topology = pruning.topology().unwrap();
            let full = batch.run_unpruned(topology);
            for (b, (&(t, u), loss)) in SHAPES.iter().zip(&actual.losses).enumerate() {
                let has_path = *topology == Topology::rnnt() || u <= t;
                assert_eq!(loss.is_finite(), has_path, "{topology:?} {b}");
                assert_eq!(first_pass_losses(&actual)[b].is_finite(), has_path);
                // Fewer paths.
                assert!(
                    !has_path || *loss >= full.losses[b] - 1e-12 * loss.abs(),
                    "{loss} {}",
                    full.losses[b]
                );
                if s_range > u {
                    assert!(*loss == full.losses[b] || (loss - full.losses[b]).abs() < 1e-12 * loss);
                }
            }
            let gradients = [
                &simple_gradient(&actual).am,
                &simple_gradient(&actual).lm,
                &actual.gradients.encoded,
                &actual.gradients.predicted,
                &actual.gradients.head.weight,
                &actual.gradients.head.bias,
            ];
            assert!(gradients.into_iter().flatten().all(|g| g.is_finite()));
            if s_range > 6 {
                for (a, b) in actual.gradients.head.weight.iter().zip(&full.gradients.head.weight) {
                    assert!((a - 0.7 * b).abs() < 1e-11);
                }
            }
        }
    }
}

#[test]
fn every_topology_supports_edge_cases() {
    let batch = Batch::new(&SHAPES, 7, 2);
    let topologies = [Topology::rnnt(), Topology::modified(), Topology::constrained()];
    for topology in topologies {
        let actual = batch.run_unpruned(&topology).gradients;
        let all = actual.head.weight.iter().chain(&actual.encoded).chain(&actual.predicted);
        assert!(all.into_iter().all(|g| g.is_finite()));
    }
    let durations = (values(4 * H, 1), values(4, 2));
    let durations = Head::new(&durations.0, Some(&durations.1), H).unwrap();
    let mut session = Session::new(&Options::new(Loss::tdt(&[0, 1, 2, 4]).unwrap())).unwrap();
    let joint = batch.joint().with_durations(durations);
    let out = session.sum(joint, &batch.targets, &batch.weights).unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()), "a duration of 0 emits any number of labels");
    let actual = out.gradients;
    let all = actual.head.weight.iter().chain(&actual.durations.weight).chain(&actual.encoded);
    assert!(all.into_iter().all(|g| g.is_finite()));
    let big = batch.targets.clone();
    let mut session = Session::new(&Options::new(Loss::multi_blank(&[2]).unwrap())).unwrap();
    let wide = [values(8 * H, 5), values(8, 6)];
    let head = Head::new(&wide[0], Some(&wide[1]), H).unwrap();
    let big = big.with_big_blanks(vec![7]).unwrap();
    let out = session.sum(JointInputs { head, ..batch.joint() }, &big, &batch.weights).unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()));
    assert!(out.gradients.head.weight.iter().all(|g| g.is_finite()));
}

#[test]
fn gradients_match_central_differences_for_fixed_bands() {
    let batch = Batch::new(&[(5, 3), (3, 2)], 5, 3);
    // Bands depend on the scores, except with a width of U + 1.
    for pruning in pruned_losses(2).into_iter().chain(pruned_losses(4)) {
        let actual = batch.run(&pruning, SCALES).unwrap();
        let loss = |batch: &Batch| {
            let out = batch.run(&pruning, SCALES).unwrap();
            let sum = |losses: &[f64], scale: f64| -> f64 {
                losses.iter().zip(&batch.weights).map(|(l, w)| scale * l * w).sum()
            };
            sum(first_pass_losses(&out), 0.3) + sum(&out.losses, 0.7)
        };
        let loss_with = |change: &dyn Fn(&mut Batch)| {
            let mut changed = Batch::new(&[(5, 3), (3, 2)], 5, 3);
            change(&mut changed);
            loss(&changed)
        };
        let compare = |gradient: &[f64], start: &[f64], set: &dyn Fn(&mut Batch, Vec<f64>)| {
            // Only values outside of the padding are varied.
            let unpadded: Vec<usize> = (0..start.len()).filter(|&i| !start[i].is_nan()).collect();
            let unpadded_values: Vec<f64> = unpadded.iter().map(|&i| start[i]).collect();
            let expected = central_difference(
                |values| {
                    let mut all = start.to_vec();
                    unpadded.iter().zip(values).for_each(|(&i, value)| all[i] = *value);
                    Ok(loss_with(&|batch| set(batch, all.clone())))
                },
                &unpadded_values,
            );
            for (&i, expected) in unpadded.iter().zip(expected.unwrap()) {
                assert!((gradient[i] - expected).abs() < 1e-6, "{i}: {} {expected}", gradient[i]);
            }
            let padding = gradient.iter().zip(start).filter(|(_, x)| x.is_nan());
            assert!(padding.into_iter().all(|(g, _)| *g == 0.0));
        };
        compare(&simple_gradient(&actual).am, &batch.am, &|batch, values| batch.am = values);
        compare(&simple_gradient(&actual).lm, &batch.lm, &|batch, values| batch.lm = values);
        compare(&actual.gradients.encoded, &batch.frames, &|batch, values| batch.frames = values);
        compare(&actual.gradients.head.weight, &batch.weight, &|batch, values| batch.weight = values);
    }
}

#[test]
fn results_do_not_depend_on_batch_buffers_and_budget() {
    let shapes = [(9, 5), (4, 2), (7, 7)];
    let batch = Batch::new(&shapes, 7, 4);
    let [loss, ..] = pruned_losses(3);
    let together = batch.run(&loss, SCALES).unwrap();
    let inputs = batch.inputs(SCALES).unwrap();
    for keep_scores in [false, true] {
        let mut session =
            Session::new(&Options { budget: usize::MAX, keep_scores, ..Options::new(loss.clone()) }).unwrap();
        for _ in 0..2 {
            let out = session.sum(inputs, &batch.targets, &batch.weights).unwrap();
            assert_eq!((&out.first_pass, &out.losses), (&together.first_pass, &together.losses));
        }
    }
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    for (b, &(t, _)) in shapes.iter().enumerate() {
        let rows = |all: &[f64], rows: usize, width: usize| all[b * rows * width..][..rows * width].to_vec();
        let (am, lm) = (rows(&batch.am, frames, 7), rows(&batch.lm, positions, 7));
        let simple_of = SimpleInputs::Matrices(Matrices::new(&am, &lm, 7).unwrap());
        let targets = Targets::new(0, vec![t], vec![batch.targets.labels(b).to_vec()]).unwrap();
        let (f, g) = (rows(&batch.frames, frames, H), rows(&batch.labels, positions, H));
        let joint = JointInputs::new(&f, &g, batch.head()).with_layout(batch.layout);
        let inputs = PrunedInputs { simple: simple_of, joint, scales: SCALES };
        let alone = Session::new(&Options::new(loss.clone())).unwrap().sum(inputs, &targets, &[1.0]).unwrap();
        assert_eq!(
            (first_pass_losses(&alone)[0], alone.losses[0]),
            (first_pass_losses(&together)[b], together.losses[b])
        );
    }
}

/// Linear layers, evaluated by tiles, match matrices of scores.
#[test]
fn tiled_scores_match_matrices() {
    let (t, u, c, width) = (6, 3, 9, 5);
    let targets = Targets::new(0, vec![t], vec![vec![1, 8, 2]]).unwrap();
    let (x, y) = (values(t * width, 1), values((u + 1) * width, 2));
    let (a, b) = (values(c * width, 3), values(c * width, 4));
    let product = |rows: &[f64], weight: &[f64]| -> Vec<f64> {
        let dot = |r: &[f64], w: &[f64]| r.iter().zip(w).map(|(r, w)| r * w).sum();
        rows.chunks(width).flat_map(|r| weight.chunks(width).map(move |w| dot(r, w))).collect()
    };
    let (am, lm) = (product(&x, &a), product(&y, &b));
    let heads =
        Heads::new(Linear::new(&x, &a, None, width).unwrap(), Linear::new(&y, &b, None, width).unwrap());
    let (heads, matrices) = (heads.unwrap(), Matrices::new(&am, &lm, c).unwrap());
    let (f, g) = (values(t * H, 5), values((u + 1) * H, 6));
    let w = values(c * H, 7);
    let head = Head::new(&w, None, H).unwrap();
    let [loss, ..] = pruned_losses(2);
    let run = |simple| {
        let inputs = PrunedInputs { simple, joint: JointInputs::new(&f, &g, head), scales: SCALES };
        Session::new(&Options::new(loss.clone())).unwrap().sum(inputs, &targets, &[1.0]).unwrap()
    };
    let mut actual = run(SimpleInputs::Heads(heads));
    let mut expected = run(SimpleInputs::Matrices(matrices));
    assert_eq!(ranges(&actual), ranges(&expected));
    assert!((first_pass_losses(&actual)[0] - first_pass_losses(&expected)[0]).abs() < 1e-11);
    let matrix_gradient = simple_gradient(&expected).clone();
    let Some(SimpleGradient::Heads(heads_gradient)) = actual.gradients.simple.take() else {
        panic!("heads were given")
    };
    expected.gradients.simple = None;
    assert_eq!((&actual.losses, &actual.gradients), (&expected.losses, &expected.gradients));
    for (frame, row) in matrix_gradient.am.chunks(c).enumerate() {
        for k in 0..width {
            let expected: f64 = row.iter().zip(a.chunks(width)).map(|(g, w)| g * w[k]).sum();
            assert!((heads_gradient.am.rows[frame * width + k] - expected).abs() < 1e-11);
        }
    }
}

/// Both passes apply the token weights.
#[test]
fn token_weights_apply_to_both_passes() {
    let mut batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let weights = vec![vec![0.0, 2.0, 0.5], vec![3.0, 1.0]];
    let pruning = Pruning::default();
    let plain = batch.run_with(pruning).unwrap();
    batch.targets = batch.targets.with_token_weights(weights.clone()).unwrap();
    let actual = batch.run_with(pruning).unwrap();
    assert_eq!((first_pass_losses(&actual), &actual.losses), (first_pass_losses(&plain), &plain.losses));
    let matrices = Matrices::new(&batch.am, &batch.lm, 7).unwrap();
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    let labels = (0..2).map(|b| batch.targets.labels(b).to_vec()).collect();
    let first = pruned::Batch::padded(0, vec![6, 4], labels, frames, positions).unwrap();
    let first = first.with_token_weights(weights).unwrap();
    let pass = pruned::first_pass(&matrices, &first, &pruned::Options::default()).unwrap();
    let scaled: Vec<f64> = batch.weights.iter().map(|w| PassScales::default().simple * w).collect();
    assert_eq!(*simple_gradient(&actual), pass.backward(&matrices, &scaled).unwrap());
    assert_ne!(simple_gradient(&actual), simple_gradient(&plain));
    let bands = (0..2).map(|b| (0..[6, 4][b]).map(|t| ranges(&actual).band(b, t)).collect()).collect();
    let retained = batch.targets.with_bands(bands).unwrap();
    let mut session = Session::new(&Options::default()).unwrap();
    let second = session.sum(batch.joint(), &retained, &batch.weights).unwrap();
    assert_eq!((&actual.losses, actual.skipped), (&second.losses, second.skipped));
    let mut gradients = actual.gradients.clone();
    gradients.simple = None;
    assert_eq!(gradients, second.gradients);
    assert_ne!(actual.gradients.head.weight, plain.gradients.head.weight);
}

/// A session remains usable after an error.
#[test]
fn errors_keep_the_session_usable() {
    let batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let [_, modified, _] = pruned_losses(3);
    let mut session = Session::new(&Options::new(modified)).unwrap();
    let inputs = batch.inputs(SCALES).unwrap();
    let before = session.sum(inputs, &batch.targets, &batch.weights).unwrap();
    let mut bad = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    bad.frames[1] = f64::NAN; // the second pass fails
    assert!(session.sum(bad.inputs(SCALES).unwrap(), &bad.targets, &bad.weights).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
    bad.am[1] = f64::NAN; // the first pass fails
    assert!(session.forward(bad.inputs(SCALES).unwrap(), &bad.targets).is_err());
    assert!(session.sum(inputs, &batch.targets, &[f64::NAN, 1.0]).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
    // The second pass does not support another topology.
    assert!(session.sum(batch.joint(), &batch.targets, &batch.weights).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
}

#[test]
fn warm_up_is_linear() {
    let last = PassScales::default();
    let scales = |step| {
        let PassScales { simple, pruned } = last.warm_up(step, 100);
        (simple, pruned)
    };
    assert_eq!(
        [scales(0), scales(50), scales(100), scales(9999)],
        [(1.0, 0.1), (0.75, 0.55), (0.5, 1.0), (0.5, 1.0)]
    );
    assert_eq!(last.warm_up(0, 0), last);
}

#[test]
fn invalid_arguments_are_errors() {
    let batch = Batch::new(&[(5, 3)], 5, 6);
    for s_range in [0, 1] {
        let actual = batch.run_with(Pruning { s_range, ..Pruning::default() });
        assert!(matches!(actual, Err(Error::FirstPass(pruned::Error::Range { .. }))), "{s_range}");
    }
    let shares = Pruning { lm_only_scale: 0.8, am_only_scale: 0.4, ..Pruning::default() };
    assert!(matches!(batch.run_with(shares), Err(Error::FirstPass(_))));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.am[7] = f64::NAN;
    assert!(matches!(bad.run_with(Pruning::default()), Err(Error::FirstPass(_))));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.frames[7] = f64::NAN;
    assert!(matches!(bad.run_with(Pruning::default()), Err(Error::Scores { frame: 1, .. })));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.targets = Targets::new(0, vec![5], vec![vec![1, 5, 2]]).unwrap();
    let actual = bad.run_with(Pruning::default());
    assert!(matches!(actual, Err(Error::FirstPass(pruned::Error::LabelOutOfRange { label: 5, .. }))));
    bad.targets = Targets::new(5, vec![5], vec![vec![1, 2]]).unwrap();
    let actual = bad.run_with(Pruning::default());
    assert!(matches!(actual, Err(Error::FirstPass(pruned::Error::BlankOutOfRange { blank: 5, .. }))));
    bad.targets = Targets::new(0, vec![9], vec![vec![1, 2]]).unwrap();
    assert!(matches!(bad.run_with(Pruning::default()), Err(Error::TooLong { .. })));
    assert!(matches!(Targets::new(2, vec![5], vec![vec![1, 2]]), Err(Error::BlankLabel { .. })));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.weights = vec![f64::NAN];
    assert!(matches!(bad.run_with(Pruning::default()), Err(Error::Weight { utterance: 0, .. })));
    bad.weights = vec![1.0, 1.0];
    assert!(matches!(bad.run_with(Pruning::default()), Err(Error::Shape { argument: "weights", .. })));
    let loss = Loss::pruned(Pruning::default());
    for (scales, name) in [
        (PassScales { simple: f64::NAN, ..SCALES }, "scales.simple"),
        (PassScales { pruned: -1.0, ..SCALES }, "scales.pruned"),
    ] {
        let actual = batch.run(&loss, scales);
        assert!(matches!(actual, Err(Error::Regularizer { argument, .. }) if argument == name), "{name}");
    }
    // A missing simple joiner, and an unexpected one.
    let actual =
        Session::new(&Options::new(loss)).unwrap().sum(batch.joint(), &batch.targets, &batch.weights);
    assert!(matches!(actual, Err(Error::Inputs { .. })));
    let actual = batch.run(&Loss::rnnt(), SCALES);
    assert!(matches!(actual, Err(Error::Inputs { .. })));
    let mut arcs = Batch::new(&[(5, 3)], 5, 6);
    let labels = vec![vec![1, 2, 3]];
    arcs.targets = Targets::new(0, vec![5], labels).unwrap().with_big_blanks(vec![4]).unwrap();
    let (topology, pruning) = (Topology::multi_blank(&[2]).unwrap(), Pruning::default());
    let actual = arcs.run(&Loss::Pruned { topology, tokens: TokenNormalization::Softmax, pruning }, SCALES);
    assert!(matches!(actual, Err(Error::FirstPass(pruned::Error::Topology { .. }))));
    let mut chosen = Batch::new(&[(5, 3)], 5, 6);
    chosen.targets = chosen.targets.with_bands(vec![vec![0..4; 5]]).unwrap();
    let actual = chosen.run_with(Pruning::default());
    assert!(matches!(actual, Err(Error::Incompatible { argument: "targets.retained", .. })));
}
