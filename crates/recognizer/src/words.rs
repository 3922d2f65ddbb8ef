//! Groups the tokens of a label sequence into words; word boundaries.
use std::ops::Range;

use decoding::{TokenStyle, WordBoundaries};
use speech::{Tokenizer, TokenizerKind};

/// Marks word beginnings in tokens; see [`Tokenizer::tokens`].
pub const WORD_MARK: char = '\u{2581}';

/// Returns the label range of each word; white space belongs to none.
pub(crate) fn groups(tokenizer: &Tokenizer, labels: &[u32]) -> Vec<Range<usize>> {
    let (kind, names) = (tokenizer.kind(), tokenizer.tokens());
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut is_inside, mut after_special) = (false, false);
    for (index, &label) in labels.iter().enumerate() {
        let name = &names[label as usize];
        let begins = match kind {
            TokenizerKind::Words => true,
            TokenizerKind::Characters if name.trim().is_empty() => {
                is_inside = false;
                continue;
            }
            TokenizerKind::Characters => tokenizer.is_special(label) || after_special,
            _ => name.starts_with(WORD_MARK) || after_special,
        };
        after_special = tokenizer.is_special(label);
        match groups.last_mut() {
            Some(group) if is_inside && !begins => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
        is_inside = true;
    }
    groups
}

/// Returns 1 for each label of the tokenizer that begins a word, otherwise 0.
///
/// In a tokenizer with labels for spaces, a space has 1, as a word follows it.
pub(crate) fn starts(tokenizer: &Tokenizer) -> Vec<u8> {
    let begins = |name: &String| match tokenizer.kind() {
        TokenizerKind::Words => true,
        TokenizerKind::Characters => name.trim().is_empty(),
        _ => name.starts_with(WORD_MARK),
    };
    tokenizer.tokens().iter().map(|name| u8::from(begins(name))).collect()
}

/// Returns the word boundaries of each label, for whole-word phrases.
pub(crate) fn boundaries(tokenizer: &Tokenizer) -> Vec<Option<WordBoundaries>> {
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

    fn boost(tokenizer: &Tokenizer, list: &str) -> PhraseBooster {
        let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
        let phrases = read_phrases(list.as_bytes(), 1.0, encode).unwrap().phrases;
        let mut boundaries = boundaries(tokenizer);
        boundaries.push(None);
        PhraseBooster::with_boundaries(&phrases, &boundaries, 1.0).unwrap()
    }

    fn bonus(boost: &PhraseBooster, tokenizer: &Tokenizer, text: &str) -> f32 {
        let (mut sum, mut state) = (0.0, boost.start());
        for label in tokenizer.encode(text).unwrap() {
            let (score, next) = boost.step(state, label);
            (sum, state) = (sum + score, next);
        }
        sum + boost.finish(state)
    }

    fn words(max_words: usize) -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0..VOCABULARY.len(), 1..=max_words)
    }

    fn text(words: &[usize]) -> String {
        words.iter().map(|&word| VOCABULARY[word]).collect::<Vec<_>>().join(" ")
    }

    proptest! {
        /// A phrase scores the same for every kind: once for each position of its words.
        #[test]
        fn phrases_score_by_words_for_every_kind(
            phrases in prop::collection::vec((words(3), -4..8i32), 0..6),
            words_of_text in words(8),
        ) {
            let list: String =
                phrases.iter().map(|(words, score)| format!("{}\t{score}\n", text(words))).collect();
            let at = |from: usize| {
                let matches = phrases.iter().filter(|(words, _)| words_of_text[from..].starts_with(words));
                matches.map(|(words, score)| (words.len(), *score)).max().map_or(0, |(_, score)| score)
            };
            let expected: i32 = (0..words_of_text.len()).map(at).sum();
            for kind in KINDS {
                let tokenizer = tokenizer(kind);
                let score = bonus(&boost(&tokenizer, &list), &tokenizer, &text(&words_of_text));
                prop_assert!((score - expected as f32).abs() < 1e-3, "{kind:?} {score} {expected}");
            }
        }
    }

    #[test]
    fn labels_after_special_words_begin_words() {
        for kind in KINDS {
            let tokenizer = tokenizer(kind);
            let boost = boost(&tokenizer, "an\t4\n<unk> a\t2");
            // Without the space that a text would have.
            let mut labels = tokenizer.encode("<unk>").unwrap();
            labels.extend(tokenizer.encode("an").unwrap());
            labels.extend(tokenizer.encode("[noise]").unwrap());
            let step = |(sum, state), &label: &u32| {
                let (score, next) = boost.step(state, label);
                (sum + score, next)
            };
            let (sum, state) = labels.iter().fold((0.0, boost.start()), step);
            assert!((sum + boost.finish(state) - 4.0).abs() < 1e-4, "{kind:?} {sum}");
        }
    }

    #[test]
    fn scripts_without_spaces_have_no_word_boundaries() {
        for kind in [TokenizerKind::Characters, TokenizerKind::InnerCharacters] {
            let tokenizer = Tokenizer::train(kind, &["今天天气好", "天气", "ok 好"]).unwrap();
            let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
            let mut phrases = read_phrases("天气\t3\nok\t2".as_bytes(), 1.0, encode).unwrap().phrases;
            decoding::add_unmarked_variants(&mut phrases, tokenizer.tokens());
            let boost = PhraseBooster::with_boundaries(&phrases, &boundaries(&tokenizer), 1.0).unwrap();
            for (text, expected) in [("今天天气好", 3.0), ("天气", 3.0), ("天天气天气", 6.0), ("好天", 0.0)]
            {
                let score = bonus(&boost, &tokenizer, text);
                assert!((score - expected).abs() < 1e-4, "{kind:?} {text} {score}");
            }
            assert!((bonus(&boost, &tokenizer, "ok 天气") - 5.0).abs() < 1e-4, "{kind:?}");
        }
    }

    #[test]
    fn groups_are_the_words_of_the_text() {
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
            let groups = groups(&tokenizer, &labels);
            let words = groups.iter().map(|group| tokenizer.decode(&labels[group.clone()]).unwrap());
            assert_eq!(words.collect::<Vec<_>>().join(" "), text, "{kind:?}");
            assert!(super::groups(&tokenizer, &[]).is_empty());
        }
    }
}
