//! The pruned loss: invariants, odd batches, mistakes. Golden vectors check it from outside.
use oracle::differences::central;
use pruned::{Heads, Linear, Matrices};
use rnnt_loss::{
    Error, Head, Layout, MemoryBudget, Options, ProjectedLoss, Pruning, Targets, Topology, Workspace,
    projected_loss, pruned_loss, tdt_loss,
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

    fn run(
        &self,
        pruning: &Pruning,
    ) -> rnnt_loss::Result<rnnt_loss::PrunedLoss<f64, pruned::MatrixGradient<f64>>> {
        let source = Matrices::new(&self.am, &self.lm, self.classes)?;
        let (frames, labels, options) = (&self.frames, &self.labels, Options::default());
        pruned_loss(
            &source,
            frames,
            labels,
            &self.head(),
            self.layout,
            &self.targets,
            &options,
            pruning,
            &self.weights,
        )
    }

    fn full(&self, topology: Topology) -> ProjectedLoss<f64> {
        let options = Options { topology, ..Options::default() };
        let (frames, labels) = (&self.frames, &self.labels);
        projected_loss(frames, labels, &self.head(), self.layout, &self.targets, &options, &self.weights)
            .unwrap()
    }
}

fn prunings(s_range: usize) -> Vec<Pruning> {
    [Topology::rnnt(), Topology::modified(), Topology::constrained()]
        .map(|topology| {
            let first = pruned::Options {
                topology,
                lm_only_scale: 0.25,
                am_only_scale: 0.1,
                ..pruned::Options::default()
            };
            Pruning { first, s_range, simple_scale: 0.3, pruned_scale: 0.7 }
        })
        .to_vec()
}

/// Ragged; no label; one frame; more labels than frames; as many.
const SHAPES: [(usize, usize); 6] = [(9, 5), (4, 0), (1, 1), (2, 6), (5, 5), (1, 0)];

