//! Tests of word boundaries of tokens, and of unmarked phrase variants.
use super::*;

const START: WordBoundaries = WordBoundaries { before: true, after: false };
const END: WordBoundaries = WordBoundaries { before: false, after: true };

fn boundaries(names: &[&str], style: TokenStyle) -> Vec<WordBoundaries> {
    WordBoundaries::from_names(names, style).into_iter().flatten().collect()
}

#[test]
fn characters_of_words_have_no_boundaries() {
    let names =
        [" ", "e", "é", "\u{301}", "ß", "7", "'", "’", "_", ",", ".", "-", "?", "[noise]", "天", "ก", "ア"];
    let expected: Vec<WordBoundaries> = (0..names.len())
        .map(|index| if (1..9).contains(&index) { WordBoundaries::NEITHER } else { WordBoundaries::BOTH })
        .collect();
    assert_eq!(boundaries(&names, TokenStyle::Characters), expected);
    // Without a space, every character is a word.
    assert_eq!(boundaries(&["e", "v", "'"], TokenStyle::Characters), [WordBoundaries::BOTH; 3]);
    assert_eq!(boundaries(&["e", "▁v", " "], TokenStyle::Words), [WordBoundaries::BOTH; 3]);
    assert_eq!(WordBoundaries::from_names(&["", "a"], TokenStyle::Words), [None, Some(WordBoundaries::BOTH)]);
}

#[test]
fn pieces_begin_words_by_their_mark() {
    let expected = [
        ("▁", START),
        ("▁an", START),
        ("an", WordBoundaries::NEITHER),
        ("'s", WordBoundaries::NEITHER),
        (".", WordBoundaries::BOTH),
        ("n.", END),
        ("-a", START),
        ("▁天", WordBoundaries::BOTH),
        ("天气", WordBoundaries::BOTH),
        ("a天", END),
        ("한", WordBoundaries::NEITHER),
    ];
    let (names, expected): (Vec<&str>, Vec<WordBoundaries>) = expected.into_iter().unzip();
    assert_eq!(boundaries(&names, TokenStyle::Pieces), expected);
}

#[test]
fn styles_follow_from_names() {
    assert_eq!(TokenStyle::from_names(&["", "a", " "]), TokenStyle::Characters);
    assert_eq!(TokenStyle::from_names(&["", "▁a", "b"]), TokenStyle::Pieces);
    assert_eq!(TokenStyle::from_names(&["one", "two"]), TokenStyle::Words);
}

#[test]
fn phrases_of_unspaced_scripts_get_unmarked_variants() {
    let names = ["▁天", "天", "气", "▁", "▁晴天", "晴", "▁a", "a", "▁雨"];
    let phrase = |tokens: &[u32], score| Phrase { tokens: tokens.to_vec(), score };
    let mut phrases = vec![
        phrase(&[0, 2], 1.0),
        phrase(&[3, 1, 2], 1.0),
        phrase(&[4], 3.0),
        phrase(&[6, 2], 1.0),
        phrase(&[8], 1.0),
        phrase(&[3], 1.0),
    ];
    add_unmarked_variants(&mut phrases, &names);
    assert_eq!(phrases[6..], [phrase(&[1, 2], 1.0), phrase(&[1, 2], 1.5), phrase(&[5, 1], 1.5)]);
}
