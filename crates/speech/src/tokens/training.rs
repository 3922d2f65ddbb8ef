//! Trains tokenizers on texts.

use std::collections::{BTreeSet, HashSet};

use super::splitting::{TextRun, normalize_spaces, pre_tokenizer, split_at_special_words, split_text};
use super::stored_tokenizer::{FORMAT, StoredTokenizer};
use super::{
    Tokenizer, TokenizerKind, bpe, check_no_sentence_mark, check_no_word_mark, special, special_token,
    unigram,
};
use crate::features::setting_error;
use crate::sentence_marks::strip_sentence_marks;
use crate::{Error, Result, UnicodeForm};

/// Training options of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// The unit that a label represents.
    pub kind: TokenizerKind,
    /// Unicode form of all texts, in training and later.
    pub normalize: UnicodeForm,
    /// Words that are single labels; `None` means all words `<...>` of the texts.
    pub special: Option<Vec<String>>,
}

impl TokenizerOptions {
    /// Options with NFC texts and words `<...>` as single labels.
    pub fn new(kind: TokenizerKind) -> Self {
        Self { kind, normalize: UnicodeForm::default(), special: None }
    }

    /// Checks the list of special words.
    ///
    /// # Errors
    /// A word that is empty, a duplicate, `<s>` or `</s>`, or contains white space or U+2581.
    pub fn check(&self) -> Result<()> {
        special::from_list(self.special.as_deref().unwrap_or_default(), self.normalize).map(drop)
    }
}

impl Tokenizer {
    /// Trains a tokenizer on texts.
    ///
    /// Deterministic, independent of the order of the texts and the number of threads: words and
    /// characters are sorted; byte pairs are merged by decreasing count, ties by id, after the
    /// sorted characters; subwords of the unigram model are sorted by decreasing probability.
    /// Training may end below a `size` that the texts cannot fill; see [`Tokenizer::size`].
    ///
    /// # Errors
    /// A kind that can only be imported; no word in the texts; the word mark U+2581 in a text
    /// (except for words and characters); a `size` below the number of characters.
    ///
    /// ```
    /// use speech::{Tokenizer, TokenizerKind};
    /// let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["a cat"])?;
    /// assert_eq!(tokenizer.size(), 4); // ▁a ▁c a t
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("cat a")?)?, "cat a");
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn train(kind: TokenizerKind, texts: &[impl AsRef<str>]) -> Result<Self> {
        Self::train_with(&TokenizerOptions::new(kind), texts)
    }

    /// [`Tokenizer::train`] with a Unicode form and special words.
    ///
    /// Special words follow the other tokens (except for words, which are sorted) and count toward
    /// the `size`.
    ///
    /// # Errors
    /// Those of [`Tokenizer::train`] and [`TokenizerOptions::check`]; a special word that equals an
    /// ordinary token; `<s>` or `</s>` within a text.
    ///
    /// ```
    /// use speech::{Tokenizer, TokenizerKind, TokenizerOptions};
    /// let special = Some(vec!["[noise]".to_owned()]);
    /// let options = TokenizerOptions::new(TokenizerKind::Characters);
    /// let options = TokenizerOptions { special, ..options };
    /// let tokenizer = Tokenizer::train_with(&options, &["a [noise] b"])?;
    /// assert_eq!(tokenizer.tokens(), [" ", "a", "b", "[noise]"]);
    /// assert_eq!(tokenizer.encode("[noise] a")?, [3, 0, 1]);
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn train_with(options: &TokenizerOptions, texts: &[impl AsRef<str>]) -> Result<Self> {
        let TokenizerOptions { kind, normalize, ref special } = *options;
        if kind.is_imported() {
            return Err(Error::Setting {
                field: "kind",
                expected: "a kind of tokenizer that can be trained".into(),
                found: format!("{kind:?}, which is imported with a model"),
            });
        }
        let normalized = |text: &str| normalize_spaces(&normalize.apply(strip_sentence_marks(text)));
        let texts: Vec<String> =
            texts.iter().map(|text| normalized(text.as_ref())).filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return Err(Error::NoText);
        }
        let special = special::find_words(special.as_deref(), normalize, &texts)?;
        // Pieces of the ordinary text: tokens, or words that subwords are trained on.
        let special_words: HashSet<&str> = special.iter().map(String::as_str).collect();
        let splitter = pre_tokenizer(kind)?;
        let mut pieces = Vec::new();
        for text in &texts {
            check_no_sentence_mark(text)?;
            check_no_word_mark(kind, text)?;
            for run in split_at_special_words(kind, text, |word| special_words.contains(word)) {
                match run {
                    TextRun::OrdinaryWords(text) => pieces.extend(split_text(&splitter, &text)?),
                    TextRun::SpecialWord(_) => {}
                }
            }
        }
        // The ordinary tokens.
        let (mut merges, mut scores, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        match kind {
            TokenizerKind::Bpe { .. } | TokenizerKind::Unigram { .. } if pieces.is_empty() => {}
            TokenizerKind::Bpe { size } => {
                check_alphabet(&pieces, size, special.len())?;
                (tokens, merges) = bpe::train(&pieces, size - special.len())?;
            }
            TokenizerKind::Unigram { size } => {
                let alphabet = check_alphabet(&pieces, size, special.len())?;
                (tokens, scores) = unigram::train(&pieces, size - special.len(), alphabet);
            }
            TokenizerKind::Words => {
                tokens =
                    pieces.iter().chain(&special).collect::<BTreeSet<_>>().into_iter().cloned().collect();
            }
            _ => tokens = pieces.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        }
        // The special words follow.
        if kind != TokenizerKind::Words {
            let ordinary: HashSet<&String> = tokens.iter().collect();
            if let Some(word) = special.iter().find(|word| ordinary.contains(&special_token(kind, word))) {
                return Err(Error::Setting {
                    field: "special",
                    expected: "words that differ from ordinary tokens, such as words in brackets".into(),
                    found: format!("{word:?}, which is an ordinary token"),
                });
            }
            tokens.extend(special.iter().map(|word| special_token(kind, word)));
        }
        let (format, normalize) = (FORMAT.into(), Some(normalize));
        Self::build(StoredTokenizer { format, kind, normalize, special, tokens, merges, scores, file: None })
    }
}

/// Checks that a vocabulary of `size` has all characters and special words.
///
/// Returns the number of distinct characters.
fn check_alphabet(words: &[String], size: usize, special: usize) -> Result<usize> {
    let alphabet = words.iter().flat_map(|word| word.chars()).collect::<HashSet<_>>().len();
    if size < alphabet.saturating_add(special) {
        let expected = match special {
            0 => format!("at least the {alphabet} characters of the text"),
            _ => format!("at least the {alphabet} characters and {special} special words of the text"),
        };
        return Err(setting_error("size", &expected, size));
    }
    Ok(alphabet)
}
