//! Tests of transducer beam search: results match sums over all paths of tiny models.
use std::sync::Arc;

use decoding::{
    AffineLayer, BeamKind, BeamOptions, BeamSearch, CtcBeamOptions, DecodingModel, Error, Fusion,
    GreedyOptions, GreedySearch, JointNetwork, NetworkScratch, Scorer, StatelessPredictor, ctc_beam, greedy,
};
use proptest::prelude::*;
use rnnt_dp::Topology;

use super::paths::{
    ForbiddingScorer, LabelTwoScorer, LastLabelScorer, MAES, PathLimits, UNPRUNED_WIDTH, assert_sums,
    beam_options, beam_search, log_add, random_models, site_log_probs, sum_over_paths,
};
use super::table_models::{frames, random_model};

#[test]
fn an_exhaustive_modified_beam_finds_every_sum() {
    for seed in 0..6 {
        for (topology, model) in
            random_models(seed, 3.0).into_iter().filter(|(topology, _)| topology.num_durations() == 0)
        {
            let rows = frames(seed as usize, 5);
            let limits = PathLimits { labels_advance: true, max_symbols: 9, max_labels: 9 };
            let actual = beam_search(&model, &beam_options(BeamKind::Modified, UNPRUNED_WIDTH), &[&rows]);
            assert_sums(
                &format!("{topology} {seed}"),
                &actual[0],
                &sum_over_paths(&model, &rows, limits),
                9,
                1e-5,
            );
        }
    }
}

#[test]
fn an_exhaustive_malsd_finds_every_sum_below_the_frame_limit() {
    for seed in 0..4 {
        for (topology, model) in random_models(seed, 2.0) {
            let rows = frames(7, 3);
            let limits = PathLimits { labels_advance: false, max_symbols: 9, max_labels: 2 };
            let actual = beam_search(
                &model,
                &beam_options(BeamKind::Malsd { max_symbols: 3 }, UNPRUNED_WIDTH),
                &[&rows],
            );
            assert_sums(
                &format!("{topology} {seed}"),
                &actual[0],
                &sum_over_paths(&model, &rows, limits),
                2,
                1e-5,
            );
        }
    }
}

/// A hypothesis of the reference search.
#[derive(Clone)]
struct ReferenceHypothesis {
    /// Labels with their frames.
    labels: Vec<(u32, usize)>,
    /// Current frame.
    frame: usize,
    /// Labels on the current frame.
    symbols: usize,
    log_prob: f64,
}

impl ReferenceHypothesis {
    fn ids(&self) -> Vec<u32> {
        self.labels.iter().map(|label| label.0).collect()
    }
}

/// Candidates of mALSD before merging, as a multiple of the beam width.
const CANDIDATES_PER_WIDTH: usize = 4;

/// Reference implementation of mALSD, section 10 of the decoding specification.
fn reference_malsd(
    model: &DecodingModel,
    rows: &[f32],
    width: usize,
    max_symbols: usize,
) -> Vec<ReferenceHypothesis> {
    let (token_table, end_frame) = (model.token_table(), rows.len());
    let mut hyps = vec![ReferenceHypothesis { labels: vec![], frame: 0, symbols: 0, log_prob: 0.0 }];
    while hyps.iter().any(|hyp| hyp.frame < end_frame) {
        // Candidates: ended hypotheses unchanged, the others with their best steps.
        let mut candidates: Vec<ReferenceHypothesis> = Vec::new();
        for hyp in &hyps {
            if hyp.frame >= end_frame {
                candidates.push(hyp.clone());
                continue;
            }
            let (tokens, durations) = site_log_probs(model, rows, hyp.frame, &hyp.ids());
            // Class, index of the duration, and log-probability of each step.
            let mut steps = Vec::new();
            for (class, token) in tokens.iter().enumerate() {
                for duration in 0..durations.len().max(1) {
                    steps.push((class as u32, duration, token + durations.get(duration).unwrap_or(&0.0)));
                }
            }
            if hyp.symbols >= max_symbols {
                steps.retain(|step| token_table.is_blank(step.0));
            }
            steps.sort_by(|a, b| b.2.total_cmp(&a.2));
            steps.truncate(if hyp.symbols >= max_symbols { 1 } else { width });
            for (class, duration, value) in steps {
                let mut new = hyp.clone();
                new.log_prob += value;
                let mut frames = token_table.frame_advance(class, duration);
                if token_table.is_blank(class) {
                    frames = frames.max(1);
                } else {
                    new.labels.push((class, hyp.frame));
                    new.symbols += 1;
                }
                new.frame += frames;
                new.symbols = if frames > 0 { 0 } else { new.symbols };
                candidates.push(new);
            }
        }
        candidates.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        candidates.truncate(CANDIDATES_PER_WIDTH * width);
        // Sum candidates with equal labels at equal positions.
        hyps.clear();
        for new in candidates {
            let is_mergeable = |old: &&mut ReferenceHypothesis| {
                let both_ended = old.frame >= end_frame && new.frame >= end_frame;
                old.ids() == new.ids() && (both_ended || (old.frame, old.symbols) == (new.frame, new.symbols))
            };
            match hyps.iter_mut().find(is_mergeable) {
                Some(old) => old.log_prob = log_add(old.log_prob, new.log_prob),
                None => hyps.push(new),
            }
        }
        hyps.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        hyps.truncate(width);
    }
    hyps.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
    hyps
}

