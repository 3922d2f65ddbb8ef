//! `Tokenizer`: transcripts to label ids and back, based on the crate `tokenizers`.
//!
//! Tokens are words, characters or subwords ([`TokenizerKind`]). The crate's models encode and
//! decode the ordinary tokens; special words, Unicode forms and the JSON form are added here.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde::Serialize;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::tokenizer::{Model, ModelWrapper};

mod bpe;
mod kind;
mod special;
mod splitting;
mod stored_tokenizer;
mod unigram;

pub use special::find_bracketed;

use splitting::{TextRun, normalize_spaces, pre_tokenizer, split_at_special_words, split_text};
use stored_tokenizer::{FORMAT, StoredTokenizer};

use crate::features::setting_error;
use crate::sentence_marks::{find_sentence_mark, strip_sentence_marks};
use crate::unicode::{UnicodeForm, decompose};
use crate::{Error, Result};

/// The unit that a label represents.
///
/// In TOML and JSON, the name in kebab case, such as `"inner-characters"`, or `{ bpe = { size = 500
/// } }`, `{ unigram = { size = 1023 } }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TokenizerKind {
    /// A word.
    Words,
    /// A character; the space between words is a character too.
    Characters,
    /// A character, labeled by whether it begins a word.
    ///
    /// No label for spaces is needed.
    InnerCharacters,
    /// A subword of byte-pair encoding (over characters).
    ///
    /// Subwords that begin a word are marked.
    Bpe {
        /// Vocabulary size; at least the number of distinct characters, with marked word starts.
        size: usize,
    },
    /// A subword of a unigram language model.
    ///
    /// Subwords that begin a word are marked.
    Unigram {
        /// Vocabulary size; at least the number of distinct characters, with marked word starts.
        size: usize,
    },
}

impl TokenizerKind {
    /// Returns whether tokens are subwords, including all training characters.
    fn has_subwords(self) -> bool {
        matches!(self, Self::Bpe { .. } | Self::Unigram { .. })
    }
}

/// Marks word beginnings in tokens.
const WORD_MARK: char = '\u{2581}';

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

