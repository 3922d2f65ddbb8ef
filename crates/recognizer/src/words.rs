//! Groups the tokens of a recognized label sequence into words.
//!
//! The kind of the tokenizer determines where a word begins: at every token (words), after a
//! space (characters), or at a token with a [`WORD_MARK`] (all others). A special word, such as
//! `<unk>`, is always a separate word.
use std::ops::Range;

use decoding::{TokenStyle, WordBoundaries};
use speech::{Tokenizer, TokenizerKind};

/// Marks word beginnings in tokens; see [`Tokenizer::tokens`].
pub const WORD_MARK: char = '\u{2581}';

/// Returns the label range of each word; white space belongs to none.
pub(crate) fn word_ranges(tokenizer: &Tokenizer, labels: &[u32]) -> Vec<Range<usize>> {
    let (kind, names) = (tokenizer.kind(), tokenizer.tokens());
    let mut words: Vec<Range<usize>> = Vec::new();
    let (mut is_inside, mut is_after_special) = (false, false);
    for (index, &label) in labels.iter().enumerate() {
        let name = &names[label as usize];
        let begins_word = match kind {
            TokenizerKind::Words => true,
            TokenizerKind::Characters if name.trim().is_empty() => {
                is_inside = false;
                continue;
            }
            TokenizerKind::Characters => tokenizer.is_special(label) || is_after_special,
            _ => name.starts_with(WORD_MARK) || tokenizer.is_special(label) || is_after_special,
        };
        is_after_special = tokenizer.is_special(label);
        match words.last_mut() {
            Some(word) if is_inside && !begins_word => word.end = index + 1,
            _ => words.push(index..index + 1),
        }
        is_inside = true;
    }
    words
}

/// Returns whether a letter is of a script without spaces between words.
pub(crate) fn is_of_unspaced_script(letter: char) -> bool {
    matches!(letter,
        '\u{0e00}'..='\u{109f}' // Thai, Lao, Tibetan, Burmese
        | '\u{1780}'..='\u{17ff}' // Khmer
        | '\u{2e80}'..='\u{a4cf}' // Chinese, Japanese
        | '\u{f900}'..='\u{faff}' // compatibility ideographs
        | '\u{20000}'..='\u{3ffff}' // rare ideographs
    )
}

/// Joins words with spaces, except between two words of scripts without spaces.
pub(crate) fn join_words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().fold(String::new(), |mut text, word| {
        let is_unspaced = |letter: Option<char>| letter.is_some_and(is_of_unspaced_script);
        let is_joined = is_unspaced(text.chars().last()) && is_unspaced(word.chars().next());
        if !text.is_empty() && !is_joined {
            text.push(' ');
        }
        text + word
    })
}

/// Returns 1 for each label of the tokenizer that begins a word, otherwise 0.
///
/// In a tokenizer with labels for spaces, a space has 1, as a word follows it.
pub(crate) fn word_starts(tokenizer: &Tokenizer) -> Vec<u8> {
    let begins_word = |(id, name): (u32, &String)| match tokenizer.kind() {
        TokenizerKind::Words => true,
        TokenizerKind::Characters => name.trim().is_empty(),
        _ => name.starts_with(WORD_MARK) || tokenizer.is_special(id),
    };
    (0..).zip(tokenizer.tokens()).map(|label| u8::from(begins_word(label))).collect()
}

/// Returns the word boundaries of each label, for whole-word phrases.
pub(crate) fn word_boundaries(tokenizer: &Tokenizer) -> Vec<Option<WordBoundaries>> {
    let style = match tokenizer.kind() {
        TokenizerKind::Words => TokenStyle::Words,
        TokenizerKind::Characters => TokenStyle::Characters,
        _ => TokenStyle::Pieces,
    };
    let special = |id| tokenizer.is_special(id).then_some(WordBoundaries::BOTH);
    let boundaries = WordBoundaries::from_names(tokenizer.tokens(), style);
    (0..).zip(boundaries).map(|(id, boundaries)| special(id).or(boundaries)).collect()
}

