//! Word boundaries around labels, so that boosted phrases match whole words.
use unicode_normalization::char::is_combining_mark;

use super::Phrase;

/// Mark at the beginning of a word in tokens, as in SentencePiece.
const WORD_MARK: char = '\u{2581}';
/// Word characters other than letters, digits and combining marks.
///
/// They are apostrophe, underscore, right single quotation mark, full-width apostrophe, soft
/// hyphen, middle dot (Catalan), Hebrew geresh and gershayim, zero-width non-joiner and joiner.
const WORD_SYMBOLS: [char; 10] =
    ['\'', '_', '\u{2019}', '\u{ff07}', '\u{ad}', '\u{b7}', '\u{5f3}', '\u{5f4}', '\u{200c}', '\u{200d}'];
/// Blocks of scripts that are written without spaces between words.
const UNSPACED_SCRIPTS: [(char, char); 20] = [
    // Thai, Lao, Tibetan, Myanmar.
    ('\u{e00}', '\u{109f}'),
    // Khmer.
    ('\u{1780}', '\u{17ff}'),
    // Tai Le, New Tai Lue, Khmer symbols.
    ('\u{1950}', '\u{19ff}'),
    // Tai Tham.
    ('\u{1a20}', '\u{1aaf}'),
    // Balinese.
    ('\u{1b00}', '\u{1b7f}'),
    // Radicals of CJK.
    ('\u{2e80}', '\u{2fdf}'),
    // Ideographic iteration mark, closing mark, zero; numerals.
    ('\u{3005}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    // Hiragana, Katakana, Bopomofo.
    ('\u{3041}', '\u{312f}'),
    ('\u{31a0}', '\u{31bf}'),
    ('\u{31f0}', '\u{31ff}'),
    // Han.
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{9fff}'),
    // Yi.
    ('\u{a000}', '\u{a4cf}'),
    // Javanese and Myanmar, Tai Viet.
    ('\u{a980}', '\u{a9ff}'),
    ('\u{aa60}', '\u{aadf}'),
    // Han, half-width Katakana, supplements.
    ('\u{f900}', '\u{faff}'),
    ('\u{ff66}', '\u{ff9f}'),
    ('\u{1b000}', '\u{1b16f}'),
    ('\u{20000}', '\u{3ffff}'),
];

/// Kind of the tokens of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenStyle {
    /// Words: one label per word.
    Words,
    /// Characters; if no token is a space, every character is a word.
    ///
    /// Without a token that is a space, only the caller can select this style.
    Characters,
    /// Pieces of words; pieces that begin a word have the mark U+2581.
    Pieces,
}

impl TokenStyle {
    /// Detects the style of token names.
    ///
    /// The style is characters if a name is a space, pieces if one begins with U+2581, and words
    /// otherwise.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Self {
        let any_name = |predicate: &dyn Fn(&str) -> bool| names.iter().any(|name| predicate(name.as_ref()));
        if any_name(&|name| name == " ") {
            TokenStyle::Characters
        } else if any_name(&|name| name.starts_with(WORD_MARK)) {
            TokenStyle::Pieces
        } else {
            TokenStyle::Words
        }
    }
}

/// Word boundaries around a label.
///
/// There is a boundary between two labels if it follows the first or precedes the second, and at
/// both ends of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordBoundaries {
    /// Whether a boundary precedes the label.
    pub before: bool,
    /// Whether a boundary follows the label.
    pub after: bool,
}

impl WordBoundaries {
    /// Boundaries of words, spaces, punctuation, special words and unspaced scripts.
    pub const BOTH: WordBoundaries = WordBoundaries { before: true, after: true };
    /// No boundaries: a letter within a word.
    pub const NEITHER: WordBoundaries = WordBoundaries { before: false, after: false };

