//! Tests of the parts that need no model: accepted samples and the insertion of words.
use super::*;
use crate::transcription::{RankedText, TimedToken, TimedWord};

/// A transcription whose words are one token each.
fn transcription(words: &[(&str, f64)]) -> Transcription {
    let word = |&(text, start): &(&str, f64)| TimedWord {
        text: text.into(),
        start,
        end: start + 0.1,
        confidence: 1.0,
        is_recovered: false,
    };
    let words: Vec<TimedWord> = words.iter().map(word).collect();
    let token = |word: &TimedWord| TimedToken {
        text: word.text.clone(),
        start: word.start,
        end: word.end,
        log_prob: 0.0,
        confidence: 1.0,
    };
    Transcription {
        text: words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" "),
        tokens: words.iter().map(token).collect(),
        words,
        ..Transcription::default()
    }
}

#[test]
fn recovered_words_are_inserted_in_order_of_time() {
    let mut changed = transcription(&[("a", 1.0), ("b", 2.0), ("c", 1.9)]);
    let ranked = RankedText { text: "a b c".into(), score: 0.0, log_prob: 0.0 };
    changed.nbest = vec![ranked];
    let unchanged = changed.clone();
    insert(&mut changed, Vec::new());
    assert_eq!(changed, unchanged);

    let words =
        [("x", 0.5), ("y", 1.5), ("z", 9.0)].map(|word| FoundWord::new(transcription(&[word]), 0.5, 0));
    insert(&mut changed, words.to_vec());
    // Words of the ordinary search keep their order.
    assert_eq!(changed.text, "x a y b c z");
    let tokens: Vec<&str> = changed.tokens.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(tokens.join(" "), changed.text);
    let is_recovered: Vec<bool> = changed.words.iter().map(|word| word.is_recovered).collect();
    assert_eq!(is_recovered, [true, false, true, false, false, true]);
    assert!(changed.nbest.is_empty());
}

#[test]
fn words_are_accepted_up_to_half_the_way_to_a_neighbor() {
    let input = TilingInput {
        samples: 1000,
        words: vec![100..110, 490..500],
        tolerance: 30,
        ..TilingInput::default()
    };
    let gaps = [200..220, 240..260, 300..470, 990..1000];
    let accepted = |index| searched_gap(index, &gaps, &input).accepted;
    assert_eq!(
        [accepted(0), accepted(1), accepted(2), accepted(3)],
        [170..230, 230..280, 280..480, 960..1000]
    );
}

#[test]
fn tokens_have_at_least_one_sample_within_the_recording() {
    let mut words = transcription(&[("a", 0.0), (" ", 0.2), ("b", 0.95), ("c", 2.0)]);
    words.tokens[0].end = 0.0;
    assert_eq!(token_ranges(&words, 1000, 1000), [0..1, 950..1000, 999..1000]);
}

#[test]
fn invalid_options_are_errors() {
    let default = CoverageOptions::default();
    default.check().unwrap();
    for seconds in [-0.1, f64::NAN, 3601.0] {
        for (options, name) in [
            (CoverageOptions { search_seconds: seconds, ..default }, "search_seconds"),
            (CoverageOptions { tolerance_seconds: seconds, ..default }, "tolerance_seconds"),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{name}: expected a number of seconds from 0 to 3600")),
                "{error}"
            );
        }
    }
}
