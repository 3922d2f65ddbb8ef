//! Tests of CTC search: results match sums over all paths of short utterances.
use std::collections::BTreeMap;
use std::sync::Arc;

use decoding::{CtcBeamOptions, CtcGreedySearch, Error, Fusion, Scorer, ctc_beam, ctc_greedy};
use proptest::prelude::*;

/// Deterministic pseudo-random log-probabilities `[T, C]`.
pub(crate) fn random_log_probs(count: usize, classes: usize, seed: u32, score_scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(99);
    let mut log_probs = Vec::new();
    for _ in 0..count {
        let row: Vec<f32> = (0..classes)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                score_scale * (state >> 8) as f32 / (1 << 24) as f32
            })
            .collect();
        let sum = row.iter().map(|z| f64::from(*z).exp()).sum::<f64>().ln() as f32;
        log_probs.extend(row.iter().map(|z| z - sum));
    }
    log_probs
}

/// A language model with a state for each last label.
#[derive(Debug)]
struct BigramScorer;

impl Scorer for BigramScorer {
    fn start(&self) -> u32 {
        50
    }
    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        (-((state * 3 + class * 11) as f32 * 0.7).sin().abs(), class)
    }
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        for (class, score) in scores.iter_mut().enumerate() {
            *score += weight * self.step(state, class as u32).0;
        }
    }
    fn finish(&self, state: u32) -> f32 {
        -0.03 * state as f32
    }
}

/// Paths of a label sequence.
#[derive(Clone, Default)]
pub(crate) struct SequenceSum {
    /// Probability of all paths.
    pub sum: f64,
    /// Log-probability of the best path.
    best_log_prob: f64,
    /// Frames of the labels on the best path.
    label_frames: Vec<usize>,
}

/// Sum and best path of every label sequence.
pub(crate) fn all_paths(rows: &[f32], classes: usize, blank: u32) -> BTreeMap<Vec<u32>, SequenceSum> {
    let frames = rows.len() / classes;
    let mut sums: BTreeMap<Vec<u32>, SequenceSum> = BTreeMap::new();
    // The digits of a path's number to the base `classes` are its classes.
    for mut path_number in 0..classes.pow(frames as u32) {
        let (mut labels, mut label_frames, mut log_prob, mut last_class) = (vec![], vec![], 0.0, blank);
        for t in 0..frames {
            let class = (path_number % classes) as u32;
            path_number /= classes;
            log_prob += f64::from(rows[t * classes + class as usize]);
            if class != blank && class != last_class {
                labels.push(class);
                label_frames.push(t);
            }
            last_class = class;
        }
        let no_paths = SequenceSum { sum: 0.0, best_log_prob: f64::NEG_INFINITY, label_frames: vec![] };
        let sequence = sums.entry(labels).or_insert(no_paths);
        sequence.sum += log_prob.exp();
        if log_prob > sequence.best_log_prob {
            (sequence.best_log_prob, sequence.label_frames) = (log_prob, label_frames);
        }
    }
    sums
}

