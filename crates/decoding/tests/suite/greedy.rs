//! The definition of greedy search, over models that are written down.
use std::sync::Arc;

use decoding::{Error, Greedy, Hypothesis, Model, Result, greedy};
use proptest::prelude::*;
use rnnt_dp::Topology;

use crate::table::{Counter, Scores, frames};

/// Scores by frame and number of labels so far.
fn model<F>(topology: &Topology, classes: usize, blank: u32, big_blanks: &[u32], of: F) -> Result<Model>
where
    F: Fn(f32, f32, &mut [f32]) + Send + Sync + 'static,
{
    let joint = Scores { classes, durations: topology.durations(), of };
    Model::new(Arc::new(Counter { ids: classes }), Arc::new(joint), blank, big_blanks, topology)
}

/// A frame `wanted + 10 · emit` asks for class `wanted` while fewer than `emit` labels are out.
fn script() -> Model {
    let of = |frame: f32, labels: f32, scores: &mut [f32]| {
        scores.fill(if frame == f32::NEG_INFINITY { frame } else { 0.0 });
        let (wanted, emit) = (frame.rem_euclid(10.0), (frame / 10.0).floor());
        let class = if labels < emit { wanted as usize } else { 2 };
        if frame != f32::NEG_INFINITY {
            scores[class] = if frame.is_nan() { f32::NAN } else { 2.0 };
        }
    };
    model(&Topology::rnnt(), 3, 2, &[], of).unwrap()
}

fn limit(max_symbols: usize) -> Greedy {
    Greedy { max_symbols: Some(max_symbols), ..Greedy::default() }
}

fn times(found: &Hypothesis) -> Vec<usize> {
    found.labels.iter().map(|label| label.frame).collect()
}

#[test]
fn emits_labels_with_their_frames_and_probabilities() {
    let found = greedy(&script(), &[0.0, 11.0, 30.0, 30.0], &Greedy::default()).unwrap();
    assert_eq!((found.ids(), times(&found)), (vec![1, 0, 0], vec![1, 2, 2]));
    assert_eq!((found.end, found.capped), (4, false));
    let expected = 2.0 - (2.0f64.exp() + 2.0).ln();
    for label in &found.labels {
        approx::assert_relative_eq!(label.log_prob, expected, max_relative = 1e-12);
        assert_eq!((label.logit, label.duration, label.confidence), (2.0, 0, 1.0));
    }
    approx::assert_relative_eq!(found.score(), 3.0 * expected, max_relative = 1e-12);
    assert_eq!(found.logits(), 6.0);
}

