//! Robustness of the pruned first pass: padding, threads, invalid arguments.
//!
//! Results of an utterance do not depend on padding, on other utterances or on the number of
//! threads; an utterance without a path has the loss +inf; errors name the invalid value.
use pruned::{Batch, Error, Matrices, MatrixGradient, Options, Side, Unigram, first_pass};
use rnnt_dp::Topology;

use crate::plain::Problem;

/// Options with smoothing and a delay penalty.
fn smooth() -> Options {
    Options { lm_only_scale: 0.2, am_only_scale: 0.1, delay_penalty: 0.1, ..Options::default() }
}

/// Results of forward and backward.
#[derive(PartialEq)]
struct Output {
    losses: Vec<f64>,
    occupancies: Vec<f64>,
    gradient: MatrixGradient<f32>,
}

/// Runs forward and backward in `f32`.
fn run(am: &[f64], lm: &[f64], classes: usize, batch: &Batch, options: &Options) -> Output {
    let to_f32 = |scores: &[f64]| scores.iter().map(|&score| score as f32).collect::<Vec<_>>();
    let (am, lm) = (to_f32(am), to_f32(lm));
    let source = Matrices::new(&am, &lm, classes).unwrap();
    let pass = first_pass(&source, batch, options).unwrap();
    let gradient = pass.backward(&source, &vec![1.0; batch.len()]).unwrap();
    Output { losses: pass.losses, occupancies: pass.occupancies, gradient }
}

/// Returns the rows of utterances without padding.
fn pack(problem: &Problem, utterances: std::ops::Range<usize>) -> (Vec<f64>, Vec<f64>, Batch) {
    let (mut am, mut lm, c) = (Vec::new(), Vec::new(), problem.classes);
    for b in utterances.clone() {
        let (t, u) = (problem.frames[b], problem.labels[b].len() + 1);
        am.extend(&problem.am[b * problem.max_frames * c..][..t * c]);
        lm.extend(&problem.lm[b * problem.positions * c..][..u * c]);
    }
    let (frames, labels) = (&problem.frames[utterances.clone()], &problem.labels[utterances]);
    (am, lm, Batch::packed(problem.blank, frames.to_vec(), labels.to_vec()).unwrap())
}

#[test]
fn other_utterances_padding_and_threads_change_no_bit() {
    for options in [Options::default(), smooth(), Options { topology: Topology::constrained(), ..smooth() }] {
        let mut problem =
            Problem::random(5, &[(200, 9), (3, 2), (40, 30), (7, 0)], 1300, 4.0, options.clone());
        let (c, reference) =
            (problem.classes, run(&problem.am, &problem.lm, 1300, &problem.batch(), &options));
        // NaN and infinity in all padding.
        for b in 0..4 {
            let padding_rows = b * problem.max_frames + problem.frames[b]..(b + 1) * problem.max_frames;
            problem.am[padding_rows.start * c..padding_rows.end * c].fill(f64::NAN);
            let padding_rows =
                b * problem.positions + problem.labels[b].len() + 1..(b + 1) * problem.positions;
            problem.lm[padding_rows.start * c..padding_rows.end * c].fill(f64::INFINITY);
        }
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let poisoned = pool.install(|| run(&problem.am, &problem.lm, c, &problem.batch(), &options));
            assert!(poisoned == reference, "padding or threads");
        }
        let batch = problem.batch();
        for b in 0..4 {
            let (am, lm, single_batch) = pack(&problem, b..b + 1);
            let Output { losses, occupancies, gradient } = run(&am, &lm, c, &single_batch, &options);
            let sites = batch.lattices().site_range(b);
            assert_eq!(losses[0], reference.losses[b]);
            assert!(occupancies == reference.occupancies[2 * sites.start..2 * sites.end]);
            let (first_element, count) = (b * problem.max_frames * c, problem.frames[b] * c);
            assert!(
                gradient.am == reference.gradient.am[first_element..first_element + count],
                "am of utterance {b}"
            );
            assert!(
                reference.gradient.am[first_element + count..(b + 1) * problem.max_frames * c]
                    .iter()
                    .all(|g| *g == 0.0)
            );
            let (first_element, count) = (b * problem.positions * c, (problem.labels[b].len() + 1) * c);
            assert!(
                gradient.lm == reference.gradient.lm[first_element..first_element + count],
                "lm of utterance {b}"
            );
        }
    }
}

