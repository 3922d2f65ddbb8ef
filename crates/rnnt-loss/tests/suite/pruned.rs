//! The pruned loss: invariants, odd batches, mistakes. Golden vectors check it from outside.
use oracle::differences::central_difference;
use pruned::{Heads, Linear, Matrices, MatrixGradient};
use rnnt_loss::{
    Error, Head, Joint, Layout, Loss, Options, Output, PrunedJoint, Pruning, Result, Scales, Session, Simple,
    SimpleGradient, Targets, Tokens, Topology,
};

const H: usize = 4;

fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i + 31 * salt) * 7919 % 1009) as f64 - 504.0) / 300.0).collect()
}

/// A batch in padded tensors, its padding NaN.
struct Batch {
    targets: Targets,
    layout: Layout,
    classes: usize,
    am: Vec<f64>,
    lm: Vec<f64>,
    frames: Vec<f64>,
    labels: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
    weights: Vec<f64>,
}

impl Batch {
    fn new(shapes: &[(usize, usize)], classes: usize, salt: usize) -> Self {
        let labels: Vec<Vec<u32>> = shapes
            .iter()
            .map(|&(_, u)| (0..u).map(|i| 1 + ((i * 5 + salt) % (classes - 1)) as u32).collect())
            .collect();
        let (most, positions) = (
            shapes.iter().map(|s| s.0).max().unwrap() + 1,
            shapes.iter().map(|s| s.1 + 1).max().unwrap() + 1,
        );
        let targets = Targets::new(0, shapes.iter().map(|s| s.0).collect(), labels).unwrap();
        let padded = |rows: usize, width: usize, salt: usize, real: &dyn Fn(usize) -> usize| {
            let mut all = values(shapes.len() * rows * width, salt);
            for (b, all) in all.chunks_mut(rows * width).enumerate() {
                all[real(b) * width..].fill(f64::NAN);
            }
            all
        };
        let (t, u) = (|b: usize| shapes[b].0, |b: usize| shapes[b].1 + 1);
        Self {
            layout: Layout::Padded { frames: most, positions },
            classes,
            am: padded(most, classes, salt, &t),
            lm: padded(positions, classes, salt + 1, &u),
            frames: padded(most, H, salt + 2, &t),
            labels: padded(positions, H, salt + 3, &u),
            weight: values(classes * H, salt + 4),
            bias: values(classes, salt + 5),
            weights: (0..shapes.len()).map(|b| 1.0 - 0.25 * b as f64).collect(),
            targets,
        }
    }

    fn head(&self) -> Head<'_, f64> {
        Head::new(&self.weight, Some(&self.bias), H).unwrap()
    }

    fn joint(&self) -> Joint<'_, f64> {
        Joint::new(&self.frames, &self.labels, self.head()).with_layout(self.layout)
    }

    fn inputs(&self, scales: Scales) -> Result<PrunedJoint<'_, f64>> {
        let simple = Simple::Matrices(Matrices::new(&self.am, &self.lm, self.classes)?);
        Ok(PrunedJoint { simple, joint: self.joint(), scales })
    }

    fn run(&self, loss: &Loss, scales: Scales) -> Result<Output<f64>> {
        Session::new(&Options::of(loss.clone()))?.sum(self.inputs(scales)?, &self.targets, &self.weights)
    }

    /// With regular arcs and scales of recipes.
    fn run_with(&self, pruning: Pruning) -> Result<Output<f64>> {
        self.run(&Loss::pruned(pruning), Scales::default())
    }

    fn full(&self, topology: &Topology) -> Output<f64> {
        let options = Options::of(Loss::over(topology.clone()));
        Session::new(&options).unwrap().sum(self.joint(), &self.targets, &self.weights).unwrap()
    }
}

fn prunings(s_range: usize) -> [Loss; 3] {
    [Topology::rnnt(), Topology::modified(), Topology::constrained()].map(|topology| {
        let pruning = Pruning { s_range, lm_only_scale: 0.25, am_only_scale: 0.1, ..Pruning::default() };
        Loss::Pruned { topology, tokens: Tokens::Softmax, pruning }
    })
}

const SCALES: Scales = Scales { simple: 0.3, pruned: 0.7 };

/// Losses of the first pass.
fn simple(out: &Output<f64>) -> &[f64] {
    &out.first_pass.as_ref().unwrap().losses
}

fn ranges(out: &Output<f64>) -> &pruned::Ranges {
    &out.first_pass.as_ref().unwrap().ranges
}

fn source(out: &Output<f64>) -> &MatrixGradient<f64> {
    match &out.gradients.simple {
        Some(SimpleGradient::Matrices(gradient)) => gradient,
        other => panic!("matrices were given, found {other:?}"),
    }
}