#[test]
fn odd_batches_are_values() {
    let batch = Batch::new(&SHAPES, 7, 1);
    for s_range in [2, 3, 5, 50] {
        for pruning in prunings(s_range) {
            let found = batch.run(&pruning).unwrap();
            let whole = batch.full(pruning.topology());
            for (b, (&(t, u), loss)) in SHAPES.iter().zip(&found.second.losses).enumerate() {
                let possible = pruning.first.topology == Topology::rnnt() || u <= t;
                assert_eq!(loss.is_finite(), possible, "{} {b}", pruning.first.topology);
                assert_eq!(found.simple[b].is_finite(), possible);
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
                &found.source.am,
                &found.source.lm,
                &found.second.frames,
                &found.second.labels,
                &found.second.weight,
                &found.second.bias,
            ];
            assert!(gradients.into_iter().flatten().all(|g| g.is_finite()));
            if s_range > 6 {
                for (a, b) in found.second.weight.iter().zip(&whole.weight) {
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
        let out = batch.full(topology);
        assert!(out.weight.iter().chain(&out.frames).chain(&out.labels).all(|g| g.is_finite()));
    }
    let durations = (values(4 * H, 1), values(4, 2));
    let durations = Head::new(&durations.0, Some(&durations.1), H).unwrap();
    let options = Options { topology: Topology::tdt(&[0, 1, 2, 4]).unwrap(), ..Options::default() };
    let (frames, labels, head) = (&batch.frames, &batch.labels, batch.head());
    let out =
        tdt_loss(frames, labels, &head, &durations, batch.layout, &batch.targets, &options, &batch.weights);
    let out = out.unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()), "a duration of 0 emits any number of labels");
    assert!(out.tokens.0.iter().chain(&out.durations.0).chain(&out.frames).all(|g| g.is_finite()));
    let big = batch.targets.clone();
    let options = Options { topology: Topology::multi_blank(&[2]).unwrap(), ..Options::default() };
    let wide = [values(8 * H, 5), values(8, 6)];
    let head = Head::new(&wide[0], Some(&wide[1]), H).unwrap();
    let big = big.with_big_blanks(vec![7]).unwrap();
    let out = projected_loss(frames, labels, &head, batch.layout, &big, &options, &batch.weights).unwrap();
    assert!(out.losses.iter().all(|loss| loss.is_finite()) && out.weight.iter().all(|g| g.is_finite()));
}

#[test]
fn gradients_are_central_differences_where_bands_stay() {
    let batch = Batch::new(&[(5, 3), (3, 2)], 5, 3);
    // Bands change with the scores, at single points; a width of U + 1 keeps them as they are.
    for pruning in prunings(2).into_iter().chain(prunings(4)) {
        let found = batch.run(&pruning).unwrap();
        let loss = |batch: &Batch| {
            let out = batch.run(&pruning).unwrap();
            let sum = |losses: &[f64], scale: f64| -> f64 {
                losses.iter().zip(&batch.weights).map(|(l, w)| scale * l * w).sum()
            };
            sum(&out.simple, 0.3) + sum(&out.second.losses, 0.7)
        };
        let with = |change: &dyn Fn(&mut Batch)| {
            let mut other = Batch::new(&[(5, 3), (3, 2)], 5, 3);
            change(&mut other);
            loss(&other)
        };
        let compare = |gradient: &[f64], start: &[f64], set: &dyn Fn(&mut Batch, Vec<f64>)| {
            let real: Vec<usize> = (0..start.len()).filter(|&i| !start[i].is_nan()).collect();
            let inside: Vec<f64> = real.iter().map(|&i| start[i]).collect();
            let want = central(
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
        compare(&found.source.am, &batch.am, &|batch, values| batch.am = values);
        compare(&found.source.lm, &batch.lm, &|batch, values| batch.lm = values);
        compare(&found.second.frames, &batch.frames, &|batch, values| batch.frames = values);
        compare(&found.second.weight, &batch.weight, &|batch, values| batch.weight = values);
    }
}

#[test]
fn batch_mates_buffers_and_budgets_change_nothing() {
    let shapes = [(9, 5), (4, 2), (7, 7)];
    let batch = Batch::new(&shapes, 7, 4);
    let pruning = prunings(3)[0].clone();
    let together = batch.run(&pruning).unwrap();
    let source = Matrices::new(&batch.am, &batch.lm, 7).unwrap();
    for budget in [MemoryBudget::recompute(), MemoryBudget::unlimited()] {
        let options = Options { budget, ..Options::default() };
        let mut workspace = Workspace::new(&options).unwrap();
        for _ in 0..2 {
            let out = workspace.pruned_loss(
                &source,
                &batch.frames,
                &batch.labels,
                &batch.head(),
                batch.layout,
                &batch.targets,
                &pruning,
                &batch.weights,
            );
            let out = out.unwrap();
            assert_eq!((&out.simple, &out.second.losses), (&together.simple, &together.second.losses));
            assert_eq!(out.ranges, together.ranges);
        }
    }
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    for (b, &(t, _)) in shapes.iter().enumerate() {
        let rows = |all: &[f64], rows: usize, width: usize| all[b * rows * width..][..rows * width].to_vec();
        let (am, lm) = (rows(&batch.am, frames, 7), rows(&batch.lm, positions, 7));
        let source = Matrices::new(&am, &lm, 7).unwrap();
        let targets = Targets::new(0, vec![t], vec![batch.targets.labels(b).to_vec()]).unwrap();
        let (f, g) = (rows(&batch.frames, frames, H), rows(&batch.labels, positions, H));
        let options = Options::default();
        let alone =
            pruned_loss(&source, &f, &g, &batch.head(), batch.layout, &targets, &options, &pruning, &[1.0]);
        let alone = alone.unwrap();
        assert_eq!(
            (alone.simple[0], alone.second.losses[0]),
            (together.simple[b], together.second.losses[b])
        );
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
    let (w, options) = (values(c * H, 7), Options::default());
    let head = Head::new(&w, None, H).unwrap();
    let pruning = prunings(2)[0].clone();
    let layout = Layout::Packed;
    let one = pruned_loss(&heads, &f, &g, &head, layout, &targets, &options, &pruning, &[1.0]).unwrap();
    let two = pruned_loss(&matrices, &f, &g, &head, layout, &targets, &options, &pruning, &[1.0]).unwrap();
    assert_eq!(one.ranges, two.ranges);
    assert!((one.simple[0] - two.simple[0]).abs() < 1e-11 && one.second == two.second);
    for (frame, row) in two.source.am.chunks(c).enumerate() {
        for k in 0..width {
            let want: f64 = row.iter().zip(a.chunks(width)).map(|(g, w)| g * w[k]).sum();
            assert!((one.source.am.rows[frame * width + k] - want).abs() < 1e-11);
        }
    }
}

/// Both passes weigh the labels, each as it would alone.
#[test]
fn weights_of_tokens_reach_both_passes() {
    let mut batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let weights = vec![vec![0.0, 2.0, 0.5], vec![3.0, 1.0]];
    let plain = batch.run(&Pruning::default()).unwrap();
    batch.targets = batch.targets.with_token_weights(weights.clone()).unwrap();
    let pruning = Pruning::default();
    let found = batch.run(&pruning).unwrap();
    assert_eq!((&found.simple, &found.second.losses), (&plain.simple, &plain.second.losses));
    let source = Matrices::new(&batch.am, &batch.lm, 7).unwrap();
    let Layout::Padded { frames, positions } = batch.layout else { unreachable!() };
    let labels = (0..2).map(|b| batch.targets.labels(b).to_vec()).collect();
    let first = pruned::Batch::padded(0, vec![6, 4], labels, frames, positions).unwrap();
    let first = first.with_token_weights(weights).unwrap();
    let pass = pruned::first_pass(&source, &first, &pruning.first).unwrap();
    let scaled: Vec<f64> = batch.weights.iter().map(|w| pruning.simple_scale * w).collect();
    assert_eq!(found.source, pass.backward(&source, &scaled).unwrap());
    assert_ne!(found.source, plain.source);
    let bands = (0..2).map(|b| (0..[6, 4][b]).map(|t| found.ranges.band(b, t)).collect()).collect();
    let retained = batch.targets.retained(bands).unwrap();
    let (f, g, options) = (&batch.frames, &batch.labels, Options::default());
    let second = projected_loss(f, g, &batch.head(), batch.layout, &retained, &options, &batch.weights);
    assert_eq!(found.second, second.unwrap());
    assert_ne!(found.second.weight, plain.second.weight);
}

/// A workspace is as it was for whoever comes next.
#[test]
fn a_pruned_loss_leaves_the_topology_alone() {
    let batch = Batch::new(&[(6, 3), (4, 2)], 7, 3);
    let options = Options { topology: Topology::modified(), ..Options::default() };
    let mut workspace = Workspace::new(&options).unwrap();
    let (f, g, head, layout) = (&batch.frames, &batch.labels, batch.head(), batch.layout);
    let before = workspace.projected_loss(f, g, &head, layout, &batch.targets, &batch.weights).unwrap();
    let source = Matrices::new(&batch.am, &batch.lm, 7).unwrap();
    for s_range in [5, 1] {
        let pruning = Pruning { s_range, ..Pruning::default() };
        let out =
            workspace.pruned_loss(&source, f, g, &head, layout, &batch.targets, &pruning, &batch.weights);
        assert_eq!(out.is_ok(), s_range == 5);
        let after = workspace.projected_loss(f, g, &head, layout, &batch.targets, &batch.weights).unwrap();
        assert_eq!(before.losses, after.losses);
    }
}

#[test]
fn warm_up_goes_in_a_straight_line() {
    let pruning = Pruning::default();
    let scales = |step| {
        let Pruning { simple_scale, pruned_scale, .. } = pruning.warm_up(step, 100);
        (simple_scale, pruned_scale)
    };
    assert_eq!(
        [scales(0), scales(50), scales(100), scales(9999)],
        [(1.0, 0.1), (0.75, 0.55), (0.5, 1.0), (0.5, 1.0)]
    );
    assert_eq!(pruning.warm_up(0, 0), pruning);
}

#[test]
fn mistakes_are_named() {
    let batch = Batch::new(&[(5, 3)], 5, 6);
    for s_range in [0, 1] {
        let found = batch.run(&Pruning { s_range, ..Pruning::default() });
        assert!(matches!(found, Err(Error::FirstPass(pruned::Error::Range { .. }))), "{s_range}");
    }
    let first = pruned::Options { lm_only_scale: 0.8, am_only_scale: 0.4, ..pruned::Options::default() };
    assert!(matches!(batch.run(&Pruning { first, ..Pruning::default() }), Err(Error::FirstPass(_))));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.am[7] = f64::NAN;
    assert!(matches!(bad.run(&Pruning::default()), Err(Error::FirstPass(_))));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.frames[7] = f64::NAN;
    assert!(matches!(bad.run(&Pruning::default()), Err(Error::Scores { frame: 1, .. })));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.targets = Targets::new(0, vec![5], vec![vec![1, 5, 2]]).unwrap();
    let found = bad.run(&Pruning::default());
    assert!(matches!(found, Err(Error::FirstPass(pruned::Error::LabelOutOfRange { label: 5, .. }))));
    bad.targets = Targets::new(5, vec![5], vec![vec![1, 2]]).unwrap();
    let found = bad.run(&Pruning::default());
    assert!(matches!(found, Err(Error::FirstPass(pruned::Error::BlankOutOfRange { blank: 5, .. }))));
    bad.targets = Targets::new(0, vec![9], vec![vec![1, 2]]).unwrap();
    assert!(matches!(bad.run(&Pruning::default()), Err(Error::TooLong { .. })));
    assert!(matches!(Targets::new(2, vec![5], vec![vec![1, 2]]), Err(Error::BlankLabel { .. })));
    let mut bad = Batch::new(&[(5, 3)], 5, 6);
    bad.weights = vec![f64::NAN];
    assert!(matches!(bad.run(&Pruning::default()), Err(Error::Weight { utterance: 0, .. })));
    bad.weights = vec![1.0, 1.0];
    assert!(matches!(bad.run(&Pruning::default()), Err(Error::Shape { argument: "weights", .. })));
    let scale = Pruning { simple_scale: f64::NAN, ..Pruning::default() };
    assert!(matches!(batch.run(&scale), Err(Error::Regulariser { argument: "simple_scale", .. })));
    let mut chosen = Batch::new(&[(5, 3)], 5, 6);
    chosen.targets = chosen.targets.retained(vec![vec![0..4; 5]]).unwrap();
    let found = chosen.run(&Pruning::default());
    assert!(matches!(found, Err(Error::Misplaced { argument: "targets.retained", .. })));
}