#[cfg(test)]
mod tests {
    use decoding::{PhraseBooster, Scorer, read_phrases};
    use proptest::prelude::*;
    use speech::TokenizerOptions;

    use super::*;

    const KINDS: [TokenizerKind; 6] = [
        TokenizerKind::Words,
        TokenizerKind::Characters,
        TokenizerKind::InnerCharacters,
        TokenizerKind::Bpe { size: 20 },
        TokenizerKind::Bpe { size: 40 },
        TokenizerKind::Unigram { size: 30 },
    ];

    /// Words that contain one another, an apostrophe, and special words.
    const VOCABULARY: [&str; 12] =
        ["an", "and", "ant", "a", "eve", "seven", "evens", "eveeve", "eve's", "7", "<unk>", "[noise]"];

    /// A tokenizer of the vocabulary, with two special words.
    fn tokenizer(kind: TokenizerKind) -> Tokenizer {
        let special = Some(vec!["<unk>".to_owned(), "[noise]".to_owned()]);
        let options = TokenizerOptions { special, ..TokenizerOptions::new(kind) };
        Tokenizer::train_with(&options, &[VOCABULARY.join(" "), VOCABULARY.join(" ")]).unwrap()
    }

    fn new_booster(tokenizer: &Tokenizer, list: &str) -> PhraseBooster {
        let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
        let phrases = read_phrases(list.as_bytes(), 1.0, encode).unwrap().phrases;
        let mut boundaries = word_boundaries(tokenizer);
        boundaries.push(None);
        PhraseBooster::with_boundaries(&phrases, &boundaries, 1.0).unwrap()
    }

    /// Returns the sum of the boosts over the labels of a text.
    fn total_boost(booster: &PhraseBooster, tokenizer: &Tokenizer, text: &str) -> f32 {
        let (mut total, mut state) = (0.0, booster.start());
        for label in tokenizer.encode(text).unwrap() {
            let (score, next) = booster.step(state, label);
            (total, state) = (total + score, next);
        }
        total + booster.finish(state)
    }

