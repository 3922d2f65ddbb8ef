//! `StoredTokenizer`: the JSON form of a tokenizer, in checkpoints and tokenizer files.

use std::collections::HashSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{TokenizerKind, WORD_MARK, special, special_token};
use crate::{Error, Result, UnicodeForm};

/// Format identifier of stored tokenizers.
pub(super) const FORMAT: &str = "panda-tokens/1";

/// The serialized form of a tokenizer.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredTokenizer {
    pub format: String,
    pub kind: TokenizerKind,
    /// Missing in older files, whose texts were not converted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<UnicodeForm>,
    /// Words that are single tokens: the last tokens or, for kind words, any tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<String>,
    /// Tokens in the order of their ids.
    pub tokens: Vec<String>,
    /// Merges of byte-pair encoding, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merges: Vec<(String, String)>,
    /// Log-probabilities of the unigram model's tokens, in 2^-20 nats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<i32>,
    /// The file of an imported tokenizer, which encodes and decodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<SourceFile>,
}

impl StoredTokenizer {
    /// Parses the JSON of a tokenizer and checks it.
    ///
    /// The errors are those of [`Tokenizer::from_json`](super::Tokenizer::from_json).
    pub(super) fn from_json(json: &str) -> Result<Self> {
        let invalid = |expected, found: String| Error::TokenizerFile { expected, found };
        let stored: StoredTokenizer = serde_json::from_str(json).map_err(|e| {
            invalid("JSON with `format`, `kind`, `tokens`, `merges` and `scores`", e.to_string())
        })?;
        if stored.format != FORMAT {
            return Err(invalid("format panda-tokens/1", format!("{:?}", stored.format)));
        }
        if stored.tokens.is_empty() {
            return Err(invalid("at least one token", "none".into()));
        }
        if stored.file.is_some() != stored.kind.is_imported() {
            let presence = if stored.file.is_some() { "with" } else { "without" };
            return Err(invalid(
                "a `file` with kinds sentencepiece and huggingface, otherwise none",
                format!("{:?} {presence} one", stored.kind),
            ));
        }
        if stored.kind.is_imported() {
            // The file is checked where it is read.
            return Ok(stored);
        }
        let ordinary = stored.ordinary_tokens()?;
        let mut unique_tokens = HashSet::new();
        for token in &stored.tokens {
            if !unique_tokens.insert(token) {
                return Err(invalid("unique tokens", format!("{token:?} twice")));
            }
        }
        for token in ordinary {
            if !is_well_formed(stored.kind, token) {
                return Err(invalid(
                    "well-formed tokens of their kind",
                    format!("{token:?} for {:?}", stored.kind),
                ));
            }
        }
        if !stored.merges.is_empty() && !matches!(stored.kind, TokenizerKind::Bpe { .. }) {
            return Err(invalid("merges with kind bpe only", format!("{} merges", stored.merges.len())));
        }
        let expected_scores =
            if matches!(stored.kind, TokenizerKind::Unigram { .. }) { ordinary.len() } else { 0 };
        if stored.scores.len() != expected_scores {
            let scores =
                format!("{} of {} tokens for {:?}", stored.scores.len(), ordinary.len(), stored.kind);
            return Err(invalid("one score per token with kind unigram, otherwise no scores", scores));
        }
        for (a, b) in &stored.merges {
            if let Some(unknown) =
                [a, b, &format!("{a}{b}")].into_iter().find(|token| !unique_tokens.contains(*token))
            {
                return Err(invalid("merges of known tokens", format!("{unknown:?}")));
            }
        }
        Ok(stored)
    }

    /// Returns the ordinary tokens, and checks the position of special words.
    fn ordinary_tokens(&self) -> Result<&[String]> {
        let misplaced = |word: &String| Error::TokenizerFile {
            expected: "one token per special word, after the ordinary tokens",
            found: format!("{word:?} elsewhere"),
        };
        if self.kind == TokenizerKind::Words {
            let unknown = |word: &&String| !special::is_valid(word) || !self.tokens.contains(word);
            return self.special.iter().find(unknown).map_or(Ok(&self.tokens), |word| Err(misplaced(word)));
        }
        let first_special = self.tokens.len().checked_sub(self.special.len());
        let Some(first_special) = first_special else { return Err(misplaced(&self.special[0])) };
        let (ordinary, special) = self.tokens.split_at(first_special);
        let fits = |(word, token): (&String, &String)| {
            special::is_valid(word) && special_token(self.kind, word) == *token
        };
        match self.special.iter().zip(special).find(|&pair| !fits(pair)) {
            Some((word, _)) => Err(misplaced(word)),
            None => Ok(ordinary),
        }
    }
}

/// Returns whether training can produce a token of this form.
fn is_well_formed(kind: TokenizerKind, token: &str) -> bool {
    let unmarked = token.strip_prefix(WORD_MARK).unwrap_or(token);
    match kind {
        TokenizerKind::Words => !token.is_empty() && !token.contains(char::is_whitespace),
        TokenizerKind::Characters => token.chars().count() == 1,
        TokenizerKind::InnerCharacters => unmarked.chars().count() == 1 && !unmarked.contains(WORD_MARK),
        _ => !token.is_empty() && !unmarked.contains(WORD_MARK),
    }
}

/// The bytes of a file, in base64 where they are serialized.
#[derive(Clone)]
pub(super) struct SourceFile(pub Vec<u8>);

impl Serialize for SourceFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SourceFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(SourceFile).map_err(serde::de::Error::custom)
    }
}
