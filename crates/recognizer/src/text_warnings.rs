//! Warnings about texts that the tokenizer changes or spells letter by letter.
use std::collections::BTreeMap;

use kernels::Excerpt;
use speech::{Tokenizer, TokenizerKind, UnicodeForm, find_bracketed};

/// Largest number of marks that a warning names.
const MAX_NAMED_MARKS: usize = 5;
/// Largest number of characters that a warning quotes of a word.
const MAX_QUOTED_CHARACTERS: usize = 40;

/// Returns a warning if a Unicode form changes texts of a set.
///
/// The warning has the number of texts and an example.
pub fn normalization_warning<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str>,
    form: UnicodeForm,
) -> Option<String> {
    let mut changed = texts.into_iter().filter(|text| form.apply(text) != **text);
    let (from, to) = first_change(changed.next()?, form);
    Some(format!(
        "{set}: {} normalized (tokens.normalize = \"{}\"), for example {from} to {to}",
        format_count(1 + changed.count(), "text is", "texts are"),
        form.name()
    ))
}

/// Returns warnings about texts of a set that the tokenizer converts.
///
/// They are [`normalization_warning`] and a warning about sentence marks that are removed at the
/// ends.
pub fn conversion_warnings<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str, IntoIter: Clone>,
    tokenizer: &Tokenizer,
) -> Vec<String> {
    let texts = texts.into_iter();
    let form = tokenizer.unicode_form();
    // Both are conversions of the same text, so that their lengths differ only by removed marks.
    let is_marked = |text: &&str| tokenizer.normalize(text).trim().len() < form.apply(text).trim().len();
    let normalized = normalization_warning(set, texts.clone(), form);
    let marked = texts.filter(is_marked).count();
    let marked = (marked > 0).then(|| {
        format!("{set}: <s> and </s> are removed from the ends of {}", format_count(marked, "text", "texts"))
    });
    normalized.into_iter().chain(marked).collect()
}

/// Returns warnings about marks that the tokenizer spells letter by letter.
///
/// These are marks such as `[noise]` in training texts that are not special words; none if tokens
/// are words or were imported, so that their special words are given.
pub fn mark_warnings<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str>,
    tokenizer: &Tokenizer,
) -> Vec<String> {
    // Numbers of texts with marks that are not special words, and with special words that are not
    // separated by spaces.
    let (mut unlisted, mut attached) = (BTreeMap::new(), BTreeMap::new());
    let kind = tokenizer.kind();
    for text in texts.into_iter().filter(|_| kind != TokenizerKind::Words && !kind.is_imported()) {
        let text = tokenizer.normalize(text);
        let mut text_marks: Vec<(&str, bool)> = find_bracketed(&text)
            .filter_map(|range| {
                let is_separate = text[..range.start].chars().next_back().is_none_or(char::is_whitespace)
                    && text[range.end..].chars().next().is_none_or(char::is_whitespace);
                let mark = &text[range];
                let is_special = tokenizer.special_words().iter().any(|word| word == mark);
                (!(is_special && is_separate)).then_some((mark, is_special))
            })
            .collect();
        text_marks.sort_unstable();
        text_marks.dedup();
        for (mark, is_special) in text_marks {
            let counts = if is_special { &mut attached } else { &mut unlisted };
            *counts.entry(mark.to_owned()).or_default() += 1;
        }
    }
    let unlisted = format_marks(&unlisted).map(|(marks, verb)| {
        format!(
            "{set}: {marks}, which {verb} spelled letter by letter; list words like this in tokens.special"
        )
    });
    let attached = format_marks(&attached).map(|(marks, verb)| {
        format!(
            "{set}: {marks} next to other characters without a space, where {verb} spelled letter by letter; special words are \
             separate words"
        )
    });
    unlisted.into_iter().chain(attached).collect()
}

/// Formats the most frequent marks with the matching verb; `None` without marks.
fn format_marks(counts: &BTreeMap<String, usize>) -> Option<(String, &'static str)> {
    let mut marks: Vec<(&String, usize)> = counts.iter().map(|(mark, &count)| (mark, count)).collect();
    marks.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let (first, rest) = marks.split_first()?;
    let mut text =
        format!("{} `{}`", format_count(first.1, "text contains", "texts contain"), Excerpt(first.0));
    for (mark, texts) in rest.iter().take(MAX_NAMED_MARKS - 1) {
        text += &format!(", {texts} `{}`", Excerpt(mark));
    }
    if marks.len() > MAX_NAMED_MARKS {
        text += &format!(" and {} more words of this form", marks.len() - MAX_NAMED_MARKS);
    }
    Some((text, if marks.len() == 1 { "is" } else { "are" }))
}

