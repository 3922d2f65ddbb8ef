//! What the bits of a session's results must not depend on: batch mates, padding, threads, and what it did before.
use lattice::{
    Context, Error, Frames, FullNGram, Labels, LatticeOutput, LatticeSession, Options, RecognitionLattice,
    Sum, context::NextStates,
};
use panda_core::Real;

use crate::{
    common::{Bar, assert_within, on_any_threads, widened},
    problem::{FEATURES, Problem},
};

const LENGTHS: [(usize, usize); 5] = [(13, 4), (0, 0), (7, 9), (30, 11), (1, 1)];
const WEIGHTS: [f64; 5] = [1.0, 3.0, -0.25, 2.0, 0.7];

fn sum<F: Real>(problem: &Problem<F>, session: &mut LatticeSession<F>, weights: &[f64]) -> LatticeOutput<F> {
    problem.with(|lattice, frames, labels| session.sum(lattice, frames, labels, weights).unwrap())
}

/// Contexts of no, one and two labels, each with more states than a block, and both alignments.
fn problems<F: Real>() -> Vec<Problem<F>> {
    let shapes = [((40, 0), None), ((37, 1), Some(2)), ((6, 2), None), ((6, 2), Some(1)), ((5, 2), Some(3))];
    shapes.map(|(context, expansions)| Problem::made_up(context, expansions, (19, false), &LENGTHS)).to_vec()
}

fn batched_is_single<F: Real>(bar: Bar) {
    for problem in problems::<F>() {
        let batch = sum(&problem, &mut LatticeSession::default(), &WEIGHTS);
        let mut total = batch.parameters.clone();
        total.values_mut().for_each(|values| values.fill(F::ZERO));
        for (b, &weight) in WEIGHTS.iter().enumerate() {
            let one = sum(&problem.single(b), &mut LatticeSession::default(), &[weight]);
            assert_eq!(one.sums, batch.sums[b..=b], "utterance {b}");
            let frames = &batch.frames[b * problem.padded * FEATURES..][..problem.padded * FEATURES];
            assert!(one.frames == frames[..one.frames.len()], "frames of utterance {b}");
            assert!(frames[one.frames.len()..].iter().all(|&g| g == F::ZERO), "padding of utterance {b}");
            for (name, values) in &one.parameters {
                total.get_mut(name).unwrap().iter_mut().zip(values).for_each(|(sum, &g)| *sum += g);
            }
        }
        assert_eq!(batch.sums[2], if problem.alignment.holds(7, 9) { batch.sums[2] } else { f64::INFINITY });
        for (name, values) in &batch.parameters {
            assert_within(name, values, &widened(&total[name]), bar);
        }
    }
}

#[test]
fn a_batch_in_f64_is_its_utterances() {
    batched_is_single::<f64>(Bar { relative: 1e-12, absolute: 1e-11 });
}

#[test]
fn a_batch_in_f32_is_its_utterances() {
    batched_is_single::<f32>(Bar { relative: 1e-5, absolute: 2e-4 });
}

fn padding_is_inert<F: Real>() {
    for problem in problems::<F>() {
        let expected = sum(&problem, &mut LatticeSession::default(), &WEIGHTS);
        for (more, value, label) in [(0, f64::NAN, 0), (3, f64::INFINITY, u32::MAX), (40, -1e30, 77)] {
            let padded = problem.padded(more, value, label);
            let found = sum(&padded, &mut LatticeSession::default(), &WEIGHTS);
            assert_eq!(found.sums, expected.sums);
            assert!(found.parameters == expected.parameters);
            let of = |output: &LatticeOutput<F>, padded: usize, b: usize| {
                output.frames[b * padded * FEATURES..][..problem.num_frames[b] * FEATURES].to_vec()
            };
            for b in 0..WEIGHTS.len() {
                assert_eq!(
                    widened(&of(&found, padded.padded, b)),
                    widened(&of(&expected, problem.padded, b))
                );
            }
            let zeros = found.frames.iter().filter(|&&g| g == F::ZERO).count();
            assert!(zeros >= (padded.padded * WEIGHTS.len() - 51) * FEATURES);
        }
    }
}