/// A trained map between text and ids `0..size`, without the blank.
///
/// White space is normalized to one space between words and none at the ends. Texts are converted
/// to the tokenizer's Unicode form, and sentence marks at their ends (`<s>`, `</s>`) are removed.
/// Special words are single labels and are never split.
#[derive(Clone)]
pub struct Tokenizer {
    kind: TokenizerKind,
    /// The ordinary tokens.
    ordinary: tokenizers::Tokenizer,
    /// Ids of the special words.
    special: HashMap<String, u32>,
    /// The serialized form.
    stored: StoredTokenizer,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind).field("size", &self.size()).finish()
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
    /// No word in the texts; the word mark U+2581 in a text (except for words and characters); a
    /// `size` below the number of characters.
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
        Self::build(StoredTokenizer { format, kind, normalize, special, tokens, merges, scores })
    }

    /// Builds the library's tokenizer: model, pre-tokenizer and decoder.
    fn build(stored: StoredTokenizer) -> Result<Self> {
        let count = stored.tokens.len();
        let ordinary = match stored.kind {
            TokenizerKind::Words => &stored.tokens,
            _ => &stored.tokens[..count - stored.special.len()],
        };
        let model: ModelWrapper = match stored.kind {
            TokenizerKind::Bpe { .. } => bpe::build_model(ordinary, &stored.merges)?.into(),
            TokenizerKind::Unigram { .. } if !ordinary.is_empty() => {
                unigram::build_model(ordinary, &stored.scores)?.into()
            }
            // The empty string is never part of a text, so unknown pieces are errors.
            _ => WordLevel::builder()
                .vocab(ordinary.iter().cloned().zip(0u32..).collect())
                .unk_token(String::new())
                .build()
                .map_err(library_error)?
                .into(),
        };
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer(stored.kind)?));
        match stored.kind {
            // Without a decoder, tokens are joined by spaces.
            TokenizerKind::Words => {}
            TokenizerKind::Characters => {
                tokenizer.with_decoder(Some(Fuse::new()));
            }
            _ => {
                tokenizer.with_decoder(Some(Metaspace::new(WORD_MARK, PrependScheme::Always, true)));
            }
        }
        let ids: HashMap<&str, u32> = stored.tokens.iter().map(String::as_str).zip(0..).collect();
        let id = |word: &String| (word.clone(), ids[special_token(stored.kind, word).as_str()]);
        let special = stored.special.iter().map(id).collect();
        Ok(Self { kind: stored.kind, ordinary: tokenizer, special, stored })
    }

    /// Returns the unit that a label represents.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Returns the number of ids.
    pub fn size(&self) -> usize {
        self.stored.tokens.len()
    }

    /// Returns the tokens in the order of their ids.
    ///
    /// U+2581 marks word beginnings in kinds that distinguish them.
    pub fn tokens(&self) -> &[String] {
        &self.stored.tokens
    }

    /// Returns the Unicode form of texts; `None` for tokenizers of older checkpoints.
    pub fn unicode_form(&self) -> UnicodeForm {
        self.stored.normalize.unwrap_or(UnicodeForm::None)
    }

    /// Returns the words that are single labels, sorted.
    pub fn special_words(&self) -> &[String] {
        &self.stored.special
    }

    /// Returns whether a label is a special word.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.values().any(|&special| special == id)
    }

    /// Normalizes a text as for encoding and scoring.
    ///
    /// The text is converted to the tokenizer's Unicode form, and sentence marks at its ends are
    /// removed. Tokenizers of older checkpoints return the text unchanged.
    pub fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.stored.normalize {
            None => Cow::Borrowed(text),
            Some(form) => form.apply(strip_sentence_marks(text)),
        }
    }

    /// Returns a text without special words, with single spaces.
    pub fn without_special(&self, text: &str) -> String {
        let words = text.split_whitespace().filter(|word| !self.special.contains_key(*word));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Encodes a text to label ids.
    ///
    /// There is no label for unknown symbols: only training texts are encoded, never references of
    /// an evaluation. With [`UnicodeForm::None`], a text with an unknown symbol is also tried in
    /// its composed and decomposed forms.
    ///
    /// # Errors
    /// A symbol that does not occur in the training text (the error names it and the text); `<s>`
    /// or `</s>` within the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let text = normalize_spaces(&self.normalize(text));
        if self.stored.normalize.is_some() {
            check_no_sentence_mark(&text)?;
        }
        check_no_word_mark(self.kind, &text)?;
        let ids = self.encode_normalized(&text);
        if !matches!(ids, Err(Error::UnknownSymbol { .. })) || self.unicode_form() != UnicodeForm::None {
            return ids;
        }
        let forms = [UnicodeForm::Nfc.apply(&text).into_owned(), decompose(&text)];
        let fallback =
            forms.iter().filter(|form| **form != text).find_map(|form| self.encode_normalized(form).ok());
        fallback.map_or(ids, Ok)
    }

    /// Encodes a text with normalized white space and Unicode form.
    fn encode_normalized(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for run in split_at_special_words(self.kind, text, |word| self.special.contains_key(word)) {
            match run {
                TextRun::SpecialWord(word) => ids.push(self.special[word]),
                TextRun::OrdinaryWords(text) => {
                    self.check_symbols(&text)?;
                    ids.extend(self.ordinary.encode_fast(&*text, false).map_err(library_error)?.get_ids());
                }
            }
        }
        Ok(ids)
    }

    /// Checks that all symbols of an ordinary text have tokens.
    fn check_symbols(&self, text: &str) -> Result<()> {
        let is_known = |symbol: &str| self.ordinary.get_model().token_to_id(symbol).is_some();
        let Some(splitter) = self.ordinary.get_pre_tokenizer() else { return Ok(()) };
        for piece in split_text(splitter, text)? {
            let unknown = match self.kind {
                // Byte-pair encoding would silently drop unknown characters, the unigram model
                // would not name them.
                kind if kind.has_subwords() => piece.chars().map(String::from).find(|c| !is_known(c)),
                _ => Some(piece).filter(|token| !is_known(token)),
            };
            if let Some(symbol) = unknown {
                return Err(Error::UnknownSymbol { symbol, text: text.into() });
            }
        }
        Ok(())
    }

    /// Decodes label ids to text.
    ///
    /// `decode(encode(text))` is the text with normalized white space.
    ///
    /// # Errors
    /// An id that is not below [`Tokenizer::size`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(index) = ids.iter().position(|&id| id as usize >= self.size()) {
            return Err(Error::UnknownId { size: self.size(), id: ids[index], index });
        }
        if self.special.is_empty() || self.kind == TokenizerKind::Words {
            return self.ordinary.decode(ids, false).map_err(library_error);
        }
        let first_special = (self.size() - self.special.len()) as u32;
        let mut text = String::new();
        let mut is_after_special = false;
        // Decodes runs of ordinary tokens, and each special word.
        for part in ids.chunk_by(|&a, &b| a < first_special && b < first_special) {
            let (part, is_special) = match part {
                &[id] if id >= first_special => {
                    (self.stored.special[(id - first_special) as usize].clone(), true)
                }
                part => (self.ordinary.decode(part, false).map_err(library_error)?, false),
            };
            // A special word is a separate word next to any neighbor; characters include their
            // spaces.
            let has_space = text.is_empty() || text.ends_with(' ') || part.starts_with(' ');
            if (is_special || is_after_special) && !has_space {
                text.push(' ');
            }
            text += &part;
            is_after_special = is_special;
        }
        Ok(text)
    }

    /// Serializes the tokenizer as JSON.
    ///
    /// The JSON contains the kind, the tokens in the order of their ids, and the merges of
    /// byte-pair encoding or the scores of the unigram model.
    ///
    /// # Errors
    /// Errors of the JSON writer, none in practice.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(&self.stored).map_err(library_error)
    }

    /// Deserializes the JSON of [`Tokenizer::to_json`].
    ///
    /// # Errors
    /// Other JSON, another format, no token, a duplicate or malformed token, merges of unknown
    /// tokens, or a number of scores that differs from that of tokens.
    pub fn from_json(json: &str) -> Result<Self> {
        Self::build(StoredTokenizer::from_json(json)?)
    }
}

/// Returns the token of a special word, which begins a word.
fn special_token(kind: TokenizerKind, word: &str) -> String {
    if has_word_marks(kind) { format!("{WORD_MARK}{word}") } else { word.to_owned() }
}

/// Returns whether tokens that begin a word have the word mark.
fn has_word_marks(kind: TokenizerKind) -> bool {
    kind.has_subwords() || kind == TokenizerKind::InnerCharacters
}

fn check_no_word_mark(kind: TokenizerKind, text: &str) -> Result<()> {
    if has_word_marks(kind) && text.contains(WORD_MARK) {
        return Err(Error::ReservedSymbol { symbol: WORD_MARK, text: text.into() });
    }
    Ok(())
}

fn check_no_sentence_mark(text: &str) -> Result<()> {
    match find_sentence_mark(text) {
        None => Ok(()),
        Some(mark) => Err(Error::SentenceMark { mark: mark.into(), text: text.into() }),
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

fn library_error(error: impl ToString) -> Error {
    Error::Tokenizers(error.to_string())
}
