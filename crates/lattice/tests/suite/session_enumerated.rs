//! Lattice sessions compared with enumeration, on batches of tiny lattices.
use lattice::{LatticeSession, Options, PathSum, Real};
use proptest::prelude::*;

use crate::{
    common::{F32_GRADIENTS, Tolerance, assert_within},
    tiny_batches::{Batch, Sums, batch},
};

/// Tolerances of a precision.
struct Tolerances {
    sums: Tolerance,
    gradients: Tolerance,
}

const F64_TOLERANCES: Tolerances = Tolerances {
    sums: Tolerance { relative: 1e-10, absolute: 1e-12 },
    gradients: Tolerance { relative: 1e-10, absolute: 1e-12 },
};
/// Weights are at most 7, and utterances have at most 4 frames.
const F32_TOLERANCES: Tolerances =
    Tolerances { sums: Tolerance { relative: 2e-5, absolute: 1e-5 * 28.0 }, gradients: F32_GRADIENTS };

/// Sums of an utterance from lists of paths.
struct ExpectedSums {
    all: Sums,
    /// Over the paths of its labels.
    string: Sums,
}

/// Enumerates the paths of all utterances.
fn expected(batch: &Batch) -> Vec<ExpectedSums> {
    let no_path = |utterance: usize| {
        let all = batch.sums(utterance, None);
        Sums {
            log_sum: f64::NEG_INFINITY,
            best: f64::NEG_INFINITY,
            best_labels: Vec::new(),
            posteriors: vec![0.0; all.posteriors.len()],
        }
    };
    let expected_sums = |utterance: usize| {
        let labels = batch.labels(utterance);
        let string = labels.map_or_else(|| no_path(utterance), |labels| batch.sums(utterance, Some(labels)));
        ExpectedSums { all: batch.sums(utterance, None), string }
    };
    (0..batch.utterances.len()).map(expected_sums).collect()
}

/// Compares all results of a session with enumeration.
fn check<F: Real>(batch: &Batch, session: &mut LatticeSession<F>, tolerances: &Tolerances) {
    let expected = expected(batch);
    let arguments = batch.arguments::<F>();
    let count = batch.utterances.len();
    let weights: Vec<f64> = (0..count).map(|b| [1.0, -0.5, 0.0, 2.0][b % 4]).collect();
    let loss = |expected: &ExpectedSums| match expected.string.log_sum {
        f64::NEG_INFINITY => f64::INFINITY,
        string => expected.all.log_sum - string,
    };
    let sums = |value: &dyn Fn(&ExpectedSums) -> f64| expected.iter().map(value).collect::<Vec<f64>>();
    let gradient = |value: &dyn Fn(&ExpectedSums, usize) -> f64| {
        let scaled = |(expected, &weight): (&ExpectedSums, &f64)| {
            (0..expected.all.posteriors.len()).map(|arc| weight * value(expected, arc)).collect::<Vec<f64>>()
        };
        expected.iter().zip(&weights).flat_map(scaled).collect::<Vec<f64>>()
    };
    arguments.with(|lattice, frames, labels| {
        let cases = [
            (PathSum::Denominator, sums(&|k| k.all.log_sum), gradient(&|k, arc| k.all.posteriors[arc])),
            (PathSum::Numerator, sums(&|k| k.string.log_sum), gradient(&|k, arc| k.string.posteriors[arc])),
            (
                PathSum::Loss,
                sums(&loss),
                gradient(&|k, arc| k.all.posteriors[arc] - k.string.posteriors[arc]),
            ),
        ];
        for (sum, value, gradient) in cases {
            let name = format!("{sum:?}");
            let computed = session.distances(sum, lattice, frames, Some(labels)).unwrap();
            assert_within(&name, &computed, &value, tolerances.sums);
            let output = session.sum_paths(sum, lattice, frames, Some(labels), &weights).unwrap();
            assert_eq!(output.sums, computed, "{name}");
            assert_within(&name, &output.parameters["table"], &gradient, tolerances.gradients);
            assert!(
                output.frames.len() == arguments.frames.len() && output.frames.iter().all(|&g| g == F::ZERO)
            );
            if sum == PathSum::Loss {
                assert_eq!(session.sum(lattice, frames, labels, &weights).unwrap(), output);
                let pending = session.forward(lattice, frames, labels).unwrap();
                assert_eq!(pending.losses(), computed);
                assert_eq!(pending.backward(&weights).unwrap(), output);
            }
        }

        let (blank, label_arcs) = session.marginals(lattice, frames).unwrap();
        let rows = blank.iter().zip(label_arcs.chunks_exact(batch.vocabulary()));
        let computed: Vec<F> = rows.flat_map(|(&b, l)| [&[b], l].concat()).collect();
        let posteriors: Vec<f64> = expected.iter().flat_map(|k| k.all.posteriors.clone()).collect();
        assert_within("marginals", &computed, &posteriors, tolerances.gradients);

        let alphas = session.alphas(lattice, frames).unwrap();
        let utterance_alphas = |b: usize| {
            let last = batch.utterances[b].frames;
            (0..batch.padded()).flat_map(move |t| batch.alpha(b, t.min(last))).collect::<Vec<_>>()
        };
        assert_within(
            "alphas",
            &alphas,
            &(0..count).flat_map(utterance_alphas).collect::<Vec<_>>(),
            tolerances.sums,
        );

        let best = session.best_paths(lattice, frames).unwrap();
        let forced = session.best_alignments(lattice, frames, labels).unwrap();
        for (b, (best, forced)) in best.iter().zip(&forced).enumerate() {
            for (name, path, sums) in
                [("best", best, &expected[b].all), ("forced", forced, &expected[b].string)]
            {
                assert_within(name, &[path.weight], &[sums.best], tolerances.sums);
                assert_eq!(path.per_frame, lattice.alignment().num_states());
                assert_eq!(path.alignment.len(), path.per_frame * batch.utterances[b].frames);
                // Weights are multiples of a step: sums are exact in both precisions, and ties
                // occur.
                if path.weight > f64::NEG_INFINITY {
                    assert_eq!(path.alignment, sums.best_labels, "{name} path of utterance {b}");
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn sums_posteriors_and_best_paths_equal_enumeration(batch in batch()) {
        check::<f64>(&batch, &mut LatticeSession::default(), &F64_TOLERANCES);
        check::<f32>(&batch, &mut LatticeSession::default(), &F32_TOLERANCES);
    }
}

/// Buffers of earlier batches do not change results, with any budget.
#[test]
fn buffers_of_earlier_batches_do_not_change_results() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    for budget in [Options::default(), Options::new(40 << 10), Options::new(usize::MAX).recompute()] {
        let (mut session_f64, mut session_f32) = (LatticeSession::new(budget), LatticeSession::new(budget));
        for _ in 0..100 {
            let batch = batch().new_tree(&mut runner).unwrap().current();
            check::<f64>(&batch, &mut session_f64, &F64_TOLERANCES);
            check::<f32>(&batch, &mut session_f32, &F32_TOLERANCES);
        }
    }
}
