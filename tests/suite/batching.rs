//! A batch is nothing but its utterances: alone, in another order, or with anything at all in its padding.
use candle_core::DType;
use oracle::compare::assert_close;
use panda::panda_core::Head;
use panda::rnnt_loss::{HiddenInputs, Layout, NetworkInputs, Options, ScoreInputs, Session};
use proptest::prelude::*;

use crate::common::{Found, Problem, flat, problems};

/// The values of utterance `b` in a padded array.
fn part<'a>(values: &'a [f64], problem: &Problem, b: usize) -> &'a [f64] {
    let each = values.len() / problem.batch();
    &values[b * each..(b + 1) * each]
}

/// A batch of some utterances of another, in the order given.
fn pick(problem: &Problem, order: &[usize]) -> Problem {
    let gather = |values: &[f64]| order.iter().flat_map(|&b| part(values, problem, b)).copied().collect();
    Problem {
        frames: order.iter().map(|&b| problem.frames[b]).collect(),
        labels: order.iter().map(|&b| problem.labels[b].clone()).collect(),
        f: gather(&problem.f),
        g: gather(&problem.g),
        weights: gather(&problem.weights),
        ..problem.clone()
    }
}

/// Puts nonsense into every frame row and label row beyond an utterance's own.
fn poison(problem: &Problem) -> Problem {
    let nonsense = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e38];
    let mut poisoned = problem.clone();
    for (i, x) in poisoned.f.iter_mut().enumerate() {
        let row = i / problem.width;
        if row % problem.most_frames >= problem.frames[row / problem.most_frames] {
            *x = nonsense[i % 4];
        }
    }
    for (i, x) in poisoned.g.iter_mut().enumerate() {
        let row = i / problem.width;
        if row % problem.positions > problem.labels[row / problem.positions].len() {
            *x = nonsense[i % 4];
        }
    }
    poisoned
}

/// The same utterances in a larger padded shape.
fn widen(problem: &Problem, frames: usize, positions: usize) -> Problem {
    let grow = |values: &[f64], from: usize, to: usize| {
        let rows =
            |b: usize| values[b * from * problem.width..(b + 1) * from * problem.width].iter().copied();
        let filler = |_| std::iter::repeat_n(f64::NAN, (to - from) * problem.width);
        (0..problem.batch()).flat_map(|b| rows(b).chain(filler(b))).collect()
    };
    Problem {
        f: grow(&problem.f, problem.most_frames, frames),
        g: grow(&problem.g, problem.positions, positions),
        most_frames: frames,
        positions,
        ..problem.clone()
    }
}

fn add(into: &mut [f64], from: &[f64]) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

