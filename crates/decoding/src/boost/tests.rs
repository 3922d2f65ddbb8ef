//! Tests of phrase boosting: incremental scores match a search for whole-word phrases.
use proptest::prelude::*;

use super::*;
use crate::scorer::tests::{assert_row_matches_steps, sequence_score};

/// The bonus of a whole phrase.
fn total_bonus(phrase: &Phrase, scaling: f64) -> f64 {
    (0..phrase.tokens.len()).map(|i| f64::from(phrase.score) * if i == 0 { 1.0 } else { scaling }).sum()
}

/// The documented sum, by a search at every position.
fn sum_by_search(phrases: &[Phrase], classes: &[Option<WordBoundaries>], scaling: f64, text: &[u32]) -> f64 {
    let text: Vec<u32> = text.iter().copied().filter(|&class| classes[class as usize].is_some()).collect();
    let boundaries = |position: usize| classes[text[position] as usize].unwrap();
    let is_boundary = |position: usize| {
        position == 0
            || position == text.len()
            || boundaries(position - 1).after
            || boundaries(position).before
    };
    let bonus_at = |begin: usize| {
        let occurs = |phrase: &&Phrase| {
            text[begin..].starts_with(&phrase.tokens) && is_boundary(begin + phrase.tokens.len())
        };
        let matches = phrases.iter().filter(|_| is_boundary(begin)).filter(occurs);
        let longest = matches.clone().map(|phrase| phrase.tokens.len()).max()?;
        matches
            .filter(|phrase| phrase.tokens.len() == longest)
            .map(|phrase| total_bonus(phrase, scaling))
            .reduce(f64::max)
    };
    (0..text.len()).filter_map(bonus_at).sum()
}

fn phrases(labels: u32) -> impl Strategy<Value = Vec<Phrase>> {
    let phrase = (prop::collection::vec(0..labels, 1..6), -3..6i32)
        .prop_map(|(tokens, score)| Phrase { tokens, score: score as f32 / 2.0 });
    prop::collection::vec(phrase, 0..8)
}