#[test]
fn an_exhaustive_beam_finds_every_sum_and_the_frames_of_the_best_path() {
    for seed in 0..20 {
        let blank = seed % 3;
        let rows = random_log_probs(6, 3, seed, 3.0);
        for weight in [None, Some(0.8f32)] {
            let fusion: Vec<Fusion> =
                weight.iter().map(|&weight| Fusion { scorer: Arc::new(BigramScorer), weight }).collect();
            let options =
                CtcBeamOptions { blank, width: 500, nbest: 500, fusion, ..CtcBeamOptions::default() };
            let actual = &ctc_beam(&[&rows], 3, &options).unwrap()[0].hypotheses;
            let sequence_sums = all_paths(&rows, 3, blank);
            assert_eq!(actual.len(), sequence_sums.len());
            for ranked in actual {
                let sequence = &sequence_sums[&ranked.ids()];
                let mut expected = sequence.sum.ln();
                if let Some(weight) = weight {
                    let mut state = BigramScorer.start();
                    for label in &ranked.labels {
                        let (score, next) = BigramScorer.step(state, label.label);
                        assert!((label.fused - weight * score).abs() < 1e-6);
                        (expected, state) = (expected + f64::from(weight * score), next);
                    }
                    expected += f64::from(weight * BigramScorer.finish(state));
                }
                assert!((ranked.log_prob - expected).abs() < 1e-5, "{seed} {}: {expected}", ranked.log_prob);
                let label_frames: Vec<usize> = ranked.labels.iter().map(|label| label.frame).collect();
                assert_eq!(label_frames, sequence.label_frames, "{seed} {:?}", ranked.ids());
            }
            assert!(actual.is_sorted_by(|a, b| a.score >= b.score));
        }
    }
}

/// A prefix of the reference searches, with probabilities of its paths.
#[derive(Clone)]
struct ReferencePrefix {
    labels: Vec<u32>,
    /// Probability of the paths that end with a blank.
    blank_prob: f64,
    /// Probability of the paths that end with the last label.
    label_prob: f64,
}

impl ReferencePrefix {
    /// The empty sequence before the first frame.
    fn start() -> Self {
        Self { labels: Vec::new(), blank_prob: 1.0, label_prob: 0.0 }
    }

    fn prob(&self) -> f64 {
        self.blank_prob + self.label_prob
    }
}

/// Adds the probabilities of paths to those of the same sequence.
fn add_paths(prefixes: &mut Vec<ReferencePrefix>, labels: Vec<u32>, blank_prob: f64, label_prob: f64) {
    match prefixes.iter_mut().find(|prefix| prefix.labels == labels) {
        Some(prefix) => {
            prefix.blank_prob += blank_prob;
            prefix.label_prob += label_prob;
        }
        None => prefixes.push(ReferencePrefix { labels, blank_prob, label_prob }),
    }
}

/// Reference implementation: prefix beam search over all classes of all prefixes.
fn reference_beam(
    rows: &[f32],
    classes: usize,
    blank: u32,
    width: usize,
    weight: f64,
) -> Vec<(Vec<u32>, f64)> {
    let mut beam = vec![ReferencePrefix::start()];
    for row in rows.chunks(classes) {
        let without_paths =
            |prefix: &ReferencePrefix| ReferencePrefix { blank_prob: 0.0, label_prob: 0.0, ..prefix.clone() };
        let mut next: Vec<ReferencePrefix> = beam.iter().map(without_paths).collect();
        for prefix in &beam {
            let labels = &prefix.labels;
            let mut state = BigramScorer.start();
            labels.iter().for_each(|&label| state = BigramScorer.step(state, label).1);
            for (class, &score) in row.iter().enumerate() {
                let prob = f64::from(score).exp();
                if class as u32 == blank {
                    add_paths(&mut next, labels.clone(), prefix.prob() * prob, 0.0);
                    continue;
                }
                let repeats = labels.last() == Some(&(class as u32));
                if repeats {
                    add_paths(&mut next, labels.clone(), 0.0, prefix.label_prob * prob);
                }
                let mut longer = labels.clone();
                longer.push(class as u32);
                let fused = (weight * f64::from(BigramScorer.step(state, class as u32).0)).exp();
                let extensible_prob = if repeats { prefix.blank_prob } else { prefix.prob() };
                add_paths(&mut next, longer, 0.0, prob * fused * extensible_prob);
            }
        }
        next.sort_by(|a, b| b.prob().total_cmp(&a.prob()));
        next.truncate(width);
        next.retain(|prefix| prefix.prob() > 0.0);
        beam = next;
    }
    let with_log_prob = |prefix: ReferencePrefix| {
        let log_prob = prefix.prob().ln();
        (prefix.labels, log_prob)
    };
    beam.into_iter().map(with_log_prob).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_width_matches_the_reference_search(
        seed in 0u32..10_000, count in 0usize..12, classes in 2usize..30, width in 1usize..7, fused: bool,
    ) {
        let rows = random_log_probs(count, classes, seed, 4.0);
        let blank = seed % classes as u32;
        let weight = if fused { 0.5 } else { 0.0 };
        let fusion = if fused { vec![Fusion { scorer: Arc::new(BigramScorer) as _, weight: 0.5 }] } else { vec![] };
        let options = CtcBeamOptions { blank, width, nbest: width, fusion, end_scores: false, ..CtcBeamOptions::default() };
        let actual = ctc_beam(&[&[], &rows], classes, &options).unwrap();
        prop_assert_eq!((actual[0].hypotheses.len(), actual[0].hypotheses[0].log_prob), (1, 0.0));
        let expected = reference_beam(&rows, classes, blank, width, weight);
        prop_assert_eq!(actual[1].hypotheses.len(), expected.len());
        for (ranked, (ids, log_prob)) in actual[1].hypotheses.iter().zip(&expected) {
            prop_assert_eq!(&ranked.ids(), ids);
            prop_assert!((ranked.log_prob - log_prob).abs() < 1e-4);
            prop_assert!(ranked.labels.is_sorted_by(|a, b| a.frame < b.frame));
        }
        prop_assert_eq!(&ctc_beam(&[&rows], classes, &options).unwrap()[0], &actual[1]);
    }
}

