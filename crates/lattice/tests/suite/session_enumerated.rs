//! A session against lists of all paths: mixed batches of tiny lattices in both precisions.
use lattice::{LatticeSession, Options, Real, Sum};
use proptest::prelude::*;

use crate::{
    common::{Bar, F32_GRADIENTS, assert_within},
    tiny_batches::{Batch, Sums, batch},
};

/// Bars of a precision.
struct Bars {
    sums: Bar,
    gradients: Bar,
}

const WIDE: Bars = Bars {
    sums: Bar { relative: 1e-10, absolute: 1e-12 },
    gradients: Bar { relative: 1e-10, absolute: 1e-12 },
};
/// Weights reach 7, frames 4.
const NARROW: Bars = Bars { sums: Bar { relative: 2e-5, absolute: 1e-5 * 28.0 }, gradients: F32_GRADIENTS };

/// What lists of paths say of an utterance.
struct Known {
    all: Sums,
    /// With its labels.
    string: Sums,
}

fn known(batch: &Batch) -> Vec<Known> {
    let none = |utterance: usize| {
        let all = batch.sums(utterance, None);
        Sums {
            log_sum: f64::NEG_INFINITY,
            best: f64::NEG_INFINITY,
            best_labels: Vec::new(),
            posteriors: vec![0.0; all.posteriors.len()],
        }
    };
    let of = |utterance: usize| {
        let labels = batch.labels(utterance);
        let string = labels.map_or_else(|| none(utterance), |labels| batch.sums(utterance, Some(labels)));
        Known { all: batch.sums(utterance, None), string }
    };
    (0..batch.utterances.len()).map(of).collect()
}

fn check<F: Real>(batch: &Batch, session: &mut LatticeSession<F>, bars: &Bars) {
    let known = known(batch);
    let given = batch.given::<F>();
    let count = batch.utterances.len();
    let weights: Vec<f64> = (0..count).map(|b| [1.0, -0.5, 0.0, 2.0][b % 4]).collect();
    let loss = |known: &Known| match known.string.log_sum {
        f64::NEG_INFINITY => f64::INFINITY,
        string => known.all.log_sum - string,
    };
    let sums = |of: &dyn Fn(&Known) -> f64| known.iter().map(of).collect::<Vec<f64>>();
    let gradient = |of: &dyn Fn(&Known, usize) -> f64| {
        let scaled = |(known, &weight): (&Known, &f64)| {
            (0..known.all.posteriors.len()).map(|at| weight * of(known, at)).collect::<Vec<f64>>()
        };
        known.iter().zip(&weights).flat_map(scaled).collect::<Vec<f64>>()
    };
    given.with(|lattice, frames, labels| {
        let wanted = [
            (Sum::Denominator, sums(&|k| k.all.log_sum), gradient(&|k, at| k.all.posteriors[at])),
            (Sum::Numerator, sums(&|k| k.string.log_sum), gradient(&|k, at| k.string.posteriors[at])),
            (Sum::Loss, sums(&loss), gradient(&|k, at| k.all.posteriors[at] - k.string.posteriors[at])),
        ];
        for (sum, value, gradient) in wanted {
            let what = format!("{sum:?}");
            let found = session.distances(sum, lattice, frames, Some(labels)).unwrap();
            assert_within(&what, &found, &value, bars.sums);
            let output = session.sum_of(sum, lattice, frames, Some(labels), &weights).unwrap();
            assert_eq!(output.sums, found, "{what}");
            assert_within(&what, &output.parameters["table"], &gradient, bars.gradients);
            assert!(output.frames.len() == given.frames.len() && output.frames.iter().all(|&g| g == F::ZERO));
            if sum == Sum::Loss {
                assert_eq!(session.sum(lattice, frames, labels, &weights).unwrap(), output);
                let pending = session.forward(lattice, frames, labels).unwrap();
                assert_eq!(pending.losses(), found);
                assert_eq!(pending.backward(&weights).unwrap(), output);
            }
        }

        let (blank, lexical) = session.marginals(lattice, frames).unwrap();
        let rows = blank.iter().zip(lexical.chunks_exact(batch.vocabulary()));
        let found: Vec<F> = rows.flat_map(|(&b, l)| [&[b], l].concat()).collect();
        let expected: Vec<f64> = known.iter().flat_map(|k| k.all.posteriors.clone()).collect();
        assert_within("marginals", &found, &expected, bars.gradients);

        let alphas = session.alphas(lattice, frames).unwrap();
        let of = |b: usize| {
            let last = batch.utterances[b].frames;
            (0..batch.padded()).flat_map(move |t| batch.alpha(b, t.min(last))).collect::<Vec<_>>()
        };
        assert_within("alphas", &alphas, &(0..count).flat_map(of).collect::<Vec<_>>(), bars.sums);

        let best = session.best_paths(lattice, frames).unwrap();
        let forced = session.best_alignments(lattice, frames, labels).unwrap();
        for (b, (best, forced)) in best.iter().zip(&forced).enumerate() {
            for (what, path, sums) in [("best", best, &known[b].all), ("forced", forced, &known[b].string)] {
                assert_within(what, &[path.weight], &[sums.best], bars.sums);
                assert_eq!(path.per_frame, lattice.alignment().num_states());
                assert_eq!(path.alignment.len(), path.per_frame * batch.utterances[b].frames);
                // The steps of the weights make sums exact in both precisions, and ties real.
                if path.weight > f64::NEG_INFINITY {
                    assert_eq!(path.alignment, sums.best_labels, "{what} path of utterance {b}");
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn sums_posteriors_and_best_paths_are_those_of_lists(batch in batch()) {
        check::<f64>(&batch, &mut LatticeSession::default(), &WIDE);
        check::<f32>(&batch, &mut LatticeSession::default(), &NARROW);
    }
}

/// Buffers that are left over from other batches do not matter, whatever the budget.
#[test]
fn one_session_for_all() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    for budget in [Options::default(), Options::new(40 << 10), Options::new(usize::MAX).recompute()] {
        let (mut wide, mut narrow) = (LatticeSession::new(budget), LatticeSession::new(budget));
        for _ in 0..100 {
            let batch = batch().new_tree(&mut runner).unwrap().current();
            check::<f64>(&batch, &mut wide, &WIDE);
            check::<f32>(&batch, &mut narrow, &NARROW);
        }
    }
}
