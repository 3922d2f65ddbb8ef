//! Tests of greedy transducer search: decisions match models with prescribed scores.
use std::sync::Arc;

use decoding::{DecodingModel, Error, GreedyOptions, Hypothesis, Result, greedy};
use proptest::prelude::*;
use rnnt_dp::Topology;

use crate::table_models::{LabelCountPredictor, TableJoint, frames};

/// A model whose scores depend on frame and number of labels.
fn model<F>(
    topology: &Topology,
    classes: usize,
    blank: u32,
    big_blanks: &[u32],
    score_fn: F,
) -> Result<DecodingModel>
where
    F: Fn(f32, f32, &mut [f32]) + Send + Sync + 'static,
{
    let joint = TableJoint { classes, durations: topology.num_durations(), score_fn };
    DecodingModel::new(
        Arc::new(LabelCountPredictor { ids: classes }),
        Arc::new(joint),
        blank,
        big_blanks,
        topology,
    )
}

/// Frame `class + 10 · count` favors `class` until `count` labels are emitted.
fn scripted_model() -> DecodingModel {
    let score_fn = |frame: f32, labels: f32, scores: &mut [f32]| {
        scores.fill(if frame == f32::NEG_INFINITY { frame } else { 0.0 });
        let (expected, emit) = (frame.rem_euclid(10.0), (frame / 10.0).floor());
        let class = if labels < emit { expected as usize } else { 2 };
        if frame != f32::NEG_INFINITY {
            scores[class] = if frame.is_nan() { f32::NAN } else { 2.0 };
        }
    };
    model(&Topology::rnnt(), 3, 2, &[], score_fn).unwrap()
}

fn with_max_symbols(max_symbols: usize) -> GreedyOptions {
    GreedyOptions { max_symbols: Some(max_symbols), ..GreedyOptions::default() }
}

fn label_frames(actual: &Hypothesis) -> Vec<usize> {
    actual.labels.iter().map(|label| label.frame).collect()
}

#[test]
fn labels_have_their_frames_and_probabilities() {
    let actual = greedy(&scripted_model(), &[0.0, 11.0, 30.0, 30.0], &GreedyOptions::default()).unwrap();
    assert_eq!((actual.ids(), label_frames(&actual)), (vec![1, 0, 0], vec![1, 2, 2]));
    assert_eq!((actual.end_frame, actual.is_capped), (4, false));
    let expected = 2.0 - (2.0f64.exp() + 2.0).ln();
    for label in &actual.labels {
        approx::assert_relative_eq!(label.log_prob, expected, max_relative = 1e-12);
        assert_eq!((label.logit, label.duration, label.confidence), (2.0, 0, 1.0));
    }
    approx::assert_relative_eq!(actual.score(), 3.0 * expected, max_relative = 1e-12);
    assert_eq!(actual.logit_sum(), 6.0);
}