/// Formats a count with the matching noun or verb.
fn format_count(count: usize, singular: &str, plural: &str) -> String {
    format!("{count} {}", if count == 1 { singular } else { plural })
}

/// Returns the first changed word before and after, quoted, with non-ASCII escaped.
fn first_change(text: &str, form: UnicodeForm) -> (String, String) {
    let quote = |text: &str| {
        format!("\"{}\"", text.chars().take(MAX_QUOTED_CHARACTERS).collect::<String>().escape_default())
    };
    let changed = text.split_whitespace().find(|word| form.apply(word) != **word);
    // If no word changes, white space does.
    let word = changed.unwrap_or(text);
    (quote(word), quote(&form.apply(word)))
}

#[cfg(test)]
mod tests {
    use speech::TokenizerOptions;

    use super::*;

    fn tokenizer(normalize: UnicodeForm, special: Option<&[&str]>, texts: &[&str]) -> Tokenizer {
        let special = special.map(|words| words.iter().map(|&word| word.to_owned()).collect());
        let options =
            TokenizerOptions { normalize, special, ..TokenizerOptions::new(TokenizerKind::Characters) };
        Tokenizer::train_with(&options, texts).unwrap()
    }

    #[test]
    fn conversions_are_counted_with_an_example() {
        let texts = ["un cafe\u{301}", "<s> un </s>", "cafe\u{301} cafe\u{301}", "</s>"];
        let nfc = tokenizer(UnicodeForm::Nfc, None, &texts);
        let warnings = conversion_warnings("data.train", texts, &nfc);
        assert_eq!(
            warnings,
            [
                r#"data.train: 2 texts are normalized (tokens.normalize = "nfc"), for example "cafe\u{301}" to "caf\u{e9}""#,
                "data.train: <s> and </s> are removed from the ends of 2 texts",
            ]
        );
        assert!(conversion_warnings("x", ["plain", "caf\u{e9}", "a <s> b", " "], &nfc).is_empty());
        // Hangul of jamo, a ligature and full-width digits, a space that NFKC changes.
        for (form, text, from, to) in [
            (UnicodeForm::Nfc, "\u{1112}\u{1161}\u{11ab}", r"\u{1112}\u{1161}\u{11ab}", r"\u{d55c}"),
            (UnicodeForm::Nfkc, "a \u{fb01}ne", r"\u{fb01}ne", "fine"),
            (UnicodeForm::Nfkc, "\u{ff11}\u{ff12}", r"\u{ff11}\u{ff12}", "12"),
            (UnicodeForm::Nfkc, "a\u{3000}b", r"a\u{3000}b", "a b"),
        ] {
            let tokenizer = tokenizer(form, None, &[text]);
            let [warning] = conversion_warnings("set", [text], &tokenizer).try_into().unwrap();
            assert!(warning.ends_with(&format!("example \"{from}\" to \"{to}\"")), "{warning}");
        }
        let none = tokenizer(UnicodeForm::None, None, &texts);
        assert_eq!(conversion_warnings("set", texts, &none).len(), 1);
    }

    #[test]
    fn spelled_marks_are_named() {
        let texts = ["[noise] a", "a <unk>, b", "a <unk> [noise]", "[dog barks] {x}", "[noise]"];
        let warnings = mark_warnings("data.train", texts, &tokenizer(UnicodeForm::Nfc, None, &texts));
        let [unlisted, attached] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(
            unlisted
                .starts_with("data.train: 3 texts contain `[noise]`, 1 `[dog barks]`, 1 `{x}`, which are")
        );
        assert!(attached.starts_with("data.train: 1 text contains `<unk>` next to"), "{attached}");
        assert!(attached.ends_with("; special words are separate words"), "{attached}");
        let with_special = tokenizer(UnicodeForm::Nfc, Some(&["[noise]"]), &texts);
        let [unlisted] = mark_warnings("set", texts[1..3].iter().copied(), &with_special).try_into().unwrap();
        assert_eq!(
            unlisted,
            "set: 2 texts contain `<unk>`, which is spelled letter by letter; list words like this in tokens.special"
        );
        // Another case is another word.
        assert_eq!(mark_warnings("set", ["[NOISE]"], &with_special).len(), 1);
        assert!(mark_warnings("set", ["[noise]", "a < b > c", "[]", "i[0"], &with_special).is_empty());
        let words = Tokenizer::train(TokenizerKind::Words, &texts).unwrap();
        assert!(mark_warnings("set", texts, &words).is_empty());
        let mark_texts: Vec<String> = (0..30).map(|n| format!("[m{n:02}]")).collect();
        let [warning] =
            mark_warnings("set", mark_texts.iter().map(String::as_str), &with_special).try_into().unwrap();
        assert!(warning.contains("`[m04]` and 25 more words"), "{warning}");
    }
}