/// Ragged; no label; one frame; more labels than frames; as many.
const SHAPES: [(usize, usize); 6] = [(9, 5), (4, 0), (1, 1), (2, 6), (5, 5), (1, 0)];

#[test]
fn odd_batches_are_values() {
    let batch = Batch::new(&SHAPES, 7, 1);
    for s_range in [2, 3, 5, 50] {
        for pruning in prunings(s_range) {
            let found = batch.run(&pruning, SCALES).unwrap();
            let topology = pruning.topology().unwrap();
            let whole = batch.full(topology);
            for (b, (&(t, u), loss)) in SHAPES.iter().zip(&found.losses).enumerate() {
                let possible = *topology == Topology::rnnt() || u <= t;
                assert_eq!(loss.is_finite(), possible, "{topology:?} {b}");
                assert_eq!(simple(&found)[b].is_finite(), possible);
                // Fewer paths.
                assert!(
                    !possible || *loss >= whole.losses[b] - 1e-12 * loss.abs(),
                    "{loss} {}",
                    whole.losses[b]
                );
                if s_range > u {
                    assert!(*loss == whole.losses[b] || (loss - whole.losses[b]).abs() < 1e-12 * loss);
                }
            }
            let gradients = [
                &source(&found).am,
                &source(&found).lm,
                &found.gradients.encoded,
                &found.gradients.predicted,
                &found.gradients.head.weight,
                &found.gradients.head.bias,
            ];
            assert!(gradients.into_iter().flatten().all(|g| g.is_finite()));
            if s_range > 6 {
                for (a, b) in found.gradients.head.weight.iter().zip(&whole.gradients.head.weight) {
                    assert!((a - 0.7 * b).abs() < 1e-11);
                }
            }
        }
    }
}

#[test]
fn every_topology_takes_odd_batches() {
    let batch = Batch::new(&SHAPES, 7, 2);
    let topologies = [Topology::rnnt(), Topology::modified(), Topology::constrained()];
    for topology in topologies {
        let found = batch.full(&topology).gradients;
        let all = found.head.weight.iter().chain(&found.encoded).chain(&found.predicted);
        assert!(all.into_iter().all(|g| g.is_finite()));
    }
    let durations = (values(4 * H, 1), values(4, 2));
    let durations = Head::new(&durations.0, Some(&durations.1), H).unwrap();
    let mut session = Session::new(&Options::of(Loss::tdt(&[0, 1, 2, 4]).unwrap())).unwrap();
    let joint = batch.joint().with_durations(durations);
    let out = session.sum(joint, &batch.targets, &batch.weights).unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()), "a duration of 0 emits any number of labels");
    let found = out.gradients;
    let all = found.head.weight.iter().chain(&found.durations.weight).chain(&found.encoded);
    assert!(all.into_iter().all(|g| g.is_finite()));
    let big = batch.targets.clone();
    let mut session = Session::new(&Options::of(Loss::multi_blank(&[2]).unwrap())).unwrap();
    let wide = [values(8 * H, 5), values(8, 6)];
    let head = Head::new(&wide[0], Some(&wide[1]), H).unwrap();
    let big = big.with_big_blanks(vec![7]).unwrap();
    let out = session.sum(Joint { head, ..batch.joint() }, &big, &batch.weights).unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()));
    assert!(out.gradients.head.weight.iter().all(|g| g.is_finite()));
}

#[test]
fn gradients_are_central_differences_where_bands_stay() {
    let batch = Batch::new(&[(5, 3), (3, 2)], 5, 3);
    // Bands change with the scores, at single points; a width of U + 1 keeps them as they are.
    for pruning in prunings(2).into_iter().chain(prunings(4)) {
        let found = batch.run(&pruning, SCALES).unwrap();
        let loss = |batch: &Batch| {
            let out = batch.run(&pruning, SCALES).unwrap();
            let sum = |losses: &[f64], scale: f64| -> f64 {
                losses.iter().zip(&batch.weights).map(|(l, w)| scale * l * w).sum()
            };
            sum(simple(&out), 0.3) + sum(&out.losses, 0.7)
        };
        let with = |change: &dyn Fn(&mut Batch)| {
            let mut other = Batch::new(&[(5, 3), (3, 2)], 5, 3);
            change(&mut other);
            loss(&other)
        };
        let compare = |gradient: &[f64], start: &[f64], set: &dyn Fn(&mut Batch, Vec<f64>)| {
            let real: Vec<usize> = (0..start.len()).filter(|&i| !start[i].is_nan()).collect();
            let inside: Vec<f64> = real.iter().map(|&i| start[i]).collect();
            let want = central_difference(
                |inside| {
                    let mut all = start.to_vec();
                    real.iter().zip(inside).for_each(|(&i, value)| all[i] = *value);
                    Ok(with(&|batch| set(batch, all.clone())))
                },
                &inside,
            );
            for (&i, want) in real.iter().zip(want.unwrap()) {
                assert!((gradient[i] - want).abs() < 1e-6, "{i}: {} {want}", gradient[i]);
            }
            let padding = gradient.iter().zip(start).filter(|(_, x)| x.is_nan());
            assert!(padding.into_iter().all(|(g, _)| *g == 0.0));
        };
        compare(&source(&found).am, &batch.am, &|batch, values| batch.am = values);
        compare(&source(&found).lm, &batch.lm, &|batch, values| batch.lm = values);
        compare(&found.gradients.encoded, &batch.frames, &|batch, values| batch.frames = values);
        compare(&found.gradients.head.weight, &batch.weight, &|batch, values| batch.weight = values);
    }
}

