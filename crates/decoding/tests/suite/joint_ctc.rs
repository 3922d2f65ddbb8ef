//! Tests of transducer beam search with CTC prefix scores: sums match all paths of both.
use std::collections::BTreeMap;
use std::sync::Arc;

use decoding::{
    BeamKind, BeamOptions, BeamSearch, CtcPrefixScorer, Error, Fusion, Phrase, PhraseBooster, Scorer,
    ctc_greedy,
};
use proptest::prelude::*;
use rnnt_dp::Topology;

use super::ctc::{all_paths, random_log_probs};
use super::paths::{
    MAES, PathLimits, UNPRUNED_WIDTH, assert_sums, beam_options, random_models, sum_over_paths,
};
use super::table_models::{frames, random_model};

/// Score and state of a label sequence.
fn score_sequence(scorer: &dyn Scorer, labels: &[u32]) -> (f64, u32) {
    labels.iter().fold((0.0, scorer.start()), |(sum, state), &label| {
        let (score, next) = scorer.step(state, label);
        (sum + f64::from(score), next)
    })
}

/// All label sequences up to a length.
fn label_sequences(classes: u32, blank: u32, max_labels: usize) -> Vec<Vec<u32>> {
    let mut all = vec![vec![]];
    let mut begin = 0;
    for _ in 0..max_labels {
        let end = all.len();
        for prefix in begin..end {
            for label in (0..classes).filter(|&label| label != blank) {
                all.push([&all[prefix][..], &[label]].concat());
            }
        }
        begin = end;
    }
    all
}

