//! Lattice results do not depend on batches, padding, threads or earlier calls.
//!
//! They are equal bit for bit, except for parameter gradients, which sum over utterances.
use lattice::{
    Context, Error, Frames, FullNGram, Labels, LatticeOutput, LatticeSession, Options, PathSum,
    RecognitionLattice, context::NextStates,
};
use panda_core::Real;

use crate::{
    common::{Tolerance, assert_thread_independent, assert_within, widened},
    problem::{FEATURES, Problem},
};

/// Frames and labels of each utterance.
const LENGTHS: [(usize, usize); 5] = [(13, 4), (0, 0), (7, 9), (30, 11), (1, 1)];
/// Weights of the losses.
const WEIGHTS: [f64; 5] = [1.0, 3.0, -0.25, 2.0, 0.7];

/// Returns losses and gradients.
fn sum<F: Real>(problem: &Problem<F>, session: &mut LatticeSession<F>, weights: &[f64]) -> LatticeOutput<F> {
    problem.with(|lattice, frames, labels| session.sum(lattice, frames, labels, weights).unwrap())
}

/// Batches with contexts of zero, one and two labels, and both alignments.
///
/// Each context has more states than a block.
fn problems<F: Real>() -> Vec<Problem<F>> {
    let shapes = [((40, 0), None), ((37, 1), Some(2)), ((6, 2), None), ((6, 2), Some(1)), ((5, 2), Some(3))];
    shapes.map(|(context, expansions)| Problem::random(context, expansions, (19, false), &LENGTHS)).to_vec()
}

fn check_batch<F: Real>(tolerance: Tolerance) {
    for problem in problems::<F>() {
        let batch = sum(&problem, &mut LatticeSession::default(), &WEIGHTS);
        let mut total = batch.parameters.clone();
        total.values_mut().for_each(|values| values.fill(F::ZERO));
        for (b, &weight) in WEIGHTS.iter().enumerate() {
            let single = sum(&problem.single(b), &mut LatticeSession::default(), &[weight]);
            assert_eq!(single.sums, batch.sums[b..=b], "utterance {b}");
            let frames = &batch.frames[b * problem.padded * FEATURES..][..problem.padded * FEATURES];
            assert!(single.frames == frames[..single.frames.len()], "frames of utterance {b}");
            assert!(frames[single.frames.len()..].iter().all(|&g| g == F::ZERO), "padding of utterance {b}");
            for (name, values) in &single.parameters {
                total.get_mut(name).unwrap().iter_mut().zip(values).for_each(|(sum, &g)| *sum += g);
            }
        }
        assert_eq!(batch.sums[2].is_finite(), problem.alignment.has_path(7, 9));
        assert!(batch.sums[2] != f64::NEG_INFINITY && !batch.sums[2].is_nan());
        for (name, values) in &batch.parameters {
            assert_within(name, values, &widened(&total[name]), tolerance);
        }
    }
}

#[test]
fn a_batch_in_f64_equals_its_utterances() {
    check_batch::<f64>(Tolerance { relative: 1e-12, absolute: 1e-11 });
}

#[test]
fn a_batch_in_f32_equals_its_utterances() {
    check_batch::<f32>(Tolerance { relative: 1e-5, absolute: 2e-4 });
}

fn check_padding<F: Real>() {
    for problem in problems::<F>() {
        let expected = sum(&problem, &mut LatticeSession::default(), &WEIGHTS);
        for (extra, value, label) in [(0, f64::NAN, 0), (3, f64::INFINITY, u32::MAX), (40, -1e30, 77)] {
            let padded = problem.padded(extra, value, label);
            let computed = sum(&padded, &mut LatticeSession::default(), &WEIGHTS);
            assert_eq!(computed.sums, expected.sums);
            assert!(computed.parameters == expected.parameters);
            let frame_gradients = |output: &LatticeOutput<F>, padded: usize, b: usize| {
                output.frames[b * padded * FEATURES..][..problem.num_frames[b] * FEATURES].to_vec()
            };
            for b in 0..WEIGHTS.len() {
                assert_eq!(
                    widened(&frame_gradients(&computed, padded.padded, b)),
                    widened(&frame_gradients(&expected, problem.padded, b))
                );
            }
            let zeros = computed.frames.iter().filter(|&&g| g == F::ZERO).count();
            assert!(zeros >= (padded.padded * WEIGHTS.len() - 51) * FEATURES);
        }
    }
}