#[test]
fn long_utterances_match_the_best_path_and_the_reference_beam() {
    let rows = random_log_probs(3000, 5, 4, 9.0);
    let actual = ctc_greedy(&[&rows], 5, 0).unwrap();
    // Labels of the best path, with their frames.
    let mut expected: Vec<(u32, usize)> = vec![];
    let mut last_class = 0;
    for (t, row) in rows.chunks(5).enumerate() {
        let class = (0..5).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        if class != 0 && class != last_class {
            expected.push((class, t));
        }
        last_class = class;
    }
    let labels: Vec<(u32, usize)> = actual[0].labels.iter().map(|label| (label.label, label.frame)).collect();
    assert_eq!((labels, actual[0].end_frame), (expected, 3000));
    let best = ctc_beam(&[&rows], 5, &CtcBeamOptions { width: 6, ..CtcBeamOptions::default() }).unwrap();
    assert!(best[0].hypotheses[0].labels.len() > 500);
    assert_eq!(best[0].hypotheses[0].ids(), reference_beam_ids(&rows));
}

/// Labels of the reference search with rescaled frames, which do not underflow.
fn reference_beam_ids(rows: &[f32]) -> Vec<u32> {
    let mut beam = vec![ReferencePrefix::start()];
    for row in rows.chunks(5) {
        let mut next: Vec<ReferencePrefix> = Vec::new();
        for prefix in &beam {
            let labels = &prefix.labels;
            for (class, &score) in row.iter().enumerate() {
                let prob = f64::from(score).exp();
                let repeats = class != 0 && labels.last() == Some(&(class as u32));
                let mut longer = labels.clone();
                longer.push(class as u32);
                match (class, repeats) {
                    (0, _) => add_paths(&mut next, labels.clone(), prefix.prob() * prob, 0.0),
                    (_, true) => {
                        add_paths(&mut next, labels.clone(), 0.0, prefix.label_prob * prob);
                        add_paths(&mut next, longer, 0.0, prefix.blank_prob * prob);
                    }
                    _ => add_paths(&mut next, longer, 0.0, prefix.prob() * prob),
                }
            }
        }
        next.sort_by(|a, b| b.prob().total_cmp(&a.prob()));
        next.truncate(6);
        let best_prob = next[0].prob();
        for prefix in &mut next {
            prefix.blank_prob /= best_prob;
            prefix.label_prob /= best_prob;
        }
        beam = next;
    }
    beam.swap_remove(0).labels
}

