//! `Tokenizer`: transcripts to label ids and back, based on the crate `tokenizers`.
//!
//! Tokens are words, characters or subwords ([`TokenizerKind`]). The crate's models encode and
//! decode the ordinary tokens; special words, Unicode forms and the JSON form are added here.
//! Tokenizers of other programs encode and decode as these programs do; see
//! [`Tokenizer::from_sentencepiece`] and [`Tokenizer::from_huggingface`].

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::tokenizer::{Model, ModelWrapper};

mod bpe;
mod hugging_face;
mod imported;
mod kind;
mod sentencepiece;
mod special;
mod splitting;
mod stored_tokenizer;
mod training;
mod unigram;

pub use special::find_bracketed;
pub use training::TokenizerOptions;

use imported::ImportedTokenizer;
use splitting::{TextRun, normalize_spaces, pre_tokenizer, split_at_special_words, split_text};
use stored_tokenizer::StoredTokenizer;

use crate::sentence_marks::{find_sentence_mark, strip_sentence_marks};
use crate::unicode::{UnicodeForm, decompose};
use crate::{Error, Result};

/// The unit that a label represents.
///
/// In TOML and JSON, the name in kebab case, such as `"inner-characters"`, or `{ bpe = { size = 500
/// } }`, `{ unigram = { size = 1023 } }`. Imported tokenizers have the names `"sentencepiece"` and
/// `"huggingface"`.
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
    /// A piece of a SentencePiece model: [`Tokenizer::from_sentencepiece`].
    ///
    /// Pieces that begin a word are marked.
    #[serde(rename = "sentencepiece")]
    SentencePiece,
    /// A token of Hugging Face's format: [`Tokenizer::from_huggingface`].
    ///
    /// Tokens that begin a word are marked.
    #[serde(rename = "huggingface")]
    HuggingFace,
}

impl TokenizerKind {
    /// Returns whether the tokenizer was read from another program's file.
    pub fn is_imported(self) -> bool {
        matches!(self, Self::SentencePiece | Self::HuggingFace)
    }

    /// Returns whether tokens are subwords, including all training characters.
    fn has_subwords(self) -> bool {
        matches!(self, Self::Bpe { .. } | Self::Unigram { .. })
    }
}

/// Marks word beginnings in tokens.
const WORD_MARK: char = '\u{2581}';

/// A trained map between text and ids `0..size`, without the blank.
///
/// White space is normalized to one space between words and none at the ends. Texts are converted
/// to the tokenizer's Unicode form, and sentence marks at their ends (`<s>`, `</s>`) are removed.
/// Special words are single labels and are never split. An imported tokenizer normalizes texts as
/// the program that it comes from.
#[derive(Clone)]
pub struct Tokenizer {
    kind: TokenizerKind,
    model: TokenModel,
    /// Ids of the special words.
    special: HashMap<String, u32>,
    /// The serialized form.
    stored: StoredTokenizer,
}

/// The model that encodes and decodes.
#[derive(Clone)]
enum TokenModel {
    /// The ordinary tokens of a trained tokenizer.
    Trained(Box<tokenizers::Tokenizer>),
    /// A tokenizer of another program.
    Imported(ImportedTokenizer),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind).field("size", &self.size()).finish()
    }
}

