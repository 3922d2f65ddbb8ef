//! Label smoothing, z-loss and weights of tokens: definitions, central differences, mistakes.
use candle_core::{Device, Tensor, Var, backprop::GradStore};
use oracle::differences::central;
use rnnt_dp::{Lattices, Regularisers, forward_backward};
use rnnt_loss::{
    Error, Head, Layout, Options, ProjectedLoss, Targets, Topology,
    candle::{transducer_loss, transducer_loss_sum},
    projected_loss, rows_loss, scores_loss, tdt_loss,
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

fn run(all: &[f64], targets: &Targets, options: &Options) -> ProjectedLoss<f64> {
    let [frames, labels, w, b] = cut(all);
    let head = Head::new(w, Some(b), H).unwrap();
    projected_loss(frames, labels, &head, Layout::Packed, targets, options, &WEIGHTS).unwrap()
}

fn check(out: ProjectedLoss<f64>, all: &[f64], targets: &Targets, options: &Options) {
    let gradient = [out.frames, out.labels, out.weight, out.bias].concat();
    let loss =
        |all: &[f64]| Ok(run(all, targets, options).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (i, (found, want)) in gradient.iter().zip(central(loss, all).unwrap()).enumerate() {
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
        let out = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers::default());
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
        let options = Options { topology, label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
        check(run(&all, &targets, &options), &all, &targets, &options);
    }
    let options = Options {
        topology: Topology::tdt(&[0, 1, 2]).unwrap(),
        label_smoothing: 0.2,
        z_loss: 0.1,
        sigma: 0.05,
        omega: 0.25,
        ..Options::default()
    };
    let (v, c) = (values(3 * H, 8), values(3, 9));
    let tdt = |all: &[f64]| {
        let [frames, labels, w, b] = cut(all);
        let (tokens, durations) = (Head::new(w, Some(b), H).unwrap(), Head::new(&v, Some(&c), H).unwrap());
        tdt_loss(frames, labels, &tokens, &durations, Layout::Packed, &targets, &options, &WEIGHTS).unwrap()
    };
    let found = tdt(&all);
    let gradient = [found.frames, found.labels, found.tokens.0, found.tokens.1].concat();
    let loss = |all: &[f64]| Ok(tdt(all).losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum());
    for (found, want) in gradient.iter().zip(central(loss, &all).unwrap()) {
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
        for site in targets.lattices().sites_of(utterance) {
            let (f, g) = (&frames[(row + site.frame) * H..], &labels[(column + site.label) * H..]);
            hidden.extend((0..H).map(|k| (f[k] + g[k]).tanh()));
        }
        row += targets.frames(utterance);
        column += targets.labels(utterance).len() + 1;
    }
    let smoothed = Options { label_smoothing: 0.2, z_loss: 0.1, ..Options::default() };
    let factored = Options { factored_blank: true, z_loss: 0.1, ..Options::default() };
    for options in [smoothed, factored] {
        let want = run(&all, &targets, &options);
        let found = rows_loss(&hidden, &head, Layout::Packed, &targets, &options, &WEIGHTS).unwrap();
        let pairs = [(&found.losses, &want.losses), (&found.weight, &want.weight), (&found.bias, &want.bias)];
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
    let factored = Options { factored_blank: true, z_loss: 0.1, ..Options::default() };
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
    for (a, b) in weighed.weight.iter().zip(&fastemit.weight) {
        assert!((a - b).abs() < 1e-12);
    }
    // A weight of one utterance is not that of another.
    let first = targets.clone().with_token_weights(vec![vec![0.0; 2], vec![1.0]]).unwrap();
    let (first, all_equal) = (run(&all, &first, &plain), run(&all, &targets, &plain));
    assert_eq!(first.frames[4 * H..], all_equal.frames[4 * H..]);
    assert_ne!(first.frames[..4 * H], all_equal.frames[..4 * H]);
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
        let topology = Topology::modified();
        let options = Options { topology, clamp, label_smoothing, z_loss: 0.1, ..Options::default() };
        let out =
            projected_loss(frames, labels, &head, Layout::Packed, &targets, &options, &WEIGHTS).unwrap();
        assert!(out.losses[0].is_finite() && out.losses[1] == f64::INFINITY);
        assert!(out.frames[4 * H..].iter().all(|g| *g == 0.0));
        assert!(out.weight.iter().all(|g| g.is_finite()));
    }
}

#[test]
fn mistakes_are_named() {
    let (all, targets) = (inputs(), targets());
    let [frames, labels, w, b] = cut(&all);
    let head = Head::new(w, Some(b), H).unwrap();
    let with = |options: Options| {
        projected_loss(frames, labels, &head, Layout::Packed, &targets, &options, &WEIGHTS)
            .map(|out| out.losses)
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
    let share = Options { omega: 0.3, ..Options::default() };
    assert!(matches!(with(share), Err(Error::Misplaced { argument: "omega", .. })));
    let huge = Options { z_loss: 1e308, ..Options::default() };
    assert!(matches!(with(huge), Err(Error::Lattice(rnnt_dp::Error::Overflow { utterance: 0, .. }))));
    for (argument, penalties) in [
        ("delay_penalty", Options { delay_penalty: 1e39, ..Options::default() }),
        ("sigma", Options { sigma: 1e300, ..Options::default() }),
    ] {
        let found = with(penalties).unwrap_err().to_string();
        assert!(found.contains(argument) && found.contains("1e30"), "{found}");
    }
    let both = Options { label_smoothing: 0.1, factored_blank: true, ..Options::default() };
    assert!(matches!(with(both), Err(Error::Smoothing)));
    let smooth = Options { label_smoothing: 0.1, ..Options::default() };
    let clamped = Options { label_smoothing: 0.1, clamp: Some(1.0), ..Options::default() };
    assert!(matches!(with(clamped), Err(Error::Misplaced { argument: "clamp", .. })));
    let scores = values(16 * C, 1);
    let found = scores_loss(&scores, C, Layout::Packed, &targets, &smooth, &WEIGHTS);
    assert!(matches!(found, Err(Error::Smoothing)));
    let masked: Vec<f64> = (0..C).map(|c| if c == 3 { f64::NEG_INFINITY } else { 0.0 }).collect();
    let head = Head::new(w, Some(&masked), H).unwrap();
    let found = projected_loss(frames, labels, &head, Layout::Packed, &targets, &smooth, &WEIGHTS);
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
