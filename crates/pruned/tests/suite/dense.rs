//! The pruned first pass compared with plain loops and path sums.
//!
//! Losses and posteriors are compared with sums over all paths, gradients with central differences,
//! for random shapes, topologies and smoothing; underflowed products and tiles separately.
use oracle::{compare::assert_close, differences::central_difference, noise, paths::sum_over_paths};
use proptest::prelude::*;
use pruned::{FirstPass, Matrices, Options, Unigram, first_pass};
use rnnt_dp::Topology;

use crate::plain::Problem;

/// Runs the first pass.
fn run(problem: &Problem) -> FirstPass<f64> {
    let source = Matrices::new(&problem.am, &problem.lm, problem.classes).unwrap();
    first_pass(&source, &problem.batch(), &problem.options).unwrap()
}

/// Returns the gradient of `am` and of `lm`, one after the other.
fn gradient(problem: &Problem, weights: &[f64]) -> Vec<f64> {
    let source = Matrices::new(&problem.am, &problem.lm, problem.classes).unwrap();
    let gradient = run(problem).backward(&source, weights).unwrap();
    [gradient.am, gradient.lm].concat()
}

/// Returns central differences around `base`, with steps of fixed size.
fn differences(base: &[f64], mut function: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let shifted =
        |shift: &[f64]| base.iter().zip(shift).map(|(base, shift)| base + shift).collect::<Vec<_>>();
    central_difference(|shift| Ok(function(&shifted(shift))), &vec![0.0; base.len()]).unwrap()
}

fn options() -> impl Strategy<Value = Options> {
    let topology =
        prop::sample::select(vec![Topology::rnnt(), Topology::modified(), Topology::constrained()]);
    let scales =
        prop::sample::select(vec![(0.0, 0.0), (0.25, 0.0), (0.0, 0.3), (0.2, 0.1), (0.0, 1.0), (0.6, 0.4)]);
    let unigram = prop::sample::select(vec![Unigram::Utterance, Unigram::AllRows]);
    (topology, scales, unigram, prop_oneof![Just(0.0), Just(0.3), Just(-0.1)]).prop_map(
        |(topology, (lm_only_scale, am_only_scale), unigram, delay_penalty)| Options {
            topology,
            lm_only_scale,
            am_only_scale,
            unigram,
            delay_penalty,
            fastemit: 0.0,
        },
    )
}

fn problems() -> impl Strategy<Value = Problem> {
    let shapes = prop::collection::vec((1usize..6, 0usize..5), 1..4);
    (0u64..1000, shapes, 2usize..7, prop::sample::select(vec![0.5, 2.0, 30.0]), options()).prop_map(
        |(seed, shapes, classes, scale, options)| Problem::random(seed, &shapes, classes, scale, options),
    )
}

proptest! {
    #[test]
    fn equals_the_sum_over_paths(problem in problems()) {
        let pass = run(&problem);
        let batch = problem.batch();
        for b in 0..problem.frames.len() {
            let emissions = problem.emissions(&problem.am, &problem.lm, b);
            let expected =
                sum_over_paths(&emissions, problem.frames[b], problem.labels[b].len(), 2, &problem.arcs()).unwrap();
            let (actual, loss) = (pass.losses[b], -expected.log_likelihood);
            prop_assert!(actual == loss || (actual - loss).abs() < 1e-11 * (1.0 + loss.abs()), "{actual} {loss}");
            prop_assert!(loss.is_infinite() || (problem.loss(&problem.am, &problem.lm, b) - loss).abs() < 1e-10);
            let sites = batch.lattices().site_range(b);
            let actual = &pass.occupancies[2 * sites.start..2 * sites.end];
            assert_close("occupancies", actual, &expected.occupancies, 1e-10);
        }
    }

    #[test]
    fn gradients_are_central_differences(problem in problems(), weights in prop::collection::vec(-2.0..2.0f64, 3)) {
        let weights = &weights[..problem.frames.len()];
        let actual = gradient(&problem, weights);
        let losses = run(&problem).losses;
        let am_len = problem.am.len();
        let weighted_loss = |scores: &[f64]| {
            let (am, lm) = scores.split_at(am_len);
            let possible = (0..losses.len()).filter(|&b| losses[b].is_finite());
            possible.map(|b| weights[b] * problem.loss(am, lm, b)).sum()
        };
        let expected = differences(&[problem.am.as_slice(), &problem.lm].concat(), weighted_loss);
        assert_close("gradient", &actual, &expected, 1e-8);
    }

    /// Label adjoints are scaled, but not the blanks that they force.
    #[test]
    fn fastemit_and_token_weights_scale_only_labels(problem in problems(), lambda in 0.1..1.0f64) {
        let plain = run(&problem);
        let scaled = Problem { options: Options { fastemit: lambda, ..problem.options.clone() }, ..problem.clone() };
        let weight = |b: usize, u: usize| 0.5 + ((b + 3 * u) % 5) as f64 / 4.0;
        let weights = problem.labels.iter().enumerate();
        let weights = weights.map(|(b, labels)| (0..labels.len()).map(|u| weight(b, u)).collect()).collect();
        let batch = problem.batch().with_token_weights(weights).unwrap();
        let source = Matrices::new(&problem.am, &problem.lm, problem.classes).unwrap();
        let pass = first_pass(&source, &batch, &scaled.options).unwrap();
        prop_assert_eq!(&plain.losses, &pass.losses);
        prop_assert_eq!(&plain.occupancies, &pass.occupancies);
        let constrained = problem.options.topology == Topology::constrained();
        // Adjoints of blank and label in separate columns.
        let mut adjoints = Vec::new();
        for b in 0..batch.len() {
            for (site, position) in batch.lattices().site_range(b).zip(batch.lattices().utterance_sites(b)) {
                let o = &pass.occupancies[2 * site..];
                let forces_blank = constrained && position.label > 0;
                let forced = if forces_blank { pass.occupancies[2 * site - 1] } else { 0.0 };
                adjoints.extend([-o[0] - forced, -(1.0 + lambda) * weight(b, position.label) * o[1]]);
            }
        }
        let topology = if constrained { Topology::modified() } else { problem.options.topology.clone() };
        let options = Options { topology, ..problem.options.clone() };
        let separate_columns = Problem { options, ..problem.clone() };
        let am_len = problem.am.len();
        let total = |scores: &[f64]| {
            let (am, lm) = scores.split_at(am_len);
            let utterance_sum = |b: usize| {
                let sites = batch.lattices().site_range(b);
                separate_columns.surrogate(am, lm, b, &adjoints[2 * sites.start..2 * sites.end])
            };
            (0..batch.len()).map(utterance_sum).sum()
        };
        let expected = differences(&[problem.am.as_slice(), &problem.lm].concat(), total);
        let gradient = pass.backward(&source, &vec![1.0; batch.len()]).unwrap();
        assert_close("gradient", &[gradient.am, gradient.lm].concat(), &expected, 1e-8);
    }
}

