//! Tests of word n-grams over pieces and characters: sums match the n-gram of words.
use proptest::prelude::*;

use super::*;
use crate::ngram::estimate;
use crate::scorer::tests::{assert_row_matches_steps, sequence_score};

/// Words that are prefixes of others, and one that tokens cannot spell.
const WORDS: [&str; 8] = ["a", "ab", "abc", "b", "bca", "cab", "caba", "xyz"];
/// Pieces; class 2 is the blank, the last but one is the mark alone.
const PIECES: [&str; 10] = ["▁a", "▁b", "", "▁ca", "a", "b", "c", "bc", "▁", "▁ab"];
const CHARACTERS: [&str; 5] = ["a", "b", " ", "c", ""];

fn table(texts: &[Vec<u32>], order: usize) -> NgramTable {
    estimate(texts, &WORDS, order).unwrap().table
}

/// All words, so that the word n-gram has a class for each.
fn ngram_of_words(table: &NgramTable) -> Ngram {
    Ngram::new(table, &WORDS, OutOfVocabulary::Reject).unwrap()
}

/// Log-probability of a text by the n-gram, including penalties.
///
/// Unknown words are class 8, beyond the names: `<unk>`.
fn text_score(ngram: &Ngram, text: &str, penalty: f32) -> f32 {
    let mut state = ngram.start();
    let mut sum = 0.0;
    for word in text.split_whitespace() {
        // The lexicon contains only words that tokens can spell.
        let known = WORDS[..7].iter().position(|other| *other == word);
        let (score, next) = match known {
            Some(class) => ngram.step(state, class as u32),
            None => ngram.follow_unknown(state),
        };
        sum += score;
        sum += if known.is_none() { penalty * word.chars().count() as f32 } else { 0.0 };
        state = next;
    }
    sum + ngram.finish(state)
}

/// The text of a path.
fn text(names: &[&str], classes: &[u32]) -> String {
    classes.iter().map(|&class| names[class as usize].replace(WORD_MARK, " ")).collect()
}

/// Asserts that sum and rows of a path match the word n-gram.
fn check_path(names: &[&str], texts: &[Vec<u32>], order: usize, classes: &[u32], options: WordNgramOptions) {
    let table = table(texts, order);
    let words = WordNgram::new(&table, names, options).unwrap();
    assert_eq!(words.ngram.word_of_class.len(), 7);
    let (sum, state) = sequence_score(&words, classes);
    let text = text(names, classes);
    let expected = text_score(&ngram_of_words(&table), &text, options.unknown_character);
    let actual = sum + words.finish(state);
    assert!((actual - expected).abs() <= 2e-5 * (1.0 + expected.abs()), "`{text}`: {actual} {expected}");
    let nameless: Vec<u32> =
        (0..names.len() as u32).filter(|&class| names[class as usize].is_empty()).collect();
    let mut state = words.start();
    for &class in classes {
        assert_row_matches_steps(&words, state, names.len(), &nameless);
        state = words.step(state, class).1;
    }
    assert_row_matches_steps(&words, state, names.len(), &nameless);
    assert_row_matches_steps(&words, u32::MAX, names.len(), &nameless);
}

fn texts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0u32..8, 1..6), 1..8)
}

proptest! {
    #[test]
    fn sums_match_the_word_ngram(
        texts in texts(),
        order in 1usize..4,
        pieces in prop::collection::vec(0u32..10, 0..14),
        characters in prop::collection::vec(0u32..5, 0..14),
        exact_completions in 0usize..5,
        penalty in -2..1i32,
    ) {
        let options = WordNgramOptions { unknown_character: penalty as f32, exact_completions, ..Default::default() };
        // A mark without letters begins an empty word, which text cannot represent.
        let is_lone_mark = |index: usize| {
            PIECES[pieces[index] as usize] == "▁"
                && pieces[index + 1..]
                    .iter()
                    .find(|&&class| class != 2)
                    .is_none_or(|&class| PIECES[class as usize].starts_with(WORD_MARK))
        };
        if !(0..pieces.len()).any(is_lone_mark) {
            check_path(&PIECES, &texts, order, &pieces, options);
        }
        check_path(&CHARACTERS, &texts, order, &characters, options);
    }

    #[test]
    fn registered_pairs_match_computed_pairs(
        texts in texts(),
        pieces in prop::collection::vec(0u32..10, 0..14),
    ) {
        let table = table(&texts, 3);
        let computed = WordNgram::new(&table, &PIECES, WordNgramOptions::default()).unwrap();
        let mut registered = WordNgram::new(&table, &PIECES, WordNgramOptions::default()).unwrap();
        let mut full = WordNgram::new(&table, &PIECES, WordNgramOptions::default()).unwrap();
        let nodes = registered.nodes.len() as u32 + 1;
        registered.pairs = StatePairs::with_registry(nodes, computed.ngram.states() as u32, 1000);
        full.pairs = StatePairs::with_registry(nodes, computed.ngram.states() as u32, 0);
        let total = |words: &WordNgram| {
            let (sum, state) = sequence_score(words, &pieces);
            sum + words.finish(state)
        };
        prop_assert_eq!(total(&computed).to_bits(), total(&registered).to_bits());
        prop_assert_eq!(registered.dropped_contexts(), 0);
        prop_assert!(total(&full).is_finite());
        prop_assert!(full.dropped_contexts() > 0);
    }
}