#[test]
fn malsd_matches_the_reference_at_every_width() {
    for seed in 0..12 {
        for (topology, model) in random_models(seed, 4.0) {
            for width in [1, 2, 3, 5, 8] {
                for max_symbols in [1, 2, 4] {
                    let rows = frames(20, 9);
                    let actual =
                        beam_search(&model, &beam_options(BeamKind::Malsd { max_symbols }, width), &[&rows]);
                    let expected = reference_malsd(&model, &rows, width, max_symbols);
                    let name = format!("{topology} {seed} {width} {max_symbols}");
                    assert_eq!(actual[0].hypotheses.len(), expected.len(), "{name}");
                    for (actual, expected) in actual[0].hypotheses.iter().zip(&expected) {
                        let labels: Vec<_> =
                            actual.labels.iter().map(|label| (label.label, label.frame)).collect();
                        assert_eq!(labels, expected.labels, "{name}");
                        assert!((actual.log_prob - expected.log_prob).abs() < 1e-5, "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn exhaustive_alsd_and_malsd_find_every_sum() {
    for seed in 0..6 {
        let model = random_model(&Topology::rnnt(), 3, 2, &[], seed, 2.0);
        let rows = frames(3, 3);
        let actual = beam_search(
            &model,
            &beam_options(BeamKind::Alsd { max_labels: Some(3) }, UNPRUNED_WIDTH),
            &[&rows],
        );
        let limits = PathLimits { labels_advance: false, max_symbols: 3, max_labels: 3 };
        let expected = sum_over_paths(&model, &rows, limits);
        assert_sums("alsd", &actual[0], &expected, 3, 1e-5);
        let malsd =
            beam_search(&model, &beam_options(BeamKind::Malsd { max_symbols: 3 }, UNPRUNED_WIDTH), &[&rows]);
        let short: Vec<_> = malsd[0].hypotheses.iter().filter(|ranked| ranked.labels.len() <= 3).collect();
        assert_eq!(short.len(), expected.len());
        for ranked in short {
            assert!((ranked.log_prob - expected[&ranked.ids()]).abs() < 1e-5);
        }
    }
}

#[test]
fn an_exhaustive_maes_finds_every_sum_of_few_labels() {
    for seed in 0..6 {
        let model = random_model(&Topology::rnnt(), 3, 0, &[], seed, 2.0);
        let rows = frames(11, 3);
        for labels in [1, 2, 3] {
            let kind = BeamKind::Maes {
                expansions: labels,
                beta: UNPRUNED_WIDTH,
                gamma: f64::INFINITY,
                prefix: labels,
            };
            let actual = beam_search(&model, &beam_options(kind, UNPRUNED_WIDTH), &[&rows]);
            let limits = PathLimits { labels_advance: false, max_symbols: 9, max_labels: labels };
            for (ids, sum) in sum_over_paths(&model, &rows, limits) {
                let ranked = actual[0].hypotheses.iter().find(|ranked| ranked.ids() == ids).unwrap();
                assert!(
                    (ranked.log_prob - sum).abs() < 1e-5,
                    "{seed} {labels} {ids:?} {} {sum}",
                    ranked.log_prob
                );
            }
        }
    }
}

#[test]
fn the_widest_beam_is_exact_and_best() {
    for seed in 0..40 {
        let model = random_model(&Topology::rnnt(), 3, 0, &[], seed, 4.0);
        let rows = frames(0, 5);
        let best_log_prob = |width| {
            beam_search(&model, &beam_options(BeamKind::Modified, width), &[&rows])[0].hypotheses[0].log_prob
        };
        let limits = PathLimits { labels_advance: true, max_symbols: 9, max_labels: 9 };
        let exact = sum_over_paths(&model, &rows, limits).into_values().fold(f64::NEG_INFINITY, f64::max);
        assert!((best_log_prob(UNPRUNED_WIDTH) - exact).abs() < 1e-5);
        // The best score may decrease with the width, as a wider beam may drop a hypothesis later.
        for width in 1..12 {
            assert!(best_log_prob(width) <= exact + 1e-5, "{seed} {width}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_beam_of_one_matches_greedy_search(
        seed in 0u32..1000, count in 0usize..30, classes in 2usize..80, modified: bool,
    ) {
        let topology = if modified { Topology::modified() } else { Topology::rnnt() };
        let model = random_model(&topology, classes, (seed as usize % classes) as u32, &[], seed, 5.0);
        let rows = frames(0, count);
        let expected = greedy(&model, &rows, &GreedyOptions { max_symbols: Some(1), ..GreedyOptions::default() }).unwrap();
        let actual = beam_search(&model, &BeamOptions { width: 1, ..BeamOptions::default() }, &[&rows]);
        let labels = &actual[0].hypotheses[0].labels;
        prop_assert_eq!(labels.len(), expected.labels.len());
        for (actual, expected) in labels.iter().zip(&expected.labels) {
            prop_assert_eq!((actual.label, actual.frame), (expected.label, expected.frame));
            prop_assert!((actual.log_prob - expected.log_prob).abs() < 1e-6 && actual.logit == expected.logit);
        }
    }

    #[test]
    fn results_do_not_depend_on_the_batch(
        seed in 0u32..1000, counts in proptest::collection::vec(0usize..12, 1..5), width in 1usize..7,
        score_scale in 1.0f32..6.0, fused: bool,
    ) {
        for (topology, model) in random_models(seed, score_scale) {
            for kind in [BeamKind::Modified, BeamKind::Malsd { max_symbols: 3 }, BeamKind::Alsd { max_labels: None }, MAES] {
                let mut options = BeamOptions { kind, width, nbest: width, blank_penalty: 0.3, temperature: 1.2, ..BeamOptions::default() };
                if fused {
                    options.fusion.push(Fusion { scorer: Arc::new(LastLabelScorer), weight: 0.4 });
                }
                let Ok(mut search) = BeamSearch::new(model.clone(), options.clone()) else { continue };
                let utterances: Vec<Vec<f32>> =
                    counts.iter().enumerate().map(|(b, &count)| frames(100 * b, count)).collect();
                let utterances: Vec<&[f32]> = utterances.iter().map(Vec::as_slice).collect();
                let all = search.decode(&utterances).unwrap().to_vec();
                for (b, rows) in utterances.iter().enumerate() {
                    let separate = search.decode(&[rows]).unwrap();
                    prop_assert_eq!(&separate[0], &all[b], "{} {:?}", topology, kind);
                    prop_assert!(!all[b].hypotheses.is_empty());
                    let unique: std::collections::BTreeSet<Vec<u32>> =
                        all[b].hypotheses.iter().map(|ranked| ranked.ids()).collect();
                    prop_assert_eq!(unique.len(), all[b].hypotheses.len());
                    for ranked in &all[b].hypotheses {
                        prop_assert!(ranked.labels.is_sorted_by_key(|label| label.frame));
                        prop_assert!(ranked.labels.iter().all(|label| label.frame < rows.len()));
                    }
                    if rows.is_empty() && !fused {
                        prop_assert_eq!((all[b].hypotheses.len(), all[b].hypotheses[0].log_prob), (1, 0.0));
                    }
                }
                let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
                let again = threads.install(|| search.decode(&utterances).unwrap().to_vec());
                prop_assert_eq!(again, all);
            }
        }
    }
}

#[test]
fn scorers_add_label_and_final_scores() {
    let rows = frames(0, 3);
    for (kind, labels_advance) in [
        (BeamKind::Modified, true),
        (BeamKind::Malsd { max_symbols: 3 }, false),
        (BeamKind::Alsd { max_labels: Some(3) }, false),
        (BeamKind::Maes { expansions: 3, beta: UNPRUNED_WIDTH, gamma: f64::INFINITY, prefix: 3 }, false),
    ] {
        for end_scores in [true, false] {
            let model = random_model(&Topology::rnnt(), 3, 0, &[], 5, 2.0);
            let mut options = beam_options(kind, UNPRUNED_WIDTH);
            options.fusion.push(Fusion { scorer: Arc::new(LastLabelScorer), weight: 0.7 });
            options.end_scores = end_scores;
            let actual = beam_search(&model, &options, &[&rows]);
            let mut expected =
                sum_over_paths(&model, &rows, PathLimits { labels_advance, max_symbols: 9, max_labels: 3 });
            for (ids, sum) in &mut expected {
                let mut state = LastLabelScorer.start();
                for &label in ids {
                    let (score, next) = LastLabelScorer.step(state, label);
                    (*sum, state) = (*sum + 0.7 * f64::from(score), next);
                }
                *sum += if end_scores { 0.7 * f64::from(LastLabelScorer.finish(state)) } else { 0.0 };
            }
            assert_sums(&format!("{kind:?}"), &actual[0], &expected, 3, 1e-5);
            for ranked in &actual[0].hypotheses {
                let mut state = LastLabelScorer.start();
                for label in &ranked.labels {
                    let (score, next) = LastLabelScorer.step(state, label.label);
                    assert!((label.fused - 0.7 * score).abs() < 1e-6);
                    state = next;
                }
            }
        }
    }
}

#[test]
fn forbidden_labels_are_not_decoded_and_invalid_scores_are_errors() {
    let model = random_model(&Topology::rnnt(), 4, 0, &[], 1, 2.0);
    let rows = frames(0, 4);
    for kind in
        [BeamKind::Modified, BeamKind::Malsd { max_symbols: 2 }, BeamKind::Alsd { max_labels: None }, MAES]
    {
        let options_with_score = |score| {
            let fusion = vec![Fusion { scorer: Arc::new(LabelTwoScorer(score)), weight: 1.0 }];
            BeamOptions { fusion, ..beam_options(kind, 6) }
        };
        let actual = beam_search(&model, &options_with_score(f32::NEG_INFINITY), &[&rows]);
        assert!(actual[0].hypotheses.len() > 1);
        assert!(
            actual[0]
                .hypotheses
                .iter()
                .all(|ranked| !ranked.ids().contains(&2) && ranked.log_prob.is_finite())
        );
        for bad in [f32::NAN, f32::INFINITY] {
            let mut search = BeamSearch::new(model.clone(), options_with_score(bad)).unwrap();
            let error = search.decode(&[&rows]).unwrap_err();
            assert!(error.to_string().starts_with("utterance 0: fused score of class 2"), "{error}");
        }
    }
}

#[test]
fn a_weight_of_zero_disables_a_scorer() {
    let model = random_model(&Topology::rnnt(), 5, 0, &[], 8, 2.0);
    let rows = frames(3, 12);
    let disabled = vec![Fusion { scorer: Arc::new(ForbiddingScorer), weight: 0.0 }];
    for kind in
        [BeamKind::Modified, BeamKind::Malsd { max_symbols: 2 }, BeamKind::Alsd { max_labels: None }, MAES]
    {
        let decode_with_fusion = |fusion| -> Vec<(Vec<u32>, f64)> {
            let actual = beam_search(&model, &BeamOptions { fusion, ..beam_options(kind, 4) }, &[&rows]);
            actual[0].hypotheses.iter().map(|ranked| (ranked.ids(), ranked.log_prob)).collect()
        };
        let without = decode_with_fusion(vec![]);
        assert!(without.len() > 1);
        assert_eq!(decode_with_fusion(disabled.clone()), without, "{kind:?}");
    }
    let greedy_options = |fusion| GreedyOptions { fusion, ..GreedyOptions::default() };
    let without = greedy(&model, &rows, &greedy_options(vec![])).unwrap();
    assert_eq!(greedy(&model, &rows, &greedy_options(disabled.clone())).unwrap(), without);
    let batched = |fusion| {
        let mut search = GreedySearch::new(model.clone(), greedy_options(fusion)).unwrap();
        search.decode(&[&rows]).unwrap().iter().collect::<Vec<_>>()
    };
    assert_eq!(batched(disabled.clone()), batched(vec![]));
    let row = [-1.2f32, -0.9, -2.0, -1.6].repeat(6);
    let ctc = |fusion| {
        let actual = ctc_beam(&[&row], 4, &CtcBeamOptions { fusion, ..CtcBeamOptions::default() }).unwrap();
        actual[0].hypotheses.iter().map(|ranked| (ranked.ids(), ranked.log_prob)).collect::<Vec<_>>()
    };
    assert_eq!(ctc(disabled), ctc(vec![]));
}

#[test]
fn invalid_scores_name_utterance_and_frame() {
    let score_fn = |frame: f32, _: f32, out: &mut [f32]| {
        out.fill(0.5);
        if frame == 7.0 {
            out[1] = f32::NAN;
        }
        if frame == 8.0 {
            out.fill(f32::NEG_INFINITY);
        }
        if frame == 9.0 {
            out[0] = f32::INFINITY;
        }
    };
    let joint = super::table_models::TableJoint { classes: 3, durations: 0, score_fn };
    let predictor = super::table_models::LabelHashPredictor { ids: 3 };
    let model = DecodingModel::new(Arc::new(predictor), Arc::new(joint), 0, &[], &Topology::rnnt()).unwrap();
    for kind in
        [BeamKind::Modified, BeamKind::Malsd { max_symbols: 2 }, BeamKind::Alsd { max_labels: None }, MAES]
    {
        // Number of the frame with invalid scores, and the class that the error names.
        for (bad_frame, class) in [(7, 1), (8, 0), (9, 0)] {
            let mut search = BeamSearch::new(model.clone(), beam_options(kind, 3)).unwrap();
            let error = search.decode(&[&frames(0, 2), &[0.0, 1.0, bad_frame as f32], &[]]).unwrap_err();
            let Error::Utterance { utterance: 1, source } = &error else { panic!("{error}") };
            assert!(
                matches!(**source, Error::Score { frame: 2, class: actual, .. } if actual == class),
                "{error}"
            );
            if kind == BeamKind::Modified || kind == MAES {
                let mut stream = search.stream().unwrap();
                search.advance(&mut [&mut stream], &[&frames(0, 2)]).unwrap();
                let before = serde_json::to_string(&stream).unwrap();
                let error = search.advance(&mut [&mut stream], &[&frames(bad_frame, 1)]).unwrap_err();
                assert!(error.to_string().contains("at frame 2"), "{error}");
                assert_eq!(serde_json::to_string(&stream).unwrap(), before);
            }
            assert!(search.decode(&[&frames(0, 2)]).is_ok());
        }
    }
}

#[test]
fn invalid_options_and_unsupported_models_are_errors() {
    let model = random_model(&Topology::rnnt(), 3, 0, &[], 1, 2.0);
    let maes = |expansions, gamma| BeamKind::Maes { expansions, beta: 2, gamma, prefix: 1 };
    for (options, name) in [
        (BeamOptions { width: 0, ..BeamOptions::default() }, "width"),
        (BeamOptions { nbest: 0, ..BeamOptions::default() }, "nbest"),
        (BeamOptions { temperature: 0.0, ..BeamOptions::default() }, "temperature"),
        (BeamOptions { temperature: f32::NAN, ..BeamOptions::default() }, "temperature"),
        (BeamOptions { blank_penalty: f32::NAN, ..BeamOptions::default() }, "blank_penalty"),
        (BeamOptions { blank_penalty: -2e6, ..BeamOptions::default() }, "blank_penalty"),
        (BeamOptions { internal_lm: 0.3, ..BeamOptions::default() }, "internal_lm"),
        (BeamOptions { kind: BeamKind::Malsd { max_symbols: 0 }, ..BeamOptions::default() }, "max_symbols"),
        (
            BeamOptions { kind: BeamKind::Alsd { max_labels: Some(0) }, ..BeamOptions::default() },
            "max_labels",
        ),
        (BeamOptions { kind: maes(0, 2.3), ..BeamOptions::default() }, "expansions"),
        (BeamOptions { kind: maes(1, f64::NAN), ..BeamOptions::default() }, "gamma"),
        (
            BeamOptions {
                fusion: vec![Fusion { scorer: Arc::new(LastLabelScorer), weight: f32::NAN }],
                ..BeamOptions::default()
            },
            "fusion weight",
        ),
    ] {
        let error = BeamSearch::new(model.clone(), options).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
    let is_supported: Vec<Vec<bool>> = random_models(1, 2.0)
        .into_iter()
        .map(|(_, model)| {
            [
                BeamKind::Modified,
                BeamKind::Alsd { max_labels: None },
                BeamKind::Malsd { max_symbols: 1 },
                MAES,
            ]
            .map(|kind| match BeamSearch::new(model.clone(), beam_options(kind, 2)) {
                Ok(_) => true,
                Err(error) => matches!(error, Error::Search { .. }).then_some(false).unwrap(),
            })
            .to_vec()
        })
        .collect();
    let (yes, no) = (true, false);
    let expected = [
        [yes; 4],
        [yes, no, yes, no],
        [yes, no, yes, no],
        [no, no, yes, no],
        [no, no, yes, no],
        [yes, no, yes, no],
    ];
    assert_eq!(is_supported, expected);
    let search = BeamSearch::new(model.clone(), beam_options(BeamKind::Malsd { max_symbols: 1 }, 2)).unwrap();
    assert!(matches!(search.stream(), Err(Error::Search { found: "streams", .. })));
    let mut search = BeamSearch::new(model, beam_options(BeamKind::Modified, 2)).unwrap();
    let other_search = BeamSearch::new(
        random_model(&Topology::rnnt(), 4, 0, &[], 1, 2.0),
        beam_options(BeamKind::Modified, 2),
    )
    .unwrap();
    let mut stream = other_search.stream().unwrap();
    let error = search.advance(&mut [&mut stream], &[&[]]).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
    assert!(matches!(search.advance(&mut [], &[&[]]), Err(Error::Count { .. })));
}

#[test]
fn the_internal_language_model_is_subtracted_from_labels() {
    let test_values = |count: usize, step: f32, scale: f32| -> Vec<f32> {
        (0..count).map(|i| scale * (i as f32 * step + 0.3).sin()).collect()
    };
    let (classes, width) = (3, 4);
    let embedding = test_values(classes * width, 1.3, 1.0);
    let context = test_values(2 * width * width, 0.7, 0.8);
    let start = [decoding::NO_LABEL, 0];
    let activation = decoding::PredictorActivation::Tanh;
    let predictor = StatelessPredictor::new(
        (&embedding, width),
        &context,
        &test_values(width, 2.1, 0.3),
        &start,
        activation,
    )
    .unwrap();
    let affine = |name, outputs: usize, step| {
        AffineLayer::new(
            name,
            &test_values(outputs * width, step, 0.9),
            width,
            Some(&test_values(outputs, 1.9, 0.4)),
        )
        .unwrap()
    };
    let network = JointNetwork::new(
        decoding::Activation::Tanh,
        None,
        affine("labels", width, 0.9),
        affine("head", classes, 1.7),
        0,
    );
    let network = network.unwrap().with_factored_blank(0).unwrap();
    let model =
        DecodingModel::new(Arc::new(predictor), Arc::new(network), 0, &[], &Topology::rnnt()).unwrap();
    let rows = test_values(4 * width, 0.41, 1.5);
    let mut options = beam_options(BeamKind::Modified, UNPRUNED_WIDTH);
    options.internal_lm = 0.3;
    let actual = beam_search(&model, &options, &[&rows]);
    let mut expected =
        sum_over_paths(&model, &rows, PathLimits { labels_advance: true, max_symbols: 9, max_labels: 9 });
    for (ids, sum) in &mut expected {
        let (mut states, mut predicted) = (model.start().0.clone(), vec![0.0; width]);
        let mut row = model.start().1.to_vec();
        for label in ids {
            let mut scores = vec![0.0; classes];
            model.joint().internal_lm(&row, &mut scores, &mut NetworkScratch::default());
            *sum -= 0.3 * f64::from(scores[*label as usize]);
            model.predictor().step(&[*label], &mut states, &mut predicted, &mut NetworkScratch::default());
            model.joint().project(&predicted, &mut row, &mut NetworkScratch::default());
        }
    }
    assert_sums("internal", &actual[0], &expected, 9, 1e-5);
    options.normalize_by_length = true;
    for ranked in &beam_search(&model, &options, &[&rows])[0].hypotheses {
        assert!((ranked.score - ranked.log_prob / (ranked.labels.len() + 2) as f64).abs() < 1e-12);
    }
}
