//! Deserializes `TokenizerKind`, with errors that name a missing vocabulary size.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::TokenizerKind;

/// The forms in a table.
#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Table {
    Words,
    Characters,
    InnerCharacters,
    Bpe(Subwords),
    Unigram(Subwords),
    #[serde(rename = "sentencepiece")]
    SentencePiece,
    #[serde(rename = "huggingface")]
    HuggingFace,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Subwords {
    size: usize,
}

/// Visits names and tables.
///
/// A derived error for `"bpe"` would mention variants, not the missing size.
struct KindVisitor;

const EXPECTED: &str = "`words`, `characters`, `inner-characters`, `{ bpe = { size = 500 } }` or `{ unigram = { size = 1023 } }`";

impl<'de> Visitor<'de> for KindVisitor {
    type Value = TokenizerKind;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<TokenizerKind, E> {
        match name {
            "words" => Ok(TokenizerKind::Words),
            "characters" => Ok(TokenizerKind::Characters),
            "inner-characters" => Ok(TokenizerKind::InnerCharacters),
            "sentencepiece" => Ok(TokenizerKind::SentencePiece),
            "huggingface" => Ok(TokenizerKind::HuggingFace),
            "bpe" | "unigram" => Err(E::custom(format_args!(
                "kind `{name}` requires `size`, the number of tokens: kind = {{ {name} = {{ size = 500 }} }}",
            ))),
            other => Err(E::custom(format_args!("unknown kind `{other}`, expected {EXPECTED}"))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TokenizerKind, A::Error> {
        Ok(match Table::deserialize(MapAccessDeserializer::new(map))? {
            Table::Words => TokenizerKind::Words,
            Table::Characters => TokenizerKind::Characters,
            Table::InnerCharacters => TokenizerKind::InnerCharacters,
            Table::Bpe(Subwords { size }) => TokenizerKind::Bpe { size },
            Table::Unigram(Subwords { size }) => TokenizerKind::Unigram { size },
            Table::SentencePiece => TokenizerKind::SentencePiece,
            Table::HuggingFace => TokenizerKind::HuggingFace,
        })
    }
}

impl<'de> Deserialize<'de> for TokenizerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}
