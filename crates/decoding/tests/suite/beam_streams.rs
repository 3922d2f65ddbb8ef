//! Tests of transducer beam search over streams: chunks, serialization, committed labels.
use std::sync::Arc;

use decoding::{
    BeamKind, BeamOptions, BeamSearch, BeamStream, Fusion, NetworkScratch, RankedHypothesis, Scorer,
};
use proptest::prelude::*;
use rnnt_dp::Topology;
use serde_json::{Value, json};

use super::paths::{LabelTwoScorer, LastLabelScorer, MAES, beam_options, random_models};
use super::table_models::{frames, random_model};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn chunks_match_the_whole_utterance(
        seed in 0u32..1000, cuts in proptest::collection::vec(0usize..6, 1..8), width in 1usize..6, take: bool, fused: bool,
    ) {
        for (topology, model) in random_models(seed, 4.0) {
            for kind in [BeamKind::Modified, MAES] {
                let mut options = BeamOptions { kind, width, nbest: width, ..BeamOptions::default() };
                if fused {
                    options.fusion.push(Fusion { scorer: Arc::new(LastLabelScorer), weight: 0.4 });
                }
                let Ok(mut search) = BeamSearch::new(model.clone(), options) else { continue };
                let total: usize = cuts.iter().sum();
                let utterances = [frames(0, total), frames(500, total)];
                let complete = search.decode(&[&utterances[0], &utterances[1]]).unwrap().to_vec();
                let mut streams = [search.stream().unwrap(), search.stream().unwrap()];
                let mut taken = [vec![], vec![]];
                let mut offset = 0;
                for &cut in &cuts {
                    let [a, b] = &mut streams;
                    let chunks = [&utterances[0][offset..offset + cut], &utterances[1][offset..offset + cut]];
                    offset += cut;
                    // The second stream is decoded separately and serialized.
                    search.advance(&mut [a], &chunks[..1]).unwrap();
                    let text = serde_json::to_string(b).unwrap();
                    let mut read: BeamStream = serde_json::from_str(&text).unwrap();
                    search.advance(&mut [&mut read], &chunks[1..]).unwrap();
                    *b = read;
                    if take {
                        taken[0].extend(a.take_stable());
                        taken[1].extend(b.take_stable());
                        prop_assert_eq!(taken[0].len(), a.taken());
                    }
                    prop_assert_eq!(a.frames(), offset);
                }
                let [a, b] = &mut streams;
                let ends = search.finish(&mut [a, b]).unwrap();
                for (b, ((end, complete), taken)) in ends.iter().zip(&complete).zip(&taken).enumerate() {
                    prop_assert_eq!(end.hypotheses.len(), complete.hypotheses.len(), "{} {:?}", topology, kind);
                    for (end, complete) in end.hypotheses.iter().zip(&complete.hypotheses) {
                        let labels: Vec<_> = taken.iter().chain(&end.labels).copied().collect();
                        if b == 0 {
                            prop_assert_eq!(&labels, &complete.labels);
                            prop_assert_eq!((end.log_prob, end.score), (complete.log_prob, complete.score));
                            continue;
                        }
                        // Text may lose the last bit of a number.
                        prop_assert_eq!(labels.len(), complete.labels.len());
                        for (a, b) in labels.iter().zip(&complete.labels) {
                            prop_assert_eq!((a.label, a.frame), (b.label, b.frame));
                        }
                        prop_assert!((end.log_prob - complete.log_prob).abs() < 1e-9);
                    }
                }
            }
        }
    }
}

