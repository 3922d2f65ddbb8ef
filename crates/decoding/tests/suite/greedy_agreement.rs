//! Tests of greedy transducer search: all implementations return equal results.
use std::sync::Arc;

use decoding::{
    Confidence, DecodedToken, DecodingModel, Error, Fusion, GreedyOptions, GreedySearch, GreedyStream,
    Hypothesis, frame_looping, greedy,
};
use proptest::prelude::*;
use rnnt_dp::Topology;

use serde_json::json;

use crate::beam_streams::replace_value;
use crate::table_models::{Unigram, frames, random_model};

const TOPOLOGIES: [&str; 8] = [
    "regular",
    "modified",
    "constrained",
    "regular+2,4",
    "modified+3",
    "tdt:0,1,2,4",
    "tdt:1,3",
    "tdt:0,2,8",
];

/// A random model of a topology: labels and the blank, then big blanks.
fn random_topology_model(
    name: &str,
    labels: usize,
    blank: usize,
    seed: u32,
    score_scale: f32,
) -> DecodingModel {
    let topology: Topology = name.parse().unwrap();
    let big = topology.token_list().len() - 2;
    let big: Vec<u32> = (0..big).map(|k| (labels + 1 + k) as u32).collect();
    random_model(&topology, labels + 1 + big.len(), (blank % (labels + 1)) as u32, &big, seed, score_scale)
}

/// Rows of utterances of some lengths.
fn utterances(lengths: &[usize]) -> Vec<Vec<f32>> {
    lengths.iter().enumerate().map(|(b, &length)| frames(1000 * b, length)).collect()
}

/// Labels with their frames and durations.
fn label_times(actual: &[DecodedToken]) -> Vec<(u32, usize, usize)> {
    actual.iter().map(|label| (label.label, label.frame, label.duration)).collect()
}