/// Whether two numbers are equal up to a relative error of 1e-5.
fn is_close(actual: f64, expected: f64) -> bool {
    actual == expected || (actual - expected).abs() < 1e-5 * (1.0 + expected.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn scores_match_sums_over_all_paths_with_the_prefix(
        seed in 0u32..10_000, count in 0usize..6, score_scale in 0.0f32..9.0, shift in prop::sample::select(vec![0.0f32, -500.0, 500.0]), forbid: bool,
    ) {
        let (classes, blank) = (3, seed % 3);
        let mut rows = random_log_probs(count, classes, seed, score_scale);
        if forbid && count > 1 {
            // One frame forbids a label, another the blank.
            rows[classes + (blank as usize + 1) % 3] = f32::NEG_INFINITY;
            rows[blank as usize] = f32::NEG_INFINITY;
        }
        let mut normalized = rows.clone();
        for row in normalized.chunks_exact_mut(classes) {
            let sum = row.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln() as f32;
            row.iter_mut().for_each(|z| *z -= sum);
        }
        let sequence_sums = all_paths(&normalized, classes, blank);
        // Logits are as valid as log-probabilities.
        rows.iter_mut().for_each(|z| *z += shift);
        let ctc = CtcPrefixScorer::new(&rows, classes, blank).unwrap();
        for labels in label_sequences(3, blank, count + 1) {
            let prefix_prob: f64 =
                sequence_sums.iter().filter(|(ids, _)| ids.starts_with(&labels)).map(|(_, sequence)| sequence.sum).sum();
            let complete_prob = sequence_sums.get(&labels).map_or(0.0, |sequence| sequence.sum);
            let (score, state) = score_sequence(&ctc, &labels);
            let tolerance = if shift == 0.0 { 1e-5 } else { 2e-3 };
            prop_assert!((score.exp() - prefix_prob).abs() < tolerance * prefix_prob.max(1e-30) + 1e-12, "{labels:?}: {} is not {prefix_prob}", score.exp());
            let end = (score + f64::from(ctc.finish(state))).exp();
            prop_assert!((end - complete_prob).abs() < tolerance * complete_prob + 1e-12, "{labels:?} ends: {end} is not {complete_prob}");

            // `add_scores` matches `step` bit by bit, and equal sequences have one state.
            let mut row = [0.5f32; 3];
            ctc.add_scores(state, 0.7, &mut row);
            for (class, actual) in row.iter().enumerate() {
                let (score, next) = ctc.step(state, class as u32);
                let expected = if class == blank as usize { 0.5 } else { 0.5 + 0.7 * score };
                prop_assert_eq!(actual.to_bits(), expected.to_bits());
                prop_assert_eq!(ctc.step(state, class as u32), (score, next));
                prop_assert_eq!(class == blank as usize, next == state);
            }
        }
    }

    #[test]
    fn scores_of_long_utterances_sum_to_their_total(seed in 0u32..1000, count in 100usize..700, score_scale in 1.0f32..60.0) {
        // These sums underflow f64 except as logarithms.
        let rows = random_log_probs(count, 5, seed, score_scale);
        let labels = ctc_greedy(&[&rows], 5, 2).unwrap()[0].ids();
        let ctc = CtcPrefixScorer::new(&rows, 5, 2).unwrap();
        for labels in [&labels[..], &labels[..labels.len() / 2]] {
            let (score, state) = score_sequence(&ctc, labels);
            // Without the final score.
            let end = f64::from(ctc.finish(state));
            let columns = |row: &[f32]| -> Vec<f64> {
                std::iter::once(&2).chain(labels).map(|&class| f64::from(row[class as usize])).collect()
            };
            let emissions: Vec<f64> = rows.chunks_exact(5).flat_map(columns).collect();
            let expected = rnnt_dp::ctc::log_prob(labels, &emissions).unwrap();
            if end > -99.0 {
                prop_assert!(is_close(score + end, expected), "{score} and {end} are not {expected}");
            } else {
                prop_assert!(expected - score < -98.0 && end >= -100.0, "{score} and {end} are not {expected}");
            }
        }
    }

    #[test]
    fn fusion_of_an_utterance_is_separate(
        seed in 0u32..1000, counts in proptest::collection::vec(0usize..9, 1..5), width in 1usize..7,
    ) {
        for (topology, model) in random_models(seed, 3.0) {
            let (classes, blank) = (model.token_table().classes(), model.token_table().blanks().next().unwrap());
            for kind in [BeamKind::Modified, BeamKind::Malsd { max_symbols: 3 }, BeamKind::Alsd { max_labels: None }, MAES] {
                let options = BeamOptions { kind, width, nbest: width, ..BeamOptions::default() };
                let Ok(mut search) = BeamSearch::new(model.clone(), options.clone()) else { continue };
                let utterances: Vec<Vec<f32>> = counts.iter().enumerate().map(|(b, &count)| frames(100 * b, count)).collect();
                let utterances: Vec<&[f32]> = utterances.iter().map(Vec::as_slice).collect();
                // The first utterance has none.
                let list = |b: usize| match b {
                    0 => vec![],
                    _ => {
                        let rows = random_log_probs(counts[b], classes, seed + b as u32, 4.0);
                        let scorer = CtcPrefixScorer::new(&rows, classes, blank).unwrap();
                        vec![Fusion { scorer: Arc::new(scorer), weight: 0.4 }]
                    }
                };
                let all = search.decode_with(&utterances, (0..counts.len()).map(list).collect()).unwrap().to_vec();
                for (b, rows) in utterances.iter().enumerate() {
                    prop_assert_eq!(&search.decode_with(&[rows], vec![list(b)]).unwrap()[0], &all[b], "{} {:?}", topology, kind);
                    // Fusion of an utterance equals fusion of the search.
                    let mut alone = BeamSearch::new(model.clone(), BeamOptions { fusion: list(b), ..options.clone() }).unwrap();
                    prop_assert_eq!(&alone.decode(&[rows]).unwrap()[0], &all[b]);
                }
                prop_assert_eq!(&search.decode(&utterances[..1]).unwrap()[0], &all[0]);
                let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
                let again = threads.install(|| search.decode_with(&utterances, (0..counts.len()).map(list).collect()).unwrap().to_vec());
                prop_assert_eq!(again, all);
            }
        }
    }
}

#[test]
fn an_exhaustive_beam_finds_the_sum_of_both() {
    for seed in 0..8 {
        let model = random_model(&Topology::rnnt(), 3, 0, &[], seed, 3.0);
        let (rows, ctc_rows) = (frames(seed as usize, 4), random_log_probs(4, 3, seed, 3.0));
        let by_ctc = all_paths(&ctc_rows, 3, 0);
        for (kind, labels_advance) in [
            (BeamKind::Modified, true),
            (BeamKind::Malsd { max_symbols: 3 }, false),
            (BeamKind::Alsd { max_labels: Some(4) }, false),
            (BeamKind::Maes { expansions: 4, beta: UNPRUNED_WIDTH, gamma: f64::INFINITY, prefix: 4 }, false),
        ] {
            let scorer = CtcPrefixScorer::new(&ctc_rows, 3, 0).unwrap();
            let lists = vec![vec![Fusion { scorer: Arc::new(scorer), weight: 0.6 }]];
            let mut search = BeamSearch::new(model.clone(), beam_options(kind, UNPRUNED_WIDTH)).unwrap();
            let actual = search.decode_with(&[&rows], lists).unwrap()[0].clone();
            let by_joint =
                sum_over_paths(&model, &rows, PathLimits { labels_advance, max_symbols: 9, max_labels: 2 });
            // Two labels always fit into four frames.
            let joint_sum = |(ids, sum): (Vec<u32>, f64)| (ids.clone(), sum + 0.6 * by_ctc[&ids].sum.ln());
            let expected: BTreeMap<Vec<u32>, f64> = by_joint.into_iter().map(joint_sum).collect();
            assert_eq!(expected.len(), 7);
            assert_sums(&format!("{kind:?} {seed}"), &actual, &expected, 2, 2e-5);
        }
    }
}

#[test]
fn invalid_scores_are_errors_and_invalid_states_are_the_start() {
    let good = random_log_probs(3, 4, 1, 2.0);
    let error = |rows: &[f32], classes, blank| CtcPrefixScorer::new(rows, classes, blank).unwrap_err();
    assert!(matches!(error(&good, 4, 4), Error::Blank { blank: 4, classes: 4 }));
    assert!(matches!(error(&good, 5, 0), Error::Frames { width: 5, found: 12 }));
    assert!(matches!(error(&[], 0, 0), Error::Blank { .. }));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut broken = good.clone();
        broken[6] = bad;
        assert!(matches!(error(&broken, 4, 0), Error::Score { frame: 1, class: 2, .. }));
    }
    let mut broken = good.clone();
    broken[8..].fill(f32::NEG_INFINITY);
    assert!(matches!(error(&broken, 4, 0), Error::Score { frame: 2, .. }));

    let ctc = CtcPrefixScorer::new(&good, 4, 3).unwrap();
    assert_eq!(ctc.step(77, 1), ctc.step(ctc.start(), 1));
    assert_eq!(ctc.finish(u32::MAX), ctc.finish(0));
    for class in [3, 4, u32::MAX] {
        assert_eq!(ctc.step(1, class), (0.0, 1));
    }
    // Fewer and more scores than classes.
    let (mut few, mut many) = ([0.0; 2], [0.0; 6]);
    ctc.add_scores(0, 1.0, &mut few);
    ctc.add_scores(0, 1.0, &mut many);
    assert!(few == many[..2] && few[0] < 0.0 && many[3..] == [0.0; 3]);
}