#[test]
fn taking_stable_labels_bounds_a_stream() {
    let model = random_model(&Topology::rnnt(), 20, 0, &[], 3, 25.0);
    for kind in [BeamKind::Modified, MAES] {
        let mut search =
            BeamSearch::new(model.clone(), BeamOptions { kind, width: 3, ..BeamOptions::default() }).unwrap();
        let rows = frames(0, 4000);
        let complete = search.decode(&[&rows]).unwrap()[0].hypotheses[0].ids();
        let mut stream = search.stream().unwrap();
        let (mut taken, mut sizes) = (vec![], vec![]);
        for chunk in rows.chunks(50) {
            search.advance(&mut [&mut stream], &[chunk]).unwrap();
            taken.extend(stream.take_stable());
            sizes.push(serde_json::to_string(&stream).unwrap().len());
        }
        let end = search.finish(&mut [&mut stream]).unwrap()[0].hypotheses[0].labels.clone();
        assert!(
            taken.len() > 500 && *sizes[10..].iter().max().unwrap() < 60_000,
            "{} {sizes:?}",
            taken.len()
        );
        let ids: Vec<u32> = taken.iter().chain(&end).map(|label| label.label).collect();
        assert_eq!(ids, complete, "{kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn committing_keeps_hypotheses_with_the_prefix_of_the_best(
        seed in 0u32..1000, frames_before in 1usize..8, frames_after in 0usize..8, width in 1usize..7, labels in 0usize..6, take: bool,
    ) {
        for (topology, model) in random_models(seed, 2.0) {
            for kind in [BeamKind::Modified, MAES] {
                let mut options = BeamOptions { kind, width, nbest: 100, end_scores: false, ..BeamOptions::default() };
                options.fusion.push(Fusion { scorer: Arc::new(LastLabelScorer), weight: 0.4 });
                let Ok(mut search) = BeamSearch::new(model.clone(), options) else { continue };
                let rows = frames(0, frames_before + frames_after);
                let (before, after) = rows.split_at(frames_before * model.frame_width());
                let mut stream = search.stream().unwrap();
                let hypotheses = search.advance(&mut [&mut stream], &[before]).unwrap()[0].hypotheses.clone();
                let mut taken = if take { stream.take_stable() } else { vec![] };
                let stable_count = taken.len();
                taken.extend(search.commit(&mut stream, labels).unwrap());
                let best = &hypotheses[0].labels;
                let removed_count = (stable_count + labels).min(best.len());
                prop_assert_eq!((&taken[..], stream.taken()), (&best[..removed_count], removed_count), "{} {:?}", topology, kind);

                // Hypotheses with the same prefix remain in order; times of removed labels may
                // differ.
                let prefix: Vec<u32> = best[..removed_count].iter().map(|label| label.label).collect();
                let actual = search.advance(&mut [&mut stream], &[&[]]).unwrap()[0].hypotheses.clone();
                let expected: Vec<&RankedHypothesis> = hypotheses.iter().filter(|ranked| ranked.ids().starts_with(&prefix)).collect();
                prop_assert_eq!(actual.len(), expected.len());
                for (actual, expected) in actual.iter().zip(expected) {
                    prop_assert_eq!(&actual.labels[..], &expected.labels[removed_count..]);
                    prop_assert_eq!((actual.log_prob, actual.score), (expected.log_prob, expected.score));
                }

                // Predictor and scorer states are those of the labels.
                let state = serde_json::to_value(&stream).unwrap();
                let hyps = state["hyps"].as_array().unwrap();
                let rows_of = |name: &str| -> Vec<Vec<Value>> {
                    let all = state[name].as_array().unwrap();
                    all.chunks(all.len() / hyps.len()).map(<[Value]>::to_vec).collect()
                };
                for (index, hyp) in hyps.iter().enumerate() {
                    let has_log_prob = |ranked: &&RankedHypothesis| ranked.log_prob == hyp["log_prob"].as_f64().unwrap();
                    // With big blanks, hypotheses of equal labels are summed in a result.
                    let Some(ranked) = actual.iter().find(has_log_prob) else { continue };
                    let (mut states, mut row) = (model.start().0.clone(), model.start().1.to_vec());
                    let mut scorer = LastLabelScorer.start();
                    for label in prefix.iter().copied().chain(ranked.ids()) {
                        let mut predicted = vec![0.0; model.predictor().width()];
                        model.predictor().step(&[label], &mut states, &mut predicted, &mut NetworkScratch::default());
                        model.joint().project(&predicted, &mut row, &mut NetworkScratch::default());
                        scorer = LastLabelScorer.step(scorer, label).1;
                    }
                    prop_assert_eq!(&rows_of("automata")[index], &[Value::from(scorer)]);
                    for (actual, expected) in rows_of("rows")[index].iter().zip(&row) {
                        prop_assert!((actual.as_f64().unwrap() - f64::from(*expected)).abs() < 1e-5);
                    }
                }

                // The stream continues as if the removed prefix had not existed.
                let all_share_prefix = hypotheses.iter().all(|ranked| ranked.ids().starts_with(&prefix));
                let actual = search.advance(&mut [&mut stream], &[after]).unwrap()[0].hypotheses[0].clone();
                prop_assert_eq!(stream.frames(), frames_before + frames_after);
                if all_share_prefix {
                    let complete = search.decode(&[&rows]).unwrap()[0].hypotheses[0].clone();
                    prop_assert_eq!(actual.score, complete.score);
                    prop_assert_eq!(&actual.labels[..], &complete.labels[removed_count..]);
                }
            }
        }
    }
}

#[test]
fn a_stream_has_separate_fusion() {
    let model = random_model(&Topology::rnnt(), 4, 0, &[], 1, 2.0);
    let rows = frames(0, 8);
    let lists = vec![Fusion { scorer: Arc::new(LabelTwoScorer(f32::NEG_INFINITY)), weight: 1.0 }];
    let shared = Fusion { scorer: Arc::new(LastLabelScorer), weight: 0.5 };
    let options = BeamOptions { fusion: vec![shared.clone()], ..beam_options(BeamKind::Modified, 4) };
    let mut combined = options.clone();
    combined.fusion.extend(lists.clone());
    let mut search = BeamSearch::new(model.clone(), options).unwrap();
    let (mut with, mut without) = (search.stream().unwrap().with_fusion(lists), search.stream().unwrap());
    for chunk in rows.chunks(3) {
        search.advance(&mut [&mut with, &mut without], &[chunk, chunk]).unwrap();
    }
    let actual = search.finish(&mut [&mut with, &mut without]).unwrap().to_vec();
    assert_eq!(actual[1], search.decode(&[&rows]).unwrap()[0]);
    let mut search = BeamSearch::new(model, combined).unwrap();
    assert_eq!(actual[0], search.decode(&[&rows]).unwrap()[0]);
    assert_ne!(actual[0], actual[1]);
}

/// Replaces one scalar of a JSON value, by its position.
pub(crate) fn replace_value(value: &mut Value, position: &mut usize, replacement: &Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| replace_value(value, position, replacement)),
        Value::Object(all) => all.values_mut().for_each(|value| replace_value(value, position, replacement)),
        _ => {
            if *position == 0 {
                *value = replacement.clone();
            }
            *position = position.wrapping_sub(1);
        }
    }
}

