use proptest::prelude::*;

use super::*;
use crate::automaton::tests::{path, row_is_steps};

/// The bonus of a whole phrase.
fn bonus(phrase: &Phrase, scaling: f64) -> f64 {
    (0..phrase.tokens.len()).map(|i| f64::from(phrase.score) * if i == 0 { 1.0 } else { scaling }).sum()
}

/// The documented sum, by a search at every position.
fn search(phrases: &[Phrase], scaling: f64, text: &[u32]) -> f64 {
    let at = |from: usize| {
        let here = phrases.iter().filter(|phrase| text[from..].starts_with(&phrase.tokens));
        let longest = here.clone().map(|phrase| phrase.tokens.len()).max()?;
        here.filter(|phrase| phrase.tokens.len() == longest)
            .map(|phrase| bonus(phrase, scaling))
            .reduce(f64::max)
    };
    (0..text.len()).filter_map(at).sum()
}

fn phrases() -> impl Strategy<Value = Vec<Phrase>> {
    let phrase = (prop::collection::vec(0u32..3, 1..6), -3..6i32)
        .prop_map(|(tokens, score)| Phrase { tokens, score: score as f32 / 2.0 });
    prop::collection::vec(phrase, 0..8)
}

proptest! {
    #[test]
    fn a_path_earns_what_a_search_finds(
        phrases in phrases(),
        text in prop::collection::vec(0u32..4, 0..24),
        scaling in 0..5u32,
    ) {
        let scaling = scaling as f32 / 2.0;
        // Classes 0 to 2, another label, and the blank at 4.
        let boost = Boost::new(&phrases, &[true, true, true, true, false], scaling).unwrap();
        let (sum, state) = path(&boost, &text);
        let (found, wanted) = (sum + boost.finish(state), search(&phrases, f64::from(scaling), &text));
        prop_assert!((f64::from(found) - wanted).abs() < 1e-3, "{found} {wanted}");
        // The blank changes nothing.
        prop_assert_eq!(boost.step(state, 4), (0.0, state));
        // What is ahead of a phrase is never below 0, nor is anything owed after the first state.
        prop_assert!(boost.finish(state) <= 0.0 && boost.finish(boost.start()) == 0.0);
        for state in 0..boost.states() as u32 + 2 {
            row_is_steps(&boost, state, 5, &[4]);
            row_is_steps(&boost, state, 2, &[]);
            row_is_steps(&boost, state, 7, &[4, 5, 6]);
        }
    }
}

fn phrase(tokens: &[u32], score: f32) -> Phrase {
    Phrase { tokens: tokens.to_vec(), score }
}

fn scores(boost: &Boost, text: &[u32]) -> Vec<f32> {
    let mut state = boost.start();
    let mut scores = Vec::new();
    for &class in text {
        let (score, next) = boost.step(state, class);
        scores.push(score);
        state = next;
    }
    scores.push(boost.finish(state));
    scores
}

#[test]
fn every_token_is_paid_for_at_once_and_taken_back() {
    let labels = [true; 6];
    let boost = Boost::new(&[phrase(&[0, 1, 2], 1.0), phrase(&[0, 1], 1.0)], &labels, 1.0).unwrap();
    assert_eq!(scores(&boost, &[0, 1, 2, 3]), [1.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(scores(&boost, &[0, 1, 3]), [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(scores(&boost, &[0, 3, 0]), [1.0, -1.0, 1.0, -1.0]);
    assert_eq!(scores(&boost, &[0, 0]), [1.0, 0.0, -1.0]);
    // A phrase that was begun within another one goes on.
    let boost = Boost::new(&[phrase(&[0, 1, 2, 3], 1.0), phrase(&[1, 2, 4], 2.0)], &labels, 1.0).unwrap();
    assert_eq!(scores(&boost, &[0, 1, 2, 4]), [1.0, 1.0, 1.0, 3.0, 0.0]);
    let boost = Boost::new(&[phrase(&[0, 1, 2], 1.0)], &labels, 2.0).unwrap();
    assert_eq!(scores(&boost, &[0, 1, 2]), [1.0, 2.0, 2.0, 0.0]);
    // What should not be said costs when it has been said.
    let boost = Boost::new(&[phrase(&[0, 1], -1.0)], &labels, 1.0).unwrap();
    assert_eq!(scores(&boost, &[0, 1, 0]), [0.0, -2.0, 0.0, 0.0]);
}

#[test]
fn mistakes_are_named() {
    let labels = [true, true, false];
    let error = |phrases: &[Phrase], scaling| Boost::new(phrases, &labels, scaling).unwrap_err();
    let good = phrase(&[0, 1], 1.0);
    assert_eq!(error(&[good.clone(), phrase(&[], 1.0)], 1.0), PhraseError::Empty { line: 2 });
    for class in [2, 3] {
        let found = error(&[good.clone(), phrase(&[0, class], 1.0)], 1.0);
        assert_eq!(found, PhraseError::Class { line: 2, class, classes: 3 });
    }
    for score in [f32::NAN, f32::INFINITY, 1e30, f32::MAX] {
        assert!(matches!(error(&[phrase(&[0, 1], score)], 1.0), PhraseError::Score { line: 1, .. }));
    }
    assert!(matches!(error(&[phrase(&[0, 1], 1.0)], 1e30), PhraseError::Score { line: 1, .. }));
    for scaling in [f32::NAN, -1.0, f32::INFINITY] {
        assert!(matches!(error(&[], scaling), PhraseError::DepthScaling { .. }));
    }
    let nothing = Boost::new(&[], &labels, 1.0).unwrap();
    assert_eq!(scores(&nothing, &[0, 1, 2]), [0.0; 4]);
}

#[test]
fn long_rows_are_steps() {
    let phrases: Vec<Phrase> =
        (0..60u32).map(|i| phrase(&[i * 13 % 149, (i * i) % 7, i % 149, 64], 1.0 + i as f32)).collect();
    let mut labels = [true; 150];
    labels[149] = false;
    let boost = Boost::new(&phrases, &labels, 2.0).unwrap();
    (0..boost.states() as u32).for_each(|state| row_is_steps(&boost, state, 150, &[149]));
}
