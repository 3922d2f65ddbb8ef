//! Greedy search over models that are made by hand.
use proptest::prelude::*;

use rnnt_dp::Topology;
use std::sync::LazyLock;

use super::*;

static REGULAR: LazyLock<Topology> = LazyLock::new(Topology::rnnt);

/// The state counts labels; a frame [wanted, emit] asks for class `wanted` while fewer than `emit` labels are out.
struct Script;

impl Transducer for Script {
    type State = u32;
    fn blank(&self) -> u32 {
        2
    }
    fn classes(&self) -> usize {
        3
    }
    fn width(&self) -> usize {
        2
    }
    fn topology(&self) -> &Topology {
        &REGULAR
    }
    fn start(&self) -> (u32, Vec<f32>) {
        (0, vec![0.0, 0.0])
    }
    fn step(&self, state: &u32, _label: u32) -> (u32, Vec<f32>) {
        (state + 1, vec![0.0, (state + 1) as f32])
    }
    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
        scores.fill(0.0);
        let class = if row[1] < frame[1] { frame[0] as usize } else { 2 };
        scores[class] = if frame[0].is_nan() { f32::NAN } else { 2.0 };
        if frame[1] == f32::NEG_INFINITY {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

#[test]
fn emits_labels_with_their_frames_and_probabilities() {
    let frames = [0.0, 0.0, 1.0, 1.0, 0.0, 3.0, 0.0, 3.0];
    let found = greedy(&Script, &frames, &Greedy::default()).unwrap();
    assert_eq!(found.labels, [1, 0, 0]);
    assert_eq!(found.frames, [1, 2, 2]);
    let expected = 2.0 - (2.0f64.exp() + 2.0).ln();
    for log_prob in found.log_probs {
        approx::assert_relative_eq!(log_prob, expected, max_relative = 1e-12);
    }
}

/// Scores of any kind: one row for each frame and number of labels so far, which are the state.
struct Table {
    topology: Topology,
    classes: usize,
    scores: Vec<f32>,
}

impl Table {
    fn row(&self, t: usize, u: usize) -> &[f32] {
        // Many more rows than anyone asks for differ; beyond them the table starts again.
        let rows = self.scores.len() / self.classes;
        &self.scores[(13 * t + u) % rows * self.classes..][..self.classes]
    }
}

impl Transducer for Table {
    type State = usize;
    fn blank(&self) -> u32 {
        0
    }
    fn classes(&self) -> usize {
        self.classes
    }
    fn width(&self) -> usize {
        1
    }
    fn topology(&self) -> &Topology {
        &self.topology
    }
    fn start(&self) -> (usize, Vec<f32>) {
        (0, vec![0.0])
    }
    fn step(&self, state: &usize, _: u32) -> (usize, Vec<f32>) {
        (state + 1, vec![(state + 1) as f32])
    }
    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
        scores.copy_from_slice(self.row(frame[0] as usize, row[0] as usize));
    }
}

proptest! {
    /// Walks along the path again: every label is the best class of its site, and every frame ends with the blank or with
    /// its last permitted label. One symbol a frame is the modified topology, and the constrained one.
    #[test]
    fn every_decision_on_the_path_is_the_best_one(
        scores in proptest::collection::vec(-4.0f32..4.0, 300),
        classes in 2usize..6,
        frames in 0usize..9,
        max_symbols in 1usize..4,
    ) {
        let mut table = Table { topology: Topology::rnnt(), classes, scores };
        let input: Vec<f32> = (0..frames).map(|t| t as f32).collect();
        let found = greedy(&table, &input, &Greedy { max_symbols }).unwrap();
        let best = |t, u| {
            let row = table.row(t, u);
            (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
        };
        let mut u = 0;
        for t in 0..frames {
            let here = found.frames.iter().filter(|&&frame| frame == t).count();
            prop_assert!(here <= max_symbols);
            for _ in 0..here {
                prop_assert_eq!((found.labels[u] as usize, found.frames[u]), (best(t, u), t));
                let row = table.row(t, u);
                let sum: f64 = row.iter().map(|&score| f64::from(score).exp()).sum();
                let expected = f64::from(row[best(t, u)]) - sum.ln();
                prop_assert!((found.log_probs[u] - expected).abs() < 1e-6);
                u += 1;
            }
            prop_assert!(here == max_symbols || best(t, u) == 0);
        }
        prop_assert_eq!(u, found.labels.len());
        let one = greedy(&table, &input, &Greedy { max_symbols: 1 }).unwrap();
        for topology in [Topology::modified(), Topology::constrained()] {
            table.topology = topology;
            prop_assert_eq!(&greedy(&table, &input, &Greedy { max_symbols }).unwrap(), &one);
        }
    }
}

#[test]
fn a_frame_emits_no_more_than_allowed() {
    let found = greedy(&Script, &[1.0, 100.0, 1.0, 100.0], &Greedy { max_symbols: 3 }).unwrap();
    assert_eq!(found.frames, [0, 0, 0, 1, 1, 1]);
}

#[test]
fn no_frames_give_an_empty_hypothesis() {
    assert_eq!(greedy(&Script, &[], &Greedy::default()).unwrap(), Hypothesis::default());
}

#[test]
fn bad_input_is_named() {
    let options = Greedy::default();
    assert_eq!(greedy(&Script, &[0.0; 3], &options), Err(Error::Frames { width: 2, found: 3 }));
    let none = Greedy { max_symbols: 0 };
    assert!(matches!(greedy(&Script, &[0.0; 2], &none), Err(Error::Option { option: "max_symbols", .. })));
    let found = greedy(&Script, &[0.0, 0.0, f32::NAN, 1.0], &options);
    assert!(matches!(found, Err(Error::Score { frame: 1, class: 0, .. })), "{found:?}");
    let found = greedy(&Script, &[0.0, f32::NEG_INFINITY], &options);
    assert!(matches!(found, Err(Error::Score { frame: 0, .. })), "{found:?}");
}

#[test]
fn a_blank_outside_the_classes_is_named() {
    struct Foreign;
    impl Transducer for Foreign {
        type State = ();
        fn blank(&self) -> u32 {
            7
        }
        fn classes(&self) -> usize {
            3
        }
        fn width(&self) -> usize {
            1
        }
        fn topology(&self) -> &Topology {
            &REGULAR
        }
        fn start(&self) -> ((), Vec<f32>) {
            ((), vec![0.0])
        }
        fn step(&self, _: &(), _: u32) -> ((), Vec<f32>) {
            ((), vec![0.0])
        }
        fn joint(&self, _: &[f32], _: &[f32], _: &mut [f32]) {}
    }
    assert_eq!(greedy(&Foreign, &[0.0], &Greedy::default()), Err(Error::Blank { blank: 7, classes: 3 }));
}

/// A model whose score rows are written down: `rows[t][u]`, classes `{0, 1, blank 2, big 3, big 4}` and durations.
struct Written {
    rows: Vec<Vec<Vec<f32>>>,
    classes: usize,
    topology: Topology,
    big_blanks: Vec<u32>,
}

impl Transducer for Written {
    type State = usize;
    fn blank(&self) -> u32 {
        2
    }
    fn classes(&self) -> usize {
        self.classes
    }
    fn width(&self) -> usize {
        1
    }
    fn topology(&self) -> &Topology {
        &self.topology
    }
    fn big_blanks(&self) -> &[u32] {
        &self.big_blanks
    }
    fn start(&self) -> (usize, Vec<f32>) {
        (0, vec![0.0])
    }
    fn step(&self, state: &usize, _: u32) -> (usize, Vec<f32>) {
        (state + 1, vec![(state + 1) as f32])
    }
    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
        scores.copy_from_slice(&self.rows[frame[0] as usize][row[0] as usize]);
    }
}

fn frames(count: usize) -> Vec<f32> {
    (0..count).map(|t| t as f32).collect()
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
    let model =
        Written { rows, classes: 5, topology: "regular+2,3".parse().unwrap(), big_blanks: vec![3, 4] };
    let found = greedy(&model, &frames(8), &Greedy::default()).unwrap();
    assert_eq!((&found.labels[..], &found.frames[..]), (&[1, 0][..], &[2, 3][..]));
    let expected = 3.0 - (3.0f64.exp() + 4.0).ln();
    found.log_probs.iter().for_each(|&p| approx::assert_relative_eq!(p, expected, max_relative = 1e-12));
}

#[test]
fn durations_move_labels_and_blanks_on() {
    // Durations 0, 1, 3 in columns 3, 4, 5.
    let (at, no) = (|class, duration: usize| row(6, class, Some(3 + duration)), || never(6));
    let mut stays = at(2, 0); // the blank and 0 are best: the best of the others is 3
    stays[5] = 1.0;
    let rows = vec![
        vec![at(0, 0), at(1, 2), no(), no()], // label 0 stays, label 1 moves on by 3
        vec![no(), no(), no(), no()],
        vec![no(), no(), no(), no()],
        vec![no(), no(), stays, no()],
        vec![no(), no(), no(), no()],
        vec![no(), no(), no(), no()],
        vec![no(), no(), at(2, 1), no()], // the blank, by 1
        vec![no(), no(), at(1, 2), no()], // a label that would move on beyond the end
        vec![no(), no(), no(), no()],
    ];
    let model = Written { rows, classes: 3, topology: "tdt:0,1,3".parse().unwrap(), big_blanks: Vec::new() };
    let found = greedy(&model, &frames(9), &Greedy::default()).unwrap();
    assert_eq!((&found.labels[..], &found.frames[..]), (&[0, 1, 1][..], &[0, 0, 7][..]));
    // Durations are no part of a label's probability.
    let expected = 3.0 - (3.0f64.exp() + 2.0).ln();
    found.log_probs.iter().for_each(|&p| approx::assert_relative_eq!(p, expected, max_relative = 1e-12));
}

#[test]
fn a_duration_of_zero_cannot_hold_a_frame_forever() {
    let rows = vec![vec![row(5, 1, Some(3)); 9]; 3];
    let model = Written { rows, classes: 3, topology: "tdt:0,2".parse().unwrap(), big_blanks: Vec::new() };
    let found = greedy(&model, &frames(3), &Greedy { max_symbols: 2 }).unwrap();
    assert_eq!(found.frames, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn blanks_and_durations_that_make_no_sense_are_named() {
    let model = |big_blanks: &[u32], topology: &str| {
        let topology: Topology = topology.parse().unwrap();
        let rows = vec![vec![row(4 + topology.durations(), 2, None)]];
        Written { rows, classes: 4, topology, big_blanks: big_blanks.to_vec() }
    };
    let run = |model: Written| greedy(&model, &[0.0], &Greedy::default());
    assert!(run(model(&[3], "regular+2")).is_ok());
    for bad in [4, 2] {
        assert_eq!(run(model(&[bad], "regular+2")), Err(Error::BigBlank { class: bad, classes: 4 }));
    }
    assert_eq!(run(model(&[3], "regular")), Err(Error::BigBlanks { expected: 0, found: 1 }));
    assert_eq!(run(model(&[], "modified+2")), Err(Error::BigBlanks { expected: 1, found: 0 }));
    let arc = |frames, labels| rnnt_dp::Arc { frames, labels, may_end: labels == 0 };
    for arcs in [vec![arc(1, 0)], vec![arc(1, 0), arc(0, 2)], vec![arc(1, 0), arc(0, 1), arc(1, 1)]] {
        let topology = Topology::new(arcs).unwrap();
        let odd = Written { topology: topology.clone(), ..model(&[], "regular") };
        assert_eq!(run(odd), Err(Error::Topology { found: topology }));
    }
    let mut bad = model(&[], "tdt:0,1");
    bad.rows[0][0][5] = f32::NAN;
    assert!(matches!(run(bad), Err(Error::Score { frame: 0, class: 5, .. })));
    let mut bad = model(&[], "tdt:0,1");
    bad.rows[0][0][4..].fill(f32::NEG_INFINITY);
    assert!(matches!(run(bad), Err(Error::Score { frame: 0, class: 4, .. })));
}