proptest! {
    #[test]
    fn a_damaged_state_is_an_error_or_decodes(
        position in 0usize..400, replacement in 0usize..7, other in 0u64..9, cut in 0usize..9, maes: bool,
    ) {
        let model = random_model(&Topology::rnnt(), 5, 0, &[], 3, 3.0);
        let kind = if maes { BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 } } else { BeamKind::Modified };
        let mut search = BeamSearch::new(model, beam_options(kind, 3)).unwrap();
        let mut stream = search.stream().unwrap();
        search.advance(&mut [&mut stream], &[&frames(0, 8)]).unwrap();
        let mut value = serde_json::to_value(&stream).unwrap();
        let replacements = [json!(u64::MAX), json!(u32::MAX), json!(-1.0), json!(1e300), json!(other), json!(null), json!(other as f64)];
        replace_value(&mut value, &mut { position }, &replacements[replacement]);
        if cut < 4 {
            let list = ["states", "rows", "hyps", "automata"][cut];
            if let Some(list) = value[list].as_array_mut() {
                list.pop();
            }
        }
        if let Ok(mut read) = serde_json::from_value::<BeamStream>(value) {
            read.take_stable();
            if search.advance(&mut [&mut read], &[&frames(8, 3)]).is_ok() {
                search.finish(&mut [&mut read]).ok();
                read.take_stable();
            }
        }
    }
}

#[test]
fn excessive_counts_of_removed_labels_are_errors() {
    let model = random_model(&Topology::rnnt(), 4, 3, &[], 2, 3.0);
    let mut search = BeamSearch::new(model, beam_options(BeamKind::Modified, 3)).unwrap();
    let stream = search.stream().unwrap();
    let mut value = serde_json::to_value(&stream).unwrap();
    value["tree"]["taken"]["len"] = json!(u64::MAX);
    let mut read: BeamStream = serde_json::from_value(value).unwrap();
    assert!(search.advance(&mut [&mut read], &[&frames(0, 8)]).is_err());
}