/// The average over all rows mixes utterances.
#[test]
fn the_average_over_all_rows_depends_on_padding() {
    let options = Options { unigram: Unigram::AllRows, ..smooth() };
    let mut problem = Problem::random(5, &[(5, 2), (4, 1)], 6, 1.0, options.clone());
    let before = run(&problem.am, &problem.lm, 6, &problem.batch(), &options).losses;
    let last = problem.lm.len() - 1;
    problem.lm[last] += 1.0;
    let after = run(&problem.am, &problem.lm, 6, &problem.batch(), &options).losses;
    assert!(before.iter().zip(&after).all(|(a, b)| a != b));
    problem.lm[last] = f64::NAN;
    let source = Matrices::new(&problem.am, &problem.lm, 6).unwrap();
    let error = first_pass(&source, &problem.batch(), &options).unwrap_err();
    assert_eq!(error, Error::Padding { row: 7 });
}

#[test]
fn impossible_utterances_are_values() {
    let shapes = [(2, 3), (4, 2)];
    for topology in [Topology::modified(), Topology::constrained()] {
        let options = Options { topology, ..smooth() };
        let problem = Problem::random(8, &shapes, 6, 1.0, options.clone());
        let Output { losses, occupancies, gradient } =
            run(&problem.am, &problem.lm, 6, &problem.batch(), &options);
        assert!(losses[0] == f64::INFINITY && losses[1].is_finite());
        assert!(occupancies[..2 * 2 * 4].iter().all(|o| *o == 0.0));
        assert!(gradient.am[..problem.max_frames * 6].iter().all(|g| *g == 0.0));
        assert!(gradient.am[problem.max_frames * 6..].iter().any(|g| *g != 0.0));
        assert!(gradient.am.iter().chain(&gradient.lm).all(|g| g.is_finite()));
    }
    // A label that is masked everywhere.
    let mut problem = Problem::random(9, &[(3, 1)], 6, 1.0, Options::default());
    let label = problem.labels[0][0] as usize;
    problem.am.chunks_exact_mut(6).for_each(|row| row[label] = f64::NEG_INFINITY);
    let Output { losses, gradient, .. } =
        run(&problem.am, &problem.lm, 6, &problem.batch(), &Options::default());
    assert_eq!(losses, [f64::INFINITY]);
    assert!(gradient.am.iter().chain(&gradient.lm).all(|g| *g == 0.0));
}

#[test]
fn invalid_scores_are_named() {
    for options in [Options::default(), smooth(), Options { unigram: Unigram::AllRows, ..smooth() }] {
        let valid = Problem::random(6, &[(5, 2), (4, 3)], 1100, 1.0, options.clone());
        let error_of = |problem: &Problem| {
            let source = Matrices::new(&problem.am, &problem.lm, 1100).unwrap();
            first_pass(&source, &problem.batch(), &options).unwrap_err()
        };
        for value in [f64::NAN, f64::INFINITY] {
            let mut problem = valid.clone();
            let index = (problem.max_frames + 3) * 1100 + 1050;
            problem.am[index] = value;
            let expected = |side, row| {
                move |error: &Error| {
                    matches!(error, Error::Score { side: s, utterance: 1, row: r, class: 1050, value: v }
                    if *s == side && *r == row && (*v == value || v.is_nan()))
                }
            };
            let error = error_of(&problem);
            assert!(expected(Side::Frames, 3)(&error), "{error}");
            let mut problem = valid.clone();
            let index = (problem.positions + 2) * 1100 + 1050;
            problem.lm[index] = value;
            let error = error_of(&problem);
            assert!(expected(Side::Labels, 2)(&error), "{error}");
        }
        let mut problem = valid.clone();
        let second_utterance = problem.max_frames * 1100;
        problem.am[second_utterance + 1100..second_utterance + 2200].fill(f64::NEG_INFINITY);
        assert_eq!(error_of(&problem), Error::AllMasked { utterance: 1, frame: 1, position: 0 });
        // Each row has a finite score, but no class has one in both rows.
        let mut problem = valid.clone();
        problem.am[..600].fill(f64::NEG_INFINITY);
        problem.lm[2 * 1100 + 600..3 * 1100].fill(f64::NEG_INFINITY);
        assert_eq!(error_of(&problem), Error::AllMasked { utterance: 0, frame: 0, position: 2 });
    }
}