#[test]
fn padding_does_not_matter() {
    padding_is_inert::<f64>();
    padding_is_inert::<f32>();
}

#[test]
fn leading_axes_do_not_matter() {
    let problem = Problem::<f32>::made_up((4, 1), Some(2), (7, true), &[(5, 2), (4, 3), (6, 0), (3, 1)]);
    let weights = [1.0, 2.0, 3.0, 4.0];
    let expected = sum(&problem, &mut LatticeSession::default(), &weights);
    for axes in [vec![2, 2], vec![1, 4, 1], vec![4, 1, 1]] {
        assert_eq!(
            sum(&Problem { axes, ..problem.clone() }, &mut LatticeSession::default(), &weights),
            expected
        );
    }
}

fn everything<F: Real>(problem: &Problem<F>, budget: Options) -> impl PartialEq + std::fmt::Debug + Send {
    let mut session = LatticeSession::new(budget);
    problem.with(|lattice, frames, labels| {
        let output = session.sum(lattice, frames, labels, &WEIGHTS);
        let forward = session.forward(lattice, frames, labels).and_then(|pending| pending.backward(&WEIGHTS));
        let denominator = session.sum_of(Sum::Denominator, lattice, frames, None, &WEIGHTS);
        let marginals = session.marginals(lattice, frames);
        let paths = session.best_paths(lattice, frames);
        let alignments = session.best_alignments(lattice, frames, labels);
        let alphas = session.alphas(lattice, frames);
        (output, forward, denominator, marginals, paths, alignments, alphas)
    })
}

/// The smallest budget of a problem.
fn smallest<F: Real>(problem: &Problem<F>) -> usize {
    problem.with(|lattice, frames, labels| {
        let session = LatticeSession::new(Options::new(1));
        let Err(Error::Budget { smallest, found: 1 }) = session.plan(lattice, frames, labels) else {
            panic!("one byte is enough")
        };
        smallest
    })
}

fn budgets<F: Real>(problem: &Problem<F>) -> Vec<Options> {
    let smallest = smallest(problem);
    let more = [0, 1, 10_000, 50_000, 200_000, 1_000_000, 4_000_000, 20_000_000];
    let bytes = more.map(|more| Options::new(smallest + more));
    [&bytes[..], &[Options::new(usize::MAX).recompute(), Options::new(usize::MAX)]].concat()
}

fn threads_do_not_matter<F: Real>() {
    for problem in problems::<F>() {
        for budget in [budgets(&problem)[0], Options::default(), Options::new(usize::MAX)] {
            on_any_threads(|| everything(&problem, budget));
        }
    }
}

#[test]
fn threads_do_not_matter_in_f64() {
    threads_do_not_matter::<f64>();
}

#[test]
fn threads_do_not_matter_in_f32() {
    threads_do_not_matter::<f32>();
}

#[test]
fn threads_do_not_matter_to_local_weights() {
    for normalize in [lattice::Normalize::Hat, lattice::Normalize::LogSoftmax] {
        let problem = Problem::<f32>::made_up((6, 2), Some(2), (19, true), &LENGTHS);
        let problem = Problem { normalize: Some(normalize), ..problem };
        on_any_threads(|| everything(&problem, Options::default()));
    }
}

/// Kept or computed again, in groups or at once: the same bits of sums and frames, the same parameters to rounding.
fn budgets_do_not_matter<F: Real>(bar: Bar) {
    for problem in problems::<F>() {
        let expected = sum(&problem, &mut LatticeSession::new(Options::new(usize::MAX)), &WEIGHTS);
        let mut cuts = Vec::new();
        for budget in budgets(&problem) {
            let mut session = LatticeSession::new(budget);
            problem.with(|lattice, frames, labels| {
                let plan = session.plan(lattice, frames, labels).unwrap();
                assert!(plan.bytes <= budget.budget);
                cuts.push((plan.utterances, plan.window, plan.kept));
            });
            let found = sum(&problem, &mut session, &WEIGHTS);
            assert_eq!(found.sums, expected.sums, "{budget:?}");
            assert!(found.frames == expected.frames, "{budget:?}");
            for (name, values) in &found.parameters {
                assert_within(name, values, &widened(&expected.parameters[name]), bar);
            }
        }
        assert!(cuts[0].0 == 1 && cuts[0].1 == 1 && !cuts[0].2, "{cuts:?}");
        assert!(
            cuts.last().unwrap().2 && cuts.iter().any(|cut| cut.0 == LENGTHS.len() && !cut.2),
            "{cuts:?}"
        );
    }
}