impl Tokenizer {
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
        Ok(Self { kind: stored.kind, model: TokenModel::Trained(Box::new(tokenizer)), special, stored })
    }

    /// Builds an imported tokenizer.
    fn from_imported(model: ImportedTokenizer, mut stored: StoredTokenizer) -> Self {
        let mut special = model.special_words();
        special.sort_unstable();
        stored.special = special.iter().map(|(word, _)| word.clone()).collect();
        let special = special.into_iter().collect();
        Self { kind: stored.kind, model: TokenModel::Imported(model), special, stored }
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
    ///
    /// In imported tokenizers, the unknown piece and control pieces are special too.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.model {
            TokenModel::Trained(_) => self.special.values().any(|&special| special == id),
            TokenModel::Imported(model) => model.is_special(id),
        }
    }

    /// Normalizes a text as for encoding and scoring.
    ///
    /// The text is converted to the tokenizer's Unicode form, and sentence marks at its ends are
    /// removed. Tokenizers of older checkpoints return the text unchanged, imported ones apply
    /// their own rules.
    pub fn normalize<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match (&self.model, self.stored.normalize) {
            (TokenModel::Imported(model), _) => Cow::Owned(model.normalize(text)),
            (_, None) => Cow::Borrowed(text),
            (_, Some(form)) => form.apply(strip_sentence_marks(text)),
        }
    }

    /// Returns a text without special words, with single spaces.
    pub fn without_special(&self, text: &str) -> String {
        if let TokenModel::Imported(model) = &self.model {
            return model.without_special(text);
        }
        let words = text.split_whitespace().filter(|word| !self.special.contains_key(*word));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Encodes a text to label ids.
    ///
    /// There is no label for unknown symbols: only training texts are encoded, never references of
    /// an evaluation. With [`UnicodeForm::None`], a text with an unknown symbol is also tried in
    /// its composed and decomposed forms. Imported tokenizers have an unknown label or bytes.
    ///
    /// # Errors
    /// A symbol that does not occur in the training text (the error names it and the text); `<s>`
    /// or `</s>` within the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let ordinary = match &self.model {
            TokenModel::Trained(ordinary) => ordinary,
            TokenModel::Imported(model) => return model.encode(text),
        };
        let text = normalize_spaces(&self.normalize(text));
        if self.stored.normalize.is_some() {
            check_no_sentence_mark(&text)?;
        }
        check_no_word_mark(self.kind, &text)?;
        let ids = self.encode_normalized(ordinary, &text);
        if !matches!(ids, Err(Error::UnknownSymbol { .. })) || self.unicode_form() != UnicodeForm::None {
            return ids;
        }
        let forms = [UnicodeForm::Nfc.apply(&text).into_owned(), decompose(&text)];
        let mut forms = forms.iter().filter(|form| **form != text);
        forms.find_map(|form| self.encode_normalized(ordinary, form).ok()).map_or(ids, Ok)
    }

    /// Encodes a text with normalized white space and Unicode form.
    fn encode_normalized(&self, ordinary: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for run in split_at_special_words(self.kind, text, |word| self.special.contains_key(word)) {
            match run {
                TextRun::SpecialWord(word) => ids.push(self.special[word]),
                TextRun::OrdinaryWords(text) => {
                    self.check_symbols(ordinary, &text)?;
                    ids.extend(ordinary.encode_fast(&*text, false).map_err(library_error)?.get_ids());
                }
            }
        }
        Ok(ids)
    }

    /// Checks that all symbols of an ordinary text have tokens.
    fn check_symbols(&self, ordinary: &tokenizers::Tokenizer, text: &str) -> Result<()> {
        let is_known = |symbol: &str| ordinary.get_model().token_to_id(symbol).is_some();
        let Some(splitter) = ordinary.get_pre_tokenizer() else { return Ok(()) };
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
    /// `decode(encode(text))` is the text with normalized white space; with imported tokenizers,
    /// also with their other normalization, and with a mark for unknown characters.
    ///
    /// # Errors
    /// An id that is not below [`Tokenizer::size`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(index) = ids.iter().position(|&id| id as usize >= self.size()) {
            return Err(Error::UnknownId { size: self.size(), id: ids[index], index });
        }
        let ordinary = match &self.model {
            TokenModel::Trained(ordinary) => ordinary,
            TokenModel::Imported(model) => return model.decode(ids),
        };
        if self.special.is_empty() || self.kind == TokenizerKind::Words {
            return ordinary.decode(ids, false).map_err(library_error);
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
                part => (ordinary.decode(part, false).map_err(library_error)?, false),
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
    /// byte-pair encoding, the scores of the unigram model, or the file of an imported tokenizer.
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
    /// tokens, a number of scores that differs from that of tokens, or a damaged file of an
    /// imported tokenizer.
    pub fn from_json(json: &str) -> Result<Self> {
        let stored = StoredTokenizer::from_json(json)?;
        if stored.kind.is_imported() { Self::from_stored_file(stored) } else { Self::build(stored) }
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

fn library_error(error: impl ToString) -> Error {
    Error::Tokenizers(error.to_string())
}
