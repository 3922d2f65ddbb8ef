//! Tests that the silence filter uses only the scores of the model.
use std::sync::Arc;

use decoding::{BeamKind, BeamOptions, ClassScores, Fusion, GreedyOptions};
use recognizer::{SearchConfig, StreamingOptions};
use speech::Audio;

use super::streaming_recognition::{TrainedModel, recognize_pieces, trained_model};
use super::toy::RATE;

/// The texts of the toy corpus and of constant audio.
fn texts(model: &TrainedModel, search: &SearchConfig, silence: f64) -> Vec<String> {
    let recognizer = model.with_search(search.clone()).with_silence(silence).unwrap();
    let audio = |samples: &Vec<f32>| Audio { samples: samples.clone(), sample_rate: RATE };
    let text = |samples| recognizer.transcribe(&audio(samples)).unwrap().text;
    model.utterances.iter().chain([&vec![0.0; RATE as usize]]).map(text).collect()
}

#[test]
fn a_fused_text_is_kept_where_the_model_detects_speech() {
    let model = trained_model(false);
    let (tokens, classes) = (model.recognizer.tokenizer().size(), model.recognizer.model().classes());
    let mut num_changed = 0;
    for token in 0..tokens {
        let bonus: Vec<f32> = (0..classes).map(|class| if class == token { 12.0 } else { 0.0 }).collect();
        let fusion =
            || vec![Fusion { scorer: Arc::new(ClassScores::new(bonus.clone()).unwrap()), weight: 1.0 }];
        let beam =
            BeamOptions { kind: BeamKind::Modified, width: 4, fusion: fusion(), ..BeamOptions::default() };
        let greedy = SearchConfig::Greedy(GreedyOptions { fusion: fusion(), ..GreedyOptions::default() });
        let plain = texts(model, &SearchConfig::default(), 0.2);
        assert_eq!(plain.last().unwrap(), "");
        for search in [&greedy, &SearchConfig::Beam(beam)] {
            let (filtered, unfiltered) = (texts(model, search, 0.2), texts(model, search, 0.0));
            for ((plain, filtered), unfiltered) in plain.iter().zip(&filtered).zip(&unfiltered) {
                if !plain.is_empty() {
                    assert_eq!(filtered, unfiltered);
                    num_changed += usize::from(plain != unfiltered);
                }
            }
            // Constant audio has no words with any bonus.
            assert_eq!(filtered.last().unwrap(), "");
        }
    }
    assert!(num_changed > 0, "the bonus changes no text");
}

#[test]
fn a_stream_keeps_fused_words_where_the_model_detects_speech() {
    let model = trained_model(true);
    let samples = model.recording(0);
    let (tokens, classes) = (model.recognizer.tokenizer().size(), model.recognizer.model().classes());
    let plain = recognize_pieces(&model.recognizer, &samples, &[1600], &StreamingOptions::default()).0.text;
    let mut num_changed = 0;
    for token in 0..tokens {
        let bonus = (0..classes).map(|class| if class == token { 40.0 } else { -40.0 }).collect();
        let fusion = vec![Fusion { scorer: Arc::new(ClassScores::new(bonus).unwrap()), weight: 1.0 }];
        let search = SearchConfig::Greedy(GreedyOptions { fusion, ..GreedyOptions::default() });
        let text = |silence| {
            let recognizer = model.with_search(search.clone()).with_silence(silence).unwrap();
            [1600, 80].map(|size| {
                recognize_pieces(&recognizer, &samples, &[size], &StreamingOptions::default()).0.text
            })
        };
        let (filtered, unfiltered) = (text(0.2), text(0.0));
        assert_eq!(filtered, unfiltered);
        num_changed += usize::from(unfiltered[0] != plain);
    }
    assert!(num_changed > 0, "the bonus changes no text");
}