#[test]
fn batch_mates_buffers_and_budgets_change_nothing() {
    let shapes = [(9, 5), (4, 2), (7, 7)];
    let batch = Batch::new(&shapes, 7, 4);
    let [loss, ..] = prunings(3);
    let together = batch.run(&loss, SCALES).unwrap();
    let inputs = batch.inputs(SCALES).unwrap();
    for keep_scores in [false, true] {
        let mut session =
            Session::new(&Options { budget: usize::MAX, keep_scores, ..Options::of(loss.clone()) }).unwrap();
        for _ in 0..2 {
            let out = session.sum(inputs, &batch.targets, &batch.weights).unwrap();
            assert_eq!((&out.first_pass, &out.losses), (&together.first_pass, &together.losses));
        }
    }
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    for (b, &(t, _)) in shapes.iter().enumerate() {
        let rows = |all: &[f64], rows: usize, width: usize| all[b * rows * width..][..rows * width].to_vec();
        let (am, lm) = (rows(&batch.am, frames, 7), rows(&batch.lm, positions, 7));
        let simple_of = Simple::Matrices(Matrices::new(&am, &lm, 7).unwrap());
        let targets = Targets::new(0, vec![t], vec![batch.targets.labels(b).to_vec()]).unwrap();
        let (f, g) = (rows(&batch.frames, frames, H), rows(&batch.labels, positions, H));
        let joint = Joint::new(&f, &g, batch.head()).with_layout(batch.layout);
        let inputs = PrunedJoint { simple: simple_of, joint, scales: SCALES };
        let alone = Session::new(&Options::of(loss.clone())).unwrap().sum(inputs, &targets, &[1.0]).unwrap();
        assert_eq!((simple(&alone)[0], alone.losses[0]), (simple(&together)[b], together.losses[b]));
    }
}

/// Linear layers that make the scores by the tile are the same source.
#[test]
fn scores_by_the_tile_are_scores() {
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
    let [loss, ..] = prunings(2);
    let run = |simple| {
        let inputs = PrunedJoint { simple, joint: Joint::new(&f, &g, head), scales: SCALES };
        Session::new(&Options::of(loss.clone())).unwrap().sum(inputs, &targets, &[1.0]).unwrap()
    };
    let (mut one, mut two) = (run(Simple::Heads(heads)), run(Simple::Matrices(matrices)));
    assert_eq!(ranges(&one), ranges(&two));
    assert!((simple(&one)[0] - simple(&two)[0]).abs() < 1e-11);
    let of_matrices = source(&two).clone();
    let Some(SimpleGradient::Heads(of_heads)) = one.gradients.simple.take() else {
        panic!("heads were given")
    };
    two.gradients.simple = None;
    assert_eq!((&one.losses, &one.gradients), (&two.losses, &two.gradients));
    for (frame, row) in of_matrices.am.chunks(c).enumerate() {
        for k in 0..width {
            let want: f64 = row.iter().zip(a.chunks(width)).map(|(g, w)| g * w[k]).sum();
            assert!((of_heads.am.rows[frame * width + k] - want).abs() < 1e-11);
        }
    }
}

/// Both passes weigh the labels, each as it would alone.
#[test]
fn weights_of_tokens_reach_both_passes() {
    let mut batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let weights = vec![vec![0.0, 2.0, 0.5], vec![3.0, 1.0]];
    let pruning = Pruning::default();
    let plain = batch.run_with(pruning).unwrap();
    batch.targets = batch.targets.with_token_weights(weights.clone()).unwrap();
    let found = batch.run_with(pruning).unwrap();
    assert_eq!((simple(&found), &found.losses), (simple(&plain), &plain.losses));
    let matrices = Matrices::new(&batch.am, &batch.lm, 7).unwrap();
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    let labels = (0..2).map(|b| batch.targets.labels(b).to_vec()).collect();
    let first = pruned::Batch::padded(0, vec![6, 4], labels, frames, positions).unwrap();
    let first = first.with_token_weights(weights).unwrap();
    let pass = pruned::first_pass(&matrices, &first, &pruned::Options::default()).unwrap();
    let scaled: Vec<f64> = batch.weights.iter().map(|w| Scales::default().simple * w).collect();
    assert_eq!(*source(&found), pass.backward(&matrices, &scaled).unwrap());
    assert_ne!(source(&found), source(&plain));
    let bands = (0..2).map(|b| (0..[6, 4][b]).map(|t| ranges(&found).band(b, t)).collect()).collect();
    let retained = batch.targets.retained(bands).unwrap();
    let mut session = Session::new(&Options::default()).unwrap();
    let second = session.sum(batch.joint(), &retained, &batch.weights).unwrap();
    assert_eq!((&found.losses, found.skipped), (&second.losses, second.skipped));
    let mut gradients = found.gradients.clone();
    gradients.simple = None;
    assert_eq!(gradients, second.gradients);
    assert_ne!(found.gradients.head.weight, plain.gradients.head.weight);
}

