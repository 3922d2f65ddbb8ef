//! Removes sentence marks (`<s>`, `</s>`) of language-model corpora from texts.

/// Start and end of a sentence.
const MARKS: [&str; 2] = ["<s>", "</s>"];

/// Removes `<s>` and `</s>` from the ends of a text.
///
/// The case of the marks is ignored.
///
/// ```
/// use speech::strip_sentence_marks;
/// assert_eq!(strip_sentence_marks("<s> one two </s>"), "one two");
/// assert_eq!(strip_sentence_marks(" one two "), " one two ");
/// ```
pub fn strip_sentence_marks(text: &str) -> &str {
    let trimmed = text.trim();
    let [start, end] = MARKS;
    let has_start_mark = trimmed.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
    let rest = if has_start_mark { trimmed[start.len()..].trim_start() } else { trimmed };
    let end_start = rest.len().wrapping_sub(end.len());
    let has_end_mark = rest.get(end_start..).is_some_and(|tail| tail.eq_ignore_ascii_case(end));
    match (has_start_mark, has_end_mark) {
        (false, false) => text,
        (_, true) => rest[..end_start].trim_end(),
        (true, false) => rest,
    }
}

/// Returns the first word of a text that has a sentence mark.
///
/// ```
/// use speech::{find_sentence_mark, strip_sentence_marks};
/// let text = strip_sentence_marks("<s> one </s> <s> two </s>");
/// assert_eq!(find_sentence_mark(text), Some("</s>"));
/// ```
pub fn find_sentence_mark(text: &str) -> Option<&str> {
    if !text.contains('<') {
        return None;
    }
    let has_mark = |word: &&str| {
        let word = word.to_ascii_lowercase();
        MARKS.iter().any(|mark| word.contains(mark))
    };
    text.split_whitespace().find(has_mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_at_the_ends_are_removed() {
        for text in ["<s> a b </s>", "<s>a b</s>", "  <S>  a b  </S> ", "<s> a b", "a b </s>"] {
            assert_eq!(strip_sentence_marks(text).trim(), "a b", "{text:?}");
        }
        for text in ["<s> </s>", "<s></s>", "<s>", "</s>"] {
            assert_eq!(strip_sentence_marks(text), "", "{text:?}");
        }
        for text in ["", "s", "<st> a </st>", "\u{e9}\u{e9}", "<unk> a"] {
            assert_eq!(strip_sentence_marks(text), text);
        }
    }

    #[test]
    fn marks_within_a_text_are_found() {
        assert_eq!(find_sentence_mark("a </s> b"), Some("</s>"));
        assert_eq!(find_sentence_mark("a b</s> <s>c"), Some("b</s>"));
        assert_eq!(find_sentence_mark("a <unk> <b> c"), None);
    }
}
