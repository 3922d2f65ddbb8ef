//! Splits transcripts for tokenizers: at special words, then into tokens or words.

use std::borrow::Cow;

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

use super::{TokenizerKind, WORD_MARK, library_error};
use crate::Result;

/// A run of words in a normalized text.
pub(super) enum TextRun<'a> {
    /// Words between special words; for characters, with the spaces around them.
    OrdinaryWords(Cow<'a, str>),
    /// A special word.
    SpecialWord(&'a str),
}

/// Splits a normalized text at its special words.
pub(super) fn split_at_special_words(
    kind: TokenizerKind,
    text: &str,
    is_special: impl Fn(&str) -> bool,
) -> Vec<TextRun<'_>> {
    if !text.split(' ').any(&is_special) {
        return vec![TextRun::OrdinaryWords(Cow::Borrowed(text))];
    }
    let (mut runs, mut run) = (Vec::new(), String::new());
    let keeps_spaces = kind == TokenizerKind::Characters;
    let flush = |run: &mut String, runs: &mut Vec<TextRun>| {
        if !run.is_empty() {
            runs.push(TextRun::OrdinaryWords(Cow::Owned(std::mem::take(run))));
        }
    };
    for (number, word) in text.split(' ').enumerate() {
        let is_special = is_special(word);
        if number > 0 && (keeps_spaces || !run.is_empty() && !is_special) {
            run.push(' ');
        }
        if is_special {
            flush(&mut run, &mut runs);
            runs.push(TextRun::SpecialWord(word));
        } else {
            run += word;
        }
    }
    flush(&mut run, &mut runs);
    runs
}

/// Normalizes white space: single spaces, none at the ends.
pub(super) fn normalize_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the pre-tokenizer: it splits text into tokens, or into words for subwords.
pub(super) fn pre_tokenizer(kind: TokenizerKind) -> Result<PreTokenizerWrapper> {
    let regex = |pattern: &str| {
        Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
            .map_err(library_error)
    };
    let mark_words = |split| Metaspace::new(WORD_MARK, PrependScheme::Always, split);
    Ok(match kind {
        TokenizerKind::Words => {
            Split::new(SplitPattern::String(" ".into()), SplitDelimiterBehavior::Removed, false)
                .map_err(library_error)?
                .into()
        }
        TokenizerKind::Characters => regex("(?s).")?.into(),
        TokenizerKind::InnerCharacters => {
            Sequence::new(vec![mark_words(false).into(), regex("(?s)\u{2581}?.")?.into()]).into()
        }
        TokenizerKind::Bpe { .. }
        | TokenizerKind::Unigram { .. }
        | TokenizerKind::SentencePiece
        | TokenizerKind::HuggingFace => mark_words(true).into(),
    })
}

/// Splits a text with a pre-tokenizer.
pub(super) fn split_text(splitter: &PreTokenizerWrapper, text: &str) -> Result<Vec<String>> {
    let mut pieces = PreTokenizedString::from(text);
    splitter.pre_tokenize(&mut pieces).map_err(library_error)?;
    let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    Ok(splits.into_iter().map(|(piece, ..)| piece.to_owned()).filter(|piece| !piece.is_empty()).collect())
}