    /// Derives the boundaries of each class from its name; none for an empty name.
    ///
    /// | style | before | after |
    /// |---|---|---|
    /// | words | always | always |
    /// | characters | unless it is a word character | unless it is a word character |
    /// | pieces | with the mark U+2581, or unless the first character is a word character | unless the last character is a word character or the mark |
    ///
    /// Word characters are letters, digits, combining marks, apostrophes, underscores and some
    /// rarer symbols, of scripts with spaces. Tokens of style characters have both boundaries if no
    /// token is a space, and if they have several characters: these are special words. The names of
    /// pieces do not identify special words; these need [`WordBoundaries::BOTH`].
    ///
    /// ```
    /// use decoding::{WordBoundaries, TokenStyle};
    /// let boundaries = WordBoundaries::from_names(&["", "▁a", "n", ","], TokenStyle::Pieces);
    /// let starts = WordBoundaries { before: true, after: false };
    /// let [inner, comma] = [WordBoundaries::NEITHER, WordBoundaries::BOTH];
    /// assert_eq!(boundaries, [None, Some(starts), Some(inner), Some(comma)]);
    /// ```
    pub fn from_names<S: AsRef<str>>(names: &[S], style: TokenStyle) -> Vec<Option<WordBoundaries>> {
        let has_space = names.iter().any(|name| is_space(name.as_ref()));
        let boundaries = |name: &str| match style {
            TokenStyle::Words => Self::BOTH,
            TokenStyle::Characters if !has_space || name.chars().nth(1).is_some() => Self::BOTH,
            TokenStyle::Characters | TokenStyle::Pieces => Self::from_piece(name),
        };
        let names = names.iter().map(AsRef::as_ref);
        names.map(|name| (!name.is_empty()).then(|| boundaries(name))).collect()
    }

    /// Boundaries of a piece of a word, or of one character.
    fn from_piece(name: &str) -> Self {
        let is_word_char = |c: Option<char>| c.is_some_and(is_word_char);
        // The mark begins a word, so that no boundary follows it.
        let after = !name.ends_with(WORD_MARK) && !is_word_char(name.chars().next_back());
        WordBoundaries { before: name.starts_with(WORD_MARK) || !is_word_char(name.chars().next()), after }
    }
}

/// Returns whether a name is white space.
fn is_space(name: &str) -> bool {
    !name.is_empty() && name.chars().all(char::is_whitespace)
}

/// Returns whether a character is a word character.
fn is_word_char(c: char) -> bool {
    (c.is_alphanumeric() || is_combining_mark(c) || WORD_SYMBOLS.contains(&c)) && !is_unspaced(c)
}

/// Returns whether a character belongs to a script without spaces between words.
fn is_unspaced(c: char) -> bool {
    UNSPACED_SCRIPTS.iter().any(|&(first, last)| (first..=last).contains(&c))
}

/// Adds variants without the word mark to phrases in unspaced scripts.
///
/// A model of marked pieces has two tokens for a character, one at the beginning of a text and one
/// within it. The total score of a phrase does not change. A phrase whose first token has no
/// variant without a mark is skipped.
///
/// ```
/// use decoding::{Phrase, add_unmarked_variants};
/// let mut phrases = vec![Phrase { tokens: vec![0, 2], score: 1.0 }];
/// add_unmarked_variants(&mut phrases, &["▁天", "天", "气"]);
/// assert_eq!(phrases[1].tokens, [1, 2]);
/// ```
pub fn add_unmarked_variants<S: AsRef<str>>(phrases: &mut Vec<Phrase>, names: &[S]) {
    let ids: std::collections::HashMap<&str, u32> = names.iter().map(AsRef::as_ref).zip(0..).collect();
    let unmarked_variant = |phrase: &Phrase| {
        let (&first, rest) = phrase.tokens.split_first()?;
        let unmarked_name = names.get(first as usize)?.as_ref().strip_prefix(WORD_MARK)?;
        let first_char = match (unmarked_name.chars().next(), rest.first()) {
            (Some(c), _) => Some(c),
            (None, Some(&second)) => names.get(second as usize)?.as_ref().chars().next(),
            (None, None) => None,
        };
        first_char.filter(|&c| is_unspaced(c))?;
        let mut tokens = match ids.get(unmarked_name) {
            _ if unmarked_name.is_empty() => Vec::new(),
            Some(&token) => vec![token],
            None => {
                let id = |c: char| ids.get(c.encode_utf8(&mut [0; 4]) as &str).copied();
                unmarked_name.chars().map(id).collect::<Option<_>>()?
            }
        };
        tokens.extend_from_slice(rest);
        let score = phrase.score * phrase.tokens.len() as f32 / tokens.len() as f32;
        Some(Phrase { tokens, score })
    };
    let variants: Vec<Phrase> = phrases.iter().filter_map(unmarked_variant).collect();
    phrases.extend(variants);
}

#[cfg(test)]
mod tests;