#[test]
fn padding_does_not_change_results() {
    check_padding::<f64>();
    check_padding::<f32>();
}

#[test]
fn leading_axes_do_not_change_results() {
    let problem = Problem::<f32>::random((4, 1), Some(2), (7, true), &[(5, 2), (4, 3), (6, 0), (3, 1)]);
    let weights = [1.0, 2.0, 3.0, 4.0];
    let expected = sum(&problem, &mut LatticeSession::default(), &weights);
    for axes in [vec![2, 2], vec![1, 4, 1], vec![4, 1, 1]] {
        assert_eq!(
            sum(&Problem { axes, ..problem.clone() }, &mut LatticeSession::default(), &weights),
            expected
        );
    }
}

/// Returns the results of all calls.
fn run_all<F: Real>(problem: &Problem<F>, budget: Options) -> impl PartialEq + std::fmt::Debug + Send {
    let mut session = LatticeSession::new(budget);
    problem.with(|lattice, frames, labels| {
        let output = session.sum(lattice, frames, labels, &WEIGHTS);
        let forward = session.forward(lattice, frames, labels).and_then(|pending| pending.backward(&WEIGHTS));
        let denominator = session.sum_paths(PathSum::Denominator, lattice, frames, None, &WEIGHTS);
        let marginals = session.marginals(lattice, frames);
        let paths = session.best_paths(lattice, frames);
        let alignments = session.best_alignments(lattice, frames, labels);
        let alphas = session.alphas(lattice, frames);
        (output, forward, denominator, marginals, paths, alignments, alphas)
    })
}

/// Returns the smallest budget of a problem.
fn smallest<F: Real>(problem: &Problem<F>) -> usize {
    problem.with(|lattice, frames, labels| {
        let session = LatticeSession::new(Options::new(1));
        let Err(Error::Budget { smallest, found: 1 }) = session.plan(lattice, frames, labels) else {
            panic!("one byte is enough")
        };
        smallest
    })
}

/// Returns budgets from the smallest to unlimited.
fn budgets<F: Real>(problem: &Problem<F>) -> Vec<Options> {
    let smallest = smallest(problem);
    let spare_bytes = [0, 1, 10_000, 50_000, 200_000, 1_000_000, 4_000_000, 20_000_000];
    let limited = spare_bytes.map(|spare| Options::new(smallest + spare));
    [&limited[..], &[Options::new(usize::MAX).recompute(), Options::new(usize::MAX)]].concat()
}

fn check_threads<F: Real>() {
    for problem in problems::<F>() {
        for budget in [budgets(&problem)[0], Options::default(), Options::new(usize::MAX)] {
            assert_thread_independent(|| run_all(&problem, budget));
        }
    }
}

#[test]
fn threads_do_not_change_results_in_f64() {
    check_threads::<f64>();
}

#[test]
fn threads_do_not_change_results_in_f32() {
    check_threads::<f32>();
}

#[test]
fn threads_do_not_change_results_of_local_weights() {
    for normalize in [lattice::Normalize::Hat, lattice::Normalize::LogSoftmax] {
        let problem = Problem::<f32>::random((6, 2), Some(2), (19, true), &LENGTHS);
        let problem = Problem { normalize: Some(normalize), ..problem };
        assert_thread_independent(|| run_all(&problem, Options::default()));
    }
}

/// Sums and frame gradients are equal for all budgets.
///
/// Parameter gradients are equal up to rounding.
fn check_budgets<F: Real>(tolerance: Tolerance) {
    for problem in problems::<F>() {
        let expected = sum(&problem, &mut LatticeSession::new(Options::new(usize::MAX)), &WEIGHTS);
        // Utterances of a group, frames of a wave, and whether arc weights are kept.
        let mut splits = Vec::new();
        for budget in budgets(&problem) {
            let mut session = LatticeSession::new(budget);
            problem.with(|lattice, frames, labels| {
                let plan = session.plan(lattice, frames, labels).unwrap();
                assert!(plan.bytes <= budget.budget);
                splits.push((plan.utterances, plan.frames_per_wave, plan.keeps_arcs));
            });
            let computed = sum(&problem, &mut session, &WEIGHTS);
            assert_eq!(computed.sums, expected.sums, "{budget:?}");
            assert!(computed.frames == expected.frames, "{budget:?}");
            for (name, values) in &computed.parameters {
                assert_within(name, values, &widened(&expected.parameters[name]), tolerance);
            }
        }
        assert_eq!(splits[0], (1, 1, false), "{splits:?}");
        let (_, _, last_keeps_arcs) = *splits.last().unwrap();
        let has_undivided_batch =
            splits.iter().any(|&(utterances, _, keeps_arcs)| utterances == LENGTHS.len() && !keeps_arcs);
        assert!(last_keeps_arcs && has_undivided_batch, "{splits:?}");
    }
}

