//! `TokenFilter`: the tokens that a recognizer may emit, by script, characters or name.
use std::collections::BTreeSet;

use speech::Tokenizer;
use unicode_script::{Script, UnicodeScript};

use crate::words::WORD_MARK;
use crate::{Error, Result};

/// Selects the tokens that a recognizer may emit (language lock).
///
/// | token | allowed if |
/// |---|---|
/// | a text | each of its characters, without [`WORD_MARK`], is of an allowed script, is an allowed character, or is common |
/// | a byte, `<0x00>` to `<0xFF>` | it is an ASCII character that is allowed; others may be parts of any character |
/// | a special word, such as `<unk>` | always |
///
/// Common characters are those that all scripts share (Unicode's scripts Common and Inherited):
/// digits, spaces, most punctuation, combining marks. Characters of several scripts, such as the
/// Japanese and Chinese full stop, belong to these scripts only. Without scripts and characters,
/// all characters are allowed. A forbidden token is never allowed.
///
/// ```
/// use recognizer::TokenFilter;
/// use speech::{Tokenizer, TokenizerKind};
///
/// let tokenizer = Tokenizer::train(TokenizerKind::Words, &["one один 1 o'clock"])?;
/// let filter = TokenFilter::default().allow_script("latin")?;
/// let is_allowed = filter.allowed_tokens(&tokenizer)?;
/// let allowed: Vec<_> = tokenizer.tokens().iter().zip(is_allowed).filter(|token| token.1).collect();
/// assert_eq!(allowed.len(), 3);
/// assert!(TokenFilter::default().allow_script("elvish").is_err());
/// # Ok::<(), recognizer::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenFilter {
    scripts: Vec<Script>,
    characters: BTreeSet<char>,
    forbidden: BTreeSet<String>,
}

impl TokenFilter {
    /// Allows the characters of a script as well.
    ///
    /// `name` is that of Unicode, such as `Latin` or `Latn`; upper and lower case are the same, and
    /// `-` is the same as `_`.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for an unknown name, and for the scripts of common
    /// characters.
    pub fn allow_script(mut self, name: &str) -> Result<Self> {
        let script = find_script(name).ok_or_else(|| {
            let expected = "the name of a Unicode script, such as Latin, Cyrillic or Hani";
            Error::shape("script", expected, format!("{name:?}"))
        })?;
        self.scripts.push(script);
        Ok(self)
    }

    /// Allows further characters.
    pub fn allow_characters(mut self, characters: impl IntoIterator<Item = char>) -> Self {
        self.characters.extend(characters);
        self
    }

    /// Forbids tokens by their names in [`Tokenizer::tokens`].
    pub fn forbid_tokens(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.forbidden.extend(names);
        self
    }

    /// Returns true if the filter allows every token.
    pub fn allows_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether each token of a tokenizer is allowed.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for a forbidden name that is no token, or if no token
    /// other than special words is allowed.
    pub fn allowed_tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<bool>> {
        let tokens = tokenizer.tokens();
        if let Some(name) = self.forbidden.iter().find(|name| !tokens.contains(name)) {
            let expected = "names of the model's tokens";
            return Err(Error::shape("forbidden tokens", expected, format!("{name:?}")));
        }
        let allows = |(id, token): (u32, &String)| {
            !self.forbidden.contains(token) && (tokenizer.is_special(id) || self.allows_token(token))
        };
        let is_allowed: Vec<bool> = (0..).zip(tokens).map(allows).collect();
        if !(0..).zip(&is_allowed).any(|(id, &is_allowed)| is_allowed && !tokenizer.is_special(id)) {
            let expected = format!("at least one of the model's {} tokens", tokens.len());
            return Err(Error::shape("allowed tokens", expected, "none"));
        }
        Ok(is_allowed)
    }

    /// Returns whether all characters of a token are allowed.
    fn allows_token(&self, token: &str) -> bool {
        if self.scripts.is_empty() && self.characters.is_empty() {
            return true;
        }
        match byte_of(token) {
            Some(byte) => byte.is_ascii() && self.allows_character(char::from(byte)),
            None => token.chars().filter(|&c| c != WORD_MARK).all(|c| self.allows_character(c)),
        }
    }

    /// Returns whether a character is allowed.
    fn allows_character(&self, character: char) -> bool {
        let scripts = character.script_extension();
        scripts.is_common()
            || scripts.is_inherited()
            || self.scripts.iter().any(|&script| scripts.contains_script(script))
            || self.characters.contains(&character)
    }
}

/// Returns the script of a name; none for the scripts of common and unassigned characters.
fn find_script(name: &str) -> Option<Script> {
    // Names have a capital at the start of each part, such as Old_Italic.
    let mut is_start = true;
    let capitalize = |c: char| {
        let c = if c == '-' || c == ' ' { '_' } else { c };
        let is_first = std::mem::replace(&mut is_start, c == '_');
        if is_first { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }
    };
    let name: String = name.chars().map(capitalize).collect();
    let script = Script::from_full_name(&name).or_else(|| Script::from_short_name(&name))?;
    (!matches!(script, Script::Common | Script::Inherited | Script::Unknown)).then_some(script)
}