/// Several tiles and blocks give the same sums as one.
#[test]
fn tiles_and_blocks_do_not_change_sums() {
    for (seed, am_only_scale) in [(1, 0.0), (2, 0.2)] {
        let options = Options { lm_only_scale: 0.1, am_only_scale, ..Options::default() };
        let problem = Problem::random(seed, &[(150, 4), (3, 7)], 2500, 3.0, options);
        let actual = run(&problem).losses;
        for (b, actual) in actual.iter().enumerate() {
            let expected = problem.loss(&problem.am, &problem.lm, b);
            assert!((actual - expected).abs() < 1e-11 * expected, "{actual} {expected}");
        }
        let full_gradient = gradient(&problem, &[1.0, 0.5]);
        let checked_indices: Vec<usize> = (noise::integers(seed, 20, 6, problem.am.len() as u32).into_iter())
            .chain(
                noise::integers(seed, 21, 6, problem.lm.len() as u32)
                    .iter()
                    .map(|i| i + problem.am.len() as u32),
            )
            .chain([problem.blank, problem.labels[0][0]])
            .map(|i| i as usize)
            .collect();
        let base = [problem.am.as_slice(), &problem.lm].concat();
        let checked_scores: Vec<f64> = checked_indices.iter().map(|&i| base[i]).collect();
        let total = |values: &[f64]| {
            let mut scores = base.clone();
            checked_indices.iter().zip(values).for_each(|(&i, &value)| scores[i] = value);
            let (am, lm) = scores.split_at(problem.am.len());
            problem.loss(am, lm, 0) + 0.5 * problem.loss(am, lm, 1)
        };
        let expected = differences(&checked_scores, total);
        let actual: Vec<f64> = checked_indices.iter().map(|&i| full_gradient[i]).collect();
        assert_close("gradient", &actual, &expected, 1e-8);
        assert!(actual.iter().any(|g| g.abs() > 1e-3));
    }
}

/// Scores of frames and labels peak at different classes: products underflow.
#[test]
fn underflowed_sums_are_recomputed() {
    for options in [
        Options::default(),
        Options { lm_only_scale: 0.2, am_only_scale: 0.3, ..Options::default() },
        Options { am_only_scale: 1.0, ..Options::default() },
        Options { am_only_scale: 0.5, unigram: Unigram::AllRows, ..Options::default() },
    ] {
        let mut problem = Problem::random(3, &[(4, 2), (3, 3)], 5, 300.0, options.clone());
        problem.am[0] += 3000.0;
        let actual = run(&problem).losses;
        for (b, actual) in actual.iter().enumerate() {
            let expected = problem.loss(&problem.am, &problem.lm, b);
            assert!(
                expected.is_finite() && (actual - expected).abs() < 1e-12 * expected.abs(),
                "{actual} {expected}"
            );
        }
        let am_len = problem.am.len();
        let total = |scores: &[f64]| {
            let (am, lm) = scores.split_at(am_len);
            problem.loss(am, lm, 0) + problem.loss(am, lm, 1)
        };
        let base = [problem.am.as_slice(), &problem.lm].concat();
        // The tolerance allows for the rounding of losses near 1e4.
        let expected = differences(&base, total);
        assert_close("gradient", &gradient(&problem, &[1.0, 1.0]), &expected, 1e-6);
        let to_f32 = |v: &[f64]| v.iter().map(|&v| v as f32).collect::<Vec<_>>();
        let (am, lm) = (to_f32(&problem.am), to_f32(&problem.lm));
        let source = Matrices::new(&am, &lm, 5).unwrap();
        if options.am_only_scale == 0.0 {
            let pass = first_pass(&source, &problem.batch(), &options).unwrap();
            for (actual, expected) in pass.losses.iter().zip(&run(&problem).losses) {
                assert!((actual - expected).abs() < 1e-6 * expected.abs(), "{actual} {expected}");
            }
            let gradient = pass.backward(&source, &[1.0, 1.0]).unwrap();
            let actual: Vec<f64> = [gradient.am, gradient.lm].concat().into_iter().map(f64::from).collect();
            assert_close("f32", &actual, &expected, 1e-4);
        }
    }
}
