//! `HuggingFace`: a tokenizer of Hugging Face's `tokenizer.json`, run by the crate `tokenizers`.
//!
//! Supported are the components of converted SentencePiece models. Files are not trusted: the crate
//! panics for some of them, which becomes an error here.

use std::collections::{HashMap, HashSet};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tokenizers::tokenizer::{NormalizedString, Normalizer};

use super::sentencepiece::Charsmap;
use super::{WORD_MARK, library_error, special};
use crate::panic_guard::catch_panic;
use crate::{Error, Result};

/// Sections of a file, and the supported types of components.
const COMPONENTS: [(&str, &[&str]); 4] = [
    ("model", &["BPE", "Unigram"]),
    (
        "normalizer",
        &[
            "Sequence",
            "Precompiled",
            "Replace",
            "Prepend",
            "Strip",
            "Lowercase",
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
        ],
    ),
    ("pre_tokenizer", &["Sequence", "Metaspace", "Split", "WhitespaceSplit"]),
    ("decoder", &["Sequence", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"]),
];
/// Largest number of components in a section.
const MAX_COMPONENTS: usize = 8;
/// Largest number of characters of an inserted text.
///
/// Together with [`MAX_COMPONENTS`], it limits how much texts grow.
const MAX_INSERTED_CHARS: usize = 4;

/// A tokenizer of Hugging Face.
pub(super) struct HuggingFace {
    tokenizer: tokenizers::Tokenizer,
    /// Texts of the tokens in the order of their ids.
    tokens: Vec<String>,
    /// Ids of the unknown token and of special tokens.
    special: HashSet<u32>,
}

impl HuggingFace {
    /// Reads a file; only the first `size` ids are used, or all.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`].
    pub(super) fn from_json(json: &[u8], size: Option<usize>) -> Result<Self> {
        let mut value: Value = serde_json::from_slice(json)
            .map_err(|error| invalid("the JSON of a Hugging Face tokenizer", error.to_string()))?;
        for (section, types) in COMPONENTS {
            check_components(section, &value[section], types)?;
        }
        check_unknown_token(&value["model"])?;
        if let Some(fields) = value.as_object_mut() {
            // These change the number of tokens.
            fields.retain(|field, _| !["truncation", "padding", "post_processor"].contains(&field.as_str()));
            // These make encoding random.
            fields.get_mut("model").and_then(|model| Some(model.as_object_mut()?.remove("dropout")));
        }
        let bytes = serde_json::to_vec(&value).map_err(library_error)?;
        let tokenizer = catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes))
            .ok_or_else(|| invalid("a Hugging Face tokenizer", "one that cannot be loaded".into()))?
            .map_err(|error| invalid("a Hugging Face tokenizer", error.to_string()))?;
        let mut tokens = sort_by_id(tokenizer.get_vocab(true))?;
        let mut special: HashSet<u32> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| id)
            .collect();
        let unknown_token =
            value["model"]["unk_token"].as_str().and_then(|token| tokenizer.token_to_id(token));
        let unknown_id = value["model"]["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        special.extend(unknown_token.or(unknown_id));
        if let Some(size) = size {
            let is_valid = (1..=tokens.len()).contains(&size)
                && (size as u32..tokens.len() as u32).all(|id| special.contains(&id));
            if !is_valid {
                let sizes = format!("{size} of {} tokens", tokens.len());
                return Err(invalid("all tokens, without special ones at the end", sizes));
            }
            tokens.truncate(size);
        }
        if !tokens.iter().any(|token| token.starts_with(WORD_MARK)) {
            let no_marks = "none, as in tokenizers of bytes".into();
            return Err(invalid("tokens that mark the begin of a word by U+2581", no_marks));
        }
        Ok(Self { tokenizer, tokens, special })
    }

    /// Returns the tokens in the order of their ids.
    pub(super) fn tokens(&self) -> Vec<String> {
        self.tokens.clone()
    }

    /// Encodes a text, without tokens around it.
    ///
    /// # Errors
    /// [`Error::UnknownSymbol`] for the text of a token that is not used; [`Error::Tokenizers`].
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.guard(|| self.tokenizer.encode_fast(text, false))?;
        let ids = encoding.get_ids();
        match ids.iter().find(|&&id| id as usize >= self.tokens.len()) {
            None => Ok(ids.to_vec()),
            Some(&id) => {
                let symbol = self.tokenizer.id_to_token(id).unwrap_or_default();
                Err(Error::UnknownSymbol { symbol, text: text.into() })
            }
        }
    }

    /// Decodes ids, which must be valid.
    ///
    /// # Errors
    /// [`Error::Tokenizers`].
    pub(super) fn decode(&self, ids: &[u32]) -> Result<String> {
        self.guard(|| self.tokenizer.decode(ids, false))
    }

    /// Normalizes a text for scoring; a text that cannot be normalized is returned unchanged.
    pub(super) fn normalize(&self, text: &str) -> String {
        let mut normalized = NormalizedString::from(text);
        let Some(normalizer) = self.tokenizer.get_normalizer() else { return text.to_owned() };
        match self.guard(|| normalizer.normalize(&mut normalized)) {
            Ok(()) => normalized.get().replace(WORD_MARK, " ").trim().to_owned(),
            Err(_) => text.to_owned(),
        }
    }

    /// Returns the special tokens that can be words, with their ids.
    pub(super) fn special_words(&self) -> impl Iterator<Item = (&str, u32)> {
        let tokens = self.tokens.iter().zip(0..);
        tokens
            .filter(|(token, id)| self.special.contains(id) && special::is_valid(token))
            .map(|(token, id)| (token.as_str(), id))
    }

    /// Returns whether an id is the unknown or a special token.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Calls the library, which panics for some files.
    fn guard<T>(&self, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        catch_panic(call).unwrap_or_else(|| Err("the library panicked".into())).map_err(library_error)
    }
}