/// Returns the byte of a token of SentencePiece's byte fallback.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use speech::{TokenizerKind, TokenizerOptions};

    use super::*;

    /// The allowed tokens of a tokenizer, sorted.
    fn allowed<'a>(filter: &TokenFilter, tokenizer: &'a Tokenizer) -> Vec<&'a str> {
        let tokens = tokenizer.tokens().iter().zip(filter.allowed_tokens(tokenizer).unwrap());
        let mut allowed: Vec<&str> =
            tokens.filter(|(_, is_allowed)| *is_allowed).map(|(token, _)| token.as_str()).collect();
        allowed.sort_unstable();
        allowed
    }

    fn words(text: &str) -> Tokenizer {
        Tokenizer::train(TokenizerKind::Words, &[text]).unwrap()
    }

    #[test]
    fn characters_of_all_scripts_are_allowed_with_any_script() {
        let tokenizer = words("two два 2 二 2nd o'clock 好。 yes。 cafe\u{301} ok! <0x41> <0xd0> <unk>");
        let filter = |name: &str| TokenFilter::default().allow_script(name).unwrap();
        assert_eq!(allowed(&TokenFilter::default(), &tokenizer).len(), tokenizer.size());
        let latin = ["2", "2nd", "<0x41>", "<0xd0>", "<unk>", "café", "o'clock", "ok!", "two"];
        assert_eq!(allowed(&filter("latin"), &tokenizer), latin);
        assert_eq!(allowed(&filter("LATN"), &tokenizer), latin);
        // The byte tokens are special words of this tokenizer, as all words in angle brackets.
        assert_eq!(allowed(&filter("Cyrillic"), &tokenizer), ["2", "<0x41>", "<0xd0>", "<unk>", "два"]);
        assert_eq!(allowed(&filter("han"), &tokenizer), ["2", "<0x41>", "<0xd0>", "<unk>", "二", "好。"]);
        let latin_and_cyrillic = filter("latin").allow_script("cyrillic").unwrap();
        let tokens = allowed(&latin_and_cyrillic, &tokenizer);
        assert!(tokens.contains(&"два") && tokens.contains(&"two"));
        let characters = filter("latin").allow_characters("二".chars());
        assert!(allowed(&characters, &tokenizer).contains(&"二"));
    }

    #[test]
    fn word_marks_bytes_and_special_words_have_separate_rules() {
        let special = Some(vec!["<unk>".to_owned()]);
        let options = TokenizerOptions { special, ..TokenizerOptions::new(TokenizerKind::InnerCharacters) };
        let tokenizer = Tokenizer::train_with(&options, &["ab cв <unk>"]).unwrap();
        let filter = TokenFilter::default().allow_characters("ac".chars());
        assert_eq!(allowed(&filter, &tokenizer), ["▁<unk>", "▁a", "▁c"]);
        let filter = filter.forbid_tokens(["▁a".to_owned(), "▁<unk>".to_owned()]);
        assert_eq!(allowed(&filter, &tokenizer), ["▁c"]);

        let latin = TokenFilter::default().allow_script("latin").unwrap();
        assert!(latin.allows_token("<0x41>") && latin.allows_token("<0x20>"));
        assert!(!latin.allows_token("<0xD0>") && !latin.allows_token("<0xFF>"));
        let greek = TokenFilter::default().allow_script("greek").unwrap();
        assert!(
            !greek.allows_token("<0x41>") && greek.allows_token("<0x31>") && !greek.allows_token("<0xCE>")
        );
        assert_eq!(["<0x4>", "<0x+4>", "<0x041>", "0x41"].map(byte_of), [None; 4]);
    }

    #[test]
    fn filters_without_effect_or_without_tokens_are_errors() {
        let tokenizer = words("one два <unk>");
        for name in ["elvish", "", "common", "zinh", "unknown"] {
            let error = TokenFilter::default().allow_script(name).unwrap_err().to_string();
            assert!(error.starts_with("script: expected") && error.contains(&format!("{name:?}")), "{error}");
        }
        for name in ["old-italic", "Old_Italic", "ital", "phags pa"] {
            TokenFilter::default().allow_script(name).unwrap();
        }
        let error = |filter: TokenFilter| filter.allowed_tokens(&tokenizer).unwrap_err().to_string();
        let greek = TokenFilter::default().allow_script("greek").unwrap();
        assert_eq!(error(greek), "allowed tokens: expected at least one of the model's 3 tokens, found none");
        let unknown = TokenFilter::default().forbid_tokens(["two".to_owned()]);
        assert!(error(unknown).contains("found \"two\""));
        let all = TokenFilter::default().forbid_tokens(["one".to_owned(), "два".to_owned()]);
        assert!(error(all).contains("at least one"));
    }
}