proptest! {
    /// Walks along the path again: every label is the best class of its site, and every frame ends with the blank or with
    /// its last permitted label. One symbol a frame is the modified topology, and the constrained one.
    #[test]
    fn every_decision_on_the_path_is_the_best_one(
        scores in proptest::collection::vec(-4.0f32..4.0, 300),
        classes in 2usize..6,
        count in 0usize..9,
        max_symbols in 1usize..4,
    ) {
        let row = move |scores: &[f32], t: usize, u: usize| -> Vec<f32> {
            // Many more rows than anyone asks for differ; beyond them the table starts again.
            let rows = scores.len() / classes;
            scores[(13 * t + u) % rows * classes..][..classes].to_vec()
        };
        let table = |topology: Topology| {
            let scores = scores.clone();
            let of = move |t: f32, u: f32, out: &mut [f32]| out.copy_from_slice(&row(&scores, t as usize, u as usize));
            model(&topology, classes, 0, &[], of).unwrap()
        };
        let (input, limit) = (frames(0, count), limit(max_symbols));
        let found = greedy(&table(Topology::rnnt()), &input, &limit).unwrap();
        let best = |t, u| {
            let row = row(&scores, t, u);
            (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
        };
        let mut u = 0;
        for t in 0..count {
            let here = found.labels.iter().filter(|label| label.frame == t).count();
            prop_assert!(here <= max_symbols);
            for _ in 0..here {
                prop_assert_eq!((found.labels[u].label as usize, found.labels[u].frame), (best(t, u), t));
                let row = row(&scores, t, u);
                let sum: f64 = row.iter().map(|&score| f64::from(score).exp()).sum();
                let expected = f64::from(row[best(t, u)]) - sum.ln();
                prop_assert!((found.labels[u].log_prob - expected).abs() < 1e-6);
                u += 1;
            }
            prop_assert!(here == max_symbols || best(t, u) == 0);
        }
        prop_assert_eq!(u, found.labels.len());
        let one = greedy(&table(Topology::rnnt()), &input, &self::limit(1)).unwrap();
        for topology in [Topology::modified(), Topology::constrained()] {
            let found = greedy(&table(topology), &input, &limit).unwrap();
            prop_assert_eq!((found.ids(), times(&found)), (one.ids(), times(&one)));
        }
    }
}

#[test]
fn a_frame_emits_no_more_than_allowed() {
    let found = greedy(&script(), &[991.0, 991.0], &limit(3)).unwrap();
    assert_eq!(times(&found), [0, 0, 0, 1, 1, 1]);
}

#[test]
fn an_utterance_emits_no_more_than_allowed_and_says_so() {
    let most = Greedy { max_symbols: None, max_labels: Some(5), ..Greedy::default() };
    let found = greedy(&script(), &[0.0, 1_000_001.0, 0.0], &most).unwrap();
    assert_eq!((found.labels.len(), found.end, found.capped), (5, 1, true));
    // Without any limit a frame that never ends must end all the same.
    let none = Greedy { max_symbols: None, ..Greedy::default() };
    let found = greedy(&script(), &[1_000_001.0, 0.0], &none).unwrap();
    assert_eq!((found.labels.len(), found.end, found.capped), (100, 0, true));
}

#[test]
fn no_frames_give_an_empty_hypothesis() {
    assert_eq!(greedy(&script(), &[], &Greedy::default()).unwrap(), Hypothesis::default());
}

#[test]
fn bad_input_is_named() {
    let two =
        Model::new(Arc::new(Counter { ids: 3 }), Arc::new(crate::table::Wide(2)), 2, &[], &Topology::rnnt());
    let options = Greedy::default();
    assert_eq!(greedy(&two.unwrap(), &[0.0; 3], &options), Err(Error::Frames { width: 2, found: 3 }));
    for (options, name) in [
        (limit(0), "max_symbols"),
        (Greedy { max_labels: Some(0), ..Greedy::default() }, "max_labels"),
        (Greedy { look_ahead: 0, ..Greedy::default() }, "look_ahead"),
        (Greedy { internal_lm: f32::NAN, ..Greedy::default() }, "internal_lm"),
        (Greedy { internal_lm: 0.5, ..Greedy::default() }, "internal_lm"),
    ] {
        let found = greedy(&script(), &[0.0; 2], &options);
        assert!(matches!(found, Err(Error::Option { option, .. }) if option == name), "{found:?}");
    }
    let found = greedy(&script(), &[0.0, f32::NAN], &options);
    assert!(matches!(found, Err(Error::Score { frame: 1, class: 2, .. })), "{found:?}");
    let found = greedy(&script(), &[f32::NEG_INFINITY], &options);
    assert!(matches!(found, Err(Error::Score { frame: 0, .. })), "{found:?}");
}

/// Scores of 3 for one class and, after the first `classes`, one duration; 0 elsewhere.
fn row(width: usize, class: usize, duration: Option<usize>) -> Vec<f32> {
    let mut row = vec![0.0; width];
    row[class] = 3.0;
    duration.into_iter().for_each(|at| row[at] = 3.0);
    row
}

/// Rows that nobody may ask for.
fn never(width: usize) -> Vec<f32> {
    vec![f32::NAN; width]
}

/// Score rows that are written down: `rows[t][u]`.
fn written(rows: Vec<Vec<Vec<f32>>>, classes: usize, topology: &str, big_blanks: &[u32]) -> Result<Model> {
    let of = move |t: f32, u: f32, out: &mut [f32]| out.copy_from_slice(&rows[t as usize][u as usize]);
    model(&topology.parse().unwrap(), classes, 2, big_blanks, of)
}

#[test]
fn big_blanks_skip_the_frames_that_they_stand_for() {
    let (at, no) = (|class| row(5, class, None), || never(5));
    let rows = vec![
        vec![at(3), no(), no()],  // t = 0: big blank of 2
        vec![no(), no(), no()],   // never seen
        vec![at(1), at(2), no()], // label 1, then the blank
        vec![no(), at(0), at(4)], // label 0, then a big blank of 3
        vec![no(), no(), no()],
        vec![no(), no(), no()],
        vec![no(), no(), at(4)], // beyond the end
        vec![no(), no(), no()],
    ];
    let model = written(rows, 5, "regular+2,3", &[3, 4]).unwrap();
    let found = greedy(&model, &frames(0, 8), &Greedy::default()).unwrap();
    assert_eq!((found.ids(), times(&found), found.end), (vec![1, 0], vec![2, 3], 9));
    let expected = 3.0 - (3.0f64.exp() + 4.0).ln();
    found.labels.iter().for_each(|l| approx::assert_relative_eq!(l.log_prob, expected, max_relative = 1e-12));
}

#[test]
fn durations_move_labels_and_blanks_on() {
    // Durations 0, 1, 3 in columns 3, 4, 5.
    let (at, no) = (|class, duration: usize| row(6, class, Some(3 + duration)), || never(6));
    let rows = vec![
        vec![at(0, 0), at(1, 2), no(), no()], // label 0 stays, label 1 moves on by 3
        vec![no(), no(), no(), no()],
        vec![no(), no(), no(), no()],
        vec![no(), no(), at(2, 0), no()], // the blank and 0, which is taken as 1
        vec![no(), no(), at(2, 2), no()], // the blank, by 3
        vec![no(), no(), no(), no()],
        vec![no(), no(), no(), no()],
        vec![no(), no(), at(1, 2), no()], // a label that would move on beyond the end
        vec![no(), no(), no(), no()],
    ];
    let model = written(rows, 3, "tdt:0,1,3", &[]).unwrap();
    let found = greedy(&model, &frames(0, 9), &Greedy::default()).unwrap();
    assert_eq!((found.ids(), times(&found), found.end), (vec![0, 1, 1], vec![0, 0, 7], 10));
    let durations: Vec<usize> = found.labels.iter().map(|label| label.duration).collect();
    assert_eq!(durations, [0, 3, 3]);
    // Durations are no part of a label's probability.
    let expected = 3.0 - (3.0f64.exp() + 2.0).ln();
    for label in found.labels {
        approx::assert_relative_eq!(label.log_prob, expected, max_relative = 1e-12);
        approx::assert_relative_eq!(label.duration_log_prob, expected, max_relative = 1e-12);
    }
}

#[test]
fn a_duration_of_zero_cannot_hold_a_frame_forever() {
    let rows = vec![vec![row(5, 1, Some(3)); 9]; 3];
    let model = written(rows, 3, "tdt:0,2", &[]).unwrap();
    let found = greedy(&model, &frames(0, 3), &limit(2)).unwrap();
    assert_eq!(times(&found), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn blanks_and_durations_that_make_no_sense_are_named() {
    let made = |blank: u32, big_blanks: &[u32], topology: &Topology| {
        model(topology, 4, blank, big_blanks, |_, _, out| out.fill(0.0)).map(drop)
    };
    let named = |name: &str| name.parse::<Topology>().unwrap();
    assert_eq!(made(2, &[3], &named("regular+2")), Ok(()));
    assert_eq!(made(7, &[], &named("regular")), Err(Error::Blank { blank: 7, classes: 4 }));
    for bad in [4, 2] {
        let error = Err(Error::BigBlank { class: bad, classes: 4 });
        assert_eq!(made(2, &[bad], &named("regular+2")), error);
    }
    assert_eq!(made(2, &[3], &named("regular")), Err(Error::BigBlanks { expected: 0, found: 1 }));
    assert_eq!(made(2, &[], &named("modified+2")), Err(Error::BigBlanks { expected: 1, found: 0 }));
    let arc = |frames, labels| rnnt_dp::TopologyArc { frames, labels, may_end: labels == 0 };
    for arcs in [vec![arc(1, 0)], vec![arc(1, 0), arc(0, 2)], vec![arc(1, 0), arc(0, 1), arc(1, 1)]] {
        let topology = Topology::new(arcs).unwrap();
        assert_eq!(made(2, &[], &topology), Err(Error::Topology { found: topology }));
    }
    for (bad, class) in [
        (vec![0.0, 0.0, 1.0, 0.0, 0.0, f32::NAN], 5),
        (vec![0.0, 0.0, 1.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], 4),
    ] {
        let model = written(vec![vec![bad]], 4, "tdt:0,1", &[]).unwrap();
        let found = greedy(&model, &[0.0], &Greedy::default());
        assert!(matches!(found, Err(Error::Score { frame: 0, class: c, .. }) if c == class), "{found:?}");
    }
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let joint = || Arc::new(Scores { classes: 4, durations: 0, of: |_, _, _: &mut [f32]| {} });
    let error = |ids, topology: &str| {
        let topology = topology.parse().unwrap();
        Model::new(Arc::new(Counter { ids }), joint(), 3, &[], &topology).map(drop).unwrap_err().to_string()
    };
    assert!(error(2, "regular").starts_with("predictor: expected more than 2 ids, found 2"));
    assert!(error(4, "tdt:0,1").starts_with("joint: expected 2 durations"));
}