/// Sequences that omit labels of which the head is certain.
#[test]
fn omitted_labels_cost_their_log_probability() {
    let (count, classes) = (80, 40);
    let row = |frame: usize| {
        let class_of_frame = if frame.is_multiple_of(2) { 1 + frame / 2 % (classes - 1) } else { 0 };
        (0..classes).map(move |class| if class == class_of_frame { 0.0f32 } else { -11.5 })
    };
    let rows: Vec<f32> = (0..count).flat_map(row).collect();
    let text: Vec<u32> = (0..count / 2).map(|i| (1 + i % (classes - 1)) as u32).collect();
    let ctc = CtcPrefixScorer::new(&rows, classes, 0).unwrap();
    let log_sum = |row: &[f32]| row.iter().map(|&score| f64::from(score).exp()).sum::<f64>().ln();
    for missing in [0, 1, 8, 9, 10, 15, 20] {
        let labels = &text[missing..];
        let (score, state) = score_sequence(&ctc, labels);
        let columns = |row: &[f32]| -> Vec<f64> {
            let sum = log_sum(row);
            std::iter::once(&0).chain(labels).map(|&class| f64::from(row[class as usize]) - sum).collect()
        };
        let emissions: Vec<f64> = rows.chunks_exact(classes).flat_map(columns).collect();
        let expected = rnnt_dp::ctc::log_prob(labels, &emissions).unwrap();
        let actual = score + f64::from(ctc.finish(state));
        assert!(is_close(actual, expected), "{missing} left out: {actual} is not {expected}");
    }
}