#[test]
fn invalid_scores_name_utterance_and_frame() {
    let good = random_log_probs(3, 4, 1, 2.0);
    for (bad, class) in [(f32::NAN, 2), (f32::INFINITY, 2), (f32::NEG_INFINITY, 0)] {
        let mut broken = good.clone();
        match bad == f32::NEG_INFINITY {
            true => broken[4..8].fill(bad),
            false => broken[6] = bad,
        }
        let greedy = ctc_greedy(&[&good, &broken], 4, 0).map(|_| ());
        for outcome in [greedy, ctc_beam(&[&good, &broken], 4, &CtcBeamOptions::default()).map(|_| ())] {
            let Err(Error::Utterance { utterance: 1, source }) = outcome else { panic!("{outcome:?}") };
            assert!(
                matches!(*source, Error::Score { frame: 1, class: actual, .. } if actual == class),
                "{source}"
            );
        }
    }
    let error =
        |rows: &[f32], options: &CtcBeamOptions| ctc_beam(&[rows], 4, options).unwrap_err().to_string();
    assert!(
        error(&good[1..], &CtcBeamOptions::default())
            .starts_with("utterance 0: frames: expected whole rows of 4")
    );
    assert!(error(&good, &CtcBeamOptions { blank: 4, ..CtcBeamOptions::default() }).starts_with("blank"));
    assert!(error(&good, &CtcBeamOptions { width: 0, ..CtcBeamOptions::default() }).starts_with("width"));
    assert!(error(&good, &CtcBeamOptions { nbest: 0, ..CtcBeamOptions::default() }).starts_with("nbest"));
    let fusion = vec![Fusion { scorer: Arc::new(BigramScorer), weight: f32::NAN }];
    assert!(
        error(&good, &CtcBeamOptions { fusion, ..CtcBeamOptions::default() }).starts_with("fusion weight")
    );
}

/// Labels, frames and log-probabilities of a greedy search by the definition.
fn reference_greedy(scores: &[f32], classes: usize, blank: u32) -> Vec<(u32, usize, f64)> {
    let mut path = Vec::new();
    for (t, row) in scores.chunks(classes).enumerate() {
        let mut best = 0;
        for class in 1..classes {
            if row[class] > row[best] {
                best = class;
            }
        }
        let sum: f64 = row.iter().map(|&score| f64::from(score - row[best]).exp()).sum();
        path.push((best as u32, t, -sum.ln()));
    }
    let runs = path.chunk_by(|a, b| a.0 == b.0).map(|run| run[0]);
    runs.filter(|&(class, ..)| class != blank).collect()
}

/// Asserts that labels, frames and log-probabilities are those of the reference.
fn assert_reference(labels: &[decoding::DecodedToken], expected: &[(u32, usize, f64)]) {
    assert_eq!(labels.len(), expected.len());
    for (actual, &(label, frame, log_prob)) in labels.iter().zip(expected) {
        assert_eq!((actual.label, actual.frame, actual.duration), (label, frame, 1));
        assert!((actual.log_prob - log_prob).abs() < 1e-5, "{actual:?} {log_prob}");
    }
}

