//! `ImportedTokenizer`: a tokenizer that was read from another program's file.
//!
//! The bytes of the file are part of the tokenizer, so that an export can write the same file.

use std::sync::Arc;

use super::hugging_face::HuggingFace;
use super::sentencepiece::SentencePiece;
use super::stored_tokenizer::{FORMAT, SourceFile, StoredTokenizer};
use super::{Tokenizer, TokenizerKind};
use crate::{Error, Result};

/// A tokenizer of another program.
#[derive(Clone)]
pub(super) enum ImportedTokenizer {
    SentencePiece(Arc<SentencePiece>),
    HuggingFace(Arc<HuggingFace>),
}

impl ImportedTokenizer {
    /// Reads the file of a kind; `size` limits the ids of Hugging Face's.
    pub(super) fn read(kind: TokenizerKind, file: &[u8], size: Option<usize>) -> Result<Self> {
        match kind {
            TokenizerKind::SentencePiece => {
                Ok(Self::SentencePiece(Arc::new(SentencePiece::from_bytes(file)?)))
            }
            TokenizerKind::HuggingFace => {
                Ok(Self::HuggingFace(Arc::new(HuggingFace::from_json(file, size)?)))
            }
            _ => Err(Error::TokenizerFile {
                expected: "the file of another program with kind sentencepiece or huggingface only",
                found: format!("{kind:?}"),
            }),
        }
    }

    pub(super) fn tokens(&self) -> Vec<String> {
        match self {
            Self::SentencePiece(model) => model.tokens(),
            Self::HuggingFace(model) => model.tokens(),
        }
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::SentencePiece(model) => Ok(model.encode(text)),
            Self::HuggingFace(model) => model.encode(text),
        }
    }

    /// Decodes ids, which must be valid.
    pub(super) fn decode(&self, ids: &[u32]) -> Result<String> {
        match self {
            Self::SentencePiece(model) => Ok(model.decode(ids)),
            Self::HuggingFace(model) => model.decode(ids),
        }
    }

    /// Normalizes a text for scoring.
    pub(super) fn normalize(&self, text: &str) -> String {
        match self {
            Self::SentencePiece(model) => model.normalize(text),
            Self::HuggingFace(model) => model.normalize(text),
        }
    }

    /// Returns the words that are single tokens, with their ids.
    pub(super) fn special_words(&self) -> Vec<(String, u32)> {
        let owned = |(word, id): (&str, u32)| (word.to_owned(), id);
        match self {
            Self::SentencePiece(model) => model.special_words().map(owned).collect(),
            Self::HuggingFace(model) => model.special_words().map(owned).collect(),
        }
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        match self {
            Self::SentencePiece(model) => model.is_special(id),
            Self::HuggingFace(model) => model.is_special(id),
        }
    }

    /// Removes special words and the text of unknown pieces.
    ///
    /// They need not be separate words.
    pub(super) fn without_special(&self, text: &str) -> String {
        let mut words: Vec<String> = self.special_words().into_iter().map(|(word, _)| word).collect();
        if let Self::SentencePiece(model) = self {
            words.push(model.unknown_word().to_owned());
        }
        // A word may be part of a longer one.
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        let mut text = text.to_owned();
        for word in words.iter().filter(|word| !word.is_empty()) {
            text = text.replace(word, " ");
        }
        super::splitting::normalize_spaces(&text)
    }
}

impl Tokenizer {
    /// Reads the `.model` file of a SentencePiece tokenizer.
    ///
    /// Texts and ids are those of SentencePiece, with its normalization: [`Tokenizer::encode`]
    /// encodes unknown characters as the unknown piece or as bytes, without an error. Supported are
    /// models of types unigram, BPE and characters.
    ///
    /// [`Tokenizer::special_words`] are the user-defined pieces of the form `<...>`.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`] for a damaged file or an unsupported feature.
    pub fn from_sentencepiece(model: &[u8]) -> Result<Self> {
        Self::from_file(TokenizerKind::SentencePiece, model.to_vec(), None)
    }

    /// Reads a Hugging Face `tokenizer.json` of a converted SentencePiece model.
    ///
    /// Texts and ids are those of the crate `tokenizers`, without tokens around the text.
    /// [`Tokenizer::special_words`] are the special tokens. If the last ones are not labels of the
    /// model, such as a blank, [`Tokenizer::with_size`] removes them.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`] for another file, and for components that SentencePiece models do
    /// not have.
    pub fn from_huggingface(json: &str) -> Result<Self> {
        Self::from_file(TokenizerKind::HuggingFace, json.into(), None)
    }

    /// Removes the special tokens from id `size` on, such as a blank.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`] for a tokenizer that was not read by
    /// [`Tokenizer::from_huggingface`], and if other than special tokens would be removed.
    pub fn with_size(self, size: usize) -> Result<Self> {
        if self.size() == size {
            return Ok(self);
        }
        match self.stored.file {
            Some(SourceFile(file)) if self.kind == TokenizerKind::HuggingFace => {
                Self::from_file(self.kind, file, Some(size))
            }
            _ => Err(Error::TokenizerFile {
                expected: "a tokenizer.json, of which special tokens at the end can be removed",
                found: format!("a tokenizer of kind {:?}", self.kind),
            }),
        }
    }

    /// Returns the file from which the tokenizer was imported: its usual name and its bytes.
    pub fn source_file(&self) -> Option<(&'static str, &[u8])> {
        let SourceFile(bytes) = self.stored.file.as_ref()?;
        match self.kind {
            TokenizerKind::SentencePiece => Some(("tokenizer.model", bytes)),
            _ => Some(("tokenizer.json", bytes)),
        }
    }

    fn from_file(kind: TokenizerKind, file: Vec<u8>, size: Option<usize>) -> Result<Self> {
        let model = ImportedTokenizer::read(kind, &file, size)?;
        let stored = StoredTokenizer {
            format: FORMAT.into(),
            kind,
            normalize: None,
            special: Vec::new(),
            tokens: model.tokens(),
            merges: Vec::new(),
            scores: Vec::new(),
            file: Some(SourceFile(file)),
        };
        Ok(Self::from_imported(model, stored))
    }

    /// Builds the tokenizer of a stored file.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`] for a damaged file, and if its tokens are not the stored ones.
    pub(super) fn from_stored_file(stored: StoredTokenizer) -> Result<Self> {
        let file = stored.file.as_ref().map_or(&[][..], |SourceFile(bytes)| bytes);
        let model = ImportedTokenizer::read(stored.kind, file, Some(stored.tokens.len()))?;
        let has_tokens = model.tokens() == stored.tokens;
        let has_trained_fields =
            !stored.merges.is_empty() || !stored.scores.is_empty() || stored.normalize.is_some();
        let special = stored.special.clone();
        let tokenizer = Self::from_imported(model, stored);
        if !has_tokens || has_trained_fields || tokenizer.stored.special != special {
            return Err(Error::TokenizerFile {
                expected: "the tokens of the stored file",
                found: format!("{} other tokens, or other fields", tokenizer.size()),
            });
        }
        Ok(tokenizer)
    }
}