#[test]
fn impossible_labels_cost_a_hundred() {
    let good = random_log_probs(3, 4, 1, 2.0);
    let ctc = CtcPrefixScorer::new(&good, 4, 3).unwrap();
    // Three equal labels need five frames.
    let (sum, state) = score_sequence(&ctc, &[0, 0, 0]);
    let (possible, _) = score_sequence(&ctc, &[0, 0]);
    assert_eq!((sum - possible, ctc.finish(state)), (-100.0, -100.0));
    assert_eq!((ctc.step(state, 1).0, ctc.step(ctc.step(state, 1).1, 1).0), (-100.0, -100.0));
    let nothing = CtcPrefixScorer::new(&[], 4, 3).unwrap();
    assert_eq!((nothing.finish(0), nothing.step(0, 2).0), (0.0, -100.0));

    // A joint that emits more labels than frames, with various weights.
    let model = random_model(&Topology::rnnt(), 4, 3, &[], 2, 3.0);
    let rows = frames(0, 3);
    for kind in
        [BeamKind::Modified, BeamKind::Malsd { max_symbols: 5 }, BeamKind::Alsd { max_labels: None }, MAES]
    {
        let mut search = BeamSearch::new(model.clone(), beam_options(kind, 200)).unwrap();
        let plain = search.decode(&[&rows]).unwrap()[0].clone();
        for weight in [0.0, 1e3, -2.0] {
            let scorer = CtcPrefixScorer::new(&good, 4, 3).unwrap();
            let lists = vec![vec![Fusion { scorer: Arc::new(scorer), weight }]];
            let actual = search.decode_with(&[&rows], lists).unwrap()[0].clone();
            assert!(actual.hypotheses.iter().all(|ranked| ranked.log_prob.is_finite()), "{kind:?}");
            assert_eq!(actual == plain, weight == 0.0, "{kind:?} {weight}");
        }
    }
}

#[test]
fn stored_paths_stay_short_in_long_utterances() {
    // Forty minutes with a label on every fourth frame.
    let (frames, classes) = (60_000, 3);
    let row = |frame: usize| match frame % 4 {
        0 => [-20.0f32, -20.0, 0.0],
        _ => [0.0, -20.0, -20.0],
    };
    let ctc_rows: Vec<f32> = (0..frames).flat_map(row).collect();
    let ctc = CtcPrefixScorer::new(&ctc_rows, classes, 0).unwrap();
    let mut state = ctc.start();
    let mut sum = 0.0;
    for _ in 0..frames / 4 {
        let mut row = [0.0; 3];
        ctc.add_scores(state, 1.0, &mut row);
        let (score, next) = ctc.step(state, 2);
        (sum, state) = (sum + f64::from(score), next);
        assert!(row[2] > -0.1 && row[1] < -5.0, "{row:?}");
    }
    assert!(ctc.finish(state) > -0.1 && sum < 0.0);
    // Scores that left the cache are recomputed.
    let fresh = CtcPrefixScorer::new(&ctc_rows, classes, 0).unwrap();
    for ctc in [&ctc, &fresh] {
        let (_, state) = score_sequence(ctc, &[2, 2]);
        let mut row = [0.0; 3];
        ctc.add_scores(state, 1.0, &mut row);
        assert_eq!((ctc.step(state, 2).0, ctc.step(state, 1).0), (row[2], row[1]));
        assert_eq!(score_sequence(ctc, &[2, 2, 1]).0, score_sequence(&fresh, &[2, 2, 1]).0);
    }
}