#[test]
fn greedy_search_of_logits_matches_the_definition() {
    for seed in 0..20 {
        let (blank, classes) = (seed % 5, 5);
        let log_probs = random_log_probs(60, classes, seed, 4.0);
        // Each row has another shift; ties go to the lower class.
        let mut logits: Vec<f32> =
            log_probs.iter().enumerate().map(|(i, p)| p + (i / classes) as f32 * 0.25 - 3.0).collect();
        logits[10 * classes..12 * classes].fill(1.5);
        let search = CtcGreedySearch::new(classes, blank).unwrap();
        let hypotheses = search.decode(&[&logits, &[], &log_probs]).unwrap();
        assert_reference(&hypotheses[0].labels, &reference_greedy(&logits, classes, blank));
        assert_reference(&hypotheses[2].labels, &reference_greedy(&log_probs, classes, blank));
        assert!(
            hypotheses[0].labels.len() > 10 && hypotheses[0].end_frame == 60 && hypotheses[1].end_frame == 0
        );
        let labels = |hypothesis: &decoding::Hypothesis| {
            hypothesis.labels.iter().map(|label| (label.label, label.frame)).collect::<Vec<_>>()
        };
        let plain = ctc_greedy(&[&log_probs], classes, blank).unwrap();
        assert_eq!(labels(&plain[0]), labels(&hypotheses[2]));
    }
}

#[test]
fn greedy_streams_have_the_labels_of_the_whole_for_any_chunks() {
    let (classes, blank) = (4, 1);
    let utterances = [random_log_probs(80, classes, 5, 3.0), random_log_probs(50, classes, 6, 3.0)];
    let search = CtcGreedySearch::new(classes, blank).unwrap();
    let hypotheses = search.decode(&[&utterances[0], &utterances[1]]).unwrap();
    for sizes in [&[1][..], &[3, 0, 7], &[80]] {
        let (mut streams, mut labels) = ([search.stream(), search.stream()], [vec![], vec![]]);
        let mut start = 0;
        for &size in sizes.iter().cycle() {
            let chunk = |rows: &[f32]| {
                let range = |frame: usize| (frame * classes).min(rows.len());
                rows[range(start)..range(start + size)].to_vec()
            };
            let chunks = utterances.each_ref().map(|rows| chunk(rows));
            // The state may be stored between chunks.
            streams =
                streams.map(|stream| serde_json::from_str(&serde_json::to_string(&stream).unwrap()).unwrap());
            let new_hypotheses = search
                .advance(&mut streams.iter_mut().collect::<Vec<_>>(), &[&chunks[0], &chunks[1]])
                .unwrap();
            let new_labels = new_hypotheses.into_iter().map(|hypothesis| hypothesis.labels);
            labels.iter_mut().zip(new_labels).for_each(|(labels, new_labels)| labels.extend(new_labels));
            start += size;
            if start >= 80 {
                break;
            }
        }
        assert_eq!(streams.each_ref().map(|stream| stream.frames()), [80, 50]);
        assert_eq!(labels.each_ref(), [&hypotheses[0].labels, &hypotheses[1].labels], "{sizes:?}");
    }
}

#[test]
fn invalid_chunks_and_states_are_errors_and_leave_streams_unchanged() {
    let search = CtcGreedySearch::new(3, 0).unwrap();
    let mut streams = [search.stream(), search.stream()];
    let start = streams[0].clone();
    let rows = random_log_probs(2, 3, 1, 1.0);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut broken = rows.clone();
        broken[4] = bad;
        let [first, second] = &mut streams;
        let Err(Error::Utterance { utterance: 1, source }) =
            search.advance(&mut [first, second], &[&rows, &broken])
        else {
            panic!("{bad}")
        };
        assert!(matches!(*source, Error::Score { frame: 1, class: 1, .. }), "{source}");
        assert!(streams.iter().all(|stream| *stream == start));
    }
    let error = search.decode(&[&rows[1..]]).unwrap_err().to_string();
    assert!(error.contains("expected whole rows of 3"), "{error}");
    let error = search.advance(&mut [], &[&rows]).unwrap_err();
    assert!(matches!(error, Error::Count { argument: "chunks", .. }), "{error}");
    let mut stream = CtcGreedySearch::new(4, 0).unwrap().stream();
    let error = search.advance(&mut [&mut stream], &[&rows]).unwrap_err().to_string();
    assert!(error.contains("a search over 3 classes"), "{error}");
    assert!(matches!(CtcGreedySearch::new(3, 3), Err(Error::Blank { .. })));
}