/// Checks that a component and its parts are supported; a missing one is.
fn check_components(section: &'static str, value: &Value, types: &[&str]) -> Result<()> {
    let (mut num_components, mut pending) = (0, vec![value]);
    while let Some(component) = pending.pop().filter(|component| !component.is_null()) {
        num_components += 1;
        let name = component["type"].as_str().unwrap_or_default();
        if !types.contains(&name) || num_components > MAX_COMPONENTS {
            let component = format!("{name:?} in `{section}`");
            return Err(invalid("components of SentencePiece models, at most 8 of a kind", component));
        }
        for list in ["normalizers", "pretokenizers", "decoders"] {
            pending.extend(component[list].as_array().into_iter().flatten());
        }
        for inserted in ["content", "prepend"] {
            let text = component[inserted].as_str().unwrap_or_default();
            if text.chars().nth(MAX_INSERTED_CHARS).is_some() {
                return Err(invalid("replacements of at most 4 characters", format!("{text:?}")));
            }
        }
        if name == "Precompiled" {
            // The library does not check it.
            let blob = component["precompiled_charsmap"].as_str().unwrap_or_default();
            let blob = BASE64_STANDARD.decode(blob);
            let blob = blob.map_err(|error| invalid("a charsmap in base64", error.to_string()))?;
            Charsmap::parse(&blob)?;
        }
    }
    Ok(())
}

/// Checks that unknown characters are not dropped.
fn check_unknown_token(model: &Value) -> Result<()> {
    let has_unknown = model["unk_token"].is_string() || model["unk_id"].is_number();
    if has_unknown || model["byte_fallback"] == true {
        return Ok(());
    }
    Err(invalid("a model with an unknown token or byte fallback", "neither".into()))
}

/// Returns the tokens of a vocabulary in the order of consecutive ids.
fn sort_by_id(vocabulary: HashMap<String, u32>) -> Result<Vec<String>> {
    let mut tokens: Vec<(u32, String)> = vocabulary.into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    match tokens.iter().zip(0..).find(|((id, _), expected)| id != expected) {
        None if !tokens.is_empty() => Ok(tokens.into_iter().map(|(_, token)| token).collect()),
        gap => {
            let gap = gap.map_or("none".into(), |((id, token), _)| format!("id {id} of {token:?}"));
            Err(invalid("tokens with consecutive ids from 0", gap))
        }
    }
}

fn invalid(expected: &'static str, found: String) -> Error {
    Error::TokenizerFile { expected, found }
}