#[test]
fn threads_share_a_scorer() {
    let ctc_rows = random_log_probs(40, 6, 3, 3.0);
    let alone = CtcPrefixScorer::new(&ctc_rows, 6, 0).unwrap();
    let shared = CtcPrefixScorer::new(&ctc_rows, 6, 0).unwrap();
    let all: Vec<Vec<u32>> = (0..60u32).map(|i| (0..12).map(|j| 1 + (i * 7 + i * j) % 5).collect()).collect();
    let expected: Vec<(f64, f32)> = all
        .iter()
        .map(|labels| score_sequence(&alone, labels))
        .map(|(sum, state)| (sum, alone.finish(state)))
        .collect();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (all, expected, shared) = (&all, &expected, &shared);
            scope.spawn(move || {
                for index in (0..all.len()).cycle().skip(worker * 17).take(all.len()) {
                    let (sum, state) = score_sequence(shared, &all[index]);
                    assert_eq!((sum, shared.finish(state)), expected[index]);
                }
            });
        }
    });
}

#[test]
fn fusion_is_per_utterance() {
    let model = random_model(&Topology::rnnt(), 4, 0, &[], 1, 2.0);
    let rows = frames(0, 8);
    let mut search = BeamSearch::new(model.clone(), beam_options(BeamKind::Modified, 4)).unwrap();
    let error = search.decode_with(&[&rows], vec![]).unwrap_err().to_string();
    assert!(error.contains("fusion: expected one for each of 1 utterances, found 0"), "{error}");
    for weight in [f32::NAN, f32::INFINITY] {
        let scorer = CtcPrefixScorer::new(&[], 4, 0).unwrap();
        let lists = vec![vec![], vec![Fusion { scorer: Arc::new(scorer), weight }]];
        let error = search.decode_with(&[&rows, &[]], lists).unwrap_err().to_string();
        assert!(
            error.starts_with("utterance 1: fusion weight: expected a number from -1e6 to 1e6"),
            "{error}"
        );
    }
    // They are released after a call, also after an error.
    for (rows, is_valid) in [(&rows[..], true), (&[f32::NAN; 8][..], false)] {
        let scorer: Arc<dyn Scorer> = Arc::new(CtcPrefixScorer::new(&[], 4, 0).unwrap());
        let lists = vec![vec![Fusion { scorer: scorer.clone(), weight: 1.0 }]];
        assert_eq!(search.decode_with(&[rows], lists).is_ok(), is_valid);
        assert_eq!(Arc::strong_count(&scorer), 1);
    }
    // Phrase lists work as well.
    let plain = search.decode(&[&rows]).unwrap()[0].clone();
    let phrases = [Phrase { tokens: vec![1, 1, 2], score: 3.0 }];
    let boost = PhraseBooster::new(&phrases, &[false, true, true, true], 1.0).unwrap();
    let lists = || vec![Fusion { scorer: Arc::new(boost.clone()), weight: 1.0 }];
    let boosted = search.decode_with(&[&rows, &rows], vec![lists(), vec![]]).unwrap().to_vec();
    assert_eq!(boosted[1], plain);
    assert_ne!(boosted[0], plain);
    assert!(boosted[0].hypotheses[0].ids().windows(3).any(|labels| labels == [1, 1, 2]));
}
