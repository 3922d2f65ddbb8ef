//! Words that are single labels: `<unk>`, `[noise]` and their kind.

use std::collections::BTreeSet;

use super::MARK;
use crate::{Error, Result, UnicodeForm, find_sentence_mark};

/// Whether a word has the form `<...>`.
pub(super) fn is_angled(word: &str) -> bool {
    let inside = word.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inside.is_some_and(|inside| !inside.is_empty() && !inside.contains(['<', '>']))
}

/// Whether a word looks like a mark of a transcriber: `<...>`, `[...]` or `{...}`.
///
/// ```
/// assert!(speech::is_bracketed("[noise]") && speech::is_bracketed("<unk>"));
/// assert!(!speech::is_bracketed("noise"));
/// ```
pub fn is_bracketed(word: &str) -> bool {
    let within = |open: char, close: char| {
        let inside = word.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        inside.is_some_and(|inside| !inside.is_empty())
    };
    within('<', '>') || within('[', ']') || within('{', '}')
}

/// The special words of some texts: those of a list, or, without a list, all words of the form `<...>`.
pub(super) fn words(listed: Option<&[String]>, form: UnicodeForm, texts: &[String]) -> Result<Vec<String>> {
    let words: BTreeSet<String> = match listed {
        Some(listed) => listed.iter().map(|word| form.apply(word).into_owned()).collect(),
        None => {
            let words = texts.iter().flat_map(|text| text.split_whitespace());
            words.filter(|word| is_angled(word) && is_valid(word)).map(str::to_owned).collect()
        }
    };
    match words.iter().find(|word| !is_valid(word)) {
        None => Ok(words.into_iter().collect()),
        Some(word) => {
            let expected = "words without white space and U+2581, other than <s> and </s>".into();
            Err(Error::Setting { field: "special", expected, found: format!("{word:?}") })
        }
    }
}

/// Whether a word can be a special label.
pub(super) fn is_valid(word: &str) -> bool {
    !word.is_empty()
        && !word.contains(char::is_whitespace)
        && !word.contains(MARK)
        && find_sentence_mark(word).is_none()
}
