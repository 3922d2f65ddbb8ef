//! `TextNormalizer`: the normalization of texts before they are split into pieces.

use super::charsmap::Charsmap;
use super::piece_index::PieceIndex;
use crate::Result;
use crate::tokens::WORD_MARK;

/// Settings of a normalizer, with the defaults of model files.
pub(super) struct NormalizerSettings {
    /// Replacement rules, or nothing.
    pub charsmap: Vec<u8>,
    /// Whether a space is added before the text.
    pub adds_dummy_prefix: bool,
    /// Whether repeated spaces and those at the ends are removed.
    pub removes_extra_spaces: bool,
    /// Whether spaces become U+2581.
    pub escapes_spaces: bool,
}

impl Default for NormalizerSettings {
    fn default() -> Self {
        let charsmap = Vec::new();
        Self { charsmap, adds_dummy_prefix: true, removes_extra_spaces: true, escapes_spaces: true }
    }
}

/// The normalizer of a model.
pub(super) struct TextNormalizer {
    charsmap: Option<Charsmap>,
    /// Pieces to which no rule applies.
    user_defined: PieceIndex,
    pub adds_dummy_prefix: bool,
    pub removes_extra_spaces: bool,
    escapes_spaces: bool,
}

impl TextNormalizer {
    /// # Errors
    /// A damaged charsmap.
    pub(super) fn new(settings: NormalizerSettings, user_defined: PieceIndex) -> Result<Self> {
        let NormalizerSettings { charsmap, adds_dummy_prefix, removes_extra_spaces, escapes_spaces } =
            settings;
        let charsmap = if charsmap.is_empty() { None } else { Some(Charsmap::parse(&charsmap)?) };
        Ok(Self { charsmap, user_defined, adds_dummy_prefix, removes_extra_spaces, escapes_spaces })
    }

    /// Returns the length of the user-defined piece that a text begins with.
    pub(super) fn user_defined_prefix(&self, text: &str) -> Option<usize> {
        self.user_defined.longest_prefix(text)
    }

    /// Normalizes a text as SentencePiece does.
    ///
    /// Parts of the text are replaced by the longest rules that apply, from left to right. Leading
    /// spaces are removed before the dummy prefix is added; a text without other characters is
    /// empty.
    pub(super) fn normalize(&self, text: &str) -> String {
        let space = if self.escapes_spaces { WORD_MARK } else { ' ' };
        let mut rest = text;
        if self.removes_extra_spaces {
            while let Some((length, " ")) = self.next_part(rest) {
                rest = &rest[length..];
            }
        }
        let mut normalized = String::with_capacity(rest.len() + space.len_utf8());
        if !rest.is_empty() && self.adds_dummy_prefix {
            normalized.push(space);
        }
        let mut is_after_space = self.removes_extra_spaces;
        while let Some((length, mut part)) = self.next_part(rest) {
            rest = &rest[length..];
            if is_after_space {
                part = part.trim_start_matches(' ');
            }
            if !part.is_empty() {
                normalized.extend(part.chars().map(|c| if c == ' ' { space } else { c }));
                is_after_space = self.removes_extra_spaces && part.ends_with(' ');
            }
        }
        if self.removes_extra_spaces {
            normalized.truncate(normalized.trim_end_matches(space).len());
        }
        normalized
    }

    /// Normalizes a text for scoring: without the dummy prefix, and with spaces.
    pub(super) fn normalize_for_scoring(&self, text: &str) -> String {
        let normalized = self.normalize(text);
        let has_prefix = self.adds_dummy_prefix && !normalized.is_empty();
        normalized
            .chars()
            .skip(usize::from(has_prefix))
            .map(|c| if c == WORD_MARK { ' ' } else { c })
            .collect()
    }

    /// Returns the length and the replacement of the next part.
    ///
    /// `None` at the end of the text.
    fn next_part<'a>(&'a self, text: &'a str) -> Option<(usize, &'a str)> {
        let first = text.chars().next()?;
        if let Some(length) = self.user_defined_prefix(text) {
            return Some((length, &text[..length]));
        }
        let rule = self.charsmap.as_ref().and_then(|charsmap| charsmap.longest_match(text));
        Some(rule.unwrap_or((first.len_utf8(), &text[..first.len_utf8()])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::sentencepiece::charsmap::tests::blob;

    fn normalizer(adds_dummy_prefix: bool, removes_extra_spaces: bool) -> TextNormalizer {
        let charsmap = blob(&[("\t", " "), ("ab", "x  y"), ("A", "a"), ("\u{7}", ""), (">", "!")]);
        let settings = NormalizerSettings {
            charsmap,
            adds_dummy_prefix,
            removes_extra_spaces,
            ..NormalizerSettings::default()
        };
        TextNormalizer::new(settings, PieceIndex::new([("<A>", 1)].into_iter())).unwrap()
    }

    #[test]
    fn spaces_and_rules_apply() {
        let cases = [
            ("", "", "", ""),
            ("  ", "", "▁▁", "▁▁▁"),
            ("A  b\t", "▁a▁b", "a▁▁b▁", "▁a▁▁b▁"),
            ("\tab A", "▁x▁▁y▁a", "▁x▁▁y▁a", "▁▁x▁▁y▁a"),
            // No rule applies to a user-defined piece.
            ("A<A>", "▁a<A>", "a<A>", "▁a<A>"),
            ("\u{7}", "▁", "", "▁"),
        ];
        for (text, removed, bare, kept) in cases {
            // A prefix that is the whole text is removed with the other spaces at the end.
            let removed = removed.trim_end_matches('▁');
            assert_eq!(normalizer(true, true).normalize(text), removed, "{text:?}");
            assert_eq!(normalizer(false, false).normalize(text), bare, "{text:?}");
            assert_eq!(normalizer(true, false).normalize(text), kept, "{text:?}");
        }
        assert_eq!(normalizer(true, true).normalize_for_scoring(" A  b "), "a b");
        assert_eq!(normalizer(true, true).normalize_for_scoring(" "), "");
    }
}