fn ours(problem: &Problem) -> Found {
    problem.ours(DType::F64, &problem.options())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batched_equals_single(problem in problems()) {
        let batched = ours(&problem);
        let mut head = [vec![0.0; problem.w.len()], vec![0.0; problem.b.len()]];
        for b in 0..problem.batch() {
            let alone = ours(&pick(&problem, &[b]));
            assert_close("loss", &alone.losses, &batched.losses[b..=b], 1e-12);
            for i in 0..2 {
                let together = part(&batched.gradients[i], &problem, b);
                assert_close("encoding", &alone.gradients[i], together, 1e-12);
            }
            add(&mut head[0], &alone.gradients[2]);
            add(&mut head[1], &alone.gradients[3]);
        }
        assert_close("weight", &batched.gradients[2], &head[0], 1e-11);
        assert_close("bias", &batched.gradients[3], &head[1], 1e-11);
    }

    #[test]
    fn a_permuted_batch_permutes_the_loss(
        (problem, order) in problems().prop_flat_map(|p| {
            let order: Vec<usize> = (0..p.batch()).collect();
            (Just(p), Just(order).prop_shuffle())
        })
    ) {
        let (straight, permuted) = (ours(&problem), ours(&pick(&problem, &order)));
        for (to, &from) in order.iter().enumerate() {
            assert_close("loss", &permuted.losses[to..=to], &straight.losses[from..=from], 1e-12);
            for i in 0..2 {
                let (a, b) = (&permuted.gradients[i], &straight.gradients[i]);
                assert_close("encoding", part(a, &problem, to), part(b, &problem, from), 1e-12);
            }
        }
        assert_close("weight", &permuted.gradients[2], &straight.gradients[2], 1e-11);
        assert_close("bias", &permuted.gradients[3], &straight.gradients[3], 1e-11);
    }

    #[test]
    fn padding_is_inert_whatever_it_holds(problem in problems()) {
        let (clean, poisoned) = (ours(&problem), ours(&poison(&problem)));
        // The same bits, since the same numbers are computed.
        prop_assert_eq!(&clean, &poisoned);
        for (i, stride, real) in [(0, problem.most_frames, 0), (1, problem.positions, 1)] {
            for (row, gradient) in poisoned.gradients[i].chunks(problem.width).enumerate() {
                let b = row / stride;
                let own = if real == 0 { problem.frames[b] } else { problem.labels[b].len() + 1 };
                prop_assert!(row % stride < own || gradient.iter().all(|&g| g == 0.0));
            }
        }
        let wide = widen(&problem, problem.most_frames + 3, problem.positions + 2);
        let wide = ours(&wide);
        prop_assert_eq!(&wide.losses, &clean.losses);
        prop_assert_eq!(&wide.gradients[2..], &clean.gradients[2..]);
    }

    #[test]
    fn padding_is_inert_at_the_slice_doors(problem in problems()) {
        let (targets, options) = (problem.targets(), Options::default());
        let (frames, positions) = (problem.most_frames, problem.positions);
        let layout = Layout::Padded { frames, positions };
        let rows = problem.batch() * frames * positions;
        let is_site = |row: usize| {
            let b = row / positions / frames;
            row / positions % frames < problem.frames[b] && row % positions <= problem.labels[b].len()
        };
        let poison = |values: &[f64], width: usize| -> Vec<f64> {
            let nan = values.iter().enumerate();
            nan.map(|(i, &x)| if is_site(i / width) { x } else { f64::NAN }).collect()
        };
        let sealed = |gradient: &[f64], width: usize| {
            gradient.iter().enumerate().all(|(i, &g)| is_site(i / width) || g == 0.0)
        };
        let scores = flat(&problem.logits(&problem.vars(DType::F64)));
        let run = |scores: &[f64]| {
            let scores = ScoreInputs { scores, classes: problem.classes, layout };
            Session::new(&options).unwrap().sum(scores, &targets, &problem.weights).unwrap()
        };
        let (clean, poisoned) = (run(&scores), run(&poison(&scores, problem.classes)));
        prop_assert!(sealed(&poisoned.gradients.scores, problem.classes));
        prop_assert_eq!(clean, poisoned);

        let hidden = oracle::noise::normal(3, 1, rows * problem.width, 1.0);
        let head = Head::new(&problem.w, Some(&problem.b), problem.width).unwrap();
        let run = |hidden: &[f64]| {
            let rows = HiddenInputs::new(hidden, head).with_layout(layout);
            Session::new(&options).unwrap().sum(rows, &targets, &problem.weights).unwrap()
        };
        let (clean, poisoned) = (run(&hidden), run(&poison(&hidden, problem.width)));
        prop_assert!(sealed(&poisoned.gradients.hidden, problem.width));
        prop_assert_eq!(clean, poisoned);
    }

    #[test]
    fn packed_equals_padded(problem in problems()) {
        let identity: Vec<f64> =
            (0..problem.width * problem.width).map(|i| f64::from(i % (problem.width + 1) == 0)).collect();
        let network = panda::rnnt_loss::JointNetwork {
            encoder: &identity,
            encoder_width: problem.width,
            predictor: &identity,
            predictor_width: problem.width,
            bias: None,
            head: Head::new(&problem.w, Some(&problem.b), problem.width).unwrap(),
        };
        let (targets, options) = (problem.targets(), problem.options());
        let padded = Layout::Padded { frames: problem.most_frames, positions: problem.positions };
        let poisoned = poison(&problem);
        let pack = |values: &[f64], stride: usize, own: &dyn Fn(usize) -> usize| -> Vec<f64> {
            let rows = values.chunks(problem.width).enumerate();
            rows.filter(|(row, _)| row % stride < own(row / stride)).flat_map(|(_, row)| row).copied().collect()
        };
        let f = pack(&problem.f, problem.most_frames, &|b| problem.frames[b]);
        let g = pack(&problem.g, problem.positions, &|b| problem.labels[b].len() + 1);
        let run = |f: &[f64], g: &[f64], layout| {
            let inputs = NetworkInputs { encodings: f, predictions: g, layout };
            network.sum(&mut Session::new(&options).unwrap(), inputs, &targets, &problem.weights).unwrap()
        };
        let (wide, tight) = (run(&poisoned.f, &poisoned.g, padded), run(&f, &g, Layout::Packed));
        prop_assert_eq!(&wide.losses, &tight.losses);
        prop_assert_eq!(&wide.head, &tight.head);
        prop_assert_eq!(&wide.encoder, &tight.encoder);
        prop_assert_eq!(pack(&wide.encodings, problem.most_frames, &|b| problem.frames[b]), tight.encodings);
        prop_assert_eq!(
            pack(&wide.predictions, problem.positions, &|b| problem.labels[b].len() + 1),
            tight.predictions
        );
    }
}

#[test]
fn an_impossible_utterance_leaves_the_others_alone() {
    let mut problem = Problem::draw(4, 3, 5, 3, 8, 4, 1.0);
    problem.blank = 0;
    problem.labels = vec![vec![1, 2, 3], vec![7], vec![4, 5]];
    problem.b[7] = f64::NEG_INFINITY;
    let batched = ours(&problem);
    assert_eq!(batched.losses[1], f64::INFINITY);
    for i in 0..2 {
        assert!(part(&batched.gradients[i], &problem, 1).iter().all(|&g| g == 0.0));
    }
    let others = ours(&pick(&problem, &[0, 2]));
    assert_close("losses", &[batched.losses[0], batched.losses[2]], &others.losses, 1e-12);
    assert_close("weight", &batched.gradients[2], &others.gradients[2], 1e-12);
    assert_close("bias", &batched.gradients[3], &others.gradients[3], 1e-12);
}