#[test]
fn budgets_do_not_change_results_in_f64() {
    check_budgets::<f64>(Tolerance { relative: 1e-12, absolute: 1e-11 });
}

#[test]
fn budgets_do_not_change_results_in_f32() {
    check_budgets::<f32>(Tolerance { relative: 1e-5, absolute: 2e-4 });
}

/// Runs all calls after calls for other batches and lattices.
#[test]
fn earlier_calls_do_not_change_results() {
    let [large, small] = [
        Problem::<f32>::random((37, 1), Some(2), (19, false), &LENGTHS),
        Problem::<f32>::random((3, 2), None, (5, true), &[(4, 2), (2, 1), (0, 0), (3, 3), (1, 0)]),
    ];
    let empty = Problem::random((3, 2), None, (5, true), &[]);
    let smallest_budget = smallest(&large).max(smallest(&small));
    let all_at_once = large.with(|lattice, frames, labels| {
        let mut session = LatticeSession::<f32>::new(Options::new(smallest_budget));
        match session.forward(lattice, frames, labels).map(|_| ()) {
            Err(Error::Budget { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        }
    });
    let budgets = [all_at_once, all_at_once + 100_000, Options::default().budget, usize::MAX];
    for budget in budgets.map(Options::new) {
        let fresh = [&large, &small].map(|problem| format!("{:?}", run_all(problem, budget)));
        let mut session = LatticeSession::new(budget);
        for round in 0..6 {
            let index = [0, 1, 1, 0, 0, 1][round];
            let problem = [&large, &small][index];
            problem.with(|lattice, frames, labels| {
                let output = session.sum(lattice, frames, labels, &WEIGHTS);
                let forward =
                    session.forward(lattice, frames, labels).and_then(|pending| pending.backward(&WEIGHTS));
                // A loss without a backward pass.
                drop(session.forward(lattice, frames, labels));
                let denominator = session.sum_paths(PathSum::Denominator, lattice, frames, None, &WEIGHTS);
                session.distances(PathSum::Loss, lattice, frames, Some(labels)).unwrap();
                let marginals = session.marginals(lattice, frames);
                let paths = session.best_paths(lattice, frames);
                let alignments = session.best_alignments(lattice, frames, labels);
                let alphas = session.alphas(lattice, frames);
                let computed = (output, forward, denominator, marginals, paths, alignments, alphas);
                assert!(format!("{computed:?}") == fresh[index], "round {round}, {budget:?}");
            });
            assert!(sum(&empty, &mut session, &[]).sums.is_empty());
        }
    }
}

/// Section 7 of the specification, and other sums of marginals.
#[test]
fn marginals_sum_to_bias_gradients_and_label_counts() {
    for problem in problems::<f64>() {
        let (c, v) = (problem.context.states(), problem.context.vocabulary());
        let weights = [1.0; LENGTHS.len()];
        let (blank, label_arcs, denominator, numerator) = problem.with(|lattice, frames, labels| {
            let mut session = LatticeSession::default();
            let (blank, label_arcs) = session.marginals(lattice, frames).unwrap();
            let denominator =
                session.sum_paths(PathSum::Denominator, lattice, frames, None, &weights).unwrap();
            let numerator =
                session.sum_paths(PathSum::Numerator, lattice, frames, Some(labels), &weights).unwrap();
            (blank, label_arcs, denominator, numerator)
        });
        let tolerance = Tolerance { relative: 1e-11, absolute: 1e-11 };
        let mut all_labels = 0.0;
        for b in 0..LENGTHS.len() {
            for t in 0..problem.padded {
                let row = b * problem.padded + t;
                let frame_blanks: f64 = blank[row * c..][..c].iter().sum();
                let frame_labels: f64 = label_arcs[row * c * v..][..c * v].iter().sum();
                all_labels += frame_labels;
                let expected = match (t < problem.num_frames[b], problem.alignment.expansions()) {
                    (false, _) => {
                        assert_eq!(frame_labels, 0.0);
                        0.0
                    }
                    (true, None) => 1.0 - frame_labels,
                    (true, Some(limit)) => {
                        assert!(frame_labels > 0.0 && frame_labels < limit as f64);
                        1.0
                    }
                };
                assert_within("blanks of a frame", &[frame_blanks], &[expected], tolerance);
            }
        }
        let total = |output: &LatticeOutput<f64>, name: &str| output.parameters[name].iter().sum::<f64>();
        let labels = total(&denominator, "weight_fn/Dense_1/bias");
        assert_within("labels", &[labels], &[all_labels], tolerance);
        let feasible = (0..LENGTHS.len())
            .filter(|&b| problem.alignment.has_path(problem.num_frames[b], problem.num_labels[b]));
        let label_count: usize = feasible.clone().map(|b| problem.num_labels[b]).sum();
        assert_within(
            "labels",
            &[total(&numerator, "weight_fn/Dense_1/bias")],
            &[label_count as f64],
            tolerance,
        );
        let frames: usize = feasible.map(|b| problem.num_frames[b]).sum();
        let blanks = match problem.alignment.expansions() {
            None => [51.0 - labels, (frames - label_count) as f64],
            Some(_) => [51.0, frames as f64],
        };
        let computed = [&denominator, &numerator].map(|output| total(output, "weight_fn/Dense_0/bias"));
        assert_within("blanks", &computed, &blanks, tolerance);
    }
}

/// An n-gram whose next states are lists instead of runs.
struct ListContext {
    inner: FullNGram,
    table: Vec<u32>,
}

impl ListContext {
    fn new(inner: FullNGram) -> Self {
        let labels = 1..=inner.vocabulary();
        let next = |state| labels.clone().map(move |label| inner.next_state(state, label) as u32);
        Self { inner, table: (0..inner.states()).flat_map(next).collect() }
    }
}

impl Context for ListContext {
    fn states(&self) -> usize {
        self.inner.states()
    }
    fn vocabulary(&self) -> usize {
        self.inner.vocabulary()
    }
    fn next_state(&self, state: usize, label: usize) -> usize {
        self.inner.next_state(state, label)
    }
    fn next_states(&self, state: usize) -> NextStates<'_> {
        NextStates::List(&self.table[state * self.vocabulary()..][..self.vocabulary()])
    }
}

/// There are so many arcs that states are split into blocks.
///
/// Results are equal on any threads, and close to those arc by arc.
#[test]
fn blocks_of_states_equal_lists_of_next_states() {
    for (expansions, vocabulary, order) in [(None, 64, 2), (Some(2), 64, 2), (None, 520, 1)] {
        let lengths = [(5, 2), (3, 1)];
        let problem = Problem::<f32>::random((vocabulary, order), expansions, (3, false), &lengths);
        assert!(problem.context.states() * vocabulary > 1 << 18);
        assert_thread_independent(|| {
            let mut session = LatticeSession::default();
            problem.with(|lattice, frames, labels| {
                let output = session.sum(lattice, frames, labels, &[1.0, 2.0]).unwrap();
                (output, session.best_paths(lattice, frames).unwrap())
            })
        });
        let (problem, list_context) = (problem.cast::<f64>(), ListContext::new(problem.context));
        let sum_and_best_paths =
            |lattice: &RecognitionLattice<f64>, frames: &Frames<f64>, labels: &Labels| {
                let mut session = LatticeSession::default();
                let output = session.sum(lattice, frames, labels, &[1.0, 2.0]).unwrap();
                (output, session.best_paths(lattice, frames).unwrap())
            };
        let (computed, best) =
            problem.with(|lattice, frames, labels| sum_and_best_paths(lattice, frames, labels));
        let (expected, expected_best) = problem.with(|lattice, frames, labels| {
            let lattice =
                RecognitionLattice::new(&list_context, lattice.alignment(), lattice.weight_fn()).unwrap();
            sum_and_best_paths(&lattice, frames, labels)
        });
        let tolerance = Tolerance { relative: 1e-11, absolute: 1e-12 };
        assert_within("losses", &computed.sums, &expected.sums, tolerance);
        assert_within("frames", &computed.frames, &expected.frames, tolerance);
        for (name, values) in &computed.parameters {
            assert_within(name, values, &expected.parameters[name], tolerance);
        }
        assert_eq!(best, expected_best);
    }
}