#[test]
fn mistakes_are_named() {
    let labels = || vec![vec![1, 2], vec![3]];
    let batch = Batch::padded(0, vec![3, 2], labels(), 3, 3).unwrap();
    let scores = vec![0.0; 100];
    let error_of = |rows: [usize; 2], classes: usize, options: Options| {
        let source =
            Matrices::new(&scores[..rows[0] * classes], &scores[..rows[1] * classes], classes).unwrap();
        first_pass(&source, &batch, &options).unwrap_err()
    };
    let plain = Options::default();
    let expected = Error::TooFewRows { side: Side::Frames, utterance: 1, needed: 5, found: 4 };
    assert_eq!(error_of([4, 6], 4, plain.clone()), expected);
    let expected = Error::TooFewRows { side: Side::Labels, utterance: 1, needed: 5, found: 4 };
    assert_eq!(error_of([6, 4], 4, plain.clone()), expected);
    let label_error = Error::LabelOutOfRange { utterance: 1, position: 0, label: 3, classes: 3 };
    assert_eq!(error_of([6, 6], 3, plain.clone()), label_error);
    for (options, name) in [
        (Options { lm_only_scale: -0.1, ..plain.clone() }, "lm_only_scale"),
        (Options { am_only_scale: f64::NAN, ..plain.clone() }, "am_only_scale"),
        (
            Options { lm_only_scale: 0.6, am_only_scale: 0.5, ..plain.clone() },
            "lm_only_scale + am_only_scale",
        ),
        (Options { delay_penalty: f64::INFINITY, ..plain.clone() }, "delay_penalty"),
        (Options { delay_penalty: 1e39, ..plain.clone() }, "delay_penalty"),
        (Options { fastemit: -1.0, ..plain.clone() }, "fastemit"),
    ] {
        let error = error_of([6, 6], 4, options);
        assert!(matches!(error, Error::Option { argument, .. } if argument == name), "{error}");
    }
    let batch_error = |blank, labels, starts: [usize; 2]| {
        Batch::new(blank, vec![3, 2], labels, starts.to_vec(), vec![0, 3]).unwrap_err()
    };
    assert_eq!(batch_error(2, labels(), [0, 3]), Error::BlankLabel { utterance: 0, position: 1, blank: 2 });
    let overlap = Error::Overlap { side: Side::Frames, utterance: 1, expected: 3, found: 2 };
    assert_eq!(batch_error(0, labels(), [0, 2]), overlap);
    assert!(matches!(batch_error(0, vec![vec![1]], [0, 3]), Error::Lattice(_)));
    assert_eq!(Matrices::new(&scores, &scores, 0).unwrap_err(), Error::Zero { argument: "classes" });
    assert!(matches!(Matrices::new(&scores, &scores[1..], 4), Err(Error::Length { argument: "lm", .. })));
    let source = Matrices::new(&scores[..24], &scores[..24], 4).unwrap();
    let pass = first_pass(&source, &batch, &plain).unwrap();
    assert!(matches!(pass.backward(&source, &[1.0]), Err(Error::Length { argument: "weights", .. })));
    let invalid = pass.backward(&source, &[1.0, f64::NAN]).unwrap_err();
    assert!(matches!(invalid, Error::UtteranceWeight { utterance: 1, .. }));
    let more_classes = Matrices::new(&scores[..36], &scores[..36], 6).unwrap();
    let actual = pass.backward(&more_classes, &[1.0; 2]).unwrap_err();
    assert_eq!(actual, Error::Length { argument: "source.classes", expected: 4, found: 6 });
    let weights =
        |first_weights| batch.clone().with_token_weights(vec![first_weights, vec![1.0]]).unwrap_err();
    let missing = rnnt_dp::Error::TokenWeights { utterance: 0, expected: 2, found: 1 };
    assert_eq!(weights(vec![1.0]), Error::Lattice(missing));
    let infinite = rnnt_dp::Error::TokenWeight { utterance: 0, label: 1, found: f64::INFINITY };
    assert_eq!(weights(vec![1.0, f64::INFINITY]), Error::Lattice(infinite));
    let invalid = weights(vec![1.0, f64::NAN]);
    assert!(matches!(invalid, Error::Lattice(rnnt_dp::Error::TokenWeight { label: 1, .. })));
    // The weight of an utterance without a path is not checked.
    let modified = Options { topology: Topology::modified(), ..plain.clone() };
    let impossible_batch = Batch::packed(0, vec![1, 2], labels()).unwrap();
    let pass = first_pass(&source, &impossible_batch, &modified).unwrap();
    assert_eq!(pass.losses[0], f64::INFINITY);
    let gradient = pass.backward(&source, &[f64::NAN, 1.0]).unwrap();
    assert!(gradient.am[..4].iter().all(|g| *g == 0.0) && gradient.am.iter().all(|g: &f64| g.is_finite()));
    let blank = Batch::packed(9, vec![1], vec![vec![]]).unwrap();
    assert_eq!(
        first_pass(&source, &blank, &plain).unwrap_err(),
        Error::BlankOutOfRange { blank: 9, classes: 4 }
    );
}