fn without_log_probs(actual: &Hypothesis) -> Hypothesis {
    let mut actual = actual.clone();
    actual.labels.iter_mut().for_each(|label| (label.log_prob, label.duration_log_prob) = (0.0, 0.0));
    actual
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Label-looping, frame-looping and the reference agree for all batch orders.
    #[test]
    fn batched_searches_match_the_reference(
        name in 0..TOPOLOGIES.len(), labels in 1usize..6, blank in 0usize..6, seed: u32, score_scale in 1.0f32..6.0,
        lengths in proptest::collection::vec(0usize..40, 1..9),
        max_symbols in proptest::option::weighted(0.8, 1usize..5),
        max_labels in proptest::option::weighted(0.3, 1usize..30),
        look_ahead in 1usize..40, rotate in 0usize..9, fused: bool,
    ) {
        let model = random_topology_model(TOPOLOGIES[name], labels, blank, seed, score_scale);
        let plain = GreedyOptions { max_symbols, max_labels, look_ahead, ..GreedyOptions::default() };
        let fusion = vec![Fusion { scorer: Arc::new(Unigram), weight: 0.7 }];
        let extended = GreedyOptions { fusion, confidence: Some(Confidence::default()), ..plain.clone() };
        let options = if fused { extended } else { plain };
        let rows = utterances(&lengths);
        let mut rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        rows.rotate_left(rotate % lengths.len());
        let expected: Vec<_> = rows.iter().map(|rows| greedy(&model, rows, &options).unwrap()).collect();
        let mut search = GreedySearch::new(model.clone(), options.clone()).unwrap();
        // Twice: the state of an earlier call must not matter.
        let batch: Vec<_> = search.decode(&rows).unwrap().iter().collect();
        let again: Vec<_> = search.decode(&rows).unwrap().iter().collect();
        prop_assert_eq!(&again, &batch);
        prop_assert_eq!(batch.len(), expected.len());
        for (batch, expected) in batch.iter().zip(&expected) {
            prop_assert_eq!(batch.labels.len(), expected.labels.len());
            for (actual, exact) in batch.labels.iter().zip(&expected.labels) {
                let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-6;
                prop_assert!(is_close(actual.log_prob, exact.log_prob), "{} {}", actual.log_prob, exact.log_prob);
                prop_assert!(is_close(actual.duration_log_prob, exact.duration_log_prob));
            }
            // Everything except log-probabilities is equal.
            prop_assert_eq!(without_log_probs(batch), without_log_probs(expected));
        }
        if fused {
            prop_assert!(frame_looping(&model, &rows, &options).is_err());
        } else {
            let actual = frame_looping(&model, &rows, &options).unwrap();
            prop_assert_eq!(&actual.iter().collect::<Vec<_>>(), &batch);
        }
    }

    /// Chunks match the whole utterance, for all segmentations and batches.
    #[test]
    fn chunks_match_the_whole_utterance(
        name in 0..TOPOLOGIES.len(), labels in 1usize..6, seed: u32, score_scale in 1.0f32..6.0,
        lengths in proptest::collection::vec(0usize..40, 1..6),
        cuts in proptest::collection::vec(0usize..9, 1..200),
        max_symbols in proptest::option::weighted(0.8, 1usize..4),
        max_labels in proptest::option::weighted(0.3, 1usize..30),
        look_ahead in 1usize..40, fused: bool, has_stream_fusion: bool,
    ) {
        let model = random_topology_model(TOPOLOGIES[name], labels, 0, seed, score_scale);
        let fusion = Fusion { scorer: Arc::new(Unigram), weight: 0.7 };
        let fusion = if fused { vec![fusion] } else { Vec::new() };
        let options = GreedyOptions { max_symbols, max_labels, look_ahead, fusion, ..GreedyOptions::default() };
        let rows = utterances(&lengths);
        let all: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let mut search = GreedySearch::new(model, options).unwrap();
        let stream_fusion = || match has_stream_fusion {
            true => vec![Fusion { scorer: Arc::new(Unigram), weight: -0.4 }; 2],
            false => Vec::new(),
        };
        let mut complete: Vec<GreedyStream> = all.iter().map(|_| search.stream().with_fusion(stream_fusion())).collect();
        let complete: Vec<_> = search.advance(&mut complete.iter_mut().collect::<Vec<_>>(), &all).unwrap().iter().collect();
        if !has_stream_fusion {
            prop_assert_eq!(&search.decode(&all).unwrap().iter().collect::<Vec<_>>(), &complete);
        }
        let mut streams: Vec<GreedyStream> = all.iter().map(|_| search.stream().with_fusion(stream_fusion())).collect();
        let mut actual: Vec<Vec<DecodedToken>> = vec![Vec::new(); all.len()];
        let (mut offsets, mut cuts) = (vec![0; all.len()], cuts.into_iter().cycle());
        let mut round = 0;
        while (0..all.len()).any(|b| offsets[b] < all[b].len()) {
            round += 1;
            // Not every utterance is in every batch.
            let batch_members: Vec<usize> = (0..all.len()).filter(|b| (b + round) % 3 > 0 || round > 50).collect();
            let ends: Vec<usize> = batch_members.iter().map(|&b| all[b].len().min(offsets[b] + cuts.next().unwrap() + round / 60)).collect();
            let chunks: Vec<&[f32]> = batch_members.iter().zip(&ends).map(|(&b, &end)| &all[b][offsets[b]..end]).collect();
            // Streams survive serialization.
            for stream in &mut streams {
                let text = serde_json::to_string(stream).unwrap();
                let read: GreedyStream = serde_json::from_str(&text).unwrap();
                prop_assert!(!has_stream_fusion || read.clone().restore_fusion(Vec::new()).is_err());
                *stream = read.restore_fusion(stream_fusion()).unwrap();
            }
            let mut selected: Vec<&mut GreedyStream> =
                streams.iter_mut().enumerate().filter(|(b, _)| batch_members.contains(b)).map(|(_, s)| s).collect();
            let new = search.advance(&mut selected, &chunks).unwrap();
            for (index, &b) in batch_members.iter().enumerate() {
                actual[b].extend(new.labels(index));
                offsets[b] = ends[index];
            }
        }
        for (b, complete) in complete.iter().enumerate() {
            prop_assert_eq!(&actual[b], &complete.labels);
            prop_assert_eq!(streams[b].labels(), complete.labels.len());
            prop_assert_eq!(streams[b].frames() + streams[b].skipped_frames(), complete.end_frame.max(lengths[b]));
            let trailing = complete.labels.last().map_or(lengths[b], |label| lengths[b] - 1 - label.frame);
            prop_assert_eq!(streams[b].trailing_frames(), trailing);
        }
    }
}