    /// Indices of words of the vocabulary.
    fn any_words(max_words: usize) -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0..VOCABULARY.len(), 1..=max_words)
    }

    fn join_words(words: &[usize]) -> String {
        words.iter().map(|&word| VOCABULARY[word]).collect::<Vec<_>>().join(" ")
    }

    proptest! {
        /// A phrase scores the same for every kind: once for each position of its words.
        #[test]
        fn phrases_score_by_words_for_every_kind(
            phrases in prop::collection::vec((any_words(3), -4..8i32), 0..6),
            words_of_text in any_words(8),
        ) {
            let list: String =
                phrases.iter().map(|(words, score)| format!("{}\t{score}\n", join_words(words))).collect();
            let longest_match_score = |from: usize| {
                let matches = phrases.iter().filter(|(words, _)| words_of_text[from..].starts_with(words));
                matches.map(|(words, score)| (words.len(), *score)).max().map_or(0, |(_, score)| score)
            };
            let expected: i32 = (0..words_of_text.len()).map(longest_match_score).sum();
            for kind in KINDS {
                let tokenizer = tokenizer(kind);
                let booster = new_booster(&tokenizer, &list);
                let score = total_boost(&booster, &tokenizer, &join_words(&words_of_text));
                prop_assert!((score - expected as f32).abs() < 1e-3, "{kind:?} {score} {expected}");
            }
        }
    }

    #[test]
    fn words_are_joined_as_their_scripts_require() {
        assert_eq!(super::join_words(["ab", "c", "我们", "天气", "d"]), "ab c 我们天气 d");
        assert_eq!(super::join_words([]), "");
    }

    #[test]
    fn labels_after_special_words_begin_words() {
        for kind in KINDS {
            let tokenizer = tokenizer(kind);
            let booster = new_booster(&tokenizer, "an\t4\n<unk> a\t2");
            // Without the space that a text would have.
            let mut labels = tokenizer.encode("<unk>").unwrap();
            labels.extend(tokenizer.encode("an").unwrap());
            labels.extend(tokenizer.encode("[noise]").unwrap());
            let step = |(total, state), &label: &u32| {
                let (score, next) = booster.step(state, label);
                (total + score, next)
            };
            let (total, state) = labels.iter().fold((0.0, booster.start()), step);
            assert!((total + booster.finish(state) - 4.0).abs() < 1e-4, "{kind:?} {total}");
        }
    }

    #[test]
    fn scripts_without_spaces_have_no_word_boundaries() {
        for kind in [TokenizerKind::Characters, TokenizerKind::InnerCharacters] {
            let tokenizer = Tokenizer::train(kind, &["今天天气好", "天气", "ok 好"]).unwrap();
            let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
            let mut phrases = read_phrases("天气\t3\nok\t2".as_bytes(), 1.0, encode).unwrap().phrases;
            decoding::add_unmarked_variants(&mut phrases, tokenizer.tokens());
            let booster =
                PhraseBooster::with_boundaries(&phrases, &word_boundaries(&tokenizer), 1.0).unwrap();
            for (text, expected) in [("今天天气好", 3.0), ("天气", 3.0), ("天天气天气", 6.0), ("好天", 0.0)]
            {
                let score = total_boost(&booster, &tokenizer, text);
                assert!((score - expected).abs() < 1e-4, "{kind:?} {text} {score}");
            }
            assert!((total_boost(&booster, &tokenizer, "ok 天气") - 5.0).abs() < 1e-4, "{kind:?}");
        }
    }

    #[test]
    fn special_pieces_of_imported_tokenizers_are_separate_words() {
        use crate::sentencepiece_bytes::{ModelBytes, NORMAL, UNIGRAM, USER_DEFINED};
        let pieces = [
            ("\u{2581}", -1.0, NORMAL),
            ("\u{2581}a", -1.0, NORMAL),
            ("b", -2.0, NORMAL),
            ("<pad>", 0.0, USER_DEFINED),
            (",", -3.0, NORMAL),
        ];
        let model = ModelBytes::new(UNIGRAM, &pieces).to_bytes();
        let tokenizer = Tokenizer::from_sentencepiece(&model).unwrap();
        let labels = tokenizer.encode("ab<pad>b éb a,").unwrap();
        assert_eq!(labels, [2, 3, 4, 3, 1, 0, 3, 2, 5]);
        let ranges = word_ranges(&tokenizer, &labels);
        assert_eq!(ranges, [0..2, 2..3, 3..4, 4..5, 5..6, 6..7, 7..9]);
        assert_eq!(word_starts(&tokenizer), [1, 1, 1, 0, 1, 0]);
        let [start, inner] =
            [WordBoundaries { before: true, after: false }, WordBoundaries::NEITHER].map(Some);
        let start_and_end = Some(WordBoundaries::BOTH);
        assert_eq!(
            word_boundaries(&tokenizer),
            [start_and_end, start, start, inner, start_and_end, start_and_end]
        );
    }

    #[test]
    fn word_ranges_cover_the_words_of_the_text() {
        let text = "a banana and a band";
        let kinds = [
            TokenizerKind::Words,
            TokenizerKind::Characters,
            TokenizerKind::InnerCharacters,
            TokenizerKind::Bpe { size: 9 },
            TokenizerKind::Bpe { size: 30 },
        ];
        for kind in kinds {
            let tokenizer = Tokenizer::train(kind, &[text]).unwrap();
            let labels = tokenizer.encode(text).unwrap();
            let ranges = word_ranges(&tokenizer, &labels);
            let words = ranges.iter().map(|range| tokenizer.decode(&labels[range.clone()]).unwrap());
            assert_eq!(words.collect::<Vec<_>>().join(" "), text, "{kind:?}");
            assert!(word_ranges(&tokenizer, &[]).is_empty());
        }
    }
}