proptest! {
    /// Every label is the best class of its site; every frame ends with the blank or its last
    /// permitted label.
    ///
    /// One symbol per frame equals the modified and the constrained topology.
    #[test]
    fn every_decision_is_the_best_class(
        scores in proptest::collection::vec(-4.0f32..4.0, 300),
        classes in 2usize..6,
        count in 0usize..9,
        max_symbols in 1usize..4,
    ) {
        let row = move |scores: &[f32], t: usize, u: usize| -> Vec<f32> {
            // The rows of the table repeat after many more rows than are used.
            let rows = scores.len() / classes;
            scores[(13 * t + u) % rows * classes..][..classes].to_vec()
        };
        let table = |topology: Topology| {
            let scores = scores.clone();
            let score_fn = move |t: f32, u: f32, out: &mut [f32]| out.copy_from_slice(&row(&scores, t as usize, u as usize));
            model(&topology, classes, 0, &[], score_fn).unwrap()
        };
        let (input, limit) = (frames(0, count), with_max_symbols(max_symbols));
        let actual = greedy(&table(Topology::rnnt()), &input, &limit).unwrap();
        let best_class = |t, u| {
            let row = row(&scores, t, u);
            (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
        };
        let mut u = 0;
        for t in 0..count {
            let count_on_frame = actual.labels.iter().filter(|label| label.frame == t).count();
            prop_assert!(count_on_frame <= max_symbols);
            for _ in 0..count_on_frame {
                prop_assert_eq!((actual.labels[u].label as usize, actual.labels[u].frame), (best_class(t, u), t));
                let row = row(&scores, t, u);
                let sum: f64 = row.iter().map(|&score| f64::from(score).exp()).sum();
                let expected = f64::from(row[best_class(t, u)]) - sum.ln();
                prop_assert!((actual.labels[u].log_prob - expected).abs() < 1e-6);
                u += 1;
            }
            prop_assert!(count_on_frame == max_symbols || best_class(t, u) == 0);
        }
        prop_assert_eq!(u, actual.labels.len());
        let single = greedy(&table(Topology::rnnt()), &input, &with_max_symbols(1)).unwrap();
        for topology in [Topology::modified(), Topology::constrained()] {
            let actual = greedy(&table(topology), &input, &limit).unwrap();
            prop_assert_eq!((actual.ids(), label_frames(&actual)), (single.ids(), label_frames(&single)));
        }
    }
}

#[test]
fn max_symbols_limits_the_labels_of_a_frame() {
    let actual = greedy(&scripted_model(), &[991.0, 991.0], &with_max_symbols(3)).unwrap();
    assert_eq!(label_frames(&actual), [0, 0, 0, 1, 1, 1]);
}

#[test]
fn max_labels_limits_an_utterance_and_is_reported() {
    let limited = GreedyOptions { max_symbols: None, max_labels: Some(5), ..GreedyOptions::default() };
    let actual = greedy(&scripted_model(), &[0.0, 1_000_001.0, 0.0], &limited).unwrap();
    assert_eq!((actual.labels.len(), actual.end_frame, actual.is_capped), (5, 1, true));
    // Without a limit, a frame of endless labels must still end.
    let none = GreedyOptions { max_symbols: None, ..GreedyOptions::default() };
    let actual = greedy(&scripted_model(), &[1_000_001.0, 0.0], &none).unwrap();
    assert_eq!((actual.labels.len(), actual.end_frame, actual.is_capped), (100, 0, true));
}

#[test]
fn no_frames_give_an_empty_hypothesis() {
    assert_eq!(greedy(&scripted_model(), &[], &GreedyOptions::default()).unwrap(), Hypothesis::default());
}

#[test]
fn invalid_input_is_an_error() {
    let model_of_width_2 = DecodingModel::new(
        Arc::new(LabelCountPredictor { ids: 3 }),
        Arc::new(crate::table_models::UniformJoint(2)),
        2,
        &[],
        &Topology::rnnt(),
    );
    let options = GreedyOptions::default();
    assert_eq!(
        greedy(&model_of_width_2.unwrap(), &[0.0; 3], &options),
        Err(Error::Frames { width: 2, found: 3 })
    );
    for (options, name) in [
        (with_max_symbols(0), "max_symbols"),
        (GreedyOptions { max_labels: Some(0), ..GreedyOptions::default() }, "max_labels"),
        (GreedyOptions { look_ahead: 0, ..GreedyOptions::default() }, "look_ahead"),
        (GreedyOptions { internal_lm: f32::NAN, ..GreedyOptions::default() }, "internal_lm"),
        (GreedyOptions { internal_lm: 0.5, ..GreedyOptions::default() }, "internal_lm"),
    ] {
        let actual = greedy(&scripted_model(), &[0.0; 2], &options);
        assert!(matches!(actual, Err(Error::Option { option, .. }) if option == name), "{actual:?}");
    }
    let actual = greedy(&scripted_model(), &[0.0, f32::NAN], &options);
    assert!(matches!(actual, Err(Error::Score { frame: 1, class: 2, .. })), "{actual:?}");
    let actual = greedy(&scripted_model(), &[f32::NEG_INFINITY], &options);
    assert!(matches!(actual, Err(Error::Score { frame: 0, .. })), "{actual:?}");
}

/// A row with score 3 at `class` and at the column `duration`, 0 elsewhere.
fn score_row(width: usize, class: usize, duration: Option<usize>) -> Vec<f32> {
    let mut row = vec![0.0; width];
    row[class] = 3.0;
    duration.into_iter().for_each(|column| row[column] = 3.0);
    row
}

/// A row of NaN that must not be read.
fn unread_row(width: usize) -> Vec<f32> {
    vec![f32::NAN; width]
}

/// A model with the score rows `rows[t][u]`.
fn table_model(
    rows: Vec<Vec<Vec<f32>>>,
    classes: usize,
    topology: &str,
    big_blanks: &[u32],
) -> Result<DecodingModel> {
    let score_fn = move |t: f32, u: f32, out: &mut [f32]| out.copy_from_slice(&rows[t as usize][u as usize]);
    model(&topology.parse().unwrap(), classes, 2, big_blanks, score_fn)
}

#[test]
fn big_blanks_skip_their_frames() {
    let (best, unread) = (|class| score_row(5, class, None), || unread_row(5));
    let rows = vec![
        vec![best(3), unread(), unread()],  // t = 0: big blank of 2
        vec![unread(), unread(), unread()], // skipped
        vec![best(1), best(2), unread()],   // label 1, then the blank
        vec![unread(), best(0), best(4)],   // label 0, then a big blank of 3
        vec![unread(), unread(), unread()],
        vec![unread(), unread(), unread()],
        vec![unread(), unread(), best(4)], // beyond the end
        vec![unread(), unread(), unread()],
    ];
    let model = table_model(rows, 5, "regular+2,3", &[3, 4]).unwrap();
    let actual = greedy(&model, &frames(0, 8), &GreedyOptions::default()).unwrap();
    assert_eq!((actual.ids(), label_frames(&actual), actual.end_frame), (vec![1, 0], vec![2, 3], 9));
    let expected = 3.0 - (3.0f64.exp() + 4.0).ln();
    actual
        .labels
        .iter()
        .for_each(|label| approx::assert_relative_eq!(label.log_prob, expected, max_relative = 1e-12));
}

#[test]
fn durations_advance_labels_and_blanks() {
    // Durations 0, 1, 3 in columns 3, 4, 5.
    let (best, unread) = (|class, duration: usize| score_row(6, class, Some(3 + duration)), || unread_row(6));
    let rows = vec![
        vec![best(0, 0), best(1, 2), unread(), unread()], // label 0 stays, label 1 advances by 3
        vec![unread(), unread(), unread(), unread()],
        vec![unread(), unread(), unread(), unread()],
        vec![unread(), unread(), best(2, 0), unread()], // the blank with duration 0, which counts as 1
        vec![unread(), unread(), best(2, 2), unread()], // the blank, by 3
        vec![unread(), unread(), unread(), unread()],
        vec![unread(), unread(), unread(), unread()],
        vec![unread(), unread(), best(1, 2), unread()], // a label that advances beyond the end
        vec![unread(), unread(), unread(), unread()],
    ];
    let model = table_model(rows, 3, "tdt:0,1,3", &[]).unwrap();
    let actual = greedy(&model, &frames(0, 9), &GreedyOptions::default()).unwrap();
    assert_eq!((actual.ids(), label_frames(&actual), actual.end_frame), (vec![0, 1, 1], vec![0, 0, 7], 10));
    let durations: Vec<usize> = actual.labels.iter().map(|label| label.duration).collect();
    assert_eq!(durations, [0, 3, 3]);
    // The probability of a label does not include its duration.
    let expected = 3.0 - (3.0f64.exp() + 2.0).ln();
    for label in actual.labels {
        approx::assert_relative_eq!(label.log_prob, expected, max_relative = 1e-12);
        approx::assert_relative_eq!(label.duration_log_prob, expected, max_relative = 1e-12);
    }
}

#[test]
fn zero_durations_do_not_loop_forever() {
    let rows = vec![vec![score_row(5, 1, Some(3)); 9]; 3];
    let model = table_model(rows, 3, "tdt:0,2", &[]).unwrap();
    let actual = greedy(&model, &frames(0, 3), &with_max_symbols(2)).unwrap();
    assert_eq!(label_frames(&actual), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn invalid_blanks_and_durations_are_errors() {
    let build_model = |blank: u32, big_blanks: &[u32], topology: &Topology| {
        model(topology, 4, blank, big_blanks, |_, _, out| out.fill(0.0)).map(drop)
    };
    let named = |name: &str| name.parse::<Topology>().unwrap();
    assert_eq!(build_model(2, &[3], &named("regular+2")), Ok(()));
    assert_eq!(build_model(7, &[], &named("regular")), Err(Error::Blank { blank: 7, classes: 4 }));
    for bad in [4, 2] {
        let error = Err(Error::BigBlank { class: bad, classes: 4 });
        assert_eq!(build_model(2, &[bad], &named("regular+2")), error);
    }
    assert_eq!(build_model(2, &[3], &named("regular")), Err(Error::BigBlanks { expected: 0, found: 1 }));
    assert_eq!(build_model(2, &[], &named("modified+2")), Err(Error::BigBlanks { expected: 1, found: 0 }));
    let arc = |frames, labels| rnnt_dp::TopologyArc { frames, labels, may_end: labels == 0 };
    for arcs in [vec![arc(1, 0)], vec![arc(1, 0), arc(0, 2)], vec![arc(1, 0), arc(0, 1), arc(1, 1)]] {
        let topology = Topology::new(arcs).unwrap();
        assert_eq!(build_model(2, &[], &topology), Err(Error::Topology { found: topology }));
    }
    for (bad, class) in [
        (vec![0.0, 0.0, 1.0, 0.0, 0.0, f32::NAN], 5),
        (vec![0.0, 0.0, 1.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], 4),
    ] {
        let model = table_model(vec![vec![bad]], 4, "tdt:0,1", &[]).unwrap();
        let actual = greedy(&model, &[0.0], &GreedyOptions::default());
        assert!(matches!(actual, Err(Error::Score { frame: 0, class: c, .. }) if c == class), "{actual:?}");
    }
}

#[test]
fn mismatched_parts_are_errors() {
    let joint = || Arc::new(TableJoint { classes: 4, durations: 0, score_fn: |_, _, _: &mut [f32]| {} });
    let error = |ids, topology: &str| {
        let topology = topology.parse().unwrap();
        DecodingModel::new(Arc::new(LabelCountPredictor { ids }), joint(), 3, &[], &topology)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    assert!(error(2, "regular").starts_with("predictor: expected more than 2 ids, found 2"));
    assert!(error(4, "tdt:0,1").starts_with("joint: expected 2 durations"));
}