#[test]
fn invalid_scores_name_utterance_and_frame_and_keep_streams() {
    let model = random_topology_model("regular", 3, 0, 1, 3.0);
    let mut search = GreedySearch::new(model, GreedyOptions::default()).unwrap();
    let good = frames(0, 5);
    let mut bad = frames(0, 9);
    bad[6] = f32::NAN;
    let error = search.decode(&[&good, &bad]).unwrap_err();
    let Error::Utterance { utterance: 1, source } = &error else { panic!("{error:?}") };
    assert!(matches!(**source, Error::Score { frame: 6, .. }), "{error}");
    assert!(error.to_string().starts_with("utterance 1: score of class 0 at frame 6"), "{error}");

    let (mut first, mut second) = (search.stream(), search.stream());
    search.advance(&mut [&mut first, &mut second], &[&good, &good]).unwrap();
    let text = |stream: &GreedyStream| serde_json::to_string(stream).unwrap();
    let before = (text(&first), text(&second));
    let error = search.advance(&mut [&mut first, &mut second], &[&good, &bad[4..]]).unwrap_err();
    assert!(error.to_string().contains("at frame 7"), "{error}");
    assert_eq!(before, (text(&first), text(&second)));
}

#[test]
fn states_of_other_models_are_errors() {
    let search = |seed| {
        GreedySearch::new(random_topology_model("regular", 3, 0, seed, 3.0), GreedyOptions::default())
            .unwrap()
    };
    let mut search_of_model = search(1);
    let rows = frames(0, 4);
    let stream = search_of_model.stream();
    let text = serde_json::to_string(&stream).unwrap();
    let mut error_after_replacing = |from: &str, to: &str| {
        // Through a JSON value, as numbers in text must fit into f32.
        let value: serde_json::Value = serde_json::from_str(&text.replace(from, to)).unwrap();
        let mut stream: GreedyStream = serde_json::from_value(value).unwrap();
        assert_ne!(serde_json::to_string(&stream).unwrap(), text, "{from} was not there");
        search_of_model.advance(&mut [&mut stream], &[&rows]).unwrap_err().to_string()
    };
    assert!(error_after_replacing("\"model\":", "\"model\":1").contains("expected a state of this model"));
    assert!(error_after_replacing("\"rows\":1", "\"rows\":2").contains("stream: expected StateShape"));
    assert!(error_after_replacing("\"row\":[", "\"row\":[0.0,").contains("stream: expected StateShape"));
    assert!(
        error_after_replacing("\"automata\":[]", "\"automata\":[3]").contains("states of 0 language models")
    );
    assert!(
        error_after_replacing("\"frames\":0", "\"frames\":18446744073709551615")
            .contains("that can be counted")
    );
    assert!(error_after_replacing("\"newest\":null", "\"newest\":7").contains("that can be counted"));
    assert!(
        error_after_replacing("\"values\":[1.0]", "\"values\":[1e300]").contains("expected finite numbers")
    );
    let mut stream = stream.clone();
    let error = search(1).advance(&mut [&mut stream], &[]).unwrap_err();
    assert_eq!(error, Error::Count { argument: "chunks", expected: 1, found: 0 });
    // Another number of classes is another model, though its states have the same shape.
    let mut larger =
        GreedySearch::new(random_topology_model("regular", 4, 0, 1, 3.0), GreedyOptions::default()).unwrap();
    assert!(matches!(
        larger.advance(&mut [&mut stream], &[&rows]),
        Err(Error::Utterance { utterance: 0, .. })
    ));
}

/// Adds a constant to every label.
#[derive(Debug)]
struct ConstantScorer(f32);