proptest! {
    /// A special word is one word without a penalty for its characters.
    #[test]
    fn special_words_are_single_words(
        texts in texts(),
        order in 1usize..4,
        pieces in prop::collection::vec(0usize..7, 0..14),
        characters in prop::collection::vec(0usize..6, 0..14),
        exact_completions in 0usize..5,
    ) {
        // "caba" is in the table, "<unk>" and "[noise]" are not.
        let options = WordNgramOptions { unknown_character: -3.0, exact_completions, ..Default::default() };
        let (special, table) = ([3, 4, 5], table(&texts, order));
        let marked = ["▁a", "▁b", "b", "▁<unk>", "▁[noise]", "▁caba", "c", ""];
        let spaced = ["a", " ", "b", "<unk>", "[noise]", "caba", ""];
        let (marked_lexicon, spaced_lexicon) = (["a", "ab", "abc", "b", "caba"], ["a", "ab", "b", "caba"]);
        for (names, lexicon, classes) in
            [(&marked[..], &marked_lexicon[..], &pieces), (&spaced, &spaced_lexicon, &characters)]
        {
            let words = WordNgram::with_special_words(&table, names, &special, options).unwrap();
            prop_assert_eq!(words.ngram.word_of_class.len(), lexicon.len());
            let written = |&class: &usize| match names[class].replace(WORD_MARK, " ") {
                name if special.contains(&(class as u32)) => format!(" {name} "),
                name => name,
            };
            let text: String = classes.iter().map(written).collect();
            let (ngram, mut expected) = (ngram_of_words(&table), 0.0);
            let mut context = ngram.start();
            for word in text.split_whitespace() {
                let known = WORDS.iter().position(|other| *other == word && lexicon.contains(other));
                let is_penalized = known.is_none() && !["<unk>", "[noise]"].contains(&word);
                let (score, next) = match known {
                    Some(class) => ngram.step(context, class as u32),
                    None => ngram.follow_unknown(context),
                };
                expected += score - if is_penalized { 3.0 * word.chars().count() as f32 } else { 0.0 };
                context = next;
            }
            expected += ngram.finish(context);
            let classes: Vec<u32> = classes.iter().map(|&class| class as u32).collect();
            let (sum, state) = sequence_score(&words, &classes);
            let actual = sum + words.finish(state);
            prop_assert!((actual - expected).abs() <= 2e-5 * (1.0 + expected.abs()), "`{text}`: {actual} {expected}");
            let mut state = words.start();
            for &class in &classes {
                assert_row_matches_steps(&words, state, names.len(), &[names.len() as u32 - 1]);
                state = words.step(state, class).1;
            }
        }
    }
}

#[test]
fn threads_with_registered_pairs_compute_equal_scores() {
    let table = table(&[vec![0, 1, 2, 3, 4], vec![5, 6, 0], vec![2, 2, 3]], 3);
    let mut words = WordNgram::new(&table, &PIECES, WordNgramOptions::default()).unwrap();
    let paths: Vec<Vec<u32>> =
        (0..64u32).map(|i| (0..12).map(|j| (i * 7 + j * j * (i + 3)) % 10).collect()).collect();
    let total = |words: &WordNgram, classes: &[u32]| {
        let (sum, state) = sequence_score(words, classes);
        (sum + words.finish(state)).to_bits()
    };
    let expected: Vec<u32> = paths.iter().map(|classes| total(&words, classes)).collect();
    words.pairs =
        StatePairs::with_registry(words.nodes.len() as u32 + 1, words.ngram.states() as u32, 1 << 20);
    std::thread::scope(|scope| {
        for shift in 0..4 {
            let (words, paths, expected) = (&words, &paths, &expected);
            scope.spawn(move || {
                for i in 0..64 {
                    let index = (i + shift * 16) % 64;
                    assert_eq!(total(words, &paths[index]), expected[index]);
                }
            });
        }
    });
}

#[test]
fn a_prefix_has_the_score_of_its_best_word() {
    let text = "\\data\\\nngram 1=4\n\\1-grams:\n-0.5 ab\n-0.25 ac\n-0.75 b\n-0.6 </s>\n\\end\\";
    let table = NgramTable::read(text.as_bytes()).unwrap();
    let words = WordNgram::new(&table, &["a", "b", "c", " "], WordNgramOptions::default()).unwrap();
    let log = |log10: f32| log10 * 10f32.ln();
    let (a, within) = words.step(words.start(), 0);
    let (b, ab) = words.step(within, 1);
    let (space, _) = words.step(ab, 3);
    assert!((a - log(-0.25)).abs() < 1e-6 && (b - log(-0.25)).abs() < 1e-6 && space.abs() < 1e-6);
    // Without `<unk>` an unknown word has 10^-100.
    let (leaving_score, _) = words.step(within, 0);
    assert!((leaving_score - log(-100.0 + 0.25)).abs() < 1e-4, "{leaving_score}");
}

#[test]
fn invalid_arguments_are_errors() {
    let table = table(&[vec![0, 1]], 2);
    let error = |names: &[&str]| WordNgram::new(&table, names, WordNgramOptions::default()).unwrap_err();
    assert_eq!(error(&["a", "b"]), Error::NoBoundary);
    assert_eq!(error(&["▁q", "q"]), Error::NoToken { found: 11 });
    assert!(matches!(error(&["a", "a", " "]), Error::Name { class: 1, .. }));
    let options = WordNgramOptions { unknown_character: f32::NAN, ..Default::default() };
    let error = WordNgram::new(&table, &CHARACTERS, options).unwrap_err();
    assert!(matches!(error, Error::Option { option: "unknown_character", .. }));
}