/// Classes 0 to 4 with word boundaries, and the blank at 5: words, characters with a space, pieces,
/// or any.
fn alphabet() -> impl Strategy<Value = Vec<Option<WordBoundaries>>> {
    let names = |names: [&str; 6], style| Just(WordBoundaries::from_names(&names, style));
    let any = prop::collection::vec((any::<bool>(), any::<bool>()), 5).prop_map(|labels| {
        let label = |(before, after)| Some(WordBoundaries { before, after });
        labels.into_iter().map(label).chain([None]).collect()
    });
    prop_oneof![
        names(["a", "b", "c", "d", "e", ""], TokenStyle::Words),
        names(["a", "b", " ", "c", "<unk>", ""], TokenStyle::Characters),
        names(["a", "b", "天", "d", " ", ""], TokenStyle::Characters),
        names(["a", "b", "c", "d", "e", ""], TokenStyle::Characters),
        names(["▁a", "b", "▁b", "a", "a.", ""], TokenStyle::Pieces),
        any,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The incremental sum of every prefix equals that of a search.
    #[test]
    fn incremental_scores_match_a_search(
        classes in alphabet(),
        phrases in phrases(4),
        text in prop::collection::vec(0u32..6, 0..24),
        scaling in 0..5u32,
    ) {
        let scaling = scaling as f32 / 2.0;
        let booster = PhraseBooster::with_boundaries(&phrases, &classes, scaling).unwrap();
        let (mut sum, mut state) = (0.0, booster.start());
        for length in 0..=text.len() {
            let expected = sum_by_search(&phrases, &classes, f64::from(scaling), &text[..length]);
            let actual = sum + booster.finish(state);
            prop_assert!((f64::from(actual) - expected).abs() < 1e-3, "{actual} {expected} {:?}", &text[..length]);
            // The blank changes nothing.
            prop_assert_eq!(booster.step(state, 5), (0.0, state));
            if let Some(&class) = text.get(length) {
                let (score, next) = booster.step(state, class);
                (sum, state) = (sum + score, next);
            }
        }
        prop_assert_eq!(booster.finish(booster.start()), 0.0);
        for state in 0..booster.states() as u32 + 2 {
            assert_row_matches_steps(&booster, state, 6, &[5]);
            assert_row_matches_steps(&booster, state, 2, &[]);
            assert_row_matches_steps(&booster, state, 8, &[5, 6, 7]);
        }
    }

    /// Without negative scores, the advance is at most one phrase.
    #[test]
    fn the_advance_is_at_most_one_phrase(
        classes in alphabet(),
        mut phrases in phrases(4),
        text in prop::collection::vec(0u32..6, 0..24),
    ) {
        phrases.iter_mut().for_each(|phrase| phrase.score = phrase.score.abs());
        let max = phrases.iter().map(|phrase| total_bonus(phrase, 1.0)).fold(0.0, f64::max);
        let booster = PhraseBooster::with_boundaries(&phrases, &classes, 1.0).unwrap();
        let (_, state) = sequence_score(&booster, &text);
        let withdrawn = f64::from(booster.finish(state));
        prop_assert!((-max - 1e-3..=max * 5.0 + 1e-3).contains(&withdrawn), "{withdrawn} {max}");
    }
}

/// Sums of whole sequences of labels named by `names`; the first class is a blank.
fn sums(names: &[&str], style: TokenStyle, phrases: &[&str], sequences: &[&str]) -> Vec<f32> {
    let ids = |text: &str| -> Vec<u32> {
        let id = |token: &str| names.iter().position(|name| *name == token).unwrap() as u32;
        text.split('|').map(id).collect()
    };
    let classes = WordBoundaries::from_names(names, style);
    let phrases: Vec<Phrase> =
        phrases.iter().map(|phrase| Phrase { tokens: ids(phrase), score: 1.0 }).collect();
    let booster = PhraseBooster::with_boundaries(&phrases, &classes, 1.0).unwrap();
    let sum = |text: &&str| {
        let (sum, state) = sequence_score(&booster, &ids(text));
        sum + booster.finish(state)
    };
    sequences.iter().map(sum).collect()
}

/// The table of `phrase-word-boundaries`.
#[test]
fn phrases_match_whole_words() {
    let letters = |text: &str| text.chars().map(String::from).collect::<Vec<_>>().join("|");
    let texts: Vec<String> =
        ["seven", "eve", "a eve", "eve a", "evens", "eveeve", "a eve a"].map(letters).into();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let names = ["", " ", "e", "n", "s", "v", "a"];
    let scores = sums(&names, TokenStyle::Characters, &["e|v|e"], &texts);
    assert_eq!(scores, [0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 3.0]);
    let names = ["", "▁a", "n", "d", "t"];
    let texts = ["▁a|n", "▁a|n|d", "▁a|n|▁a|n", "▁a|n|t|▁a|n", "▁a"];
    assert_eq!(sums(&names, TokenStyle::Pieces, &["▁a|n"], &texts), [2.0, 0.0, 4.0, 2.0, 0.0]);
}

#[test]
fn phrases_match_at_the_boundaries_of_special_tokens() {
    // A special word is surrounded by boundaries, with or without spaces.
    let names = ["", " ", "a", "b", "<unk>", "'", ",", "天", "气"];
    let texts = ["<unk>|a|b|<unk>", "a|b|'", "a|b|,", "天|a|b|气", "天|气|天|气", "天|气|a", "b|a|b"];
    let scores = sums(&names, TokenStyle::Characters, &["a|b", "天|气"], &texts);
    assert_eq!(scores, [2.0, 0.0, 2.0, 2.0, 4.0, 2.0, 0.0]);
    // Without spaces every character is a word.
    let names = ["", "a", "b"];
    assert_eq!(sums(&names, TokenStyle::Characters, &["a|b"], &["b|a|b|a", "a|b|b"]), [2.0, 2.0]);
    assert_eq!(sums(&names, TokenStyle::Words, &["a|b"], &["b|a|b|a"]), [2.0]);
    // A phrase that is a prefix or suffix of another one, within a word and as a word.
    let names = ["", " ", "a", "b", "c"];
    let texts = ["a|b", "a|b|c", "a|b| |c", "b| |c", "a|b|c|c"];
    let scores = sums(&names, TokenStyle::Characters, &["a|b", "a|b|c", "b|c", "a|b| |c", "c"], &texts);
    assert_eq!(scores, [2.0, 3.0, 5.0, 1.0, 0.0]);
}

fn phrase(tokens: &[u32], score: f32) -> Phrase {
    Phrase { tokens: tokens.to_vec(), score }
}

fn scores(booster: &PhraseBooster, text: &[u32]) -> Vec<f32> {
    let mut state = booster.start();
    let mut scores = Vec::new();
    for &class in text {
        let (score, next) = booster.step(state, class);
        scores.push(score);
        state = next;
    }
    scores.push(booster.finish(state));
    scores
}

#[test]
fn advances_are_withdrawn_by_the_step_that_breaks_the_match() {
    let labels = [true; 6];
    let booster =
        PhraseBooster::new(&[phrase(&[0, 1, 2, 3], 1.0), phrase(&[0, 1], 1.0)], &labels, 1.0).unwrap();
    // After 1, 2 and 3 of 4 tokens 1/4, 1 and 9/4; after 1 of 2 tokens 1/2.
    assert_eq!(scores(&booster, &[0, 1, 2, 3, 4]), [0.5, 1.5, 0.25, 1.75, 0.0, 0.0]);
    assert_eq!(scores(&booster, &[0, 1, 2, 4]), [0.5, 1.5, 0.25, -0.25, 0.0]);
    assert_eq!(scores(&booster, &[0, 3, 0]), [0.5, -0.5, 0.5, -0.5]);
    assert_eq!(scores(&booster, &[0, 0]), [0.5, 0.0, -0.5]);
    // A phrase that was begun within another one continues.
    let booster =
        PhraseBooster::new(&[phrase(&[0, 1, 2, 3], 1.0), phrase(&[1, 2, 4, 4], 2.0)], &labels, 1.0).unwrap();
    assert_eq!(scores(&booster, &[0, 1, 2, 4, 4]), [0.25, 0.75, 1.25, 2.25, 3.5, 0.0]);
    let booster = PhraseBooster::new(&[phrase(&[0, 1], 1.0)], &labels, 3.0).unwrap();
    assert_eq!(scores(&booster, &[0, 1]), [0.5, 3.5, 0.0]);
    // A negative score is added when the phrase is complete.
    let booster = PhraseBooster::new(&[phrase(&[0, 1], -1.0)], &labels, 1.0).unwrap();
    assert_eq!(scores(&booster, &[0, 1, 0]), [0.0, -2.0, 0.0, 0.0]);
}

/// Only a step that continues the last word withdraws the bonus.
#[test]
fn the_bonus_is_withdrawn_if_the_word_continues() {
    let classes = WordBoundaries::from_names(&["", " ", "e", "v", "n"], TokenStyle::Characters);
    let booster = |score| PhraseBooster::with_boundaries(&[phrase(&[2, 3], score)], &classes, 1.0).unwrap();
    assert_eq!(scores(&booster(1.0), &[2, 3, 4, 1]), [0.5, 1.5, -2.0, 0.0, 0.0]);
    assert_eq!(scores(&booster(1.0), &[2, 3, 1, 4]), [0.5, 1.5, 0.0, 0.0, 0.0]);
    assert_eq!(scores(&booster(1.0), &[2, 3]), [0.5, 1.5, 0.0]);
    // No phrase begins within a word.
    assert_eq!(scores(&booster(1.0), &[4, 2, 3, 1, 2]), [0.0, 0.0, 0.0, 0.0, 0.5, -0.5]);
    // A negative score counts once the word has ended.
    assert_eq!(scores(&booster(-1.0), &[2, 3, 4]), [0.0, 0.0, 0.0, 0.0]);
    assert_eq!(scores(&booster(-1.0), &[2, 3, 1]), [0.0, 0.0, -2.0, 0.0]);
    assert_eq!(scores(&booster(-1.0), &[2, 3]), [0.0, 0.0, -2.0]);
}

#[test]
fn invalid_phrases_are_errors() {
    let labels = [true, true, false];
    let error = |phrases: &[Phrase], scaling| PhraseBooster::new(phrases, &labels, scaling).unwrap_err();
    let good = phrase(&[0, 1], 1.0);
    assert_eq!(error(&[good.clone(), phrase(&[], 1.0)], 1.0), PhraseError::Empty { line: 2 });
    for class in [2, 3] {
        let actual = error(&[good.clone(), phrase(&[0, class], 1.0)], 1.0);
        assert_eq!(actual, PhraseError::Class { line: 2, class, classes: 3 });
    }
    for score in [f32::NAN, f32::INFINITY, 1e30, f32::MAX] {
        assert!(matches!(error(&[phrase(&[0, 1], score)], 1.0), PhraseError::Score { line: 1, .. }));
    }
    assert!(matches!(error(&[phrase(&[0, 1], 1.0)], 1e30), PhraseError::Score { line: 1, .. }));
    for scaling in [f32::NAN, -1.0, f32::INFINITY] {
        assert!(matches!(error(&[], scaling), PhraseError::DepthScaling { .. }));
    }
    let empty = PhraseBooster::new(&[], &labels, 1.0).unwrap();
    assert_eq!(scores(&empty, &[0, 1, 2]), [0.0; 4]);
}

#[test]
fn long_rows_match_steps() {
    let phrases: Vec<Phrase> =
        (0..60u32).map(|i| phrase(&[i * 13 % 149, (i * i) % 7, i % 149, 64], 1.0 + i as f32)).collect();
    let mut labels = [true; 150];
    labels[149] = false;
    let booster = PhraseBooster::new(&phrases, &labels, 2.0).unwrap();
    (0..booster.states() as u32).for_each(|state| assert_row_matches_steps(&booster, state, 150, &[149]));
}
