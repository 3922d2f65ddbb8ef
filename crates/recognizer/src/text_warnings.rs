//! Warnings about texts that the tokenizer converts, or spells letter by letter where a mark is meant.
use std::collections::BTreeMap;

use kernels::Excerpt;
use speech::{Tokenizer, TokenizerKind, UnicodeForm, find_bracketed};

/// Marks that a warning names.
const NAMED: usize = 5;

/// Returns a warning if a Unicode form changes texts of `set`: how many, with an example.
pub fn normalization_warning<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str>,
    form: UnicodeForm,
) -> Option<String> {
    let mut changed = texts.into_iter().filter(|text| form.apply(text) != **text);
    let (from, to) = first_change(changed.next()?, form);
    Some(format!(
        "{set}: {} normalized (tokens.normalize = \"{}\"), for example {from} to {to}",
        count(1 + changed.count(), "text is", "texts are"),
        form.name()
    ))
}

/// Returns the warnings about texts that the tokenizer converts: [`normalization_warning`], and one if it removes sentence marks
/// at their ends.
pub fn conversion_warnings<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str, IntoIter: Clone>,
    tokenizer: &Tokenizer,
) -> Vec<String> {
    let texts = texts.into_iter();
    let form = tokenizer.unicode_form();
    // Both are conversions of the same text, so that their lengths differ only by what is removed.
    let is_marked = |text: &&str| tokenizer.normalize(text).trim().len() < form.apply(text).trim().len();
    let normalized = normalization_warning(set, texts.clone(), form);
    let marked = texts.filter(is_marked).count();
    let marked = (marked > 0).then(|| {
        format!("{set}: <s> and </s> are removed from the ends of {}", count(marked, "text", "texts"))
    });
    normalized.into_iter().chain(marked).collect()
}

/// Returns the warnings about marks such as `[noise]` in training texts that are no special words, and so are spelled letter by
/// letter; none for words as tokens.
pub fn mark_warnings<'a>(
    set: &str,
    texts: impl IntoIterator<Item = &'a str>,
    tokenizer: &Tokenizer,
) -> Vec<String> {
    let (mut unlisted, mut attached) = (BTreeMap::new(), BTreeMap::new());
    for text in texts.into_iter().filter(|_| tokenizer.kind() != TokenizerKind::Words) {
        let text = tokenizer.normalize(text);
        let mut of_text: Vec<(&str, bool)> = find_bracketed(&text)
            .filter_map(|range| {
                let is_alone = text[..range.start].chars().next_back().is_none_or(char::is_whitespace)
                    && text[range.end..].chars().next().is_none_or(char::is_whitespace);
                let mark = &text[range];
                let is_special = tokenizer.special().iter().any(|word| word == mark);
                (!(is_special && is_alone)).then_some((mark, is_special))
            })
            .collect();
        of_text.sort_unstable();
        of_text.dedup();
        for (mark, is_special) in of_text {
            let counts = if is_special { &mut attached } else { &mut unlisted };
            *counts.entry(mark.to_owned()).or_default() += 1;
        }
    }
    let unlisted = list(&unlisted).map(|(marks, are)| {
        format!(
            "{set}: {marks}, which {are} spelled letter by letter; list words like this in tokens.special"
        )
    });
    let attached = list(&attached).map(|(marks, are)| {
        format!(
            "{set}: {marks} next to other signs without a space, where {are} spelled letter by letter; special words are words of \
             their own"
        )
    });
    unlisted.into_iter().chain(attached).collect()
}

/// The most frequent marks with their numbers of texts, and the verb for them.
fn list(counts: &BTreeMap<String, usize>) -> Option<(String, &'static str)> {
    let mut marks: Vec<(&String, usize)> = counts.iter().map(|(mark, &count)| (mark, count)).collect();
    marks.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let (first, others) = marks.split_first()?;
    let mut text = format!("{} `{}`", count(first.1, "text contains", "texts contain"), Excerpt(first.0));
    for (mark, texts) in others.iter().take(NAMED - 1) {
        text += &format!(", {texts} `{}`", Excerpt(mark));
    }
    if marks.len() > NAMED {
        text += &format!(" and {} more words of this form", marks.len() - NAMED);
    }
    Some((text, if marks.len() == 1 { "is" } else { "are" }))
}

fn count(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The first word that a form changes, before and after, in quotes and with escapes for other characters than those of ASCII.
fn first_change(text: &str, form: UnicodeForm) -> (String, String) {
    let shown = |text: &str| format!("\"{}\"", text.chars().take(40).collect::<String>().escape_default());
    let changed = text.split_whitespace().find(|word| form.apply(word) != **word);
    // Without such a word, white space changes.
    let word = changed.unwrap_or(text);
    (shown(word), shown(&form.apply(word)))
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
    fn marks_that_are_spelled_are_named() {
        let texts = ["[noise] a", "a <unk>, b", "a <unk> [noise]", "[door slams] {x}", "[noise]"];
        let warnings = mark_warnings("data.train", texts, &tokenizer(UnicodeForm::Nfc, None, &texts));
        let [unlisted, attached] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(
            unlisted
                .starts_with("data.train: 3 texts contain `[noise]`, 1 `[door slams]`, 1 `{x}`, which are")
        );
        assert!(attached.starts_with("data.train: 1 text contains `<unk>` next to"), "{attached}");
        let listed = tokenizer(UnicodeForm::Nfc, Some(&["[noise]"]), &texts);
        let [unlisted] = mark_warnings("set", texts[1..3].iter().copied(), &listed).try_into().unwrap();
        assert_eq!(
            unlisted,
            "set: 2 texts contain `<unk>`, which is spelled letter by letter; list words like this in tokens.special"
        );
        // Another case is another word.
        assert_eq!(mark_warnings("set", ["[NOISE]"], &listed).len(), 1);
        assert!(mark_warnings("set", ["[noise]", "a < b > c", "[]", "i[0"], &listed).is_empty());
        let words = Tokenizer::train(TokenizerKind::Words, &texts).unwrap();
        assert!(mark_warnings("set", texts, &words).is_empty());
        let many: Vec<String> = (0..30).map(|n| format!("[m{n:02}]")).collect();
        let [one] = mark_warnings("set", many.iter().map(String::as_str), &listed).try_into().unwrap();
        assert!(one.contains("`[m04]` and 25 more words"), "{one}");
    }
}
