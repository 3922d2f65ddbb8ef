//! Words that are single labels: `<unk>`, `[noise]` and their kind.

use std::collections::BTreeSet;
use std::ops::Range;

use super::MARK;
use crate::{Error, Result, UnicodeForm, find_sentence_mark};

/// Whether a word has the form `<...>`.
pub(super) fn is_angled(word: &str) -> bool {
    let inside = word.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inside.is_some_and(|inside| !inside.is_empty() && !inside.contains(['<', '>']))
}

/// Longest mark that [`find_bracketed`] finds, in bytes.
const MAX_BRACKETED: usize = 60;

/// Parts of a text that look like marks of a transcriber: `<...>`, `[...]` or `{...}`, with their byte ranges.
///
/// Those in angle brackets have no white space.
///
/// ```
/// let text = "a [door slams] b, <unk>, c < d";
/// let found: Vec<&str> = speech::find_bracketed(text).map(|range| &text[range]).collect();
/// assert_eq!(found, ["[door slams]", "<unk>"]);
/// ```
pub fn find_bracketed(text: &str) -> impl Iterator<Item = Range<usize>> {
    let opens = text.match_indices(['<', '[', '{']);
    opens.filter_map(|(start, open)| {
        let inside = &text[start + 1..];
        let length = inside.find(['<', '>', '[', ']', '{', '}'])?;
        let close = match open {
            "<" => '>',
            "[" => ']',
            _ => '}',
        };
        let is_mark = inside[length..].starts_with(close)
            && (1..=MAX_BRACKETED).contains(&inside[..length].trim().len())
            && !(open == "<" && inside[..length].contains(char::is_whitespace));
        is_mark.then_some(start..start + length + 2)
    })
}

/// The special words of some texts: those of a list, or, without a list, all words of the form `<...>`.
pub(super) fn words(listed: Option<&[String]>, form: UnicodeForm, texts: &[String]) -> Result<Vec<String>> {
    let words: BTreeSet<String> = match listed {
        Some(listed) => return of_list(listed, form),
        None => {
            let words = texts.iter().flat_map(|text| text.split_whitespace());
            words.filter(|word| is_angled(word) && is_valid(word)).map(str::to_owned).collect()
        }
    };
    Ok(words.into_iter().collect())
}

/// The special words of a list in a Unicode form, sorted.
pub(super) fn of_list(listed: &[String], form: UnicodeForm) -> Result<Vec<String>> {
    let mut words = BTreeSet::new();
    for word in listed.iter().map(|word| form.apply(word).into_owned()) {
        if !is_valid(&word) {
            let expected = "words without white space and U+2581, other than <s> and </s>".into();
            return Err(Error::Setting { field: "special", expected, found: format!("{word:?}") });
        }
        if let Some(twice) = words.replace(word) {
            return Err(Error::Setting {
                field: "special",
                expected: format!("each word once (in the form {})", form.name()),
                found: format!("{twice:?} twice"),
            });
        }
    }
    Ok(words.into_iter().collect())
}

/// Whether a word can be a special label.
pub(super) fn is_valid(word: &str) -> bool {
    !word.is_empty()
        && !word.contains(char::is_whitespace)
        && !word.contains(MARK)
        && find_sentence_mark(word).is_none()
}
