//! Special words of a tokenizer, which are single labels: `<unk>`, `[noise]` and others.

use std::collections::BTreeSet;
use std::ops::Range;

use super::WORD_MARK;
use crate::{Error, Result, UnicodeForm, find_sentence_mark};

/// Returns whether a word has the form `<...>`.
pub(super) fn is_angle_bracketed(word: &str) -> bool {
    let inside = word.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inside.is_some_and(|inside| !inside.is_empty() && !inside.contains(['<', '>']))
}

/// Longest mark that [`find_bracketed`] returns, in bytes.
const MAX_MARK_BYTES: usize = 60;

/// Returns the byte ranges of transcriber marks: `<...>`, `[...]` or `{...}`.
///
/// Marks in angle brackets have no white space.
///
/// ```
/// let text = "a [door slams] b, <unk>, c < d";
/// let marks: Vec<&str> = speech::find_bracketed(text).map(|range| &text[range]).collect();
/// assert_eq!(marks, ["[door slams]", "<unk>"]);
/// ```
pub fn find_bracketed(text: &str) -> impl Iterator<Item = Range<usize>> {
    let opening_brackets = text.match_indices(['<', '[', '{']);
    opening_brackets.filter_map(|(start, bracket)| {
        let inside = &text[start + 1..];
        let length = inside.find(['<', '>', '[', ']', '{', '}'])?;
        let closing_bracket = match bracket {
            "<" => '>',
            "[" => ']',
            _ => '}',
        };
        let is_mark = inside[length..].starts_with(closing_bracket)
            && (1..=MAX_MARK_BYTES).contains(&inside[..length].trim().len())
            && !(bracket == "<" && inside[..length].contains(char::is_whitespace));
        is_mark.then_some(start..start + length + 2)
    })
}

/// Returns the listed special words, or those of the texts.
///
/// Without a list, these are all words of the form `<...>` in the texts.
pub(super) fn find_words(
    list: Option<&[String]>,
    form: UnicodeForm,
    texts: &[String],
) -> Result<Vec<String>> {
    let words: BTreeSet<String> = match list {
        Some(list) => return from_list(list, form),
        None => {
            let words = texts.iter().flat_map(|text| text.split_whitespace());
            words.filter(|word| is_angle_bracketed(word) && is_valid(word)).map(str::to_owned).collect()
        }
    };
    Ok(words.into_iter().collect())
}

/// Returns the special words of a list in a Unicode form, sorted.
pub(super) fn from_list(list: &[String], form: UnicodeForm) -> Result<Vec<String>> {
    let mut words = BTreeSet::new();
    for word in list.iter().map(|word| form.apply(word).into_owned()) {
        if !is_valid(&word) {
            let expected = "words without white space and U+2581, other than <s> and </s>".into();
            return Err(Error::Setting { field: "special", expected, found: format!("{word:?}") });
        }
        if let Some(duplicate) = words.replace(word) {
            return Err(Error::Setting {
                field: "special",
                expected: format!("each word once (in the form {})", form.name()),
                found: format!("{duplicate:?} twice"),
            });
        }
    }
    Ok(words.into_iter().collect())
}

/// Returns whether a word can be a special label.
pub(super) fn is_valid(word: &str) -> bool {
    !word.is_empty()
        && !word.contains(char::is_whitespace)
        && !word.contains(WORD_MARK)
        && find_sentence_mark(word).is_none()
}