/// A session is as it was for whoever comes next.
#[test]
fn a_pruned_loss_that_fails_leaves_the_session_alone() {
    let batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let [_, modified, _] = prunings(3);
    let mut session = Session::new(&Options::of(modified)).unwrap();
    let inputs = batch.inputs(SCALES).unwrap();
    let before = session.sum(inputs, &batch.targets, &batch.weights).unwrap();
    let mut bad = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    bad.frames[1] = f64::NAN; // the second pass fails
    assert!(session.sum(bad.inputs(SCALES).unwrap(), &bad.targets, &bad.weights).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
    bad.am[1] = f64::NAN; // the first one does
    assert!(session.forward(bad.inputs(SCALES).unwrap(), &bad.targets).is_err());
    assert!(session.sum(inputs, &batch.targets, &[f64::NAN, 1.0]).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
    // Neither does a pass over the chosen sites know of another topology.
    assert!(session.sum(batch.joint(), &batch.targets, &batch.weights).is_err());
    assert_eq!(session.sum(inputs, &batch.targets, &batch.weights).unwrap(), before);
}

#[test]
fn warm_up_goes_in_a_straight_line() {
    let last = Scales::default();
    let scales = |step| {
        let Scales { simple, pruned } = last.warm_up(step, 100);
        (simple, pruned)
    };
    assert_eq!(
        [scales(0), scales(50), scales(100), scales(9999)],
        [(1.0, 0.1), (0.75, 0.55), (0.5, 1.0), (0.5, 1.0)]
    );
    assert_eq!(last.warm_up(0, 0), last);
}

#[test]
fn mistakes_are_named() {
    let batch = Batch::new(&[(5, 3)], 5, 6);
    for s_range in [0, 1] {
        let found = batch.run_with(Pruning { s_range, ..Pruning::default() });
        assert!(matches!(found, Err(Error::FirstPass(pruned::Error::Range { .. }))), "{s_range}");
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
    let found = bad.run_with(Pruning::default());
    assert!(matches!(found, Err(Error::FirstPass(pruned::Error::LabelOutOfRange { label: 5, .. }))));
    bad.targets = Targets::new(5, vec![5], vec![vec![1, 2]]).unwrap();
    let found = bad.run_with(Pruning::default());
    assert!(matches!(found, Err(Error::FirstPass(pruned::Error::BlankOutOfRange { blank: 5, .. }))));
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
        (Scales { simple: f64::NAN, ..SCALES }, "scales.simple"),
        (Scales { pruned: -1.0, ..SCALES }, "scales.pruned"),
    ] {
        let found = batch.run(&loss, scales);
        assert!(matches!(found, Err(Error::Regulariser { argument, .. }) if argument == name), "{name}");
    }
    // No trivial joiner where there has to be one, and one where there must not be.
    let found = Session::new(&Options::of(loss)).unwrap().sum(batch.joint(), &batch.targets, &batch.weights);
    assert!(matches!(found, Err(Error::Inputs { .. })));
    let found = batch.run(&Loss::rnnt(), SCALES);
    assert!(matches!(found, Err(Error::Inputs { .. })));
    let mut arcs = Batch::new(&[(5, 3)], 5, 6);
    let labels = vec![vec![1, 2, 3]];
    arcs.targets = Targets::new(0, vec![5], labels).unwrap().with_big_blanks(vec![4]).unwrap();
    let (topology, pruning) = (Topology::multi_blank(&[2]).unwrap(), Pruning::default());
    let found = arcs.run(&Loss::Pruned { topology, tokens: Tokens::Softmax, pruning }, SCALES);
    assert!(matches!(found, Err(Error::FirstPass(pruned::Error::Topology { .. }))));
    let mut chosen = Batch::new(&[(5, 3)], 5, 6);
    chosen.targets = chosen.targets.retained(vec![vec![0..4; 5]]).unwrap();
    let found = chosen.run_with(Pruning::default());
    assert!(matches!(found, Err(Error::Misplaced { argument: "targets.retained", .. })));
}