impl decoding::Scorer for ConstantScorer {
    fn start(&self) -> u32 {
        0
    }
    fn step(&self, _: u32, _: u32) -> (f32, u32) {
        (self.0, 0)
    }
    fn add_scores(&self, _: u32, weight: f32, scores: &mut [f32]) {
        scores.iter_mut().for_each(|score| *score += weight * self.0);
    }
    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

#[test]
fn invalid_fusion_scores_are_errors() {
    let model = random_topology_model("regular", 3, 0, 1, 3.0);
    let rows = frames(0, 40);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let fusion = vec![Fusion { scorer: Arc::new(ConstantScorer(bad)), weight: 1.0 }];
        let options = GreedyOptions { fusion, ..GreedyOptions::default() };
        assert!(matches!(greedy(&model, &rows, &options), Err(Error::Fused { .. })), "{bad}");
        let mut search = GreedySearch::new(model.clone(), options).unwrap();
        let error = search.decode(&[&rows]).unwrap_err();
        assert!(error.to_string().starts_with("utterance 0: fused score of class"), "{error}");
    }
}

#[test]
fn different_models_have_different_fingerprints() {
    let all: Vec<u64> = ["regular", "modified", "tdt:0,1,2", "tdt:0,1,4", "regular+2", "regular+3"]
        .iter()
        .flat_map(|name| [1, 2].map(|seed| random_topology_model(name, 4, 0, seed, 3.0).fingerprint()))
        .collect();
    let different: std::collections::HashSet<&u64> = all.iter().collect();
    assert_eq!(different.len(), all.len());
}

proptest! {
    #[test]
    fn a_damaged_state_is_an_error_or_decodes(
        position in 0usize..30, replacement in 0usize..7, other in 0u64..9, name in 0..TOPOLOGIES.len(),
    ) {
        let mut search = GreedySearch::new(random_topology_model(TOPOLOGIES[name], 4, 0, 3, 3.0), GreedyOptions::default()).unwrap();
        let mut stream = search.stream();
        search.advance(&mut [&mut stream], &[&frames(0, 8)]).unwrap();
        let mut value = serde_json::to_value(&stream).unwrap();
        let replacements = [
            json!(u64::MAX), json!(u32::MAX), json!(-1.0), json!(1e300), json!(other), json!(null), json!(other as f64),
        ];
        replace_value(&mut value, &mut { position }, &replacements[replacement]);
        if let Ok(mut read) = serde_json::from_value::<GreedyStream>(value) {
            for chunk in [3, 0, 40] {
                search.advance(&mut [&mut read], &[&frames(8, chunk)]).ok();
                read.trailing_frames();
            }
        }
    }
}

#[test]
fn fusion_of_a_stream_does_not_change_others() {
    let model = random_topology_model("regular", 5, 0, 3, 3.0);
    let mut search = GreedySearch::new(model, GreedyOptions::default()).unwrap();
    let rows = frames(0, 60);
    let (mut plain, mut also) = (search.stream(), search.stream());
    let list = Fusion { scorer: Arc::new(Unigram), weight: 4.0 };
    let mut biased = search.stream().with_fusion(vec![list]);
    let actual = search.advance(&mut [&mut plain, &mut biased, &mut also], &[&rows, &rows, &rows]).unwrap();
    assert_eq!(label_times(actual.labels(0)), label_times(actual.labels(2)));
    assert_ne!(label_times(actual.labels(0)), label_times(actual.labels(1)));
    assert!(actual.labels(1).iter().all(|label| label.fused == 4.0 * Unigram::score(label.label)));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let model = random_topology_model("tdt:0,1,2,4", 5, 2, 9, 3.0);
    let rows = utterances(&[100, 3, 0, 57, 90, 12, 41]);
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut search = GreedySearch::new(model.clone(), GreedyOptions::default()).unwrap();
        pool.install(|| search.decode(&rows).unwrap().iter().collect::<Vec<_>>())
    };
    let single_threaded = run(1);
    assert!([2, 5].into_iter().all(|threads| run(threads) == single_threaded));
}

#[test]
fn empty_batches_are_valid() {
    let mut search =
        GreedySearch::new(random_topology_model("regular", 3, 0, 1, 3.0), GreedyOptions::default()).unwrap();
    assert!(search.decode(&[]).unwrap().is_empty());
    assert!(frame_looping(search.model(), &[], &GreedyOptions::default()).unwrap().is_empty());
    assert_eq!(search.decode(&[&[], &[]]).unwrap().get(1), decoding::Hypothesis::default());
}
