//! The silence filter judges the model, not the language models and phrases of a search.
use std::sync::Arc;

use decoding::{BeamKind, BeamOptions, ClassScores, Fusion, GreedyOptions};
use recognizer::{SearchConfig, StreamingOptions};
use speech::Audio;

use super::live::{Learnt, live, trained};
use super::toy::RATE;

/// Texts of the toy corpus, with those of constant audio and of noise.
fn texts(learnt: &Learnt, search: &SearchConfig, silence: f64) -> Vec<String> {
    let recogniser = learnt.with_search(search.clone()).with_silence(silence).unwrap();
    let audio = |samples: &Vec<f32>| Audio { samples: samples.clone(), sample_rate: RATE };
    let text = |samples| recogniser.transcribe(&audio(samples)).unwrap().text;
    learnt.sounds.iter().chain([&vec![0.0; RATE as usize]]).map(text).collect()
}

#[test]
fn a_fused_text_is_kept_where_the_model_alone_finds_speech() {
    let learnt = trained(false);
    let (tokens, classes) = (learnt.recogniser.tokenizer().size(), learnt.recogniser.model().classes());
    let mut changed = 0;
    for token in 0..tokens {
        let bonus: Vec<f32> = (0..classes).map(|class| if class == token { 12.0 } else { 0.0 }).collect();
        let fusion =
            || vec![Fusion { scorer: Arc::new(ClassScores::new(bonus.clone()).unwrap()), weight: 1.0 }];
        let beam =
            BeamOptions { kind: BeamKind::Modified, width: 4, fusion: fusion(), ..BeamOptions::default() };
        let greedy = SearchConfig::Greedy(GreedyOptions { fusion: fusion(), ..GreedyOptions::default() });
        let plain = texts(learnt, &SearchConfig::default(), 0.2);
        assert_eq!(plain.last().unwrap(), "");
        for search in [&greedy, &SearchConfig::Beam(beam)] {
            let (kept, all) = (texts(learnt, search, 0.2), texts(learnt, search, 0.0));
            for ((plain, kept), all) in plain.iter().zip(&kept).zip(&all) {
                if !plain.is_empty() {
                    assert_eq!(kept, all);
                    changed += usize::from(plain != all);
                }
            }
            // Constant audio has no words, with any list.
            assert_eq!(kept.last().unwrap(), "");
        }
    }
    assert!(changed > 0, "the bonus changes no text");
}

#[test]
fn a_stream_keeps_fused_words_where_the_model_hears_speech() {
    let learnt = trained(true);
    let samples = learnt.sound(0);
    let (tokens, classes) = (learnt.recogniser.tokenizer().size(), learnt.recogniser.model().classes());
    let plain = live(&learnt.recogniser, &samples, &[1600], &StreamingOptions::default()).0.text;
    let mut changed = 0;
    for token in 0..tokens {
        let bonus = (0..classes).map(|class| if class == token { 40.0 } else { -40.0 }).collect();
        let fusion = vec![Fusion { scorer: Arc::new(ClassScores::new(bonus).unwrap()), weight: 1.0 }];
        let search = SearchConfig::Greedy(GreedyOptions { fusion, ..GreedyOptions::default() });
        let text = |silence| {
            let recogniser = learnt.with_search(search.clone()).with_silence(silence).unwrap();
            [1600, 80].map(|size| live(&recogniser, &samples, &[size], &StreamingOptions::default()).0.text)
        };
        let (kept, all) = (text(0.2), text(0.0));
        assert_eq!(kept, all);
        changed += usize::from(all[0] != plain);
    }
    assert!(changed > 0, "the bonus changes no text");
}