#[test]
fn budgets_do_not_matter_in_f64() {
    budgets_do_not_matter::<f64>(Bar { relative: 1e-12, absolute: 1e-11 });
}

#[test]
fn budgets_do_not_matter_in_f32() {
    budgets_do_not_matter::<f32>(Bar { relative: 1e-5, absolute: 2e-4 });
}

/// Every call, after calls for larger and smaller batches and other lattices.
#[test]
fn what_a_session_did_before_does_not_matter() {
    let [large, small] = [
        Problem::<f32>::made_up((37, 1), Some(2), (19, false), &LENGTHS),
        Problem::<f32>::made_up((3, 2), None, (5, true), &[(4, 2), (2, 1), (0, 0), (3, 3), (1, 0)]),
    ];
    let none = Problem::made_up((3, 2), None, (5, true), &[]);
    let floor = smallest(&large).max(smallest(&small));
    let whole = large.with(|lattice, frames, labels| {
        let mut session = LatticeSession::<f32>::new(Options::new(floor));
        match session.forward(lattice, frames, labels).map(|_| ()) {
            Err(Error::Budget { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        }
    });
    let budgets = [whole, whole + 100_000, Options::default().budget, usize::MAX];
    for budget in budgets.map(Options::new) {
        let fresh = [&large, &small].map(|problem| format!("{:?}", everything(problem, budget)));
        let mut session = LatticeSession::new(budget);
        for round in 0..6 {
            let which = [0, 1, 1, 0, 0, 1][round];
            let problem = [&large, &small][which];
            problem.with(|lattice, frames, labels| {
                let output = session.sum(lattice, frames, labels, &WEIGHTS);
                let forward =
                    session.forward(lattice, frames, labels).and_then(|pending| pending.backward(&WEIGHTS));
                // Losses whose gradients nobody asks for.
                drop(session.forward(lattice, frames, labels));
                let denominator = session.sum_of(Sum::Denominator, lattice, frames, None, &WEIGHTS);
                session.distances(Sum::Loss, lattice, frames, Some(labels)).unwrap();
                let marginals = session.marginals(lattice, frames);
                let paths = session.best_paths(lattice, frames);
                let alignments = session.best_alignments(lattice, frames, labels);
                let alphas = session.alphas(lattice, frames);
                let found = (output, forward, denominator, marginals, paths, alignments, alphas);
                assert!(format!("{found:?}") == fresh[which], "round {round}, {budget:?}");
            });
            assert!(sum(&none, &mut session, &[]).sums.is_empty());
        }
    }
}

/// The specification's section 7, and what else marginals add up to.
#[test]
fn marginals_add_up() {
    for problem in problems::<f64>() {
        let (c, v) = (problem.context.states(), problem.context.vocabulary());
        let ones = [1.0; LENGTHS.len()];
        let (blank, lexical, denominator, numerator) = problem.with(|lattice, frames, labels| {
            let mut session = LatticeSession::default();
            let (blank, lexical) = session.marginals(lattice, frames).unwrap();
            let denominator = session.sum_of(Sum::Denominator, lattice, frames, None, &ones).unwrap();
            let numerator = session.sum_of(Sum::Numerator, lattice, frames, Some(labels), &ones).unwrap();
            (blank, lexical, denominator, numerator)
        });
        let bar = Bar { relative: 1e-11, absolute: 1e-11 };
        let mut labels_of_all = 0.0;
        for b in 0..LENGTHS.len() {
            for t in 0..problem.padded {
                let row = b * problem.padded + t;
                let of_blank: f64 = blank[row * c..][..c].iter().sum();
                let of_labels: f64 = lexical[row * c * v..][..c * v].iter().sum();
                labels_of_all += of_labels;
                let expected = match (t < problem.num_frames[b], problem.alignment.expansions()) {
                    (false, _) => {
                        assert_eq!(of_labels, 0.0);
                        0.0
                    }
                    (true, None) => 1.0 - of_labels,
                    (true, Some(most)) => {
                        assert!(of_labels > 0.0 && of_labels < most as f64);
                        1.0
                    }
                };
                assert_within("blanks of a frame", &[of_blank], &[expected], bar);
            }
        }
        let total = |output: &LatticeOutput<f64>, name: &str| output.parameters[name].iter().sum::<f64>();
        let labels = total(&denominator, "weight_fn/Dense_1/bias");
        assert_within("labels", &[labels], &[labels_of_all], bar);
        let feasible = (0..LENGTHS.len())
            .filter(|&b| problem.alignment.holds(problem.num_frames[b], problem.num_labels[b]));
        let says: usize = feasible.clone().map(|b| problem.num_labels[b]).sum();
        assert_within("labels", &[total(&numerator, "weight_fn/Dense_1/bias")], &[says as f64], bar);
        let frames: usize = feasible.map(|b| problem.num_frames[b]).sum();
        let blanks = match problem.alignment.expansions() {
            None => [51.0 - labels, (frames - says) as f64],
            Some(_) => [51.0, frames as f64],
        };
        let found = [&denominator, &numerator].map(|output| total(output, "weight_fn/Dense_0/bias"));
        assert_within("blanks", &found, &blanks, bar);
    }
}

/// An n-gram of which nobody knows that its states lead to runs.
struct Listed {
    inner: FullNGram,
    table: Vec<u32>,
}

impl Listed {
    fn new(inner: FullNGram) -> Self {
        let labels = 1..=inner.vocabulary();
        let next = |state| labels.clone().map(move |label| inner.next_state(state, label) as u32);
        Self { inner, table: (0..inner.states()).flat_map(next).collect() }
    }
}

impl Context for Listed {
    fn states(&self) -> usize {
        self.inner.states()
    }
    fn vocabulary(&self) -> usize {
        self.inner.vocabulary()
    }
    fn next_state(&self, state: usize, label: usize) -> usize {
        self.inner.next_state(state, label)
    }
    fn after(&self, state: usize) -> NextStates<'_> {
        NextStates::List(&self.table[state * self.vocabulary()..][..self.vocabulary()])
    }
}

/// So many arcs that states are cut into blocks: the same bits on all threads, and what arc by arc gives.
#[test]
fn contexts_of_many_arcs() {
    for (expansions, vocabulary, order) in [(None, 64, 2), (Some(2), 64, 2), (None, 520, 1)] {
        let lengths = [(5, 2), (3, 1)];
        let problem = Problem::<f32>::made_up((vocabulary, order), expansions, (3, false), &lengths);
        assert!(problem.context.states() * vocabulary > 1 << 18);
        on_any_threads(|| {
            let mut session = LatticeSession::default();
            problem.with(|lattice, frames, labels| {
                let output = session.sum(lattice, frames, labels, &[1.0, 2.0]).unwrap();
                (output, session.best_paths(lattice, frames).unwrap())
            })
        });
        let (problem, listed) = (problem.of::<f64>(), Listed::new(problem.context));
        let all = |lattice: &RecognitionLattice<f64>, frames: &Frames<f64>, labels: &Labels| {
            let mut session = LatticeSession::default();
            let output = session.sum(lattice, frames, labels, &[1.0, 2.0]).unwrap();
            (output, session.best_paths(lattice, frames).unwrap())
        };
        let (found, best) = problem.with(|lattice, frames, labels| all(lattice, frames, labels));
        let (expected, expected_best) = problem.with(|lattice, frames, labels| {
            let lattice = RecognitionLattice::new(&listed, lattice.alignment(), lattice.weight_fn()).unwrap();
            all(&lattice, frames, labels)
        });
        let bar = Bar { relative: 1e-11, absolute: 1e-12 };
        assert_within("losses", &found.sums, &expected.sums, bar);
        assert_within("frames", &found.frames, &expected.frames, bar);
        for (name, values) in &found.parameters {
            assert_within(name, values, &expected.parameters[name], bar);
        }
        assert_eq!(best, expected_best);
    }
}
